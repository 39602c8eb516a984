//! What a script can know of the prompt that it answers, and how that replaces placeholders in its texts.

use std::sync::Arc;

use selvedge_model::message::Block;
use selvedge_model::{Message, Role};
use serde_json::Value;

/// The parts of a prompt that a script can use.
pub(super) struct PromptView<'a> {
    /// The last message of a user.
    user: Option<&'a Message>,
    /// The last result of a tool that the model has not answered yet.
    /// The last tool result without an answer.
    result: Option<&'a Value>,
    /// How often the model has answered.
    pub(super) turns: usize,
    /// How many tool calls it has made.
    pub(super) calls: usize,
}

impl<'a> PromptView<'a> {
    pub(super) fn of(messages: &'a [Arc<Message>]) -> Self {
        let mut sent = Self { user: None, result: None, turns: 0, calls: 0 };
        for message in messages {
            match message.role {
                Role::User => sent.user = Some(message),
                Role::Assistant => {
                    sent.turns += 1;
                    sent.result = None;
                    sent.calls +=
                        message.content.iter().filter(|block| matches!(block, Block::ToolCall { .. })).count();
                }
                Role::Tool => sent.result = results(message).last().or(sent.result),
                Role::System => {}
            }
        }
        sent
    }

    /// Replaces `{user}`, `{result}` and `{turn}` in one pass: what is inserted is never expanded again.
    pub(super) fn fill(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            filled.push_str(&rest[..open]);
            rest = &rest[open..];
            let close = rest.find('}').map_or(1, |close| close + 1);
            match &rest[..close] {
                "{user}" => filled.push_str(&self.user.map(Message::plain_text).unwrap_or_default()),
                "{result}" => filled.push_str(&self.result.map(plain).unwrap_or_default()),
                "{turn}" => filled.push_str(&(self.turns + 1).to_string()),
                _ => {
                    filled.push('{');
                    rest = &rest[1..];
                    continue;
                }
            }
            rest = &rest[close..];
        }
        filled.push_str(rest);
        filled
    }

    /// The same for every text in a value; keys stay as they are.
    pub(super) fn fill_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.fill(text)),
            Value::Array(items) => items.iter().map(|item| self.fill_value(item)).collect(),
            Value::Object(members) => {
                members.iter().map(|(key, member)| (key.clone(), self.fill_value(member))).collect()
            }
            other => other.clone(),
        }
    }
}

/// The results in a message.
pub(super) fn results(message: &Message) -> impl Iterator<Item = &Value> {
    message.content.iter().filter_map(|block| match block {
        Block::ToolResult { content, .. } => Some(content),
        _ => None,
    })
}

/// A result as text: a string as it is, anything else as JSON.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
