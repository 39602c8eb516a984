//! OpenAI's chat completions, as a server writes them.

use selvedge_model::answer::End;
use serde_json::{Value, json};

use super::{Dialogue, FakeAnswer};
use crate::http::Format;

/// Chat completions.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiChatDialogue;

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn chunk(choices: Value, usage: Value) -> String {
    event(&json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-fake",
        "choices": choices, "usage": usage,
    }))
}

fn delta(delta: Value) -> String {
    chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null)
}

impl Dialogue for OpenAiChatDialogue {
    fn format(&self) -> Format {
        Format::OpenAiChat
    }

    fn base_url(&self, server: &str) -> String {
        format!("{server}/v1")
    }

    fn path(&self) -> &'static str {
        "/v1/chat/completions"
    }

    fn credentials(&self, key: &str) -> (&'static str, String) {
        ("authorization", format!("Bearer {key}"))
    }

    fn answer(&self, said: &FakeAnswer) -> Vec<String> {
        let mut events = vec![delta(json!({"role": "assistant", "content": ""}))];
        if let Some((text, _)) = &said.thinking {
            events.push(delta(json!({"reasoning_content": text})));
        }
        events.extend(said.text.iter().map(|text| delta(json!({"content": text}))));
        for (index, call) in said.calls.iter().enumerate() {
            let function = json!({"name": call.name, "arguments": ""});
            let start = json!({"index": index, "id": call.id, "type": "function", "function": function});
            events.push(delta(json!({"tool_calls": [start]})));
            for piece in &call.arguments {
                events.push(delta(json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})));
            }
        }
        let reason = match said.end {
            End::Finished => "stop",
            End::ToolCalls => "tool_calls",
            End::Length => "length",
            End::Refused => "content_filter",
        };
        events.push(chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), Value::Null));
        let usage = said.usage;
        let counts = json!({
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        });
        events.push(chunk(json!([]), counts));
        events.push("data: [DONE]\n\n".to_owned());
        events
    }

    fn optional_events(&self) -> usize {
        // The usage and `[DONE]`.
        2
    }

    fn noise(&self) -> Vec<String> {
        vec![
            ": keep-alive\n\n".to_owned(),
            "data:\n\n".to_owned(),
            event(&json!({"object": "vendor.news", "news": {"choices": 7}})),
            chunk(json!([]), Value::Null),
            chunk(json!([{"index": 1, "delta": {"content": "another answer"}}]), Value::Null),
        ]
    }

    fn overloaded_event(&self) -> String {
        event(&json!({"error": {"message": "The engine is overloaded", "type": "server_error", "code": 503}}))
    }

    fn error_body(&self, status: u16, message: &str) -> String {
        super::openai_error(status, message)
    }

    fn too_long(&self) -> (u16, String) {
        let message =
            "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.";
        (
            400,
            json!({"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}})
                .to_string(),
        )
    }
}
