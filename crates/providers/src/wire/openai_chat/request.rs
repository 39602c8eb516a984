//! A prompt as the body of a request.

use selvedge_model::answer::{ModelError, Prompt};
use selvedge_model::message::{Block, Message, Role};
use selvedge_model::{CallId, ToolSpec};
use serde_json::{Map, Value, json};

use super::opaque;
use crate::wire::names::Names;
use crate::wire::{Dialect, Images, openai};

/// The field with the most tokens of an answer.
pub(super) const LIMIT: &str = "max_completion_tokens";
/// Its older name, the only one that every compatible host knows.
pub(super) const OLD_LIMIT: &str = "max_tokens";

/// The provider whose hosts know the newer fields. Some of its models refuse the older ones.
const VENDOR: &str = "openai";

/// The body of a request.
pub(super) fn body(model: &str, prompt: &Prompt<'_>, images: &Images, dialect: &Dialect) -> Result<Value, ModelError> {
    let names = Names::new(prompt.tools)?;
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model));
    body.insert("messages".to_owned(), Value::Array(messages(prompt, images, &names, &dialect.provider)?));
    body.insert("stream".to_owned(), json!(true));
    body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    if !prompt.tools.is_empty() {
        let tools: Vec<Value> = prompt.tools.iter().map(|tool| function(tool, &names)).collect();
        body.insert("tools".to_owned(), Value::Array(tools));
    }
    if let Some(tokens) = openai::output_tokens_max(prompt, dialect) {
        body.insert(limit_field(dialect).to_owned(), json!(tokens));
    }
    if let Some(effort) = &dialect.effort {
        body.insert("reasoning_effort".to_owned(), json!(effort));
    }
    Ok(Value::Object(body))
}

/// The field that limits the answer: the older one for compatible hosts, which may ignore the newer one without a word. A configuration
/// that removes one of them gets the other.
fn limit_field(dialect: &Dialect) -> &'static str {
    let is_removed = |field: &str| dialect.extra.get(field).is_some_and(Value::is_null);
    let is_vendor = dialect.provider == VENDOR && !dialect.compatible;
    match (is_vendor, is_removed(LIMIT), is_removed(OLD_LIMIT)) {
        (true, false, _) | (false, false, true) => LIMIT,
        _ => OLD_LIMIT,
    }
}

fn function(tool: &ToolSpec, names: &Names) -> Value {
    let mut function = json!({
        "name": names.wire(&tool.name),
        "parameters": openai::parameters(&tool.input_schema),
    });
    if !tool.description.is_empty() {
        function["description"] = json!(tool.description);
    }
    json!({"type": "function", "function": function})
}

/// The conversation. The role of the system prompt is `system`: every host knows it, and models that expect `developer` read it as that.
fn messages(prompt: &Prompt<'_>, images: &Images, names: &Names, provider: &str) -> Result<Vec<Value>, ModelError> {
    let mut list = Messages { images, names, provider, sent: Vec::new(), after_results: Vec::new() };
    if !prompt.system.is_empty() {
        list.sent.push(json!({"role": "system", "content": prompt.system}));
    }
    for message in prompt.messages {
        list.add(message)?;
    }
    list.end_results();
    Ok(list.sent)
}

struct Messages<'a> {
    images: &'a Images,
    names: &'a Names,
    provider: &'a str,
    sent: Vec<Value>,
    /// Images and texts beside the results of tools. A result can't contain an image, and no message may stand between two results, so
    /// they follow the last result as a message of the user.
    after_results: Vec<Value>,
}

impl Messages<'_> {
    fn add(&mut self, message: &Message) -> Result<(), ModelError> {
        if message.role == Role::Tool {
            return self.results(message);
        }
        self.end_results();
        match message.role {
            Role::Assistant => self.assistant(message),
            Role::User => {
                let parts = self.parts(message)?;
                self.user(parts);
            }
            _ => {
                let text = message.plain_text();
                if !text.is_empty() {
                    self.sent.push(json!({"role": "system", "content": text}));
                }
            }
        }
        Ok(())
    }

    fn results(&mut self, message: &Message) -> Result<(), ModelError> {
        for block in &message.content {
            if let Block::ToolResult { call_id, content, is_error, .. } = block {
                self.sent.push(json!({
                    "role": "tool",
                    "tool_call_id": openai::call_id(call_id),
                    "content": openai::result_text(content, *is_error),
                }));
            }
        }
        let parts = self.parts(message)?;
        self.after_results.extend(parts);
        Ok(())
    }

    fn end_results(&mut self) {
        let parts = std::mem::take(&mut self.after_results);
        self.user(parts);
    }

    /// An answer. Thinking is left out, except for a host that wants it back.
    fn assistant(&mut self, message: &Message) {
        let text = message.plain_text();
        let calls = self.calls(message);
        if text.is_empty() && calls.is_empty() {
            return;
        }
        let content = if text.is_empty() { Value::Null } else { Value::String(text) };
        let mut sent = json!({"role": "assistant", "content": content});
        if !calls.is_empty() {
            sent["tool_calls"] = Value::Array(calls);
        }
        opaque::restore(&mut sent, &message.content, self.provider);
        self.sent.push(sent);
    }

    fn calls(&self, message: &Message) -> Vec<Value> {
        let mut calls = Vec::new();
        let mut extra = None;
        for block in &message.content {
            if let Block::ToolCall { id, name, arguments, .. } = block {
                let mut call = call(id, &self.names.wire(name), arguments);
                if let Some(extra) = extra.take() {
                    call[opaque::EXTRA] = extra;
                }
                calls.push(call);
            } else {
                extra = opaque::extra(block, self.provider).cloned();
            }
        }
        calls
    }

    fn parts(&self, message: &Message) -> Result<Vec<Value>, ModelError> {
        let mut parts = Vec::new();
        for block in &message.content {
            match block {
                Block::Text { text, .. } if !text.is_empty() => parts.push(json!({"type": "text", "text": text})),
                Block::Image { blob, media_type } => {
                    let url = openai::data_url(blob, media_type, self.images)?;
                    parts.push(json!({"type": "image_url", "image_url": {"url": url}}));
                }
                _ => {}
            }
        }
        Ok(parts)
    }

    /// Adds a message of the user. It is joined with one before it, because the templates of many models refuse two in a row.
    fn user(&mut self, parts: Vec<Value>) {
        if parts.is_empty() {
            return;
        }
        match self.sent.last_mut() {
            Some(last) if last["role"] == "user" => {
                let before = match last["content"].take() {
                    Value::Array(parts) => parts,
                    text => vec![json!({"type": "text", "text": text})],
                };
                last["content"] = content(before.into_iter().chain(parts).collect());
            }
            _ => self.sent.push(json!({"role": "user", "content": content(parts)})),
        }
    }
}

/// The content of a message: plain text where it has no images, which hosts without them understand.
fn content(parts: Vec<Value>) -> Value {
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    match texts {
        Some(texts) => Value::String(texts.join("\n\n")),
        None => Value::Array(parts),
    }
}

fn call(id: &CallId, name: &str, arguments: &Value) -> Value {
    let function = json!({"name": name, "arguments": openai::argument_text(arguments)});
    json!({"id": openai::call_id(id), "type": "function", "function": function})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `OPENAI_BASE_URL` at a local server: it ignored the newer field without a word, and answers had no limit.
    #[test]
    fn a_compatible_host_gets_the_limit_under_the_name_that_it_honours() {
        let own = Dialect { provider: VENDOR.to_owned(), ..Dialect::default() };
        assert_eq!(limit_field(&own), LIMIT);
        let mut other = Dialect { compatible: true, ..own };
        assert_eq!(limit_field(&other), OLD_LIMIT);
        other.extra.insert(OLD_LIMIT.to_owned(), Value::Null);
        assert_eq!(limit_field(&other), LIMIT);
    }
}
