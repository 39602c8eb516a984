//! What a host wants back with an answer besides its text and its calls.
//!
//! The vendor's own format has nothing of the kind, but compatible hosts refuse the next turn of a conversation with tools without it:
//!
//! - reasoning under the name of the field in which it came (`reasoning_content`, `reasoning`). The text is the thinking of the answer, so
//!   only the name is kept;
//! - `reasoning_details`, with signatures, whole;
//! - `extra_content` of a call, with the signature of the thought that led to it, whole.
//!
//! Each is opaque data of an answer; that of a call stands directly before the call.

use selvedge_model::message::Block;
use serde_json::{Value, json};

/// The fields of a message in which reasoning comes, the preferred one first.
pub(super) const REASONING: [&str; 2] = ["reasoning_content", "reasoning"];
/// The field of a message with reasoning in parts.
pub(super) const DETAILS: &str = "reasoning_details";
/// The field of a call.
pub(super) const EXTRA: &str = "extra_content";

const NAME: &str = "reasoning_field";

/// Adds parts of `reasoning_details` to those before: text continues the part with the same index.
pub(super) fn join(details: &mut Vec<Value>, more: Vec<Value>) {
    for part in more {
        let is_text =
            |part: &Value| part["text"].is_string() || part["summary"].is_string() || part["signature"].is_string();
        let is_same = |last: &&mut Value| {
            is_text(&part) && is_text(last) && last["type"] == part["type"] && last["index"] == part["index"]
        };
        match (details.last_mut().filter(is_same).and_then(Value::as_object_mut), part) {
            (Some(last), Value::Object(part)) => {
                for (name, value) in part {
                    match (last.get_mut(&name), value) {
                        (Some(Value::String(text)), Value::String(more)) if name == "text" || name == "summary" => {
                            text.push_str(&more);
                        }
                        (Some(_), Value::Null) => {}
                        (_, value) => _ = last.insert(name, value),
                    }
                }
            }
            (_, part) => details.push(part),
        }
    }
}

/// The data of an answer: its details, or else the name of the field of its reasoning.
pub(super) fn of_answer(details: Vec<Value>, field: Option<&str>) -> Option<Value> {
    if details.is_empty() { field.map(|field| json!({ NAME: field })) } else { Some(json!({ DETAILS: details })) }
}

/// The data of a call.
pub(super) fn of_call(extra: Value) -> Value {
    json!({ EXTRA: extra })
}

/// Adds to a message what the host wants back with it.
pub(super) fn restore(message: &mut Value, content: &[Block], provider: &str) {
    for data in content.iter().filter_map(|block| own(block, provider)) {
        if let Some(details) = data.get(DETAILS) {
            message[DETAILS] = details.clone();
        }
        if let Some(field) = data.get(NAME).and_then(Value::as_str).filter(|field| REASONING.contains(field)) {
            message[field] = Value::String(thinking(content));
        }
    }
}

/// What the host wants back with the call after this block.
pub(super) fn extra<'a>(block: &'a Block, provider: &str) -> Option<&'a Value> {
    own(block, provider)?.get(EXTRA)
}

fn own<'a>(block: &'a Block, provider: &str) -> Option<&'a Value> {
    match block {
        Block::Opaque { provider: other, data } if other == provider => Some(data),
        _ => None,
    }
}

/// The reasoning of an answer that is not signed.
fn thinking(content: &[Block]) -> String {
    let texts = content.iter().filter_map(|block| match block {
        Block::Thinking { text, signature: None, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_one_index_are_joined_and_encrypted_ones_are_kept_apart() {
        let mut details = Vec::new();
        join(&mut details, vec![json!({"type": "reasoning.text", "text": "let ", "index": 0, "signature": null})]);
        join(&mut details, vec![json!({"type": "reasoning.text", "text": "me", "index": 0})]);
        join(&mut details, vec![json!({"type": "reasoning.text", "signature": "sig", "index": 0})]);
        let sealed = json!({"type": "reasoning.encrypted", "data": "AA", "index": 1});
        join(&mut details, vec![sealed.clone(), sealed.clone()]);
        let text = json!({"type": "reasoning.text", "text": "let me", "index": 0, "signature": "sig"});
        assert_eq!(details, [text, sealed.clone(), sealed]);
    }
}
