//! The tool calls of a turn: those just asked for, and those that an earlier life of the thread left open.
//!
//! Both are one question: what does each call without a result need? Looking at what is on record answers it, and looking
//! changes nothing (`Need`). Then everything that must run is made ready, intents are committed, all of it is dispatched at
//! once, and the results are committed together, in the order of the calls.
//!
//! - A call without an intent never ran, if it may run at most once: it runs now. Pure and idempotent ones run again.
//! - A call with an intent and no outcome may have run. Its process, if one is on record, is ended first; then the tool is asked.
//! - What nobody knows suspends the thread until a person says what became of it.

mod flight;
mod guarded;
mod need;
mod results;

use std::thread;

use selvedge_items::config::Wait;
use selvedge_model::event::{EffectClass, SuspendReason, Suspended, ToolIntent};
use selvedge_model::fold::Spawned;
use selvedge_model::limits::Limits;
use selvedge_model::tool::Output;
use selvedge_model::{Event, Reason};
use serde_json::{Value, json};

use crate::conversation::OpenCall;
use crate::error::Result;
use crate::held::More;
use crate::ledger::Book;
use crate::run::Running;
use crate::spawn::{Child, Own, Refusal, Refused};
use crate::told::Told;

use flight::{Flight, Landed, Way};
use need::{Need, Ready};

/// How the calls of a turn ended.
pub(crate) enum Settled {
    /// Every call has a result.
    All,
    /// The run ends with these outputs.
    Returned(Value),
    /// Somebody must say what became of some, or allow some.
    Waits(Suspended),
}

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
        let plan = |open: OpenCall| {
            let need = self.need(&open);
            Flight::of(open, need)
        };
        let mut flights: Vec<Flight> = open.into_iter().map(plan).collect();
        self.ask_anew(&flights);
        if self.work.wait == Wait::All && flights.iter().any(|flight| flight.ask().is_some()) {
            // What was allowed waits for the others that are asked about; it stays allowed.
            flights.retain(|flight| !flight.is_allowed());
        }
        let more = self.start(&mut flights)?;
        self.commit_intents(&flights, more)?;
        self.dispatch(&mut flights);
        self.commit_results(flights)
    }

    /// What was not asked when the model asked for the call, because a rule or the tool was another one then, is asked now.
    fn ask_anew(&mut self, flights: &[Flight]) {
        for ask in flights.iter().filter_map(Flight::ask) {
            let before = self.held.fold.call(&ask.call_id).and_then(|known| known.ask.as_ref());
            if before != Some(ask) {
                self.held.delta.events.push(Event::Asked(ask.clone()));
            }
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
        let own_turn = self.next_turn_cost();
        let (mut more, mut born) = (More::default(), 0);
        for flight in flights {
            let Some(Ready { tool, call, child, .. }) = &mut flight.ready else { continue };
            let (tool, call) = (&*tool, &*call);
            let spawning = self.work.spawning.as_ref().filter(|spawning| spawning.tool == call.name);
            let way = match (spawning, child.take()) {
                (None, _) => guarded::start(&**tool, call).map(Way::Tool).map_err(Refused::from),
                (Some(spawning), None) if spawning.children.are_recorded() => {
                    match self.held.recorded_child(call, self.work, spawning, born) {
                        Ok(spawned) => {
                            born += 1;
                            self.held.delta.events.push(spawned);
                            guarded::start(&**tool, call).map(Way::Tool).map_err(Refused::from)
                        }
                        Err(refused) => Err(refused),
                    }
                }
                (Some(spawning), Some(_)) if spawning.children.are_recorded() => {
                    guarded::start(&**tool, call).map(Way::Tool).map_err(Refused::from)
                }
                (Some(spawning), Some(Spawned { thread_id: thread, detached: is_detached, .. })) => {
                    let launched = is_detached.then(|| spawning.children.launch(&thread)).transpose();
                    let way = |launched| {
                        Way::Child(Box::new(Child {
                            thread,
                            birth: None,
                            launched,
                            is_detached,
                            lowered: Limits::default(),
                        }))
                    };
                    launched.map(way).map_err(Refused::told)
                }
                (Some(spawning), None) => self
                    .held
                    .child(call, self.work, spawning, Own { born, turn: own_turn }, &mut book)?
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
                Err(Refused::Told(Refusal { text, failure })) => {
                    let content =
                        if spawning.is_some() { json!({"success": false, "error": text}) } else { json!(text) };
                    flight.landed = Landed::Output(Output { content, is_error: true, ..Output::default() });
                    flight.failure = failure;
                }
                Err(Refused::Waits(suspended)) => flight.landed = Landed::Limited(*suspended),
            }
        }
        Ok(more)
    }

    /// Commits that calls which may run at most once, or start a child, are about to be dispatched.
    fn commit_intents(&mut self, flights: &[Flight], more: More) -> Result<()> {
        for flight in flights {
            let (Some(Ready { tool, call, .. }), Some(started)) = (&flight.ready, &flight.started) else { continue };
            let spec = tool.spec();
            // A child that is there already has its intent, unless a new process is to run it.
            let is_known = self.held.fold.call(&call.id).is_some_and(|known| known.child.is_some());
            let is_known = is_known && started.process().is_none() && matches!(started, Way::Child(_));
            // Who runs a child is on record, whatever the tool that starts it says of itself.
            let is_spawn = self.work.spawning.as_ref().is_some_and(|spawning| spawning.tool == call.name);
            let is_recorded = spec.class == EffectClass::AtMostOnce || is_spawn;
            if is_recorded && !is_known {
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
            let arguments = flight.ready.as_ref().map_or(&flight.open.arguments, |ready| &ready.call.arguments);
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
        flights.iter_mut().for_each(|flight| flight.look_again(cancel));
    }

    /// Commits every result there is, in the order of the calls.
    fn commit_results(&mut self, flights: Vec<Flight>) -> Result<Settled> {
        let (mut unknown, mut asked, mut limited) = (Vec::new(), Vec::new(), None);
        let mut returned = None;
        let mut state = self.held.fold.state().clone();
        for mut flight in flights {
            let output = match std::mem::replace(&mut flight.landed, Landed::No) {
                Landed::Output(output) => flight.told(output),
                Landed::Asked(ask) => {
                    asked.push(ask.call_id);
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
            if self.work.return_tool.as_deref() == Some(flight.open.name.as_str()) && !output.is_error {
                returned = Some(output.content.get("outputs").unwrap_or(&output.content).clone());
            }
            if self.work.handoff_tool.as_deref() == Some(flight.open.name.as_str()) && !output.is_error {
                self.hands_over = true;
            }
            self.held.delta.events.extend(flight.event);
            self.held.add_outcome(&flight.open, output, flight.failure, &mut state)?;
        }
        if !self.held.delta.messages.is_empty() {
            self.commit(Reason::ToolResultsCommitted)?;
        }
        if let (Some(limited), true, true) = (limited, unknown.is_empty(), asked.is_empty()) {
            return Ok(Settled::Waits(limited));
        }
        if unknown.is_empty() && asked.is_empty() {
            return Ok(returned.map_or(Settled::All, Settled::Returned));
        }
        let (reason, code) = match unknown.is_empty() {
            true => (SuspendReason::Approval, "approval"),
            false => (SuspendReason::OutcomeUnknown, "outcome_unknown"),
        };
        let calls = unknown.into_iter().chain(asked).collect();
        Ok(Settled::Waits(Suspended { calls, ..Suspended::because(reason, code) }))
    }
}
