//! The arguments of calls, which a model writes as text and which may be no JSON.
//!
//! They are kept and sent back as the model wrote them. Some hosts parse those of earlier calls and refuse the whole conversation because
//! of them, again and again: such a host gets them inside an object.

use serde_json::{Map, Value, json};

use super::HostError;
use crate::wire::Refusal;

/// How deep the arguments of a call may be nested. A line of a log allows 64, with the blocks and the message around them.
const DEPTH_MAX: usize = 48;

/// Parts of the messages of hosts that could not parse arguments.
const UNPARSED: &[&str] =
    &["tool call arguments", "json", "delimiter", "unterminated string", "expecting value", "escape"];

/// The arguments of a call as the host gets them back: what the model wrote, if that was not a JSON object.
pub(in crate::wire) fn argument_text(arguments: &Value) -> String {
    match arguments {
        Value::String(raw) => raw.clone(),
        other => other.to_string(),
    }
}

/// The arguments that a model wrote: an object, or the text itself if it is not one that a log can hold. No text is an empty object,
/// because hosts leave the arguments of a tool without parameters empty.
pub(in crate::wire) fn arguments_of(raw: String) -> Value {
    if raw.trim().is_empty() {
        return Value::Object(Map::new());
    }
    match serde_json::from_str::<Value>(&raw) {
        Ok(value) if value.is_object() && is_storable(&value, DEPTH_MAX) => value,
        _ => Value::String(raw),
    }
}

/// Whether a value is nested no deeper than `depth` and has no key that `serde_json` reserves.
fn is_storable(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(items) => depth > 0 && items.iter().all(|item| is_storable(item, depth - 1)),
        Value::Object(members) => {
            let is_plain = |key: &String| !key.starts_with("$serde_json::private::");
            depth > 0 && members.iter().all(|(key, member)| is_plain(key) && is_storable(member, depth - 1))
        }
        _ => true,
    }
}

/// Whether a host may have refused a request because it could not parse arguments in it. It may also mean something else: then
/// [`wrap_arguments`] finds nothing to change.
pub(in crate::wire) fn are_arguments_refused(refusal: &Refusal<'_>) -> bool {
    let is_parsing = |error: HostError| error.mentions(UNPARSED) && !error.is_too_long();
    matches!(refusal.status, Some(400 | 422 | 500)) && HostError::parse(refusal.body).is_some_and(is_parsing)
}

/// Puts arguments that are not a JSON object into one, in a body of either format; false if there are none.
pub(in crate::wire) fn wrap_arguments(body: &mut Map<String, Value>) -> bool {
    let mut is_changed = false;
    for name in ["messages", "input"] {
        for item in body.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten() {
            is_changed |= wrap(item.get_mut("arguments"));
            for call in item.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
                is_changed |= wrap(call.pointer_mut("/function/arguments"));
            }
        }
    }
    is_changed
}

fn wrap(arguments: Option<&mut Value>) -> bool {
    let Some(Value::String(text)) = arguments else { return false };
    if serde_json::from_str::<Map<String, Value>>(text).is_ok() {
        return false;
    }
    *text = json!({ "invalid_arguments": text }).to_string();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_an_object_or_the_text_that_the_model_wrote() {
        assert_eq!(arguments_of(r#"{"a":1}"#.to_owned()), json!({"a": 1}));
        assert_eq!(arguments_of(" ".to_owned()), json!({}));
        for raw in [r#"{"a":"#, "[1]", r#""text""#, "7", r#"{"$serde_json::private::Number":"1"}"#] {
            assert_eq!(arguments_of(raw.to_owned()), Value::String(raw.to_owned()));
        }
        let deep = |depth| format!("{}{}", r#"{"a":"#.repeat(depth) + "1", "}".repeat(depth));
        assert!(arguments_of(deep(48)).is_object());
        assert!(arguments_of(deep(49)).is_string());
        assert_eq!(argument_text(&json!("{not")), "{not");
        assert_eq!(argument_text(&json!({"a": [1]})), r#"{"a":[1]}"#);
    }

    #[test]
    fn only_arguments_that_are_no_object_are_wrapped() {
        let call = |arguments: &str| json!({"function": {"name": "a", "arguments": arguments}});
        let mut body = json!({
            "messages": [{"role": "user", "content": "x"}, {"tool_calls": [call("{\"a\":1}"), call("{\"a\":")]}],
            "input": [{"type": "function_call", "arguments": "nonsense"}],
        });
        let body = body.as_object_mut().unwrap();
        assert!(wrap_arguments(body));
        assert_eq!(body["messages"][1]["tool_calls"][0], call("{\"a\":1}"));
        assert_eq!(body["messages"][1]["tool_calls"][1], call(r#"{"invalid_arguments":"{\"a\":"}"#));
        assert_eq!(body["input"][0]["arguments"], r#"{"invalid_arguments":"nonsense"}"#);
        assert!(!wrap_arguments(body));
    }

    #[test]
    fn a_host_that_could_not_parse_arguments_is_recognised() {
        let refused = |status, message: &str| {
            let body = json!({"error": {"message": message}}).to_string();
            are_arguments_refused(&Refusal { status: Some(status), body: &body })
        };
        assert!(refused(500, "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101]"));
        assert!(refused(400, "Unterminated string starting at: line 1 column 14 (char 13)"));
        assert!(refused(400, "Expecting ',' delimiter: line 1 column 5 (char 4)"));
        assert!(!refused(429, "Failed to parse tool call arguments as JSON"));
        assert!(!refused(500, "out of memory"));
    }
}
