//! OpenAI's responses, as a server writes them.

use selvedge_model::answer::End;
use serde_json::{Value, json};

use super::{Dialogue, FakeAnswer};
use crate::http::Format;

/// Responses.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiResponsesDialogue;

/// The id of each response.
const ID: &str = "resp_1";

fn event(name: &str, mut data: Value) -> String {
    data["type"] = json!(name);
    format!("event: {name}\ndata: {data}\n\n")
}

/// The events of one item: its beginning, its pieces and the whole.
fn item(events: &mut Vec<String>, place: &mut u64, begun: Value, pieces: Vec<(&str, Value)>, whole: Value) {
    events.push(event("response.output_item.added", json!({"output_index": place, "item": begun})));
    for (name, mut piece) in pieces {
        piece["output_index"] = json!(place);
        events.push(event(name, piece));
    }
    events.push(event("response.output_item.done", json!({"output_index": place, "item": whole})));
    *place += 1;
}

fn response(status: &str, more: Value) -> Value {
    let mut response = json!({"id": ID, "object": "response", "model": "gpt-fake", "status": status, "output": []});
    if let (Some(fields), Value::Object(more)) = (response.as_object_mut(), more) {
        fields.extend(more);
    }
    json!({"response": response})
}

fn thought(events: &mut Vec<String>, place: &mut u64, text: &str, sealed: &str) {
    let begun = json!({"type": "reasoning", "id": "rs_1", "summary": []});
    let whole = json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}],
        "encrypted_content": sealed});
    let pieces = vec![("response.reasoning_summary_text.delta", json!({"summary_index": 0, "delta": text}))];
    item(events, place, begun, pieces, whole);
}

fn message(events: &mut Vec<String>, place: &mut u64, texts: &[String]) {
    let begun = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": []});
    let content = json!([{"type": "output_text", "text": texts.concat(), "annotations": []}]);
    let whole = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": content});
    let pieces = texts.iter().map(|text| ("response.output_text.delta", json!({"content_index": 0, "delta": text})));
    item(events, place, begun, pieces.collect(), whole);
}

impl Dialogue for OpenAiResponsesDialogue {
    fn format(&self) -> Format {
        Format::OpenAiResponses
    }

    fn base_url(&self, server: &str) -> String {
        format!("{server}/v1")
    }

    fn path(&self) -> &'static str {
        "/v1/responses"
    }

    fn credentials(&self, key: &str) -> (&'static str, String) {
        ("authorization", format!("Bearer {key}"))
    }

    fn answer(&self, said: &FakeAnswer) -> Vec<String> {
        let mut events = vec![event("response.created", response("in_progress", json!({"usage": null})))];
        let mut place = 0;
        if let Some((text, sealed)) = &said.thinking {
            thought(&mut events, &mut place, text, sealed);
        }
        if !said.text.is_empty() {
            message(&mut events, &mut place, &said.text);
        }
        for call in &said.calls {
            let form = |arguments: &str| {
                json!({"type": "function_call", "id": format!("fc_{place}"), "call_id": call.id, "name": call.name,
                    "arguments": arguments})
            };
            let begun = form("");
            let whole = form(&call.arguments.concat());
            let pieces = call.arguments.iter();
            let pieces = pieces.map(|piece| ("response.function_call_arguments.delta", json!({"delta": piece})));
            item(&mut events, &mut place, begun, pieces.collect(), whole);
        }
        let usage = said.usage;
        let counts = json!({
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cache_read_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
        });
        let reason = match said.end {
            End::Finished | End::ToolCalls => None,
            End::Length => Some("max_output_tokens"),
            End::Refused => Some("content_filter"),
        };
        events.push(match reason {
            None => event("response.completed", response("completed", json!({"usage": counts}))),
            Some(reason) => {
                let details = json!({"usage": counts, "incomplete_details": {"reason": reason}});
                event("response.incomplete", response("incomplete", details))
            }
        });
        events
    }

    fn noise(&self) -> Vec<String> {
        vec![
            ": keep-alive\n\n".to_owned(),
            event("response.in_progress", response("in_progress", json!({}))),
            event(
                "response.content_part.added",
                json!({"output_index": 0, "part": {"type": "output_text", "text": ""}}),
            ),
            event("response.vendor.news", json!({"news": [1]})),
        ]
    }

    fn overloaded_event(&self) -> String {
        event("error", json!({"code": "server_is_overloaded", "message": "The servers are overloaded", "param": null}))
    }

    fn error_body(&self, status: u16, message: &str) -> String {
        super::openai_error(status, message)
    }

    fn too_long(&self) -> (u16, String) {
        let message = "Your input exceeds the context window of this model. Please adjust your input and try again.";
        (
            400,
            json!({"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}})
                .to_string(),
        )
    }
}
