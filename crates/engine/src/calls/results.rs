//! What a call came to, as it is recorded: its message, its outcome, what it changes, and what its call leaves behind. A call that no
//! message asks for gets none.

use std::collections::HashSet;

use selvedge_model::event::{ToolFailure, ToolOutcome};
use selvedge_model::message::Block;
use selvedge_model::scope::call_cleanup;
use selvedge_model::tool::Output;
use selvedge_model::{CallId, Event, Message, Patch, Role};
use serde_json::Value;

use crate::carry::shortened;
use crate::conversation::OpenCall;
use crate::error::Result;
use crate::held::Held;

/// Above this many bytes a result goes to a blob, and the model sees its beginning and its end.
const INLINE_MAX: usize = 32 << 10;
/// How many bytes of such a result the model sees at each end.
const SHOWN_BYTES: usize = 4 << 10;

impl Held {
    /// The state with what waits in the delta: what could not be committed by itself.
    pub(crate) fn next_state(&self) -> Value {
        let mut state = self.fold.state().clone();
        // What is there was applied before.
        self.delta.patches.iter().for_each(|patch| _ = patch.apply_to(&mut state));
        state
    }

    /// Puts one result into the delta: its message, its outcome, what it changes, and what its call leaves behind.
    pub(super) fn add_result(&mut self, open: &OpenCall, output: Output, state: &mut Value) -> Result<()> {
        self.add_outcome(open, output, None, state)
    }

    /// The same, of a call that its tool perhaps did not answer.
    pub(super) fn add_outcome(
        &mut self,
        open: &OpenCall,
        mut output: Output,
        failure: Option<ToolFailure>,
        state: &mut Value,
    ) -> Result<()> {
        let patches = std::mem::take(&mut output.patches);
        let before = (size(&output.content) > INLINE_MAX).then(|| state.clone());
        let mut changes = Vec::new();
        match self.routed(&open.id, patches, state) {
            Ok(patches) => changes.extend(patches),
            Err(why) => output = Output::error(format!("the tool's change of state does not apply: {why}")),
        }
        changes.extend(call_cleanup(state, &open.id).inspect(|patch| {
            // It deletes what is there.
            _ = patch.apply_to(state);
        }));
        let mut outcome = ToolOutcome { call_id: open.id.clone(), result: None, error: None, failure, blob: None };
        let bytes = output.content.as_str().map_or_else(|| output.content.to_string(), str::to_owned);
        if bytes.len() > INLINE_MAX {
            let mut kept = Value::String(bytes);
            self.engine.redactor.value(&mut kept);
            let bytes = kept.as_str().unwrap_or_default();
            // Without its result, what a call changes is not recorded either.
            let blob = self
                .engine
                .store
                .put_blob(self.thread(), bytes.as_bytes())
                .inspect_err(|_| *state = before.unwrap_or_default())?;
            output.content = Value::String(shortened(bytes, 2 * SHOWN_BYTES, &blob));
            outcome.blob = Some(blob);
        }
        match output.is_error {
            true => {
                outcome.error = Some(output.content.as_str().map_or_else(|| output.content.to_string(), str::to_owned))
            }
            false => outcome.result = Some(output.content.clone()),
        }
        self.delta.patches.extend(changes);
        if open.is_of_message() {
            let Output { content, is_error, .. } = output;
            let block = Block::ToolResult { call_id: open.id.clone(), content, is_error, blob: outcome.blob };
            self.delta.messages.push(Message { content: vec![block], ..Message::text(Role::Tool, "") });
        }
        self.delta.events.push(Event::ToolOutcome(outcome));
        Ok(())
    }

    /// A tool's patches, each write at the place where its scope keeps it; all of them or none.
    fn routed(
        &self,
        call: &CallId,
        mut patches: Vec<Patch>,
        state: &mut Value,
    ) -> std::result::Result<Vec<Patch>, String> {
        let mut after = state.clone();
        for patch in &mut patches {
            for op in &mut patch.ops {
                let place = self.engine.scopes.route(op.path(), Some(call));
                *op.path_mut() = place;
            }
            patch.apply_to(&mut after).map_err(|error| error.to_string())?;
        }
        *state = after;
        Ok(patches)
    }

    /// Answers every open call with words, as when a run is stopped: no call is left dangling. A result that could not be committed
    /// by itself is still in the delta, and counts.
    pub(crate) fn interrupt_calls(&mut self, text: &str) -> Result<()> {
        let mut state = self.next_state();
        let answered: HashSet<CallId> = self.delta.answered().cloned().collect();
        for open in self.fold.conversation.open().to_vec() {
            let is_dispatched = self.fold.call(&open.id).is_some_and(|known| known.intent.is_some());
            match () {
                () if answered.contains(&open.id) => {}
                () if is_dispatched => {
                    let text = "interrupted: this call was dispatched, and what became of it is not known";
                    self.add_result(&open, Output::error(text), &mut state)?;
                }
                () => self.add_result(&open, Output::error(text), &mut state)?,
            }
        }
        Ok(())
    }
}

/// How many bytes a result has as text.
fn size(content: &Value) -> usize {
    content.as_str().map_or_else(|| content.to_string().len(), str::len)
}
