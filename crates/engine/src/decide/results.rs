//! The record of a call's result: its message, its outcome, its patches, and the cleanup of the call's state. A call that is in no message
//! gets no message.

use std::borrow::Cow;
use std::collections::HashSet;

use selvedge_model::event::{ToolFailure, ToolOutcome};
use selvedge_model::message::Block;
use selvedge_model::scope::{Scopes, call_cleanup};
use selvedge_model::tool::Output;
use selvedge_model::{CallId, Digest, Event, Message, Patch, Role, ToolKind};
use serde_json::Value;

use crate::conversation::OpenCall;
use crate::fold::Fold;
use crate::held::Delta;
use crate::run_config::RunConfig;

/// The result of a call. If it is too large to be shown, the whole is in a blob.
pub(crate) struct CallResult {
    pub(crate) output: Output,
    pub(crate) blob: Option<Digest>,
    /// Why its tool failed.
    pub(crate) failure: Option<ToolFailure>,
}

impl CallResult {
    /// A result that the engine gives instead of the tool.
    pub(crate) fn error(text: &str) -> Self {
        Self { output: Output::error(text), blob: None, failure: None }
    }
}

/// The state after a delta is committed.
pub(crate) fn state_after<'f>(fold: &'f Fold, delta: &Delta) -> Cow<'f, Value> {
    let mut state = Cow::Borrowed(fold.state());
    // These patches were applied without error before.
    for patch in &delta.patches {
        _ = patch.apply_to(state.to_mut());
    }
    state
}

/// Adds one result to a delta: its message, its outcome, its patches, and the cleanup of the call's state.
pub(crate) fn add(delta: &mut Delta, state: &mut Cow<'_, Value>, scopes: &Scopes, open: &OpenCall, back: CallResult) {
    let CallResult { mut output, mut blob, failure } = back;
    match routed(scopes, &open.id, std::mem::take(&mut output.patches), state) {
        Ok(patches) => {
            delta.patches.extend(patches);
            delta.state_actions.append(&mut output.state_actions);
        }
        Err(why) => {
            output = Output::error(format!("the tool's change of state does not apply: {why}"));
            blob = None;
        }
    }
    delta.patches.extend(call_cleanup(state, &open.id).inspect(|patch| {
        // It only deletes existing fields.
        _ = patch.apply_to(state.to_mut());
    }));
    let mut outcome = ToolOutcome { call_id: open.id.clone(), result: None, error: None, failure, blob };
    if output.is_error {
        outcome.error = Some(as_text(&output.content));
    } else {
        outcome.result = Some(output.content.clone());
    }
    if open.is_of_message() {
        let Output { content, is_error, .. } = output;
        let block = Block::ToolResult { call_id: open.id.clone(), content, is_error, blob };
        delta.messages.push(Message { content: vec![block], ..Message::text(Role::Tool, "") });
    }
    delta.events.push(Event::ToolOutcome(outcome));
}

/// Answers every open call with this text, as when a run is stopped: no call stays without a result, also none in a message of the delta. A
/// result that is in the delta counts.
pub(crate) fn interrupt(delta: &mut Delta, fold: &Fold, scopes: &Scopes, text: &str) {
    let mut state = state_after(fold, delta);
    let answered: HashSet<CallId> = delta.answered().cloned().collect();
    let mut open = fold.conversation.open().to_vec();
    for block in delta.messages.iter().flat_map(|message| &message.content) {
        if let Block::ToolCall { id, name, arguments, .. } = block {
            open.push(fold.conversation.next_call(id, name, arguments.clone()));
        }
    }
    for open in open.iter().filter(|open| !answered.contains(&open.id)) {
        let is_dispatched = fold.call(&open.id).is_some_and(|known| known.intent.is_some());
        let text =
            if is_dispatched { "interrupted: this call was dispatched, and its outcome is unknown" } else { text };
        add(delta, &mut state, scopes, open, CallResult::error(text));
    }
}

/// What the last calls of the conversation gave, if one of them was made with a tool of this kind, succeeded, and nothing was said since.
/// It is read from the log, so a process that dies between the result and what follows from it forgets nothing.
pub(crate) fn given<'f>(fold: &'f Fold, rules: &RunConfig, kind: ToolKind) -> Option<&'f Value> {
    let (message, results) = fold.conversation.last_exchange()?;
    let of_kind = |wanted: &CallId| {
        message.content.iter().any(|block| match block {
            Block::ToolCall { id, name, .. } => id == wanted && rules.kind(name) == kind,
            _ => false,
        })
    };
    let blocks = results.iter().flat_map(|result| &result.content);
    blocks.rev().find_map(|block| match block {
        Block::ToolResult { call_id, content, is_error: false, .. } if of_kind(call_id) => Some(content),
        _ => None,
    })
}

/// A result as text.
pub(crate) fn as_text(content: &Value) -> String {
    content.as_str().map_or_else(|| content.to_string(), str::to_owned)
}

/// A tool's patches, with each path replaced by the place that its scope gives it; all of them or none.
fn routed(
    scopes: &Scopes,
    call: &CallId,
    mut patches: Vec<Patch>,
    state: &mut Cow<'_, Value>,
) -> Result<Vec<Patch>, String> {
    if patches.is_empty() {
        return Ok(patches);
    }
    let mut after = state.clone().into_owned();
    for patch in &mut patches {
        for op in &mut patch.ops {
            let place = scopes.route(op.path(), Some(call));
            *op.path_mut() = place;
        }
        patch.apply_to(&mut after).map_err(|error| error.to_string())?;
    }
    *state = Cow::Owned(after);
    Ok(patches)
}
