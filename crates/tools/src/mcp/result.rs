//! From the result of a call to the output of a tool.

use selvedge_model::Output;
use serde_json::{Value, json};

use super::message::taken;
use crate::command::check_value;

/// The most blocks of one result.
const BLOCKS_MAX: usize = 1000;

/// The output: a text as it is; anything else as a list of content blocks.
pub(super) fn output(mut result: Value) -> Output {
    if result["resultType"] == "input_required" {
        return Output::error(
            "the server asks for input of a person, which it was not offered; the call was not finished",
        );
    }
    let is_error = result["isError"] == true;
    let blocks: Vec<Value> = match taken(&mut result, "content") {
        Value::Array(blocks) => blocks.into_iter().take(BLOCKS_MAX).map(block).collect(),
        _ => Vec::new(),
    };
    let structured = taken(&mut result, "structuredContent");
    let texts: Option<Vec<&str>> =
        blocks.iter().map(|block| block["text"].as_str().filter(|_| block["type"] == "text")).collect();
    let content = match texts {
        // The text beside a structured result repeats it.
        _ if !structured.is_null() && blocks.iter().all(|block| block["type"] == "text") => structured,
        Some(texts) => Value::String(texts.join("\n")),
        None if structured.is_null() => Value::Array(blocks),
        None => json!({"structured": structured, "content": blocks}),
    };
    let content = if check_value(&content).is_err() { Value::String(content.to_string()) } else { content };
    Output { content, is_error, ..Output::default() }
}

/// A content block, with what is known of it; anything else is left out.
fn block(block: Value) -> Value {
    let text = |name: &str| block[name].as_str().unwrap_or_default();
    match text("type") {
        "text" => json!({"type": "text", "text": text("text")}),
        kind @ ("image" | "audio") => json!({"type": kind, "mime_type": text("mimeType"), "data": text("data")}),
        "resource_link" => {
            json!({"type": "resource_link", "uri": text("uri"), "name": text("name"), "mime_type": text("mimeType")})
        }
        "resource" => {
            let inside = &block["resource"];
            let of = |name: &str| inside[name].as_str();
            match (of("text"), of("blob")) {
                (Some(text), _) => json!({"type": "resource", "uri": of("uri"), "text": text}),
                (None, blob) => {
                    json!({"type": "resource", "uri": of("uri"), "mime_type": of("mimeType"), "data": blob})
                }
            }
        }
        other => json!({"type": "unknown", "kind": other.chars().take(40).collect::<String>()}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_text_and_other_blocks_keep_their_kind() {
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(output(json!({"content": [text("a"), text("b")]})).content, json!("a\nb"));
        assert_eq!(
            output(json!({"content": [text("{\"a\":1}")], "structuredContent": {"a": 1}})).content,
            json!({"a": 1})
        );
        let image = json!({"type": "image", "mimeType": "image/png", "data": "AAAA", "extra": 1});
        let content = output(json!({"content": [text("a"), image]})).content;
        assert_eq!(content[1], json!({"type": "image", "mime_type": "image/png", "data": "AAAA"}));
        let link = json!({"type": "resource_link", "uri": "file:///x", "name": "x"});
        assert_eq!(output(json!({"content": [link]})).content[0]["uri"], "file:///x");
        assert!(output(json!({"content": [], "isError": true})).is_error);
        assert!(output(json!({"resultType": "input_required"})).is_error);
        for odd in [json!(null), json!(1), json!({"content": 1}), json!({"content": [1, null]})] {
            _ = output(odd);
        }
    }
}
