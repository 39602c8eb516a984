//! Assembles an answer from the events of a stream.

use selvedge_model::answer::{Answer, Draft, End, ModelError, Usage};
use selvedge_model::message::Block;
use serde_json::Value;

use super::calls::Calls;
use super::chunk::{CallDelta, Choice, Chunk, Content, Delta, usage};
use super::opaque;
use crate::wire::Reader;
use crate::wire::names::Names;
use crate::wire::openai::HostError;

/// The data of the event that ends a stream.
const DONE: &str = "[DONE]";

/// Reads one response.
#[derive(Debug)]
pub(super) struct ChatReader {
    names: Names,
    provider: String,
    /// Whether the request offers tools: then the host may want its reasoning back.
    has_tools: bool,
    provider_id: Option<String>,
    model: Option<String>,
    /// Thinking and text, in the order of their arrival.
    said: Vec<Block>,
    calls: Calls,
    /// The field of the reasoning, and its parts.
    reasoning_field: Option<&'static str>,
    details: Vec<Value>,
    is_refused: bool,
    finish: Option<String>,
    usage: Option<Usage>,
    is_done: bool,
}

impl ChatReader {
    pub(super) fn new(names: Names, provider: &str, has_tools: bool) -> Self {
        Self {
            names,
            provider: provider.to_owned(),
            has_tools,
            provider_id: None,
            model: None,
            said: Vec::new(),
            calls: Calls::default(),
            reasoning_field: None,
            details: Vec::new(),
            is_refused: false,
            finish: None,
            usage: None,
            is_done: false,
        }
    }

    fn chunk(&mut self, chunk: Chunk, draft: &mut dyn FnMut(Draft)) -> Result<(), ModelError> {
        let filled = |field: Option<String>| field.filter(|text| !text.is_empty());
        self.provider_id = self.provider_id.take().or(filled(chunk.id));
        self.model = self.model.take().or(filled(chunk.model));
        for choice in chunk.choices {
            if choice.index.unwrap_or(0) == 0 {
                self.choice(choice, draft)?;
            }
        }
        if let Some(reported) = chunk.usage.as_ref().and_then(usage) {
            // Before the end of the answer it is a count so far.
            self.usage = Some(Usage { estimated: self.finish.is_none(), ..reported });
        }
        Ok(())
    }

    fn choice(&mut self, choice: Choice, draft: &mut dyn FnMut(Draft)) -> Result<(), ModelError> {
        self.delta(choice.delta, draft);
        if let Some(message) = choice.message {
            self.delta(message, draft);
        }
        let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) else { return Ok(()) };
        if is_failure(&reason) {
            return Err(self.cut(format!("the host ended the answer with `{reason}`")));
        }
        self.finish = Some(reason);
        Ok(())
    }

    fn delta(&mut self, delta: Delta, draft: &mut dyn FnMut(Draft)) {
        if let Some((field, text)) = delta.reasoning() {
            self.reasoning_field.get_or_insert(field);
            self.think(text, draft);
        }
        opaque::join(&mut self.details, delta.reasoning_details);
        match delta.content {
            Some(Content::Text(text)) => self.say(&text, draft),
            Some(Content::Parts(parts)) => parts.iter().for_each(|part| self.part(part, draft)),
            None => {}
        }
        if let Some(text) = delta.refusal.filter(|text| !text.is_empty()) {
            self.is_refused = true;
            self.say(&text, draft);
        }
        for call in delta.tool_calls {
            self.calls.take(call, &self.names, draft);
        }
        if let Some(function) = delta.function_call {
            let call = CallDelta { index: Some(0), function, ..CallDelta::default() };
            self.calls.take(call, &self.names, draft);
        }
    }

    /// Takes one part of a content that is a list.
    fn part(&mut self, part: &Value, draft: &mut dyn FnMut(Draft)) {
        if let Some(text) = part["text"].as_str() {
            self.say(text, draft);
        }
        match &part["thinking"] {
            Value::String(text) => self.think(text, draft),
            Value::Array(thoughts) => {
                for thought in thoughts.iter().filter_map(|thought| thought["text"].as_str()) {
                    self.think(thought, draft);
                }
            }
            _ => {}
        }
    }

    fn say(&mut self, more: &str, draft: &mut dyn FnMut(Draft)) {
        if more.is_empty() {
            return;
        }
        match self.said.last_mut() {
            Some(Block::Text { text, .. }) => text.push_str(more),
            _ => self.said.push(Block::text(more)),
        }
        draft(Draft::Text { text: more.to_owned() });
    }

    fn think(&mut self, more: &str, draft: &mut dyn FnMut(Draft)) {
        match self.said.last_mut() {
            Some(Block::Thinking { text, .. }) => text.push_str(more),
            _ => self.said.push(Block::thinking(more)),
        }
        draft(Draft::Thinking { text: more.to_owned() });
    }

    /// What the host wants back, and the calls.
    fn rest(&self) -> Vec<Block> {
        let data = opaque::of_answer(self.details.clone(), self.reasoning_field).filter(|_| self.has_tools);
        let opaque = data.map(|data| Block::Opaque { provider: self.provider.clone(), data });
        opaque.into_iter().chain(self.calls.blocks(&self.provider)).collect()
    }

    fn cut(&self, why: String) -> ModelError {
        ModelError::Cut { why, partial: self.partial(), usage: self.usage() }
    }

    fn end(&self, reason: &str) -> End {
        match reason {
            _ if self.is_refused => End::Refused,
            "content_filter" => End::Refused,
            "length" | "max_tokens" | "model_length" => End::Length,
            // Some hosts give `stop` as the reason although the answer calls tools.
            _ if !self.calls.is_empty() => End::ToolCalls,
            _ => End::Finished,
        }
    }
}

/// Whether a reason means that the host gave up, and the answer is not whole.
fn is_failure(reason: &str) -> bool {
    matches!(reason, "error" | "abort" | "insufficient_system_resource")
}

impl Reader for ChatReader {
    fn event(&mut self, name: &str, data: &str, draft: &mut dyn FnMut(Draft)) -> Result<(), ModelError> {
        let data = data.trim();
        if self.is_done || data.is_empty() {
            return Ok(());
        }
        if data == DONE {
            self.is_done = true;
            return Ok(());
        }
        let chunk: Chunk = match serde_json::from_str(data) {
            Ok(chunk) => chunk,
            Err(error) => return Err(self.cut(format!("an event of the stream can't be read: {error}"))),
        };
        let is_error = chunk.error.is_some() || chunk.object.as_deref() == Some("error") || name == "error";
        if is_error && let Some(error) = HostError::parse(data) {
            return Err(error.in_stream());
        }
        self.chunk(chunk, draft)
    }

    fn partial(&self) -> Vec<Block> {
        self.said.iter().cloned().chain(self.rest()).collect()
    }

    fn usage(&self) -> Option<Usage> {
        self.usage
    }

    fn is_complete(&self) -> bool {
        self.is_done && self.finish.is_some()
    }

    fn answer(self: Box<Self>) -> Option<Answer> {
        let end = self.end(self.finish.as_deref()?);
        let rest = self.rest();
        let mut answer = Answer::new(self.said.into_iter().chain(rest).collect(), end);
        answer.usage = self.usage;
        answer.provider_id = self.provider_id;
        answer.model = self.model;
        Some(answer)
    }
}
