//! One message of a thread.
//!
//! A message with an id is stored once, however often it is sent; a message without one is always new. In JSON, a single text block
//! without a blob is written as a plain string, and the formats of older systems (`tool_calls`, `tool_call_id`, `metadata`) are read into
//! this one.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::digest::Digest;
use crate::id::{CallId, MessageId, RunId};

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The system prompt.
    System,
    /// The source of input: a person, a scheduler, another agent.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

/// Who sees a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// The model and the readers of the conversation.
    #[default]
    All,
    /// Only the model.
    Internal,
}

/// Marks an assistant message that is not an answer, but tells how a run ended without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Marker {
    /// The run was stopped.
    Stopped,
    /// The run failed.
    Failed,
}

/// A piece of a message.
///
/// A shortened block names the blob with its full content in `blob`. Its text mentions that too, for the model; only the field counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Plain text.
    Text {
        /// The text.
        text: String,
        /// The blob with the full text, if this is a part of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        blob: Option<Digest>,
    },
    /// The reasoning of a model before its answer.
    Thinking {
        /// The reasoning.
        text: String,
        /// The provider's signature of it, sent back unchanged. A block without one, or of another provider, is not sent back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
        /// The provider that signed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
    },
    /// The model calls a tool.
    ToolCall {
        /// Identifies the call within its thread.
        id: CallId,
        /// The tool.
        name: String,
        /// The arguments: an object, or a string with what the model wrote if that is not a JSON object.
        arguments: Value,
        /// The blob with the full arguments, if `arguments` are a placeholder.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        blob: Option<Digest>,
    },
    /// The result of a tool.
    ToolResult {
        /// The call.
        call_id: CallId,
        /// The result.
        content: Value,
        /// Whether the result is an error.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
        /// The blob with the full result, if this is a part of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        blob: Option<Digest>,
    },
    /// An image, stored beside the log.
    Image {
        /// The blob that holds it.
        blob: Digest,
        /// Its media type.
        media_type: String,
    },
    /// Data that only its provider understands and that must be sent back unchanged: encrypted reasoning, redacted thinking, items of
    /// the provider's own tools.
    ///
    /// It is kept or dropped as a whole, and never shown: the provider would refuse a changed one.
    Opaque {
        /// The provider that created it; it is left out of prompts to other providers.
        provider: String,
        /// The data.
        data: Value,
    },
}

impl Block {
    /// A complete text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), blob: None }
    }

    /// Unsigned reasoning.
    pub fn thinking(text: impl Into<String>) -> Self {
        Self::Thinking { text: text.into(), signature: None, provider: None }
    }

    /// A call with all its arguments.
    pub fn tool_call(id: CallId, name: impl Into<String>, arguments: Value) -> Self {
        Self::ToolCall { id, name: name.into(), arguments, blob: None }
    }

    /// A complete result of a tool.
    pub fn tool_result(call_id: CallId, content: Value) -> Self {
        Self::ToolResult { call_id, content, is_error: false, blob: None }
    }

    /// A complete error of a tool.
    pub fn tool_error(call_id: CallId, content: Value) -> Self {
        Self::ToolResult { call_id, content, is_error: true, blob: None }
    }

    /// The blob that the block names: an image, or the full content of a shortened block.
    pub fn blob(&self) -> Option<&Digest> {
        match self {
            Self::Text { blob, .. } | Self::ToolCall { blob, .. } | Self::ToolResult { blob, .. } => blob.as_ref(),
            Self::Image { blob, .. } => Some(blob),
            Self::Thinking { .. } | Self::Opaque { .. } => None,
        }
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Unique within the thread; a message without an id never counts as a repetition.
    pub id: Option<MessageId>,
    /// Its author.
    pub role: Role,
    /// Its blocks, in order.
    pub content: Vec<Block>,
    /// Who sees it.
    pub visibility: Visibility,
    /// The run it belongs to; absent means the run of its changeset.
    pub run_id: Option<RunId>,
    /// The step of that run.
    pub step: Option<u32>,
    /// Present if it is not an answer, but tells how a run ended.
    pub marker: Option<Marker>,
}

impl Message {
    /// A message of one text block.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        let content = vec![Block::text(text)];
        Self { id: None, role, content, visibility: Visibility::All, run_id: None, step: None, marker: None }
    }

    /// The message in place of an answer when a run ended without one.
    pub fn marker(marker: Marker, text: impl Into<String>) -> Self {
        Self { marker: Some(marker), ..Self::text(Role::Assistant, text) }
    }

    /// The same message under an id.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// The bytes that decide whether two messages with the same id are equal: everything but id, run, step and marker.
    pub fn content_bytes(&self) -> Vec<u8> {
        let parts = (self.role, &self.content, self.visibility);
        serde_json::to_vec(&parts).unwrap_or_default()
    }

    /// All text blocks, joined by line breaks.
    pub fn plain_text(&self) -> String {
        let texts = self.content.iter().filter_map(|block| match block {
            Block::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(id) = &self.id {
            map.serialize_entry("id", id)?;
        }
        map.serialize_entry("role", &self.role)?;
        match self.content.as_slice() {
            [Block::Text { text, blob: None }] => map.serialize_entry("content", text)?,
            blocks => map.serialize_entry("content", blocks)?,
        }
        if self.visibility != Visibility::All {
            map.serialize_entry("visibility", &self.visibility)?;
        }
        if let Some(run_id) = &self.run_id {
            map.serialize_entry("run_id", run_id)?;
        }
        if let Some(step) = self.step {
            map.serialize_entry("step", &step)?;
        }
        if let Some(marker) = self.marker {
            map.serialize_entry("marker", &marker)?;
        }
        map.end()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    id: Option<MessageId>,
    role: Role,
    #[serde(default)]
    content: Content,
    #[serde(default)]
    visibility: Visibility,
    run_id: Option<RunId>,
    step: Option<u32>,
    marker: Option<Marker>,
    #[serde(default)]
    tool_calls: Vec<WireCall>,
    tool_call_id: Option<CallId>,
    metadata: Option<WireMetadata>,
}

enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

/// Implemented by hand so that a text is read once: an untagged enum would buffer and then copy it.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Content;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("`content` to be a string or a list of blocks")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, blocks: A) -> Result<Content, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(blocks)).map(Content::Blocks)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::Blocks(Vec::new())
    }
}

#[derive(Deserialize)]
struct WireCall {
    id: CallId,
    name: String,
    #[serde(default)]
    arguments: Value,
}

#[derive(Deserialize)]
struct WireMetadata {
    run_id: Option<RunId>,
    step_index: Option<u32>,
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let mut content = match (wire.content, wire.tool_call_id) {
            (Content::Text(text), Some(call_id)) => vec![Block::tool_result(call_id, Value::String(text))],
            (Content::Text(text), None) if text.is_empty() && !wire.tool_calls.is_empty() => Vec::new(),
            (Content::Text(text), None) => vec![Block::text(text)],
            (Content::Blocks(blocks), _) => blocks,
        };
        let calls = wire.tool_calls.into_iter();
        content.extend(calls.map(|call| Block::tool_call(call.id, call.name, call.arguments)));
        let (run_id, step) = match wire.metadata {
            Some(metadata) => (wire.run_id.or(metadata.run_id), wire.step.or(metadata.step_index)),
            None => (wire.run_id, wire.step),
        };
        let Wire { id, role, visibility, marker, .. } = wire;
        Ok(Self { id, role, content, visibility, run_id, step, marker })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_text_is_written_as_a_string_and_read_back() {
        let message = Message::text(Role::User, "hello").with_id(MessageId::new("m1").unwrap());
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(text, r#"{"id":"m1","role":"user","content":"hello"}"#);
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }

    #[test]
    fn a_shortened_text_is_written_as_a_block_that_names_its_blob() {
        let blob = Digest([7; 32]);
        let block = Block::Text { text: "begin … end".to_owned(), blob: Some(blob) };
        let message = Message { content: vec![block], ..Message::text(Role::User, "") };
        let text = serde_json::to_string(&message).unwrap();
        let expected =
            format!(r#"{{"role":"user","content":[{{"type":"text","text":"begin … end","blob":"{blob}"}}]}}"#);
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }

    #[test]
    fn a_marker_is_distinguished_from_an_answer_with_the_same_text() {
        let marker = Message::marker(Marker::Stopped, "(stopped by user)");
        let text = serde_json::to_string(&marker).unwrap();
        assert_eq!(text, r#"{"role":"assistant","content":"(stopped by user)","marker":"stopped"}"#);
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), marker);
        assert_ne!(Message::text(Role::Assistant, "(stopped by user)"), marker);
    }

    #[test]
    fn opaque_data_survives_a_round_trip_and_is_not_text() {
        let data = serde_json::json!({"encrypted": "gAAA", "parts": [1, null]});
        let opaque = Block::Opaque { provider: "openai".to_owned(), data };
        let content = vec![opaque, Block::text("hello")];
        let message = Message { content, ..Message::text(Role::Assistant, "") };
        let text = serde_json::to_string(&message).unwrap();
        assert!(text.contains(
            r#"{"type":"opaque","provider":"openai","data":{"encrypted":"gAAA","parts":[1,null]}},{"type":"text""#
        ));
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
        assert_eq!(message.plain_text(), "hello");
        let without = Message { content: message.content[1..].to_vec(), ..message.clone() };
        assert_ne!(message.content_bytes(), without.content_bytes());
    }

    #[test]
    fn an_empty_text_stays_a_text() {
        let message = Message::text(Role::User, "");
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }

    #[test]
    fn the_older_format_of_calls_and_results_is_read() {
        let call: Message = serde_json::from_str(
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"c.1","name":"read","arguments":{"p":1}}],
                "metadata":{"run_id":"r1","step_index":2}}"#,
        )
        .unwrap();
        assert!(matches!(&call.content[..], [Block::ToolCall { name, .. }] if name == "read"));
        assert_eq!((call.run_id.unwrap().as_str(), call.step), ("r1", Some(2)));
        let result: Message = serde_json::from_str(r#"{"role":"tool","content":"42","tool_call_id":"c.1"}"#).unwrap();
        assert!(matches!(&result.content[..], [Block::ToolResult { call_id, .. }] if call_id.as_str() == "c.1"));
    }

    #[test]
    fn invalid_messages_are_refused() {
        for bad in [
            r#"{"role":"robot","content":"x"}"#,
            r#"{"content":"x"}"#,
            r#"{"role":"user","content":7}"#,
            r#"{"role":"user","contents":"x"}"#,
        ] {
            assert!(serde_json::from_str::<Message>(bad).is_err(), "{bad}");
        }
    }
}
