//! Assembles tool calls from the pieces of a stream.
//!
//! The format gives each call an index, and its id and name in its first piece. Hosts differ:
//!
//! - The index may be missing: a piece with a new id or a name starts a call, any other belongs to the last one.
//! - Calls may share an index: another id starts a call.
//! - The id may be missing, empty or repeated in each piece; a call without one gets the id `call_N`.
//! - The name may be repeated or empty in later pieces; only the first counts.

use selvedge_model::CallId;
use selvedge_model::answer::Draft;
use selvedge_model::message::Block;

use serde_json::Value;

use super::chunk::CallDelta;
use super::opaque;
use crate::wire::names::Names;
use crate::wire::openai;

/// The calls of an answer.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<Call>,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    /// The provider's id, as it was sent.
    given: String,
    /// The id under which it was drafted.
    id: Option<CallId>,
    /// The tool, once its name has arrived.
    tool: Option<String>,
    arguments: String,
    /// What the host wants back with it.
    extra: Option<Value>,
}

impl Calls {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Takes a piece of a call.
    pub(super) fn take(&mut self, delta: CallDelta, names: &Names, draft: &mut dyn FnMut(Draft)) {
        let given = delta.id.clone().unwrap_or_default();
        let name = delta.function.name.clone().unwrap_or_default();
        let at = self.find(delta.index, &given, &name).unwrap_or_else(|| {
            self.calls.push(Call { index: delta.index, ..Call::default() });
            self.calls.len() - 1
        });
        let call = &mut self.calls[at];
        if call.given.is_empty() {
            call.given = given;
        }
        call.extra = delta.extra_content.filter(|extra| !extra.is_null()).or(call.extra.take());
        let text = delta.function.arguments();
        call.arguments.push_str(&text);
        if call.tool.is_some() {
            call.draft(text, draft);
        } else if !name.is_empty() {
            let tool = names.tool(&name);
            call.tool = Some(tool.clone());
            call.id = id_of(&call.given, at);
            draft(Draft::ToolCall { name: tool, id: call.id.clone() });
            // Arguments that came before the name follow it.
            let text = call.arguments.clone();
            call.draft(text, draft);
        }
    }

    /// The call that a piece belongs to; `None` if it starts one.
    fn find(&self, index: Option<u64>, given: &str, name: &str) -> Option<usize> {
        let is_other = |call: &Call| !given.is_empty() && !call.given.is_empty() && call.given != given;
        match index {
            Some(_) => self.calls.iter().rposition(|call| call.index == index && !is_other(call)),
            None if !given.is_empty() => {
                let is_same = |call: &Call| call.given == given;
                let is_new_start = !name.is_empty();
                self.calls.iter().rposition(is_same).or_else(|| self.last().filter(|_| !is_new_start))
            }
            None if name.is_empty() => self.last(),
            None => None,
        }
    }

    fn last(&self) -> Option<usize> {
        self.calls.len().checked_sub(1)
    }

    /// The calls as blocks, in the order in which they started.
    pub(super) fn blocks(&self, provider: &str) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (at, call) in self.calls.iter().enumerate() {
            let Some(id) = call.id.clone().or_else(|| id_of(&call.given, at)) else { continue };
            if let Some(extra) = &call.extra {
                blocks.push(Block::Opaque { provider: provider.to_owned(), data: opaque::of_call(extra.clone()) });
            }
            let arguments = openai::arguments_of(call.arguments.clone());
            blocks.push(Block::tool_call(id, call.tool.clone().unwrap_or_default(), arguments));
        }
        blocks
    }
}

impl Call {
    fn draft(&self, text: String, draft: &mut dyn FnMut(Draft)) {
        if !text.is_empty() {
            draft(Draft::Arguments { id: self.id.clone(), text });
        }
    }
}

/// The id of the call at a position: the provider's if it is a valid one.
fn id_of(given: &str, at: usize) -> Option<CallId> {
    CallId::new(given).or_else(|_| CallId::new(format!("call_{}", at + 1))).ok()
}
