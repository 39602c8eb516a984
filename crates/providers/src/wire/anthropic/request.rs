//! A prompt as the body of a request.

use base64ct::{Base64, Encoding};
use selvedge_model::answer::{ModelError, Prompt};
use selvedge_model::message::Block;
use selvedge_model::{Message, Role, ToolSpec};
use serde_json::{Map, Value, json};

use super::thinking::{Thinking, is_dropped};
use crate::wire::names::{Names, call_id};
use crate::wire::{Dialect, Images, Request};

/// The most tokens of an answer if neither the prompt nor the configuration says; the API requires a limit.
const OUTPUT_TOKENS: u64 = 8192;
/// The field of a call's input that has what the model wrote, if that was not a JSON object.
const RAW: &str = "invalid_json";

pub(super) fn build(
    model: &str,
    prompt: &Prompt<'_>,
    images: &Images,
    dialect: &Dialect,
) -> Result<Request, ModelError> {
    let names = Names::new(prompt.tools)?;
    let max_tokens = prompt.output_tokens_max.or(dialect.output_tokens_max).unwrap_or(OUTPUT_TOKENS);
    let mut notes = Vec::new();
    let thinking = Thinking::of(dialect, max_tokens, prompt.messages, &mut notes);
    let converter = Converter { names: &names, images, provider: &dialect.provider, keeps_thinking: thinking.is_on() };
    let mut messages = converter.messages(prompt.messages)?;
    let mut system = system(prompt);
    let mut tools: Vec<Value> = prompt.tools.iter().map(|tool| definition(tool, &names)).collect();
    if dialect.cache {
        mark_for_cache(&mut system, &mut tools, &mut messages);
    }
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model));
    body.insert("max_tokens".to_owned(), json!(max_tokens));
    body.insert("stream".to_owned(), json!(true));
    if let Some(system) = system {
        body.insert("system".to_owned(), json!([system]));
    }
    body.insert("messages".to_owned(), messages.into_iter().map(Turn::into_json).collect());
    if !tools.is_empty() {
        body.insert("tools".to_owned(), Value::Array(tools));
    }
    if let Some(budget) = thinking.budget() {
        body.insert("thinking".to_owned(), json!({"type": "enabled", "budget_tokens": budget}));
    }
    let headers = vec![super::version()];
    Ok(Request { path: "v1/messages", headers, body: Value::Object(body), notes })
}

/// The system prompt, with the system messages of the conversation: the API has no place for those.
fn system(prompt: &Prompt<'_>) -> Option<Value> {
    let said =
        prompt.messages.iter().filter(|message| message.role == Role::System).map(|message| message.plain_text());
    let texts = std::iter::once(prompt.system.to_owned()).chain(said);
    let texts: Vec<String> = texts.filter(|text| !text.trim().is_empty()).collect();
    (!texts.is_empty()).then(|| json!({"type": "text", "text": texts.join("\n\n")}))
}

fn definition(tool: &ToolSpec, names: &Names) -> Value {
    let mut schema = tool.input_schema.clone();
    match schema.as_object_mut() {
        Some(fields) => _ = fields.entry("type").or_insert_with(|| json!("object")),
        None => schema = json!({"type": "object"}),
    }
    json!({"name": names.wire(&tool.name), "description": tool.description, "input_schema": schema})
}

/// Marks the ends of what stays the same in the next request: tools, system prompt, and the last two messages of the user. The API allows
/// four marks.
fn mark_for_cache(system: &mut Option<Value>, tools: &mut [Value], messages: &mut [Turn]) {
    let mark = |block: &mut Value| block["cache_control"] = json!({"type": "ephemeral"});
    if let Some(tool) = tools.last_mut() {
        mark(tool);
    }
    if let Some(system) = system {
        mark(system);
    }
    let users = messages.iter_mut().rev().filter(|turn| !turn.is_assistant).take(2);
    for block in users.filter_map(|turn| turn.blocks.last_mut()) {
        mark(block);
    }
}

/// A message of the request.
struct Turn {
    is_assistant: bool,
    blocks: Vec<Value>,
}

impl Turn {
    fn user(text: &str) -> Self {
        Self { is_assistant: false, blocks: vec![json!({"type": "text", "text": text})] }
    }

    fn into_json(self) -> Value {
        let role = if self.is_assistant { "assistant" } else { "user" };
        json!({"role": role, "content": self.blocks})
    }
}

/// Converts messages.
struct Converter<'a> {
    names: &'a Names,
    images: &'a Images,
    provider: &'a str,
    keeps_thinking: bool,
}

impl Converter<'_> {
    /// The messages, with neighbours of the same role joined.
    fn messages(&self, messages: &[std::sync::Arc<Message>]) -> Result<Vec<Turn>, ModelError> {
        let mut turns: Vec<Turn> = Vec::new();
        for message in messages.iter().filter(|message| message.role != Role::System) {
            let is_assistant = message.role == Role::Assistant;
            let mut blocks = Vec::new();
            for block in &message.content {
                blocks.extend(self.block(block, is_assistant)?);
            }
            if blocks.is_empty() {
                continue;
            }
            match turns.last_mut() {
                Some(last) if last.is_assistant == is_assistant => last.blocks.extend(blocks),
                _ => turns.push(Turn { is_assistant, blocks }),
            }
        }
        for turn in turns.iter_mut().filter(|turn| !turn.is_assistant) {
            // A stable sort: results first, everything else in its order.
            turn.blocks.sort_by_key(|block| block["type"] != "tool_result");
        }
        // The conversation is the user's to begin and to go on with.
        if turns.first().is_some_and(|turn| turn.is_assistant) {
            turns.insert(0, Turn::user("(The beginning of the conversation is left out.)"));
        }
        if turns.last().is_some_and(|turn| turn.is_assistant) {
            turns.push(Turn::user("Continue."));
        }
        Ok(turns)
    }

    /// A block of the request; `None` if it is left out.
    fn block(&self, block: &Block, is_assistant: bool) -> Result<Option<Value>, ModelError> {
        Ok(match block {
            // The API refuses empty texts.
            Block::Text { text, .. } if text.trim().is_empty() => None,
            Block::Text { text, .. } => Some(json!({"type": "text", "text": text})),
            Block::Thinking { .. } if !self.keeps_thinking || is_dropped(block, self.provider) => None,
            Block::Thinking { text, signature, .. } => {
                Some(json!({"type": "thinking", "thinking": text, "signature": signature}))
            }
            Block::ToolCall { id, name, arguments, .. } => {
                let input = if arguments.is_object() { arguments.clone() } else { raw(arguments) };
                Some(json!({"type": "tool_use", "id": call_id(id), "name": self.names.wire(name), "input": input}))
            }
            Block::ToolResult { call_id: id, content, is_error, .. } => {
                let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
                let mut result = json!({"type": "tool_result", "tool_use_id": call_id(id), "content": text});
                if *is_error {
                    result["is_error"] = json!(true);
                }
                Some(result)
            }
            // The API has no images of the assistant.
            Block::Image { .. } if is_assistant => None,
            Block::Image { blob, media_type } => Some(self.image(blob, media_type)?),
            Block::Opaque { provider, .. } if provider != self.provider || !is_assistant => None,
            Block::Opaque { data, .. } if is_thinking(data) && !self.keeps_thinking => None,
            Block::Opaque { data, .. } => Some(data.clone()),
        })
    }

    fn image(&self, blob: &selvedge_model::Digest, media_type: &str) -> Result<Value, ModelError> {
        let Some(bytes) = self.images.get(blob) else {
            return Err(ModelError::Permanent { why: format!("the image `{blob}` was not read") });
        };
        let data = Base64::encode_string(bytes);
        Ok(json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}))
    }
}

fn is_thinking(data: &Value) -> bool {
    data["type"] == "redacted_thinking" || data["type"] == "thinking"
}

/// Arguments that are not an object, as one.
fn raw(arguments: &Value) -> Value {
    match arguments {
        Value::Null => json!({}),
        Value::String(text) => json!({RAW: text}),
        other => json!({RAW: other.to_string()}),
    }
}
