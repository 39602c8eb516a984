//! The events of a response.

use std::borrow::Cow;

use selvedge_model::answer::{Answer, Draft, End, ModelError, Usage};
use selvedge_model::message::Block;
use selvedge_model::{CallId, ToolSpec};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Anthropic;
use crate::wire::names::Names;
use crate::wire::{Dialect, Reader, Refusal, Wire};

/// The events that are read; others are skipped without a look at their data.
const KNOWN: [&str; 7] = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
];

/// Reads one response.
pub(super) struct Messages {
    provider: String,
    names: Names,
    /// The blocks, each with its number in the stream.
    blocks: Vec<(u64, Building)>,
    started: Option<Started>,
    usage: Option<Usage>,
    /// Whether the usage is the final one.
    is_counted: bool,
    stop_reason: Option<String>,
    is_stopped: bool,
}

#[derive(Deserialize)]
struct Started {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    usage: Option<Counted>,
}

/// A block that is being received.
enum Building {
    Text(String),
    Thinking {
        text: String,
        signature: String,
    },
    Call {
        id: CallId,
        name: String,
        /// The arguments that were given at the start.
        given: Value,
        /// Those that were streamed.
        streamed: String,
    },
    /// A block of a type that only the provider understands, and the input that was streamed for it.
    Opaque {
        data: Value,
        streamed: String,
    },
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(default)]
    index: u64,
    #[serde(default)]
    message: Option<Started>,
    #[serde(default)]
    content_block: Option<Value>,
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(default)]
    usage: Option<Counted>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    signature: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    partial_json: Option<Cow<'a, str>>,
    #[serde(default)]
    stop_reason: Option<String>,
}

/// The counts of a usage; those of a later event replace those of an earlier one.
#[derive(Clone, Copy, Deserialize)]
struct Counted {
    #[serde(default)]
    input_tokens: Option<u64>,
    #[serde(default)]
    output_tokens: Option<u64>,
    #[serde(default)]
    cache_creation_input_tokens: Option<u64>,
    #[serde(default)]
    cache_read_input_tokens: Option<u64>,
}

impl Messages {
    pub(super) fn new(dialect: &Dialect, tools: &[ToolSpec]) -> Self {
        Self {
            provider: dialect.provider.clone(),
            names: Names::of(tools),
            blocks: Vec::new(),
            started: None,
            usage: None,
            is_counted: false,
            stop_reason: None,
            is_stopped: false,
        }
    }

    /// Adds counts to the usage. Tokens of the cache are counted apart by the API, and included here.
    fn count(&mut self, counted: Counted) {
        let usage = self.usage.get_or_insert_default();
        let cached = usage.cache_read_tokens.saturating_add(usage.cache_write_tokens);
        let uncached = usage.input_tokens.saturating_sub(cached);
        let uncached = counted.input_tokens.unwrap_or(uncached);
        usage.cache_read_tokens = counted.cache_read_input_tokens.unwrap_or(usage.cache_read_tokens);
        usage.cache_write_tokens = counted.cache_creation_input_tokens.unwrap_or(usage.cache_write_tokens);
        let cached = usage.cache_read_tokens.saturating_add(usage.cache_write_tokens);
        usage.input_tokens = uncached.saturating_add(cached);
        usage.output_tokens = counted.output_tokens.unwrap_or(usage.output_tokens);
    }

    fn begin(&mut self, index: u64, block: Value, draft: &mut dyn FnMut(Draft)) {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        let building = match block["type"].as_str() {
            Some("text") => {
                let text = text("text");
                if !text.is_empty() {
                    draft(Draft::Text { text: text.clone() });
                }
                Building::Text(text)
            }
            Some("thinking") => Building::Thinking { text: text("thinking"), signature: text("signature") },
            Some("tool_use") => {
                let id = CallId::new(text("id")).or_else(|_| CallId::new(format!("call_{}", self.blocks.len() + 1)));
                // A number is a valid id; if it were not, the call could not be answered.
                let Ok(id) = id else { return };
                let name = self.names.tool(&text("name"));
                draft(Draft::ToolCall { name: name.clone(), id: Some(id.clone()) });
                Building::Call { id, name, given: block["input"].clone(), streamed: String::new() }
            }
            _ => Building::Opaque { data: block, streamed: String::new() },
        };
        self.blocks.push((index, building));
    }

    fn continue_block(&mut self, index: u64, delta: Delta<'_>, draft: &mut dyn FnMut(Draft)) {
        let Some((_, block)) = self.blocks.iter_mut().rev().find(|(other, _)| *other == index) else { return };
        match block {
            Building::Text(text) => {
                if let Some(more) = delta.text {
                    text.push_str(&more);
                    draft(Draft::Text { text: more.into_owned() });
                }
            }
            Building::Thinking { text, signature } => {
                if let Some(more) = delta.thinking {
                    text.push_str(&more);
                    draft(Draft::Thinking { text: more.into_owned() });
                }
                signature.push_str(&delta.signature.unwrap_or_default());
            }
            Building::Call { id, streamed, .. } => {
                if let Some(more) = delta.partial_json {
                    streamed.push_str(&more);
                    draft(Draft::Arguments { id: Some(id.clone()), text: more.into_owned() });
                }
            }
            Building::Opaque { streamed, .. } => streamed.push_str(&delta.partial_json.unwrap_or_default()),
        }
    }

    fn end(&self) -> End {
        let calls = self.blocks.iter().any(|(_, block)| matches!(block, Building::Call { .. }));
        match self.stop_reason.as_deref() {
            Some("max_tokens" | "model_context_window_exceeded") => End::Length,
            Some("refusal") => End::Refused,
            _ if calls => End::ToolCalls,
            _ => End::Finished,
        }
    }

    fn notes(&self) -> Vec<String> {
        match self.stop_reason.as_deref() {
            Some("pause_turn") => {
                vec!["the provider paused its turn; the answer may continue in the next one".to_owned()]
            }
            Some("model_context_window_exceeded") => {
                vec!["the answer ends where the context window of the model ends".to_owned()]
            }
            _ => Vec::new(),
        }
    }
}

impl Reader for Messages {
    fn event(&mut self, name: &str, data: &str, draft: &mut dyn FnMut(Draft)) -> Result<(), ModelError> {
        if !name.is_empty() && !KNOWN.contains(&name) {
            return Ok(());
        }
        let garbled = |error: serde_json::Error| cut(format!("an event of the stream can't be read: {error}"));
        let event: Event<'_> = serde_json::from_str(data).map_err(garbled)?;
        let kind = if event.kind.is_empty() { name } else { &event.kind };
        match kind {
            "message_start" => {
                let started = event.message.ok_or_else(|| cut("the first event has no message".to_owned()))?;
                if let Some(counted) = started.usage {
                    self.count(counted);
                }
                self.started = Some(started);
            }
            "content_block_start" => self.begin(event.index, event.content_block.unwrap_or_default(), draft),
            "content_block_delta" => {
                if let Some(delta) = event.delta {
                    self.continue_block(event.index, delta, draft);
                }
            }
            "message_delta" => {
                if let Some(counted) = event.usage {
                    self.count(counted);
                    self.is_counted = counted.output_tokens.is_some();
                }
                self.stop_reason = event.delta.and_then(|delta| delta.stop_reason).or(self.stop_reason.take());
            }
            "message_stop" => self.is_stopped = self.started.is_some(),
            "error" => {
                let error = Anthropic.refusal(&Refusal { status: None, body: data });
                return Err(error.unwrap_or_else(|| cut(format!("the provider reports an error: {data}"))));
            }
            _ => {}
        }
        Ok(())
    }

    fn partial(&self) -> Vec<Block> {
        self.blocks.iter().filter_map(|(_, block)| block.block(&self.provider)).collect()
    }

    fn usage(&self) -> Option<Usage> {
        self.usage.map(|usage| Usage { estimated: !self.is_counted, ..usage })
    }

    fn is_complete(&self) -> bool {
        self.is_stopped
    }

    fn answer(self: Box<Self>) -> Option<Answer> {
        if !self.is_stopped {
            return None;
        }
        let usage = self.usage();
        let end = self.end();
        let notes = self.notes();
        let Self { provider, blocks, started, .. } = *self;
        let content = blocks.into_iter().filter_map(|(_, block)| block.into_block(&provider)).collect();
        let mut answer = Answer::new(content, end);
        answer.usage = usage;
        answer.notes = notes;
        let started = started?;
        answer.provider_id = started.id;
        answer.model = started.model;
        Some(answer)
    }
}

fn cut(why: String) -> ModelError {
    ModelError::Cut { why, partial: Vec::new(), usage: None }
}

impl Building {
    /// The block so far.
    fn block(&self, provider: &str) -> Option<Block> {
        let copy = match self {
            Self::Text(text) => Self::Text(text.clone()),
            Self::Thinking { text, signature } => Self::Thinking { text: text.clone(), signature: signature.clone() },
            Self::Call { id, name, given, streamed } => {
                Self::Call { id: id.clone(), name: name.clone(), given: given.clone(), streamed: streamed.clone() }
            }
            Self::Opaque { data, streamed } => Self::Opaque { data: data.clone(), streamed: streamed.clone() },
        };
        copy.into_block(provider)
    }

    /// The block; `None` if it is empty.
    fn into_block(self, provider: &str) -> Option<Block> {
        match self {
            Self::Text(text) => (!text.is_empty()).then(|| Block::text(text)),
            Self::Thinking { text, signature } if signature.is_empty() => {
                (!text.is_empty()).then(|| Block::thinking(text))
            }
            Self::Thinking { text, signature } => {
                Some(Block::Thinking { text, signature: Some(signature), provider: Some(provider.to_owned()) })
            }
            Self::Call { id, name, given, streamed } => Some(Block::tool_call(id, name, arguments(given, streamed))),
            Self::Opaque { mut data, streamed } => {
                if let Ok(input) = serde_json::from_str::<Value>(&streamed)
                    && data.is_object()
                {
                    data["input"] = input;
                }
                (!data.is_null()).then(|| Block::Opaque { provider: provider.to_owned(), data })
            }
        }
    }
}

/// The arguments of a call: an object, or what the model wrote instead of one.
fn arguments(given: Value, streamed: String) -> Value {
    if streamed.trim().is_empty() {
        return if given.is_object() { given } else { json!(Map::new()) };
    }
    match serde_json::from_str::<Map<String, Value>>(&streamed) {
        Ok(fields) => Value::Object(fields),
        Err(_) => Value::String(streamed),
    }
}
