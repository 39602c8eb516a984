//! The tool calls of a turn: those just asked for, and those that an earlier life of the thread left open.
//!
//! Both are one question: what does each call without a result need? Looking at what is on record answers it, and looking
//! changes nothing (`Need`). Then everything that must run is made ready, intents are committed, all of it is dispatched at
//! once, and the results are committed together, in the order of the calls.
//!
//! - A call without an intent never ran, if it may run at most once: it runs now. Pure and idempotent ones run again.
//! - A call with an intent and no outcome may have run. Its process, if one is on record, is ended first; then the tool is asked.
//! - What nobody knows suspends the thread until a person says what became of it.

use std::sync::Arc;
use std::thread;

use selvedge_log::hash::sha256;
use selvedge_model::event::{EffectClass, Fields, Process, SuspendReason, Suspended, ToolIntent, ToolOutcome};
use selvedge_model::fold::Call as Known;
use selvedge_model::message::Block;
use selvedge_model::scope::call_cleanup;
use selvedge_model::tool::{Call, Output, Reconciled, Started};
use selvedge_model::{CallId, Cancel, Event, Message, Patch, Reason, Role, Tool, ToolError};
use serde_json::{Value, json};

use crate::assignment::Permission;
use crate::conversation::OpenCall;
use crate::error::Result;
use crate::held::Held;
use crate::run::Running;
use crate::told::Told;

/// What a call without a result needs.
enum Need {
    /// It has its answer: it is denied, its tool is gone, or a person said what became of it.
    Answer(Output, Option<Event>),
    /// It is dispatched.
    Dispatch(Arc<dyn Tool>, Call),
    /// Nobody knows what became of it.
    Unknown,
}

/// How the calls of a turn ended.
pub(crate) enum Settled {
    /// Every call has a result.
    All,
    /// The run ends with these outputs.
    Returned(Value),
    /// Somebody must say what became of these.
    Unknown(Suspended),
}

/// A call on its way.
struct Flight {
    open: OpenCall,
    tool: Option<Arc<dyn Tool>>,
    call: Option<Call>,
    started: Option<Box<dyn Started>>,
    landed: Landed,
    /// What else is recorded with its result.
    event: Option<Event>,
}

enum Landed {
    /// It is not decided yet.
    No,
    Output(Output),
    Unknown,
}

/// Above this many bytes a result goes to a blob, and the model sees its beginning and its end.
const INLINE_MAX: usize = 32 << 10;
/// How many bytes of such a result the model sees at each end.
const SHOWN_BYTES: usize = 4 << 10;

impl Running<'_, '_> {
    /// Brings every open call to a result, as far as that can be known.
    pub(crate) fn settle_calls(&mut self) -> Result<Settled> {
        let open = self.held.fold.conversation.open().to_vec();
        if open.is_empty() {
            return Ok(Settled::All);
        }
        let mut flights: Vec<Flight> = open.into_iter().map(|call| self.plan(call)).collect();
        start(&mut flights);
        self.commit_intents(&flights)?;
        self.dispatch(&mut flights);
        self.commit_results(flights)
    }

    /// What a call needs, from what is on record.
    fn plan(&self, open: OpenCall) -> Flight {
        let mut flight = Flight { open, tool: None, call: None, started: None, landed: Landed::No, event: None };
        match self.need(&flight.open) {
            Need::Answer(output, event) => {
                flight.landed = Landed::Output(output);
                flight.event = event;
            }
            Need::Dispatch(tool, call) => {
                flight.tool = Some(tool);
                flight.call = Some(call);
            }
            Need::Unknown => flight.landed = Landed::Unknown,
        }
        flight
    }

    fn need(&self, open: &OpenCall) -> Need {
        let known = self.held.fold.call(&open.id);
        if let Some(answer) = known.and_then(decided) {
            return Need::Answer(answer, None);
        }
        let Some(tool) = self.work.tool(&open.name) else {
            let text = match known.and_then(|known| known.intent.as_ref()) {
                None => format!("there is no tool `{}`", open.name),
                Some(_) => {
                    "interrupted: this call was dispatched, its tool is gone, and what became of it is not known"
                        .to_owned()
                }
            };
            return Need::Answer(Output::error(text), None);
        };
        if let Permission::Denied(why) = (self.work.gate)(tool.spec(), &open.arguments) {
            let denied = denied(open, &tool.spec().capability, &why);
            return Need::Answer(Output::error(format!("not allowed: {why}")), Some(denied));
        }
        let intent = known.and_then(|known| known.intent.as_ref());
        let key = intent.map_or_else(|| self.key_of(&open.id), |intent| intent.key.clone());
        let call = Call {
            thread: self.held.thread().clone(),
            run: self.run.clone(),
            id: open.id.clone(),
            name: open.name.clone(),
            arguments: open.arguments.clone(),
            key,
        };
        let was_dispatched = intent.is_some() && !known.is_some_and(is_not_done);
        // Only a call that may run at most once has an intent; what its tool says of itself today does not count.
        match was_dispatched {
            true => self.reconcile(tool, call, intent.and_then(|intent| intent.process.as_ref())),
            false => Need::Dispatch(tool.clone(), call),
        }
    }

    /// What tells a tool that two dispatches are the same call: the same in every life of the thread.
    fn key_of(&self, call: &CallId) -> String {
        let log = &self.held.fold.head.log_id;
        sha256(format!("{log}:{call}").as_bytes()).to_string()
    }

    fn reconcile(&self, tool: &Arc<dyn Tool>, call: Call, process: Option<&Process>) -> Need {
        if let Some(process) = process
            && self.held.engine.processes.end(process).is_err()
        {
            return Need::Unknown;
        }
        match tool.reconcile(&call, self.cancel) {
            Reconciled::Done(output) => Need::Answer(output, None),
            Reconciled::NotDone => Need::Dispatch(tool.clone(), call),
            Reconciled::Unknown => Need::Unknown,
        }
    }

    /// Commits that calls which may run at most once are about to be dispatched.
    fn commit_intents(&mut self, flights: &[Flight]) -> Result<()> {
        for flight in flights {
            let (Some(tool), Some(call), Some(started)) = (&flight.tool, &flight.call, &flight.started) else {
                continue;
            };
            let spec = tool.spec();
            if spec.class == EffectClass::AtMostOnce {
                self.held.delta.events.push(Event::ToolIntent(ToolIntent {
                    call_id: call.id.clone(),
                    tool: spec.name.clone(),
                    class: spec.class,
                    key: call.key.clone(),
                    tool_hash: Some(spec.hash),
                    process: started.process(),
                }));
            }
        }
        match self.held.delta.events.is_empty() {
            true => Ok(()),
            false => self.commit(Reason::ToolIntentCommitted),
        }
    }

    /// Dispatches everything that is ready, at once.
    fn dispatch(&mut self, flights: &mut [Flight]) {
        for flight in flights.iter().filter(|flight| flight.started.is_some()) {
            let OpenCall { id, name, arguments, .. } = &flight.open;
            (self.tell)(Told::Calling { call: id, tool: name, arguments });
        }
        let cancel = self.cancel;
        let mut ready: Vec<&mut Flight> = flights.iter_mut().filter(|flight| flight.started.is_some()).collect();
        match ready.as_mut_slice() {
            [] => {}
            [alone] => alone.go(cancel),
            several => thread::scope(|scope| {
                for flight in several.iter_mut() {
                    scope.spawn(|| flight.go(cancel));
                }
            }),
        }
        // What was lost on the way may be known to the tool.
        for flight in flights.iter_mut().filter(|flight| matches!(flight.landed, Landed::Unknown)) {
            if let (Some(tool), Some(call)) = (&flight.tool, &flight.call)
                && let Reconciled::Done(output) = tool.reconcile(call, cancel)
            {
                flight.landed = Landed::Output(output);
            }
        }
    }

    /// Commits every result there is, in the order of the calls.
    fn commit_results(&mut self, flights: Vec<Flight>) -> Result<Settled> {
        let mut unknown = Vec::new();
        let mut returned = None;
        let mut state = self.held.fold.state().clone();
        for flight in flights {
            let Landed::Output(output) = flight.landed else {
                unknown.push(flight.open.id);
                continue;
            };
            if self.work.return_tool.as_deref() == Some(flight.open.name.as_str()) && !output.is_error {
                returned = Some(output.content.get("outputs").unwrap_or(&output.content).clone());
            }
            self.held.delta.events.extend(flight.event);
            self.held.add_result(&flight.open, output, &mut state)?;
        }
        if !self.held.delta.messages.is_empty() {
            self.commit(Reason::ToolResultsCommitted)?;
        }
        if !unknown.is_empty() {
            let suspended = Suspended {
                reason: SuspendReason::OutcomeUnknown,
                code: Some("outcome_unknown".to_owned()),
                current: None,
                maximum: None,
                calls: unknown,
            };
            return Ok(Settled::Unknown(suspended));
        }
        Ok(returned.map_or(Settled::All, Settled::Returned))
    }
}

impl Held<'_> {
    /// Puts one result into the delta: its message, its outcome, what it changes, and what its call leaves behind.
    fn add_result(&mut self, open: &OpenCall, mut output: Output, state: &mut Value) -> Result<()> {
        let patches = std::mem::take(&mut output.patches);
        match self.routed(&open.id, patches, state) {
            Ok(patches) => self.delta.patches.extend(patches),
            Err(why) => output = Output::error(format!("the tool's change of state does not apply: {why}")),
        }
        self.delta.patches.extend(call_cleanup(state, &open.id).inspect(|patch| {
            // It deletes what is there.
            _ = patch.apply_to(state);
        }));
        let mut outcome = ToolOutcome { call_id: open.id.clone(), result: None, error: None, blob: None };
        let bytes = output.content.as_str().map_or_else(|| output.content.to_string(), str::to_owned);
        if bytes.len() > INLINE_MAX {
            let mut kept = Value::String(bytes);
            self.engine.redactor.value(&mut kept);
            let bytes = kept.as_str().unwrap_or_default();
            let blob = self.engine.store.put_blob(self.thread(), bytes.as_bytes())?;
            output.content = Value::String(shortened(bytes, &blob.to_string()));
            outcome.blob = Some(blob);
        }
        match output.is_error {
            true => {
                outcome.error = Some(output.content.as_str().map_or_else(|| output.content.to_string(), str::to_owned))
            }
            false => outcome.result = Some(output.content.clone()),
        }
        let block = Block::ToolResult { call_id: open.id.clone(), content: output.content, is_error: output.is_error };
        self.delta.messages.push(Message { content: vec![block], ..Message::text(Role::Tool, "") });
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
        let mut state = self.fold.state().clone();
        let answered: Vec<CallId> = results_in(&self.delta.messages).cloned().collect();
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

/// The calls that these messages answer.
fn results_in(messages: &[Message]) -> impl Iterator<Item = &CallId> {
    messages.iter().flat_map(|message| &message.content).filter_map(|block| match block {
        Block::ToolResult { call_id, .. } => Some(call_id),
        _ => None,
    })
}

impl Flight {
    fn go(&mut self, cancel: &Cancel) {
        let Some(started) = self.started.take() else { return };
        let is_once = self.tool.as_ref().is_none_or(|tool| tool.spec().class == EffectClass::AtMostOnce);
        self.landed = match started.dispatch(cancel) {
            Ok(output) => Landed::Output(output),
            Err(ToolError::Lost { .. }) if is_once => Landed::Unknown,
            Err(ToolError::Stopped { .. }) => Landed::Output(Output::error(
                "interrupted: the call was stopped; what it had done by then is not known",
            )),
            Err(error) => Landed::Output(Output::error(error.to_string())),
        };
    }
}

/// Makes everything ready that is to be dispatched; what can't be has its answer.
fn start(flights: &mut [Flight]) {
    for flight in flights {
        if let (Some(tool), Some(call)) = (&flight.tool, &flight.call) {
            match tool.start(call) {
                Ok(started) => flight.started = Some(started),
                Err(error) => flight.landed = Landed::Output(Output::error(error.to_string())),
            }
        }
    }
}

/// What a person said became of a call.
fn decided(known: &Known) -> Option<Output> {
    let decision = known.decisions.last()?;
    match decision.action.as_str() {
        "done" => Some(Output { content: decision.result.clone().unwrap_or(json!("done")), ..Output::default() }),
        "unknown" => {
            Some(Output::error("nobody knows whether this call was carried out; find out before doing it again"))
        }
        _ => None,
    }
}

fn is_not_done(known: &Known) -> bool {
    known.decisions.last().is_some_and(|decision| decision.action == "not_done")
}

fn denied(open: &OpenCall, capability: &str, why: &str) -> Event {
    let fields = json!({"call_id": open.id, "tool": open.name, "capability": capability, "why": why});
    match fields {
        Value::Object(fields) => Event::CapabilityDenied(fields),
        _ => Event::CapabilityDenied(Fields::new()),
    }
}

/// The beginning and the end of a long text, and where the whole is.
fn shortened(text: &str, blob: &str) -> String {
    let mut head = SHOWN_BYTES.min(text.len());
    while !text.is_char_boundary(head) {
        head -= 1;
    }
    let mut tail = text.len() - SHOWN_BYTES.min(text.len());
    while !text.is_char_boundary(tail) {
        tail += 1;
    }
    let left_out = tail.saturating_sub(head);
    format!(
        "{}\n[… {left_out} of {} bytes left out; the whole is in blob {blob} …]\n{}",
        &text[..head],
        text.len(),
        &text[tail.max(head)..]
    )
}
