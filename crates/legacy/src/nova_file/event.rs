//! One event of the older form, kept as a whole: unknown fields stay where they are.

use selvedge_model::Role;
use selvedge_model::event::Fields;
use serde_json::Value;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A message with its `type`.
    Message,
    /// A message without one, as older programs wrote it.
    Legacy,
    /// A tool was called; its result was never written.
    ToolUse,
    /// Text of the model beside its calls.
    AssistantText,
    /// The usage of a run.
    Result,
    /// An event of an unknown type or role.
    Opaque,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    kind: EventKind,
    fields: Fields,
}

/// The usage of a run, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Dollars.
    pub cost: Option<f64>,
    /// Milliseconds.
    pub duration_ms: u64,
    /// Model calls.
    pub turns: u64,
    /// Tokens sent.
    pub input_tokens: u64,
    /// Tokens received.
    pub output_tokens: u64,
    /// Of the tokens sent, those read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Of the tokens sent, those written to the provider's cache. The older form has no field for it; its readers keep unknown fields.
    pub cache_write_tokens: u64,
}

impl Event {
    /// The event with these fields; `None` if they are not an event.
    pub fn of(fields: Fields) -> Option<Self> {
        let text = |name: &str| fields.get(name).is_some_and(Value::is_string);
        let speaks = || text("text") && role_of(&fields).is_some();
        let kind = match fields.get("type") {
            Some(Value::String(name)) => match name.as_str() {
                "message" if speaks() => EventKind::Message,
                "tool_use" if text("name") && fields.get("input").is_some_and(Value::is_object) => EventKind::ToolUse,
                "assistant_text" if text("text") => EventKind::AssistantText,
                "result" => EventKind::Result,
                _ => EventKind::Opaque,
            },
            Some(_) => return None,
            None if speaks() => EventKind::Legacy,
            None if text("text") && text("role") => EventKind::Opaque,
            None => return None,
        };
        Some(Self { kind, fields })
    }

    /// A message with its type.
    pub fn message(role: Role, text: impl Into<String>, timestamp: impl Into<String>) -> Self {
        let role = if role == Role::Assistant { "assistant" } else { "user" };
        let mut event = Self::typed(EventKind::Message, "message", timestamp);
        event.fields.insert("role".to_owned(), role.into());
        event.fields.insert("text".to_owned(), Value::String(text.into()));
        event
    }

    /// A call of a tool.
    pub fn tool_use(name: impl Into<String>, input: Fields, timestamp: impl Into<String>) -> Self {
        let mut event = Self::typed(EventKind::ToolUse, "tool_use", timestamp);
        event.fields.insert("name".to_owned(), Value::String(name.into()));
        event.fields.insert("input".to_owned(), Value::Object(input));
        event
    }

    /// Text of the model beside its calls.
    pub fn assistant_text(text: impl Into<String>, timestamp: impl Into<String>) -> Self {
        let mut event = Self::typed(EventKind::AssistantText, "assistant_text", timestamp);
        event.fields.insert("text".to_owned(), Value::String(text.into()));
        event
    }

    /// The usage of a run; zero values are unknown and left out.
    pub fn result(metrics: &Metrics, timestamp: impl Into<String>) -> Self {
        let mut event = Self::typed(EventKind::Result, "result", timestamp);
        let Metrics { cost, duration_ms, turns, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens } =
            metrics;
        if let Some(cost) = cost.filter(|cost| *cost > 0.0) {
            event.fields.insert("cost".to_owned(), cost.into());
        }
        let numbers = [
            ("durationMs", duration_ms),
            ("turns", turns),
            ("inputTokens", input_tokens),
            ("outputTokens", output_tokens),
            ("cacheReadTokens", cache_read_tokens),
            ("cacheWriteTokens", cache_write_tokens),
        ];
        for (name, number) in numbers.into_iter().filter(|(_, number)| **number > 0) {
            event.fields.insert(name.to_owned(), (*number).into());
        }
        event
    }

    /// The same event, with the log that witnessed it.
    #[must_use]
    pub fn witnessed_in(mut self, log: impl Into<String>) -> Self {
        self.fields.insert("witnessedIn".to_owned(), Value::String(log.into()));
        self
    }

    fn typed(kind: EventKind, name: &str, timestamp: impl Into<String>) -> Self {
        let mut fields = Fields::new();
        fields.insert("type".to_owned(), name.into());
        fields.insert("timestamp".to_owned(), Value::String(timestamp.into()));
        Self { kind, fields }
    }

    /// Its kind.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// All its fields.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// All its fields, by value.
    pub fn into_fields(self) -> Fields {
        self.fields
    }

    /// When its writer claims it was written; not checked to be a time.
    pub fn timestamp(&self) -> Option<&str> {
        self.fields.get("timestamp")?.as_str()
    }

    /// Its text.
    pub fn text(&self) -> Option<&str> {
        self.fields.get("text")?.as_str()
    }

    /// Its role.
    pub fn role(&self) -> Option<Role> {
        match self.kind {
            EventKind::Message | EventKind::Legacy => role_of(&self.fields),
            EventKind::AssistantText => Some(Role::Assistant),
            _ => None,
        }
    }
}

fn role_of(fields: &Fields) -> Option<Role> {
    match fields.get("role")?.as_str()? {
        "user" => Some(Role::User),
        "assistant" => Some(Role::Assistant),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(value: Value) -> Option<EventKind> {
        match value {
            Value::Object(fields) => Event::of(fields).map(|event| event.kind()),
            _ => None,
        }
    }

    #[test]
    fn events_are_known_by_their_type_and_legacy_messages_by_their_fields() {
        assert_eq!(kind(json!({"type": "message", "role": "user", "text": "a"})), Some(EventKind::Message));
        assert_eq!(kind(json!({"role": "assistant", "text": "a", "timestamp": "t"})), Some(EventKind::Legacy));
        assert_eq!(kind(json!({"type": "tool_use", "name": "n", "input": {}})), Some(EventKind::ToolUse));
        assert_eq!(kind(json!({"type": "assistant_text", "text": ""})), Some(EventKind::AssistantText));
        assert_eq!(kind(json!({"type": "result"})), Some(EventKind::Result));
    }

    #[test]
    fn unknown_events_are_kept_and_other_objects_are_not() {
        assert_eq!(kind(json!({"type": "picture", "of": "tea"})), Some(EventKind::Opaque));
        assert_eq!(kind(json!({"type": "message", "role": "narrator", "text": "a"})), Some(EventKind::Opaque));
        assert_eq!(kind(json!({"type": "tool_use", "name": "n", "input": 1})), Some(EventKind::Opaque));
        assert_eq!(kind(json!({"role": "narrator", "text": "a"})), Some(EventKind::Opaque));
        assert_eq!(kind(json!({"type": 7})), None);
        assert_eq!(kind(json!({"agentId": "a"})), None);
        assert_eq!(kind(json!({})), None);
    }
}
