//! What users, models and tools wrote: the texts of an event that are worth finding; not what only the program needs, such as ids, hashes
//! and the names of events. Secrets were removed before the log was signed.

use selvedge_model::Event;
use selvedge_model::message::Block;
use serde_json::Value;

/// Passes every such text of an event to `each`, in order, while it returns true.
pub fn each_said(event: &Event, each: &mut dyn FnMut(&str) -> bool) {
    match event {
        Event::Message(message) => _ = message.content.iter().all(|block| each_of_block(block, each)),
        // The reason why a run ended is recorded nowhere else.
        Event::RunFinished(run) => _ = run.meta.termination_detail.as_deref().is_none_or(each),
        Event::Decision(decision) => _ = decision.reason.as_deref().is_none_or(each),
        // The partial text of a stopped model.
        Event::ContextInjected(fields) => {
            let partial = fields.get("partial_cognition").and_then(|partial| partial.get("text"));
            _ = partial.and_then(Value::as_str).is_none_or(each);
        }
        _ => {}
    }
}

/// All such texts of an event, one below the other; nothing if there are none.
pub fn said(event: &Event) -> Option<String> {
    let mut found = String::new();
    each_said(event, &mut |text| {
        if !found.is_empty() && !text.is_empty() {
            found.push('\n');
        }
        found.push_str(text);
        true
    });
    (!found.trim().is_empty()).then_some(found)
}

fn each_of_block(block: &Block, each: &mut dyn FnMut(&str) -> bool) -> bool {
    match block {
        Block::Text { text, .. } | Block::Thinking { text, .. } => each(text),
        Block::ToolCall { name, arguments, .. } => each(name) && each_text(arguments, each),
        Block::ToolResult { content, .. } => each_text(content, each),
        Block::Image { .. } | Block::Opaque { .. } => true,
    }
}

/// Passes every text and number in a value to `each`, in order, while it returns true.
fn each_text(value: &Value, each: &mut dyn FnMut(&str) -> bool) -> bool {
    match value {
        Value::String(text) => each(text),
        Value::Number(number) => each(&number.to_string()),
        Value::Array(values) => values.iter().all(|value| each_text(value, each)),
        Value::Object(fields) => fields.values().all(|value| each_text(value, each)),
        Value::Null | Value::Bool(_) => true,
    }
}
