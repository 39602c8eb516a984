//! Assembles an answer from the events of a stream.

use std::collections::BTreeMap;

use selvedge_model::answer::{Answer, Draft, End, ModelError, Usage};
use selvedge_model::message::Block;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::event::{Arguments, Delta, Kind, Response, WithItem, WithResponse};
use super::item::Item;
use crate::wire::names::Names;
use crate::wire::openai::HostError;
use crate::wire::{Dialect, Reader};

/// Reads one response.
#[derive(Debug)]
pub(super) struct ResponseReader {
    names: Names,
    provider: String,
    has_sessions: bool,
    id: Option<String>,
    model: Option<String>,
    /// The items, by their place in the answer.
    items: BTreeMap<usize, Item>,
    usage: Option<Usage>,
    end: Option<End>,
    /// The response that a session can continue.
    session: Option<String>,
}

impl ResponseReader {
    pub(super) fn new(names: Names, dialect: &Dialect) -> Self {
        Self {
            names,
            provider: dialect.provider.clone(),
            has_sessions: dialect.sessions,
            id: None,
            model: None,
            items: BTreeMap::new(),
            usage: None,
            end: None,
            session: None,
        }
    }

    fn take(&mut self, kind: &str, data: &str, draft: &mut dyn FnMut(Draft)) -> Result<(), EndCause> {
        match kind {
            "response.created" | "response.in_progress" => {
                let WithResponse { response } = read(data)?;
                self.begun(&response);
                // A count before the end is one so far.
                self.usage = self.usage.map(|usage| Usage { estimated: true, ..usage });
            }
            "response.output_item.added" => {
                let WithItem { output_index, item } = read(data)?;
                self.added(output_index, &parsed(item)?, draft);
            }
            "response.output_item.done" => {
                let WithItem { output_index, item } = read(data)?;
                // The whole of a long message is not read again.
                if !self.items.get(&output_index).is_some_and(Item::is_said) {
                    self.done(output_index, parsed(item)?, draft);
                }
            }
            "response.output_text.delta" => {
                let Delta { output_index, delta } = read(data)?;
                self.item(output_index).push(&delta);
                draft(Draft::Text { text: delta });
            }
            "response.refusal.delta" => {
                let Delta { output_index, delta } = read(data)?;
                let item = self.item(output_index);
                item.refuse();
                item.push(&delta);
                draft(Draft::Text { text: delta });
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let Delta { output_index, delta } = read(data)?;
                self.item(output_index).push(&delta);
                draft(Draft::Thinking { text: delta });
            }
            "response.reasoning_summary_part.added" => {
                let Delta { output_index, .. } = read(data)?;
                let item = self.item(output_index);
                if item.has_text() {
                    item.push("\n\n");
                    draft(Draft::Thinking { text: "\n\n".to_owned() });
                }
            }
            "response.function_call_arguments.delta" => {
                let Delta { output_index, delta } = read(data)?;
                let item = self.item(output_index);
                item.push(&delta);
                draft(Draft::Arguments { id: item.call().0, text: delta });
            }
            "response.function_call_arguments.done" => {
                let Arguments { output_index, arguments } = read(data)?;
                let item = self.item(output_index);
                let rest = item.set_arguments(arguments.unwrap_or_default());
                if !rest.is_empty() {
                    draft(Draft::Arguments { id: item.call().0, text: rest });
                }
            }
            "response.completed" | "response.done" => {
                let WithResponse { response } = read(data)?;
                self.completed(&response, draft);
            }
            "response.incomplete" => {
                let WithResponse { response } = read(data)?;
                self.incomplete(&response, draft)?;
            }
            "response.failed" | "response.cancelled" => {
                let WithResponse { response } = read(data)?;
                self.begun(&response);
                let error = response.error.as_ref().and_then(HostError::of);
                return Err(EndCause::Failed(error.unwrap_or_default()));
            }
            "error" => return Err(EndCause::Failed(HostError::parse(data).unwrap_or_default())),
            _ => {}
        }
        Ok(())
    }

    fn begun(&mut self, response: &Response<'_>) {
        self.id = response.id.clone().or(self.id.take());
        self.model = response.model.clone().or(self.model.take());
        self.usage = response.usage.as_ref().and_then(|counts| counts.usage()).or(self.usage);
    }

    fn item(&mut self, at: usize) -> &mut Item {
        self.items.entry(at).or_default()
    }

    fn added(&mut self, at: usize, item: &Value, draft: &mut dyn FnMut(Draft)) {
        let item = Item::begin(item, at, &self.names);
        if item.is_call() {
            let (id, name) = item.call();
            draft(Draft::ToolCall { name, id: id.clone() });
            if item.has_text() {
                draft(Draft::Arguments { id, text: item.text().to_owned() });
            }
        }
        self.items.insert(at, item);
    }

    /// Takes a whole item. One that had no pieces is drafted now.
    fn done(&mut self, at: usize, item: Value, draft: &mut dyn FnMut(Draft)) {
        let is_new = !self.items.contains_key(&at);
        if is_new {
            self.added(at, &item, draft);
        }
        let names = &self.names;
        let known = self.items.entry(at).or_default();
        let was_silent = is_new || !known.has_text();
        known.end(item, at, names);
        if was_silent && known.has_text() && !known.is_call() {
            let text = known.text().to_owned();
            draft(if known.is_reasoning() { Draft::Thinking { text } } else { Draft::Text { text } });
        }
    }

    /// Takes the items of an ended response that had no events of their own.
    fn rest(&mut self, response: &Response<'_>, draft: &mut dyn FnMut(Draft)) {
        self.begun(response);
        if !self.items.is_empty() {
            return;
        }
        let output = response.output.and_then(|output| serde_json::from_str::<Vec<Value>>(output.get()).ok());
        for (at, item) in output.unwrap_or_default().into_iter().enumerate() {
            self.done(at, item, draft);
        }
    }

    fn completed(&mut self, response: &Response<'_>, draft: &mut dyn FnMut(Draft)) {
        self.rest(response, draft);
        self.session = self.id.clone().filter(|_| self.has_sessions);
        self.end = Some(if self.items.values().any(Item::is_refusal) {
            End::Refused
        } else if self.items.values().any(Item::is_call) {
            End::ToolCalls
        } else {
            End::Finished
        });
    }

    fn incomplete(&mut self, response: &Response<'_>, draft: &mut dyn FnMut(Draft)) -> Result<(), EndCause> {
        self.rest(response, draft);
        let reason = response.incomplete_details.as_ref().and_then(|details| details.reason.as_deref());
        self.end = match reason {
            Some("max_output_tokens" | "max_tokens") => Some(End::Length),
            Some("content_filter") => Some(End::Refused),
            other => {
                let why = format!("the host ended the answer early: {}", other.unwrap_or("no reason given"));
                return Err(EndCause::Cut(why));
            }
        };
        Ok(())
    }

    fn failed(&self, error: HostError) -> ModelError {
        if error.is_session_refused() {
            return ModelError::SessionRefused { why: error.message };
        }
        if error.message.is_empty() {
            return ModelError::Transient { why: "the response failed, and the host does not say why".to_owned() };
        }
        error.in_stream()
    }
}

/// Why an event ends the response.
enum EndCause {
    /// It is not of its format.
    Cut(String),
    /// It reports an error.
    Failed(HostError),
}

fn read<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, EndCause> {
    serde_json::from_str(data).map_err(|error| EndCause::Cut(format!("an event of the stream can't be read: {error}")))
}

fn parsed(item: &RawValue) -> Result<Value, EndCause> {
    read(item.get())
}

impl Reader for ResponseReader {
    fn event(&mut self, name: &str, data: &str, draft: &mut dyn FnMut(Draft)) -> Result<(), ModelError> {
        let data = data.trim();
        // Some hosts end the stream like one of chat completions.
        if self.end.is_some() || data.is_empty() || data == "[DONE]" {
            return Ok(());
        }
        let taken = read::<Kind<'_>>(data).and_then(|kind| {
            let kind = if kind.name.is_empty() { name } else { &kind.name };
            let is_report = kind.is_empty() && HostError::parse(data).is_some();
            self.take(if is_report { "error" } else { kind }, data, draft)
        });
        taken.map_err(|unread| match unread {
            EndCause::Cut(why) => ModelError::Cut { why, partial: self.partial(), usage: self.usage() },
            EndCause::Failed(error) => self.failed(error),
        })
    }

    fn partial(&self) -> Vec<Block> {
        self.items.values().flat_map(|item| item.clone().into_blocks(&self.provider)).collect()
    }

    fn usage(&self) -> Option<Usage> {
        self.usage
    }

    fn is_complete(&self) -> bool {
        self.end.is_some()
    }

    fn answer(self: Box<Self>) -> Option<Answer> {
        let provider = self.provider;
        let blocks = self.items.into_values().flat_map(|item| item.into_blocks(&provider));
        let mut answer = Answer::new(blocks.collect(), self.end?);
        answer.usage = self.usage;
        answer.session = self.session;
        answer.provider_id = self.id;
        answer.model = self.model;
        Some(answer)
    }
}
