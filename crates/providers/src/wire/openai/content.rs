//! The pieces of a conversation as both formats write them.

use std::borrow::Cow;

use base64ct::{Base64, Encoding};
use selvedge_model::answer::ModelError;
use selvedge_model::digest::hex;
use selvedge_model::{CallId, Digest};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::wire::Images;

/// The longest id of a call that every host accepts.
const CALL_ID_BYTES_MAX: usize = 40;

/// How deep the arguments of a call may be nested. A line of a log allows 64, with the blocks and the message around them.
const ARGUMENTS_DEPTH_MAX: usize = 48;

/// An image as a `data:` URL.
pub(in crate::wire) fn data_url(blob: &Digest, media_type: &str, images: &Images) -> Result<String, ModelError> {
    let Some(bytes) = images.get(blob) else {
        return Err(ModelError::Permanent { why: format!("the image `{blob}` was not read") });
    };
    Ok(format!("data:{media_type};base64,{}", Base64::encode_string(bytes)))
}

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
        Ok(value) if value.is_object() && is_storable(&value, ARGUMENTS_DEPTH_MAX) => value,
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

/// The result of a tool as text. The formats have no field that marks an error, so the text says it.
pub(in crate::wire) fn result_text(content: &Value, is_error: bool) -> String {
    let text = match content {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let says_so = text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error"));
    if is_error && !says_so { format!("error: {text}") } else { text }
}

/// The id of a call on the wire: the same, or a digest of it if it is longer than some hosts accept.
pub(in crate::wire) fn call_id(id: &CallId) -> Cow<'_, str> {
    let id = id.as_str();
    if id.len() <= CALL_ID_BYTES_MAX {
        return Cow::Borrowed(id);
    }
    let digest = Sha256::digest(id.as_bytes());
    Cow::Owned(format!("call_{}", hex(&digest[..16])))
}

/// The schema of a tool's arguments. Hosts require an object with `properties`, even if a tool has none.
pub(in crate::wire) fn parameters(schema: &Value) -> Value {
    let Value::Object(members) = schema else {
        return json!({"type": "object", "properties": {}});
    };
    let mut members = members.clone();
    members.entry("type").or_insert_with(|| json!("object"));
    if members["type"] == "object" {
        members.entry("properties").or_insert_with(|| json!({}));
    }
    Value::Object(members)
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
    fn a_result_says_that_it_is_an_error_once() {
        assert_eq!(result_text(&json!({"a": 1}), false), r#"{"a":1}"#);
        assert_eq!(result_text(&json!("no such file"), true), "error: no such file");
        assert_eq!(result_text(&json!("Error 5"), true), "Error 5");
        assert_eq!(result_text(&json!("naïve"), true), "error: naïve");
    }

    #[test]
    fn long_ids_are_shortened_to_the_same_text_each_time() {
        let short = CallId::new("functions.read:0").unwrap();
        assert_eq!(call_id(&short), "functions.read:0");
        let long = CallId::new("x".repeat(41)).unwrap();
        assert_eq!(call_id(&long).len(), 37);
        assert_eq!(call_id(&long), call_id(&long.clone()));
    }

    #[test]
    fn schemas_of_tools_without_parameters_are_objects_with_properties() {
        let empty = json!({"type": "object", "properties": {}});
        assert_eq!(parameters(&Value::Null), empty);
        assert_eq!(parameters(&json!({})), empty);
        assert_eq!(parameters(&json!({"type": "object"})), empty);
        let other = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
        assert_eq!(parameters(&other), other);
    }
}
