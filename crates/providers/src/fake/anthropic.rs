//! Anthropic's Messages API, as a server writes it.

use selvedge_model::answer::End;
use serde_json::{Value, json};

use super::{Dialogue, FakeAnswer};
use crate::http::Format;

/// The Messages API.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnthropicDialogue;

fn event(name: &str, mut data: Value) -> String {
    data["type"] = json!(name);
    format!("event: {name}\ndata: {data}\n\n")
}

/// The events of one block: its start, its deltas and its end.
fn block(events: &mut Vec<String>, index: &mut u64, start: Value, deltas: impl IntoIterator<Item = Value>) {
    events.push(event("content_block_start", json!({"index": index, "content_block": start})));
    for delta in deltas {
        events.push(event("content_block_delta", json!({"index": index, "delta": delta})));
    }
    events.push(event("content_block_stop", json!({"index": index})));
    *index += 1;
}

impl Dialogue for AnthropicDialogue {
    fn format(&self) -> Format {
        Format::Anthropic
    }

    fn base_url(&self, server: &str) -> String {
        server.to_owned()
    }

    fn path(&self) -> &'static str {
        "/v1/messages"
    }

    fn credentials(&self, key: &str) -> (&'static str, String) {
        ("x-api-key", key.to_owned())
    }

    fn answer(&self, said: &FakeAnswer) -> Vec<String> {
        let usage = said.usage;
        let uncached = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens;
        let counts = json!({
            "input_tokens": uncached,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cache_read_tokens,
            "output_tokens": 1,
        });
        let message = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-fake", "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": counts,
        });
        let mut events = vec![event("message_start", json!({"message": message}))];
        let mut index = 0;
        if let Some((text, signature)) = &said.thinking {
            let deltas = [
                json!({"type": "thinking_delta", "thinking": text}),
                json!({"type": "signature_delta", "signature": signature}),
            ];
            block(&mut events, &mut index, json!({"type": "thinking", "thinking": "", "signature": ""}), deltas);
        }
        if !said.text.is_empty() {
            let deltas = said.text.iter().map(|text| json!({"type": "text_delta", "text": text}));
            block(&mut events, &mut index, json!({"type": "text", "text": ""}), deltas);
        }
        for call in &said.calls {
            let start = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
            let pieces = call.arguments.iter();
            let deltas = pieces.map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
            block(&mut events, &mut index, start, deltas);
        }
        let reason = match said.end {
            End::Finished => "end_turn",
            End::ToolCalls => "tool_use",
            End::Length => "max_tokens",
            End::Refused => "refusal",
        };
        let delta = json!({"stop_reason": reason, "stop_sequence": null});
        let counts = json!({"output_tokens": usage.output_tokens});
        events.push(event("message_delta", json!({"delta": delta, "usage": counts})));
        events.push(event("message_stop", json!({})));
        events
    }

    fn noise(&self) -> Vec<String> {
        vec![
            event("ping", json!({})),
            ": a comment\n\n".to_owned(),
            "event: vendor_news\ndata: not even json\n\n".to_owned(),
            event("content_block_delta", json!({"index": 0, "delta": {"type": "novel_delta", "novelty": 1}})),
        ]
    }

    fn overloaded_event(&self) -> String {
        event("error", json!({"error": {"type": "overloaded_error", "message": "Overloaded"}}))
    }

    fn error_body(&self, status: u16, message: &str) -> String {
        let kind = match status {
            400 => "invalid_request_error",
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "invalid_request_error",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            _ => "api_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}).to_string()
    }

    fn too_long(&self) -> (u16, String) {
        (400, self.error_body(400, "prompt is too long: 208310 tokens > 200000 maximum"))
    }
}
