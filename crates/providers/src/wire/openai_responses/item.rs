//! One item of an answer: a message, reasoning, a call, or an item of a tool that the host runs itself.

use selvedge_model::CallId;
use selvedge_model::message::Block;
use serde_json::Value;

use crate::wire::names::Names;
use crate::wire::openai;

/// An item while it arrives.
#[derive(Clone, Debug, Default)]
pub(super) struct Item {
    kind: Kind,
    /// The text of a message, the summary of reasoning, or the arguments of a call.
    text: String,
    /// The id and the tool of a call.
    id: Option<CallId>,
    tool: String,
    /// The item as the host sent it at its end, if it must be sent back unchanged.
    whole: Option<Value>,
    is_refusal: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Message,
    Reasoning,
    Call,
    Other,
}

impl Item {
    /// An item at its beginning, at a place in the answer.
    pub(super) fn begin(item: &Value, at: usize, names: &Names) -> Self {
        let kind = match item["type"].as_str() {
            Some("message") | None => Kind::Message,
            Some("reasoning") => Kind::Reasoning,
            Some("function_call") => Kind::Call,
            Some(_) => Kind::Other,
        };
        if kind != Kind::Call {
            return Self { kind, ..Self::default() };
        }
        let given = item["call_id"].as_str().unwrap_or_default();
        let id = CallId::new(given).or_else(|_| CallId::new(format!("call_{}", at + 1))).ok();
        let tool = names.tool(item["name"].as_str().unwrap_or_default());
        let text = item["arguments"].as_str().unwrap_or_default().to_owned();
        Self { kind, id, tool, text, ..Self::default() }
    }

    /// Takes the whole item, which adds what its pieces did not say.
    pub(super) fn end(&mut self, item: Value, at: usize, names: &Names) {
        let begun = Self::begin(&item, at, names);
        self.kind = begun.kind;
        match self.kind {
            Kind::Message => {
                let parts = item["content"].as_array().map(Vec::as_slice).unwrap_or_default();
                self.is_refusal |= parts.iter().any(|part| part["type"] == "refusal");
                let texts = parts.iter().filter_map(|part| part["text"].as_str().or_else(|| part["refusal"].as_str()));
                self.fill(texts.collect());
            }
            Kind::Reasoning => {
                let summary = texts_of(&item["summary"], "\n\n");
                self.fill(if summary.is_empty() { texts_of(&item["content"], "") } else { summary });
                self.whole = Some(item);
            }
            Kind::Call => {
                // The id under which the call was drafted stays.
                self.id = self.id.take().or(begun.id);
                self.tool = begun.tool;
                self.set_arguments(begun.text);
            }
            Kind::Other => self.whole = Some(item),
        }
    }

    /// Sets the text, if there were no pieces of it.
    fn fill(&mut self, text: String) {
        if self.text.is_empty() {
            self.text = text;
        }
    }

    /// Adds a piece.
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The arguments of a call as a whole; returns what its pieces did not contain.
    pub(super) fn set_arguments(&mut self, whole: String) -> String {
        let rest = whole.strip_prefix(&self.text).unwrap_or_default().to_owned();
        self.text.push_str(&rest);
        rest
    }

    pub(super) fn refuse(&mut self) {
        self.is_refusal = true;
    }

    pub(super) fn is_refusal(&self) -> bool {
        self.is_refusal
    }

    /// Whether it is a message whose text has arrived: then the whole item says nothing new.
    pub(super) fn is_said(&self) -> bool {
        self.kind == Kind::Message && self.has_text()
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.kind == Kind::Reasoning
    }

    pub(super) fn is_call(&self) -> bool {
        self.kind == Kind::Call
    }

    pub(super) fn has_text(&self) -> bool {
        !self.text.is_empty()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The id and the tool of a call.
    pub(super) fn call(&self) -> (Option<CallId>, String) {
        (self.id.clone(), self.tool.clone())
    }

    /// The item as blocks. Reasoning is two: its summary for readers, and the whole for the provider.
    pub(super) fn into_blocks(self, provider: &str) -> Vec<Block> {
        let opaque = self.whole.map(|data| Block::Opaque { provider: provider.to_owned(), data });
        if self.kind == Kind::Call {
            let arguments = openai::arguments_of(self.text);
            return self.id.map(|id| Block::tool_call(id, self.tool, arguments)).into_iter().collect();
        }
        let text = Some(self.text).filter(|text| !text.is_empty());
        let text =
            text.map(|text| if self.kind == Kind::Reasoning { Block::thinking(text) } else { Block::text(text) });
        text.into_iter().chain(opaque).collect()
    }
}

fn texts_of(parts: &Value, separator: &str) -> String {
    let parts = parts.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join(separator)
}
