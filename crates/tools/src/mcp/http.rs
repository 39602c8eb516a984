//! A server on the network: a POST for every message, answered by JSON or by a stream of events.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use selvedge_model::Cancel;
use selvedge_model::tool::{McpLaunch, McpServerSpec, McpToken, McpToolDefinition};
use serde_json::{Value, json};

use super::message::{self, Era, Failed, Incoming, MODERN};
use super::servers::McpEnvironment;
use crate::http;

const REDIRECTS_MAX: usize = 3;
const SESSION: &str = "mcp-session-id";
const SESSION_BYTES_MAX: usize = 1024;
const TOKEN_BYTES_MAX: usize = 64 * 1024;

/// A server on the network.
pub(super) struct Http {
    client: Client,
    url: Url,
    headers: HeaderMap,
    token: Option<McpToken>,
    around: McpEnvironment,
    message_bytes_max: u64,
    next_id: AtomicU64,
    /// What the server and its token source gave.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<HeaderValue>,
    token: Option<HeaderValue>,
}

/// The headers that repeat what is in a message.
struct Routing<'a> {
    method: &'a str,
    name: Option<&'a str>,
    parameters: Vec<(HeaderName, HeaderValue)>,
}

impl Http {
    pub(super) fn new(spec: &McpServerSpec, around: &McpEnvironment) -> Result<Self, String> {
        let McpLaunch::Url { url, headers, token } = &spec.launch else { return Err("it has no address".to_owned()) };
        let url = Url::parse(url).map_err(|error| format!("its address: {error}"))?;
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let value = filled(value, around)?;
            let name = HeaderName::try_from(name.as_str()).map_err(|_| format!("`{name}` is no header"))?;
            let mut value =
                HeaderValue::try_from(value).map_err(|_| format!("the value of `{name}` is no header's"))?;
            value.set_sensitive(true);
            map.insert(name, value);
        }
        let client = http::client()?.redirect(redirect::Policy::custom(same_host)).build();
        Ok(Self {
            client: client.map_err(|error| error.to_string())?,
            url,
            headers: map,
            token: token.clone(),
            around: around.clone(),
            message_bytes_max: spec.message_bytes_max,
            next_id: AtomicU64::new(1),
            state: Mutex::default(),
        })
    }

    pub(super) fn request(
        &self,
        method: &str,
        params: Value,
        era: &Era,
        cancel: &Cancel,
        most: Duration,
    ) -> Result<Value, Failed> {
        self.send(&Routing { method, name: None, parameters: Vec::new() }, params, era, cancel, most)
    }

    /// Calls a tool. Its name, and the arguments that its schema marks, are repeated in headers.
    pub(super) fn call(
        &self,
        tool: &McpToolDefinition,
        params: Value,
        era: &Era,
        cancel: &Cancel,
        most: Duration,
    ) -> Result<Value, Failed> {
        let parameters = if *era == Era::Modern { marked(tool, &params["arguments"]) } else { Vec::new() };
        self.send(&Routing { method: "tools/call", name: Some(&tool.name), parameters }, params, era, cancel, most)
    }

    pub(super) fn notify(&self, method: &str, era: &Era, cancel: &Cancel) {
        let body = message::notification(method, json!({}));
        let routing = Routing { method, name: None, parameters: Vec::new() };
        let most = Duration::from_secs(10);
        _ = self.within(cancel, most, async { self.post(&body, &routing, era).await.map(drop) });
    }

    fn send(
        &self,
        routing: &Routing<'_>,
        params: Value,
        era: &Era,
        cancel: &Cancel,
        most: Duration,
    ) -> Result<Value, Failed> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = message::request(id, routing.method, params, era);
        let first = self.within(cancel, most, self.exchange(id, &body, routing, era));
        let is_refused = matches!(&first, Err(Failed::Refused { code: 401, .. }));
        let renews = matches!(&self.token, Some(McpToken::Command(_) | McpToken::File(_)));
        if is_refused && renews {
            // A refused request did nothing. The token may have expired.
            self.state().token = None;
            return self.within(cancel, most, self.exchange(id, &body, routing, era));
        }
        first
    }

    /// Waits for something, unless it is cancelled or takes too long; then its connection is closed, which is how a server learns of it.
    fn within<T>(
        &self,
        cancel: &Cancel,
        most: Duration,
        work: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let waited = http::wait(async {
            tokio::select! {
                done = work => done,
                _ = cancel.stopped() => Err(Failed::Cancelled),
                () = tokio::time::sleep(most) => Err(Failed::TimedOut),
            }
        });
        waited.unwrap_or_else(|why| Err(Failed::NotSent(why)))
    }

    async fn exchange(&self, id: u64, body: &Value, routing: &Routing<'_>, era: &Era) -> Result<Value, Failed> {
        let response = self.post(body, routing, era).await?;
        if let Some(session) = response.headers().get(SESSION).filter(|session| session.len() <= SESSION_BYTES_MAX)
            && routing.method == "initialize"
        {
            self.state().session = Some(session.clone());
        }
        let status = response.status();
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_stream = kind.starts_with("text/event-stream");
        if status.is_success() && is_stream {
            return self.streamed(response, id, era).await;
        }
        let text = self.whole(response).await;
        // An error of the protocol says more than its status.
        let said = message::read(text.as_deref().unwrap_or_default());
        let answer = said.into_iter().find_map(|incoming| match incoming {
            Incoming::Answer { id: of, outcome } if of == id || outcome.is_err() => Some(outcome),
            _ => None,
        });
        match (status.is_success(), answer) {
            (true, Some(outcome)) | (false, Some(outcome @ Err(_))) if status != StatusCode::UNAUTHORIZED => outcome,
            (true, _) => {
                Err(Failed::Lost(text.err().unwrap_or_else(|| "the answer is none of the protocol".to_owned())))
            }
            (false, _) if status.is_client_error() => {
                Err(Failed::Refused { code: i64::from(status.as_u16()), message: status.to_string() })
            }
            (false, _) => Err(Failed::Lost(format!("the server answered {status}"))),
        }
    }

    /// Sends a message. An error means that the server has not got all of it, or that nobody knows.
    async fn post(&self, body: &Value, routing: &Routing<'_>, era: &Era) -> Result<Response, Failed> {
        let mut request = self.client.post(self.url.clone()).headers(self.headers.clone());
        request = request.header("content-type", "application/json");
        request = request.header("accept", "application/json, text/event-stream");
        if let Some(token) = self.token().map_err(Failed::NotSent)? {
            request = request.header("authorization", token);
        }
        match era {
            Era::Modern => {
                request = request.header("mcp-protocol-version", MODERN).header("mcp-method", routing.method);
                if let Some(name) = routing.name {
                    request = request.header("mcp-name", plain_or_encoded(name));
                }
                for (name, value) in &routing.parameters {
                    request = request.header(name, value);
                }
            }
            Era::Legacy(version) if routing.method != "initialize" => {
                request = request.header("mcp-protocol-version", version);
            }
            Era::Legacy(_) => {}
        }
        let session = self.state().session.clone();
        if let Some(session) = session.filter(|_| matches!(era, Era::Legacy(_))) {
            request = request.header(SESSION, session);
        }
        request.body(body.to_string()).send().await.map_err(|error| {
            let is_before = error.is_connect() || error.is_builder();
            let why = error.without_url().to_string();
            if is_before { Failed::NotSent(why) } else { Failed::Lost(why) }
        })
    }

    /// Reads events until the answer is there. A stream that ends before has none.
    async fn streamed(&self, mut response: Response, id: u64, era: &Era) -> Result<Value, Failed> {
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            let piece = response.chunk().await.map_err(|error| Failed::Lost(error.without_url().to_string()))?;
            let Some(piece) = piece else {
                return Err(Failed::Lost("the stream of the answer ended before the answer".to_owned()));
            };
            buffer.extend_from_slice(&piece);
            while let Some((event, rest)) = event(&buffer) {
                buffer = rest;
                for incoming in message::read(&event) {
                    match incoming {
                        Incoming::Answer { id: of, outcome } if of == id => return outcome,
                        Incoming::Asked { answer } if matches!(era, Era::Legacy(_)) => {
                            let routing = Routing { method: "", name: None, parameters: Vec::new() };
                            _ = Box::pin(self.post(&answer, &routing, era)).await;
                        }
                        _ => {}
                    }
                }
            }
            if buffer.len() as u64 > self.message_bytes_max {
                return Err(Failed::Lost(format!("the answer has more than {} bytes", self.message_bytes_max)));
            }
        }
    }

    async fn whole(&self, mut response: Response) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| error.without_url().to_string())? {
            bytes.extend_from_slice(&piece);
            if bytes.len() as u64 > self.message_bytes_max {
                return Err(format!("the answer has more than {} bytes", self.message_bytes_max));
            }
        }
        Ok(bytes)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bearer token, from where the declaration says.
    fn token(&self) -> Result<Option<HeaderValue>, String> {
        let Some(source) = &self.token else { return Ok(None) };
        if let Some(token) = &self.state().token {
            return Ok(Some(token.clone()));
        }
        let text = match source {
            McpToken::Environment(name) => {
                let value = self.around.environment.get(name).cloned();
                value.ok_or_else(|| format!("the variable `{name}` with its token is not set"))?
            }
            McpToken::File(path) => {
                let bytes = std::fs::read(self.around.root.join(path));
                let bytes = bytes.map_err(|error| format!("the file with its token: {error}"))?;
                String::from_utf8(bytes).map_err(|_| "the file with its token is not text".to_owned())?
            }
            McpToken::Command(argv) => printed(argv, &self.around)?,
        };
        let text = text.trim();
        if text.is_empty() || text.len() > TOKEN_BYTES_MAX {
            return Err("its token is empty or too long".to_owned());
        }
        let mut value =
            HeaderValue::try_from(format!("Bearer {text}")).map_err(|_| "its token is no header's".to_owned())?;
        value.set_sensitive(true);
        self.state().token = Some(value.clone());
        Ok(Some(value))
    }
}

/// The output of a command that prints a token.
fn printed(argv: &[String], around: &McpEnvironment) -> Result<String, String> {
    let (program, arguments) = argv.split_first().ok_or("the command for its token is empty")?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(&around.environment).current_dir(&around.root).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("the command for its token: {error}"))?;
    if !output.status.success() {
        return Err(format!("the command for its token failed ({})", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| "the command for its token printed no text".to_owned())
}

/// Redirects lead to the same server, or nowhere.
fn same_host(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let origin = |url: &Url| (url.scheme().to_owned(), url.host_str().map(str::to_owned), url.port_or_known_default());
    let is_same = attempt.previous().first().is_some_and(|first| origin(first) == origin(attempt.url()));
    if is_same && attempt.previous().len() <= REDIRECTS_MAX { attempt.follow() } else { attempt.stop() }
}

/// `${NAME}` in the value of a header, from the environment.
fn filled(value: &str, around: &McpEnvironment) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or("a header has `${` without `}`")?;
        out.push_str(before);
        out.push_str(around.environment.get(name).ok_or_else(|| format!("the variable `{name}` is not set"))?);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// The arguments that the schema of a tool marks with `x-mcp-header`, as headers.
fn marked(tool: &McpToolDefinition, arguments: &Value) -> Vec<(HeaderName, HeaderValue)> {
    let properties = tool.input_schema["properties"].as_object();
    let marked = properties.into_iter().flatten().filter_map(|(name, schema)| {
        let header = schema["x-mcp-header"].as_str()?;
        let value = match arguments.get(name)? {
            Value::String(text) => text.clone(),
            Value::Bool(value) => value.to_string(),
            Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
            _ => return None,
        };
        Some((HeaderName::try_from(format!("mcp-param-{header}")).ok()?, plain_or_encoded(&value)))
    });
    marked.collect()
}

/// A value as it is, if a header can have it, else in the form that the protocol has for it.
fn plain_or_encoded(value: &str) -> HeaderValue {
    use base64ct::{Base64, Encoding as _};
    let is_plain = value.bytes().all(|byte| (0x21..0x7f).contains(&byte) || byte == b' ')
        && value.trim() == value
        && !(value.starts_with("=?base64?") && value.ends_with("?="));
    let text =
        if is_plain { value.to_owned() } else { format!("=?base64?{}?=", Base64::encode_string(value.as_bytes())) };
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The data of the first whole event, and what follows it.
fn event(buffer: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut data: Vec<u8> = Vec::new();
    let mut from = 0;
    loop {
        let end = from + buffer[from..].iter().position(|byte| *byte == b'\n')?;
        let line = buffer[from..end].strip_suffix(b"\r").unwrap_or(&buffer[from..end]);
        from = end + 1;
        if line.is_empty() {
            return Some((data, buffer[from..].to_vec()));
        }
        if let Some(value) = line.strip_prefix(b"data:") {
            if !data.is_empty() {
                data.push(b'\n');
            }
            data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_split_at_empty_lines() {
        let stream = b": hi\n\ndata: {\"a\":\r\ndata: 1}\r\n\r\nevent: x\ndata: 2\n\ndata: cut";
        let (first, rest) = event(stream).unwrap();
        let (second, rest) = event(&rest).unwrap();
        let (third, rest) = event(&rest).unwrap();
        assert_eq!((first.as_slice(), second.as_slice(), third.as_slice()), (&b""[..], &b"{\"a\":\n1}"[..], &b"2"[..]));
        assert_eq!(event(&rest), None);
    }

    #[test]
    fn what_no_header_can_have_is_encoded() {
        assert_eq!(plain_or_encoded("get_weather"), "get_weather");
        assert_eq!(plain_or_encoded("wetter ü"), "=?base64?d2V0dGVyIMO8?=");
        assert_eq!(plain_or_encoded("a\nb"), "=?base64?YQpi?=");
    }
}
