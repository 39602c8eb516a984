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

use selvedge_items::config::Wait;
use selvedge_log::hash::sha256;
use selvedge_model::event::{
    Ask, Decision, EffectClass, Fields, Process, SuspendReason, Suspended, ToolIntent, ToolOutcome,
};
use selvedge_model::fold::{Call as Known, Spawned};
use selvedge_model::message::Block;
use selvedge_model::scope::call_cleanup;
use selvedge_model::tool::{Call, Output, Reconciled, Started};
use selvedge_model::{CallId, Cancel, Event, Message, Patch, Reason, Role, Tool, ToolError};
use serde_json::{Value, json};

use crate::approval::{self, Word};
use crate::assignment::Permission;
use crate::carry::shortened;
use crate::conversation::OpenCall;
use crate::engine::Engine;
use crate::error::Result;
use crate::held::{Held, More};
use crate::ledger::Book;
use crate::run::Running;
use crate::spawn::{Child, Refused, Spawning};
use crate::stops::Round;
use crate::told::Told;

/// What a call without a result needs.
enum Need {
    /// It has its answer: it is denied, its tool is gone, or a person said what became of it.
    Answer(Output, Option<Event>),
    /// It is dispatched.
    Dispatch(Ready),
    /// Somebody must allow it first.
    Word(Ask),
    /// Nobody knows what became of it.
    Unknown,
}

/// A call that may be dispatched.
struct Ready {
    tool: Arc<dyn Tool>,
    call: Call,
    /// Who changed its arguments before allowing it.
    changed_by: Option<String>,
    /// Whether somebody had to allow it.
    by_word: bool,
    /// Whether its tool was defined anew after somebody had allowed it.
    redefined: bool,
    /// The child that it has started already.
    child: Option<Spawned>,
}

/// How a call is made.
enum Way {
    Tool(Box<dyn Started>),
    Child(Box<Child>),
}

/// How the calls of a turn ended.
pub(crate) enum Settled {
    /// Every call has a result.
    All,
    /// The run ends with these outputs.
    Returned(Value),
    /// Somebody must say what became of some, or allow some.
    Waits(Suspended),
}

/// A call on its way.
struct Flight {
    open: OpenCall,
    tool: Option<Arc<dyn Tool>>,
    call: Option<Call>,
    started: Option<Way>,
    landed: Landed,
    /// Whether it was dispatched.
    was_made: bool,
    child: Option<Spawned>,
    /// Who changed its arguments before allowing it.
    changed_by: Option<String>,
    /// Whether somebody had to allow it.
    by_word: bool,
    /// Whether its tool was defined anew after somebody had allowed it.
    redefined: bool,
    /// What else is recorded with its result.
    event: Option<Event>,
}

enum Landed {
    /// It is not decided yet.
    No,
    Output(Output),
    /// Somebody must allow it first.
    Asked(Ask),
    /// A ceiling keeps it from being made.
    Limited(Suspended),
    Unknown,
}

/// Above this many bytes a result goes to a blob, and the model sees its beginning and its end.
const INLINE_MAX: usize = 32 << 10;
/// How many bytes of such a result the model sees at each end.
const SHOWN_BYTES: usize = 4 << 10;
/// How many rounds are looked back at when a run is judged.
const ROUNDS_MAX: usize = 64;

impl Running<'_, '_> {
    /// Brings every open call to a result, as far as that can be known.
    pub(crate) fn settle_calls(&mut self) -> Result<Settled> {
        let mut open = self.held.fold.conversation.open().to_vec();
        if open.is_empty() {
            return Ok(Settled::All);
        }
        if self.turns == 0 {
            // What an earlier run left, and what was allowed meanwhile, goes in the order of the calls' names.
            open.sort_by(|one, other| one.id.cmp(&other.id));
        }
        let mut flights: Vec<Flight> = open.into_iter().map(|call| self.plan(call)).collect();
        if self.work.wait == Wait::All && flights.iter().any(Flight::is_asked) {
            // What was allowed waits for the others that are asked about; it stays allowed.
            flights.retain(|flight| !(flight.by_word && matches!(flight.landed, Landed::No)));
        }
        let more = self.start(&mut flights)?;
        self.commit_intents(&flights, more)?;
        self.dispatch(&mut flights);
        self.commit_results(flights)
    }

    /// What a call needs, from what is on record.
    fn plan(&self, open: OpenCall) -> Flight {
        let mut flight = Flight {
            open,
            tool: None,
            call: None,
            started: None,
            landed: Landed::No,
            was_made: false,
            child: None,
            changed_by: None,
            by_word: false,
            redefined: false,
            event: None,
        };
        match self.need(&flight.open) {
            Need::Answer(output, event) => {
                flight.landed = Landed::Output(output);
                flight.event = event;
            }
            Need::Dispatch(ready) => {
                flight.tool = Some(ready.tool);
                flight.call = Some(ready.call);
                (flight.changed_by, flight.by_word) = (ready.changed_by, ready.by_word);
                flight.redefined = ready.redefined;
                flight.child = ready.child;
            }
            Need::Word(ask) => flight.landed = Landed::Asked(ask),
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
        let intent = known.and_then(|known| known.intent.as_ref());
        let now = self.held.engine.clock.now();
        // What was asked and said counts, whatever a rule says by now; only a rule that refuses counts for more.
        let was_asked = known.is_some_and(|known| known.ask.is_some() || known.decisions.iter().any(Decision::is_word));
        let (arguments, changed_by, by_word) = match (self.work.gate)(tool.spec(), &open.arguments) {
            Permission::Allowed if !was_asked => (open.arguments.clone(), None, false),
            Permission::Denied(why) => {
                let denied = denied(open, &tool.spec().capability, &why);
                return Need::Answer(Output::error(format!("not allowed: {why}")), Some(denied));
            }
            // It was allowed before it was dispatched.
            Permission::Allowed | Permission::Ask(_) if intent.is_some() => {
                let (arguments, changed_by) = approval::allowed_with(open, known);
                (arguments, changed_by, true)
            }
            permission => {
                let hash = approval::action_hash(&self.held.fold.head.log_id, open, tool.spec());
                match (approval::word(open, known, &hash, now), permission) {
                    (Word::Given { arguments, changed_by }, _) => (arguments, changed_by, true),
                    (Word::Answer(output), _) => return Need::Answer(output, None),
                    (Word::Awaited, Permission::Ask(asking)) => {
                        return Need::Word(match known.and_then(|known| known.ask.as_ref()) {
                            // What was asked before is asked again as it was, its time included.
                            Some(ask) if ask.action_hash == hash => ask.clone(),
                            // The log, the call and its arguments are the same, so it is the tool that is not.
                            Some(_) => Ask { redefined: true, ..approval::ask(&asking, hash, open, now) },
                            None => approval::ask(&asking, hash, open, now),
                        });
                    }
                    (Word::Awaited, _) => (open.arguments.clone(), None, false),
                }
            }
        };
        let key = intent.map_or_else(|| self.key_of(&open.id), |intent| intent.key.clone());
        let call = Call {
            thread: self.held.thread().clone(),
            run: self.run.clone(),
            id: open.id.clone(),
            name: open.name.clone(),
            arguments,
            key,
        };
        let child = known.and_then(|known| known.child.clone());
        let redefined = by_word && approval::was_redefined(known);
        let ready = Ready { tool: tool.clone(), call, changed_by, by_word, redefined, child };
        // What an earlier life began must not go on beside what is done now, whatever a person or the tool says of it. A child may.
        if ready.child.is_none()
            && let Some(process) = intent.and_then(|intent| intent.process.as_ref())
            && self.held.engine.processes.end(process).is_err()
        {
            return Need::Unknown;
        }
        let was_dispatched = intent.is_some() && !known.is_some_and(is_not_done);
        // Only a call that may run at most once has an intent; what its tool says of itself today does not count.
        match was_dispatched {
            true => self.reconcile(ready),
            false => Need::Dispatch(ready),
        }
    }

    /// What tells a tool that two dispatches are the same call: the same in every life of the thread.
    fn key_of(&self, call: &CallId) -> String {
        let log = &self.held.fold.head.log_id;
        sha256(format!("{log}:{call}").as_bytes()).to_string()
    }

    fn reconcile(&self, ready: Ready) -> Need {
        // What became of a call that started a child is what became of the child.
        let is_recorded = self.work.spawning.as_ref().is_some_and(|spawning| spawning.children.are_recorded());
        if let Some(child) = ready.child.as_ref().filter(|_| !is_recorded) {
            return match self.held.engine.child_standing(&child.thread_id, child.detached) {
                Ok(Some(output)) => Need::Answer(ready.told(output), None),
                Ok(None) => Need::Dispatch(ready),
                Err(error) => {
                    Need::Answer(Output::error(format!("what became of the child is not known: {error}")), None)
                }
            };
        }
        match ready.tool.reconcile(&ready.call, self.cancel) {
            Reconciled::Done(output) => Need::Answer(ready.told(output), None),
            Reconciled::NotDone => Need::Dispatch(ready),
            Reconciled::Unknown => Need::Unknown,
        }
    }

    /// Answers the calls that still wait for somebody's word: a message came instead of it.
    pub(crate) fn cancel_awaited(&mut self) -> Result<()> {
        let mut state = self.held.fold.state().clone();
        let open = self.held.fold.conversation.open().to_vec();
        let awaited = |call: &OpenCall| {
            let known = self.held.fold.call(&call.id);
            let is_asked = known.is_some_and(|known| known.ask.is_some() && known.intent.is_none());
            is_asked && matches!(self.need(call), Need::Word(_))
        };
        let awaited: Vec<OpenCall> = open.into_iter().filter(awaited).collect();
        for call in awaited {
            let output = Output::error("not made: a new message came before anybody allowed this call");
            self.held.add_result(&call, output, &mut state)?;
        }
        Ok(())
    }

    /// Makes everything ready that is to be dispatched; what can't be has its answer. Gives what is committed beside the intents: the
    /// births of children.
    fn start(&mut self, flights: &mut [Flight]) -> Result<More> {
        let engine = self.held.engine;
        let mut book = Book::over(&*engine.store, &*engine.ids);
        let (mut more, mut born) = (More::default(), 0);
        for flight in flights {
            let (Some(tool), Some(call)) = (&flight.tool, &flight.call) else { continue };
            let spawning = self.work.spawning.as_ref().filter(|spawning| spawning.tool == call.name);
            let way = match (spawning, flight.child.take()) {
                (None, _) => tool.start(call).map(Way::Tool).map_err(|error| Refused::Told(error.to_string())),
                (Some(spawning), None) if spawning.children.are_recorded() => {
                    match self.held.recorded_child(call, self.work, spawning, born) {
                        Ok(spawned) => {
                            born += 1;
                            self.held.delta.events.push(spawned);
                            tool.start(call).map(Way::Tool).map_err(|error| Refused::Told(error.to_string()))
                        }
                        Err(refused) => Err(refused),
                    }
                }
                (Some(spawning), Some(_)) if spawning.children.are_recorded() => {
                    tool.start(call).map(Way::Tool).map_err(|error| Refused::Told(error.to_string()))
                }
                (Some(spawning), Some(Spawned { thread_id: thread, detached: is_detached, .. })) => {
                    let launched = is_detached.then(|| spawning.children.launch(&thread)).transpose();
                    let way = |launched| Way::Child(Box::new(Child { thread, birth: None, launched, is_detached }));
                    launched.map(way).map_err(Refused::Told)
                }
                (Some(spawning), None) => self
                    .held
                    .child(call, self.work, spawning, born, &mut book)?
                    .map(|child| Way::Child(Box::new(child))),
            };
            match way {
                Ok(Way::Child(mut child)) => {
                    if let Some((part, postings)) = child.birth.take() {
                        born += 1;
                        more.parts.push(part);
                        self.held.delta.postings.extend(postings);
                        self.held.delta.events.push(child.spawned(&call.id));
                    }
                    flight.started = Some(Way::Child(child));
                }
                Ok(way) => flight.started = Some(way),
                Err(Refused::Told(error)) if spawning.is_some() => {
                    let content = json!({"success": false, "error": error});
                    flight.landed = Landed::Output(Output { content, is_error: true, ..Output::default() });
                }
                Err(Refused::Told(why)) => flight.landed = Landed::Output(Output::error(why)),
                Err(Refused::Waits(suspended)) => flight.landed = Landed::Limited(*suspended),
            }
        }
        Ok(more)
    }

    /// Commits that calls which may run at most once are about to be dispatched.
    fn commit_intents(&mut self, flights: &[Flight], more: More) -> Result<()> {
        for flight in flights {
            let (Some(tool), Some(call), Some(started)) = (&flight.tool, &flight.call, &flight.started) else {
                continue;
            };
            let spec = tool.spec();
            // A child that is there already has its intent, unless a new process is to run it.
            let is_known = self.held.fold.call(&call.id).is_some_and(|known| known.child.is_some());
            let is_known = is_known && started.process().is_none() && matches!(started, Way::Child(_));
            if spec.class == EffectClass::AtMostOnce && !is_known {
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
            false => {
                let of = self.of();
                let committed = self.held.commit_with(Reason::ToolIntentCommitted, of, more, self.tell);
                if committed.is_err() {
                    // Nothing was dispatched, and a call without an intent never ran.
                    self.held.delta.events.retain(|event| !matches!(event, Event::ToolIntent(_)));
                }
                committed.map(|_| ())
            }
        }
    }

    /// Dispatches everything that is ready, at once.
    fn dispatch(&mut self, flights: &mut [Flight]) {
        for flight in flights.iter().filter(|flight| flight.started.is_some()) {
            let OpenCall { id, name, .. } = &flight.open;
            // Somebody may have changed them.
            let arguments = flight.call.as_ref().map_or(&flight.open.arguments, |call| &call.arguments);
            (self.tell)(Told::Calling { call: id, tool: name, arguments });
        }
        let (cancel, engine) = (self.cancel, self.held.engine);
        let spawning = self.work.spawning.as_ref();
        let (children, tools): (Vec<_>, Vec<_>) =
            flights.iter_mut().filter(|flight| flight.started.is_some()).partition(|flight| flight.is_child());
        let has_children = !children.is_empty();
        let all_at_once = |flights: &mut [&mut Flight]| match flights {
            [] => {}
            [alone] => alone.go(engine, spawning, cancel),
            several => thread::scope(|scope| {
                for flight in several.iter_mut() {
                    scope.spawn(|| flight.go(engine, spawning, cancel));
                }
            }),
        };
        let (mut children, mut tools) = (children, tools);
        // As many children as may run side by side, and the other calls with the first of them.
        let at_once = spawning.map_or(1, |spawning| spawning.at_once.max(1)).min(children.len().max(1));
        let later = children.split_off(at_once.min(children.len()));
        tools.extend(children);
        all_at_once(&mut tools);
        let mut later = later;
        later.chunks_mut(at_once).for_each(all_at_once);
        // Whoever stopped the thread stopped its children after it; that they ended must not be heard before that.
        if has_children && let Ok(Some(stop)) = self.held.said_to_stop() {
            cancel.say(stop);
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
        let (mut unknown, mut asks, mut limited) = (Vec::new(), Vec::new(), None);
        let mut returned = None;
        self.rounds.extend(round(&flights));
        if self.rounds.len() > ROUNDS_MAX {
            self.rounds.remove(0);
        }
        let mut state = self.held.fold.state().clone();
        for flight in flights {
            let output = match flight.landed {
                Landed::Output(output) => output,
                Landed::Asked(ask) => {
                    asks.push(ask);
                    continue;
                }
                Landed::Limited(suspended) => {
                    limited = Some(suspended);
                    continue;
                }
                Landed::No | Landed::Unknown => {
                    unknown.push(flight.open.id);
                    continue;
                }
            };
            let output = match &flight.call {
                Some(call) if flight.was_made => told_of_change(output, &flight.changed_by, flight.redefined, call),
                _ => output,
            };
            if self.work.return_tool.as_deref() == Some(flight.open.name.as_str()) && !output.is_error {
                returned = Some(output.content.get("outputs").unwrap_or(&output.content).clone());
            }
            if self.work.handoff_tool.as_deref() == Some(flight.open.name.as_str()) && !output.is_error {
                self.hands_over = true;
            }
            self.held.delta.events.extend(flight.event);
            self.held.add_result(&flight.open, output, &mut state)?;
        }
        if !self.held.delta.messages.is_empty() {
            self.commit(Reason::ToolResultsCommitted)?;
        }
        if let (Some(limited), true, true) = (limited, unknown.is_empty(), asks.is_empty()) {
            return Ok(Settled::Waits(limited));
        }
        if unknown.is_empty() && asks.is_empty() {
            return Ok(returned.map_or(Settled::All, Settled::Returned));
        }
        let (reason, code) = match unknown.is_empty() {
            true => (SuspendReason::Approval, "approval"),
            false => (SuspendReason::OutcomeUnknown, "outcome_unknown"),
        };
        let calls = unknown.into_iter().chain(asks.iter().map(|ask| ask.call_id.clone())).collect();
        Ok(Settled::Waits(Suspended { calls, asks, ..Suspended::because(reason, code) }))
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
            output.content = Value::String(shortened(bytes, 2 * SHOWN_BYTES, &blob));
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

/// What the calls of a turn were and whether all of them failed, once all of them have answered.
fn round(flights: &[Flight]) -> Option<Round> {
    let has_failed = |flight: &Flight| match &flight.landed {
        Landed::Output(output) => Some(output.is_error),
        _ => None,
    };
    let failed: Option<Vec<bool>> = flights.iter().map(has_failed).collect();
    let calls = flights.iter().map(|flight| (flight.open.name.clone(), flight.open.arguments.clone())).collect();
    failed
        .filter(|failed| !failed.is_empty())
        .map(|failed| Round { calls, has_failed: failed.into_iter().all(|one| one) })
}

impl Ready {
    fn told(&self, output: Output) -> Output {
        told_of_change(output, &self.changed_by, self.redefined, &self.call)
    }
}

/// An answer of a call; if somebody changed its arguments, or its tool, the model is told.
fn told_of_change(output: Output, changed_by: &Option<String>, redefined: bool, call: &Call) -> Output {
    let output = if redefined { approval::with_redefinition(output) } else { output };
    match changed_by {
        Some(who) => approval::with_change(output, who, &call.arguments),
        None => output,
    }
}

impl Flight {
    fn is_asked(&self) -> bool {
        matches!(self.landed, Landed::Asked(_))
    }

    fn is_child(&self) -> bool {
        matches!(self.started, Some(Way::Child(_)))
    }

    fn go(&mut self, engine: &Engine, spawning: Option<&Spawning>, cancel: &Cancel) {
        self.was_made = true;
        let started = match (self.started.take(), spawning) {
            (Some(Way::Tool(started)), _) => started,
            (Some(Way::Child(child)), Some(spawning)) => {
                self.landed = Landed::Output(child.go(engine, spawning, cancel));
                return;
            }
            _ => return,
        };
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

impl Way {
    fn process(&self) -> Option<Process> {
        match self {
            Self::Tool(started) => started.process(),
            Self::Child(child) => child.launched.as_ref().and_then(|launched| launched.process()),
        }
    }
}

/// What a person said became of a call.
fn decided(known: &Known) -> Option<Output> {
    let decision = known.decisions.iter().rev().find(|decision| !decision.is_word())?;
    match decision.action.as_str() {
        "done" => Some(Output { content: decision.result.clone().unwrap_or(json!("done")), ..Output::default() }),
        "unknown" => {
            Some(Output::error("nobody knows whether this call was carried out; find out before doing it again"))
        }
        _ => None,
    }
}

fn is_not_done(known: &Known) -> bool {
    known.decisions.iter().any(|decision| decision.action == "not_done")
}

fn denied(open: &OpenCall, capability: &str, why: &str) -> Event {
    let fields = json!({"call_id": open.id, "tool": open.name, "capability": capability, "why": why});
    match fields {
        Value::Object(fields) => Event::CapabilityDenied(fields),
        _ => Event::CapabilityDenied(Fields::new()),
    }
}
