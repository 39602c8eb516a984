//! What is said, in both eras of the protocol.

use serde_json::{Value, json};

/// The era without sessions.
pub(super) const MODERN: &str = "2026-07-28";
/// The newest era with `initialize`.
pub(super) const LEGACY: &str = "2025-11-25";
/// The versions with `initialize` whose tool calls are the same.
pub(super) const LEGACY_KNOWN: [&str; 4] = [LEGACY, "2025-06-18", "2025-03-26", "2024-11-05"];
/// The error of a server of the newer era that does not have this version of it.
const UNSUPPORTED_VERSION: i64 = -32022;
const METHOD_NOT_FOUND: i64 = -32601;

/// How a server is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Era {
    Modern,
    /// With this version, which the server chose.
    Legacy(String),
}

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// It was not sent.
    NotSent(String),
    /// The server refused it.
    Refused { code: i64, message: String },
    /// It was sent, and there is no answer.
    Lost(String),
    /// It was cancelled.
    Cancelled,
    /// It took too long.
    TimedOut,
}

impl Failed {
    /// Whether it proves that the server is one of the newer era.
    pub(super) fn is_modern(&self) -> bool {
        matches!(self, Self::Refused { code: UNSUPPORTED_VERSION, .. })
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotSent(why) | Self::Lost(why) => formatter.write_str(why),
            Self::Refused { code, message } => write!(formatter, "the server refused it: {message} ({code})"),
            Self::Cancelled => formatter.write_str("it was cancelled"),
            Self::TimedOut => formatter.write_str("it took too long"),
        }
    }
}

/// A request. In the newer era each says what it is.
pub(super) fn request(id: u64, method: &str, params: Value, era: &Era) -> Value {
    let mut params = if params.is_object() { params } else { json!({}) };
    if *era == Era::Modern
        && let Some(params) = params.as_object_mut()
    {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": client(),
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        params.insert("_meta".to_owned(), meta);
    }
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub(super) fn notification(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

/// The parameters of `initialize`: nothing is offered to the server.
pub(super) fn greeting() -> Value {
    json!({"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client()})
}

fn client() -> Value {
    json!({"name": "selvedge", "version": env!("CARGO_PKG_VERSION")})
}

/// What a server sent.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    /// The answer to a request of ours.
    Answer { id: u64, outcome: Result<Value, Failed> },
    /// A request of the server's, and what is answered.
    Asked { answer: Value },
    /// The tools changed.
    ToolsChanged,
    /// Anything else.
    Other,
}

/// Reads one message. Anything that is no message is ignored: a careless server prints to its standard output.
pub(super) fn read(text: &[u8]) -> Vec<Incoming> {
    match serde_json::from_slice::<Value>(text) {
        Ok(Value::Array(batch)) => batch.into_iter().map(one).collect(),
        Ok(message) => vec![one(message)],
        Err(_) => vec![Incoming::Other],
    }
}

/// Takes a member out of a value, which may be of any kind.
pub(super) fn taken(value: &mut Value, name: &str) -> Value {
    value.get_mut(name).map(Value::take).unwrap_or_default()
}

fn one(mut message: Value) -> Incoming {
    let method = message["method"].as_str().map(str::to_owned);
    match (method.as_deref(), message.get("id")) {
        (Some("ping"), Some(id)) => Incoming::Asked { answer: json!({"jsonrpc": "2.0", "id": id, "result": {}}) },
        (Some(_), Some(id)) => {
            let error = json!({"code": METHOD_NOT_FOUND, "message": "this client does not offer that"});
            Incoming::Asked { answer: json!({"jsonrpc": "2.0", "id": id, "error": error}) }
        }
        (Some("notifications/tools/list_changed"), None) => Incoming::ToolsChanged,
        (None, Some(id)) => {
            let Some(id) = id.as_u64() else { return Incoming::Other };
            let outcome = match message.get("error") {
                Some(error) => {
                    let text: String = error["message"].as_str().unwrap_or("no reason").chars().take(2000).collect();
                    Err(Failed::Refused { code: error["code"].as_i64().unwrap_or_default(), message: text })
                }
                None => Ok(taken(&mut message, "result")),
            };
            Incoming::Answer { id, outcome }
        }
        _ => Incoming::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_nothing_that_it_was_not_offered() {
        for method in ["sampling/createMessage", "roots/list", "elicitation/create", "anything"] {
            let asked = json!({"jsonrpc": "2.0", "id": "x", "method": method, "params": {}});
            let said = read(asked.to_string().as_bytes());
            let [Incoming::Asked { answer }] = said.as_slice() else { panic!("{said:?}") };
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("x"), &json!(-32601)));
        }
    }

    #[test]
    fn only_the_newer_era_says_what_a_request_is() {
        assert!(request(1, "tools/list", Value::Null, &Era::Modern)["params"]["_meta"].is_object());
        assert_eq!(request(1, "tools/list", Value::Null, &Era::Legacy(LEGACY.to_owned()))["params"], json!({}));
    }

    #[test]
    fn what_is_no_message_is_ignored() {
        for text in ["", "listening on stdio", "{}", "[]", "{\"id\": \"a\", \"result\": 1}", "1"] {
            assert!(read(text.as_bytes()).iter().all(|one| *one == Incoming::Other), "{text}");
        }
    }
}
