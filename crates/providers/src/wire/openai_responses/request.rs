//! A prompt as the body of a request.

use std::sync::Arc;

use selvedge_model::ToolSpec;
use selvedge_model::answer::{ModelError, Prompt, Session};
use selvedge_model::message::{Block, Message, Role};
use serde_json::{Map, Value, json};

use crate::wire::names::Names;
use crate::wire::{Dialect, Images, openai};

/// The body of a request.
pub(super) fn body(model: &str, prompt: &Prompt<'_>, images: &Images, dialect: &Dialect) -> Result<Value, ModelError> {
    let names = Names::new(prompt.tools)?;
    let session = session(prompt, dialect);
    let new = &prompt.messages[session.map_or(0, |session| session.covers)..];
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model));
    body.insert("input".to_owned(), Value::Array(input(new, images, &names, dialect)?));
    body.insert("stream".to_owned(), json!(true));
    body.insert("store".to_owned(), json!(dialect.sessions));
    // Also with sessions: a refused one is replaced by the conversation itself.
    body.insert("include".to_owned(), json!(["reasoning.encrypted_content"]));
    if !prompt.system.is_empty() {
        body.insert("instructions".to_owned(), json!(prompt.system));
    }
    if let Some(session) = session {
        body.insert("previous_response_id".to_owned(), json!(session.id));
    }
    if !prompt.tools.is_empty() {
        let tools: Vec<Value> = prompt.tools.iter().map(|tool| function(tool, &names)).collect();
        body.insert("tools".to_owned(), Value::Array(tools));
    }
    if let Some(tokens) = openai::output_tokens_max(prompt, dialect) {
        body.insert("max_output_tokens".to_owned(), json!(tokens));
    }
    if let Some(effort) = &dialect.effort {
        body.insert("reasoning".to_owned(), json!({"effort": effort, "summary": "auto"}));
    }
    Ok(Value::Object(body))
}

/// The session to continue: only if the configuration allows it, and there is something new to say.
fn session<'a>(prompt: &Prompt<'a>, dialect: &Dialect) -> Option<Session<'a>> {
    prompt.session.filter(|session| dialect.sessions && session.covers < prompt.messages.len())
}

/// A tool. The format checks calls strictly unless told otherwise, and then refuses most schemas.
fn function(tool: &ToolSpec, names: &Names) -> Value {
    let mut function = json!({
        "type": "function",
        "name": names.wire(&tool.name),
        "parameters": openai::parameters(&tool.input_schema),
        "strict": false,
    });
    if !tool.description.is_empty() {
        function["description"] = json!(tool.description);
    }
    function
}

fn input(
    messages: &[Arc<Message>],
    images: &Images,
    names: &Names,
    dialect: &Dialect,
) -> Result<Vec<Value>, ModelError> {
    let mut items = Items { images, names, provider: &dialect.provider, sent: Vec::new(), after_results: Vec::new() };
    for message in messages {
        items.add(message)?;
    }
    items.end_results();
    Ok(items.sent)
}

struct Items<'a> {
    images: &'a Images,
    names: &'a Names,
    provider: &'a str,
    sent: Vec<Value>,
    /// Images and texts beside the results of tools, which follow the last result as a message of the user.
    after_results: Vec<Value>,
}

impl Items<'_> {
    fn add(&mut self, message: &Message) -> Result<(), ModelError> {
        if message.role != Role::Tool {
            self.end_results();
        }
        match message.role {
            Role::Tool => {
                self.sent.extend(message.content.iter().filter_map(output));
                let parts = self.parts(message)?;
                self.after_results.extend(parts);
            }
            Role::Assistant => {
                let items: Vec<Value> = message.content.iter().filter_map(|block| self.item(block)).collect();
                self.sent.extend(items);
            }
            Role::User => {
                let parts = self.parts(message)?;
                self.message("user", parts);
            }
            Role::System => {
                let parts = self.parts(message)?;
                self.message("developer", parts);
            }
        }
        Ok(())
    }

    fn end_results(&mut self) {
        let parts = std::mem::take(&mut self.after_results);
        self.message("user", parts);
    }

    fn message(&mut self, role: &str, parts: Vec<Value>) {
        if !parts.is_empty() {
            self.sent.push(json!({"type": "message", "role": role, "content": parts}));
        }
    }

    /// A block of an answer, in its place. Items have no ids, except in opaque data: with an id the host would expect each item to be
    /// accompanied by the reasoning that led to it, which may have been dropped.
    fn item(&self, block: &Block) -> Option<Value> {
        match block {
            Block::Text { text, .. } if !text.is_empty() => {
                let content = json!([{"type": "output_text", "text": text}]);
                Some(json!({"type": "message", "role": "assistant", "content": content}))
            }
            Block::ToolCall { id, name, arguments, .. } => Some(json!({
                "type": "function_call",
                "call_id": openai::call_id(id),
                "name": self.names.wire(name),
                "arguments": openai::argument_text(arguments),
            })),
            Block::Opaque { provider, data } if provider == self.provider => Some(data).filter(is_sendable).cloned(),
            _ => None,
        }
    }

    fn parts(&self, message: &Message) -> Result<Vec<Value>, ModelError> {
        let mut parts = Vec::new();
        for block in &message.content {
            match block {
                Block::Text { text, .. } if !text.is_empty() => parts.push(json!({"type": "input_text", "text": text})),
                Block::Image { blob, media_type } => {
                    let url = openai::data_url(blob, media_type, self.images)?;
                    parts.push(json!({"type": "input_image", "image_url": url}));
                }
                _ => {}
            }
        }
        Ok(parts)
    }
}

/// Whether opaque data is an item that the host accepts: reasoning that is not encrypted can't be read from a request.
fn is_sendable(data: &&Value) -> bool {
    match data["type"].as_str() {
        Some("reasoning") => data["encrypted_content"].is_string(),
        Some(_) => true,
        None => false,
    }
}

fn output(block: &Block) -> Option<Value> {
    let Block::ToolResult { call_id, content, is_error, .. } = block else { return None };
    Some(json!({
        "type": "function_call_output",
        "call_id": openai::call_id(call_id),
        "output": openai::result_text(content, *is_error),
    }))
}
