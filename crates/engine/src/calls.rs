//! How the calls of a turn are made: all that a decision names, at once.
//!
//! Everything that must run is made ready, intents are committed, all of it is dispatched, and the results are committed together, in the
//! order of the calls. What a call needs is decided elsewhere (`decide/calls.rs`); what became of one that an earlier life dispatched is
//! found out here.

mod flight;
mod guarded;
mod results;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use selvedge_model::event::{EffectClass, ToolIntent};
use selvedge_model::fold::Spawned;
use selvedge_model::limits::Limits;
use selvedge_model::message::Block;
use selvedge_model::tool::{Output, Reconciled};
use selvedge_model::{Event, Message, Reason, ToolKind};
use serde_json::json;

use crate::approval;
use crate::assignment::Permission;
use crate::conversation::OpenCall;
use crate::decide::Trace;
use crate::decide::calls::{self, Plan, Planned, Probe, Ready};
use crate::error::Result;
use crate::events::Born;
use crate::held::More;
use crate::ledger::Book;
use crate::run::Running;
use crate::spawn::{Child, Own, Refusal, Refused};
use crate::told::Told;

use flight::{Flight, Landed, Way};

/// How many calls run at the same time at most; the others follow as these end.
const AT_ONCE_MAX: usize = 64;

impl Running<'_, '_> {
    /// Makes these calls and commits what they come to; what is known of the others then, this process alone knows.
    pub(crate) fn make(&mut self, planned: Vec<Planned>) -> Result<()> {
        let mut flights: Vec<Flight> = planned.into_iter().map(Flight::of).collect();
        for ask in flights.iter().filter_map(Flight::ask).filter(|ask| !calls::is_on_record(&self.held.fold, ask)) {
            self.held.delta.events.push(Event::Asked(ask.clone()));
        }
        let mut more = More::default();
        if let Err(error) = self.start(&mut flights, &mut more) {
            // Those that were to be born are not.
            self.held.delta.forget(&more.parts.iter().map(Born::of).collect::<Vec<_>>());
            return Err(error);
        }
        self.commit_intents(&flights, more)?;
        self.dispatch(&mut flights);
        self.commit_results(flights)
    }

    /// Finds out what became of calls that an earlier life dispatched.
    pub(crate) fn probe(&mut self, probes: Vec<Probe>) {
        for Probe { ready, process, is_undone } in probes {
            let engine = self.held.engine;
            let trace = match process.map(|process| engine.processes.end(&process)) {
                Some(Err(_)) => Trace::Unknown,
                _ if is_undone => Trace::NotDone,
                _ => self.reconcile(&ready),
            };
            self.live.traces.insert(ready.call.id, trace);
        }
    }

    fn reconcile(&self, Ready { tool, call, child, .. }: &Ready) -> Trace {
        // What became of a call that started a child is what became of the child.
        if let Some(child) = child.as_ref().filter(|_| !calls::has_recorded_children(self.work)) {
            return match self.held.engine.child_standing(&child.thread_id, child.detached) {
                Ok(Some(output)) => Trace::Done(output),
                Ok(None) => Trace::NotDone,
                Err(error) => Trace::Done(Output::error(format!("what became of the child is not known: {error}"))),
            };
        }
        match guarded::reconcile(&**tool, call, self.cancel) {
            Reconciled::Done(output) => Trace::Done(output),
            Reconciled::NotDone => Trace::NotDone,
            Reconciled::Unknown => Trace::Unknown,
        }
    }

    /// What people are asked about the calls of an answer that is about to be committed. It is on record with the answer, so that people
    /// see it, and can say their word, while the other calls of the round still run.
    pub(crate) fn asks(&self, answer: &Message) -> Vec<Event> {
        let now = self.held.engine.clock.now();
        let calls = answer.content.iter().filter_map(|block| match block {
            Block::ToolCall { id, name, arguments, .. } => Some((id, name, arguments)),
            _ => None,
        });
        let asks = calls.filter_map(|(id, name, arguments)| {
            let tool = self.work.tool(name)?;
            // As they will be on record.
            let mut arguments = arguments.clone();
            self.held.engine.redactor.value(&mut arguments);
            let Permission::Ask(asking) = (self.work.gate)(tool.spec(), &arguments) else { return None };
            let open = self.held.fold.conversation.next_call(id, name, arguments);
            let hash = approval::action_hash(&self.held.fold.head.log_id, &open, tool.spec());
            Some(Event::Asked(approval::ask(&asking, hash, &open, now)))
        });
        asks.collect()
    }

    /// Answers the calls that still wait for somebody's word: a message came instead of it.
    pub(crate) fn cancel_awaited(&mut self) -> Result<()> {
        let mut state = self.held.fold.state().clone();
        let open = self.held.fold.conversation.open().to_vec();
        let awaited = |call: &OpenCall| {
            let known = self.held.fold.call(&call.id);
            let is_asked = known.is_some_and(|known| known.ask.is_some() && known.intent.is_none());
            is_asked && matches!(calls::plan(&self.held.fold, &self.live, self.work, call), Plan::Word(_))
        };
        let awaited: Vec<OpenCall> = open.into_iter().filter(awaited).collect();
        for call in awaited {
            let output = Output::error("not made: a new message came before anybody allowed this call");
            self.held.add_result(&call, output, &mut state)?;
        }
        Ok(())
    }

    /// Makes everything ready that is to be dispatched; what can't be has its answer. `more` is what is committed beside the intents: the
    /// births of children.
    fn start(&mut self, flights: &mut [Flight], more: &mut More) -> Result<()> {
        let engine = self.held.engine;
        let mut book = Book::over(&*engine.store, &*engine.ids);
        let own_turn = self.next_turn_cost();
        let mut born = 0;
        for flight in flights {
            let Some(Ready { tool, call, child, .. }) = &mut flight.ready else { continue };
            let (tool, call) = (&*tool, &*call);
            let spawning = self.work.spawning.as_ref().filter(|_| tool.kind() == ToolKind::Child);
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
                            place: None,
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
        Ok(())
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
            let is_recorded = spec.class == EffectClass::AtMostOnce || tool.kind() == ToolKind::Child;
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
        let (children, calls): (Vec<_>, Vec<_>) =
            flights.iter_mut().filter(|flight| flight.started.is_some()).partition(|flight| flight.is_child());
        let has_children = !children.is_empty();
        let children_at_once = spawning.map_or(1, |spawning| spawning.at_once.max(1));
        let enter = |flight: &mut &mut Flight| flight.enter(engine, spawning, cancel);
        let go = |flight: &mut Flight| flight.go(engine, spawning, cancel);
        side_by_side([(calls, AT_ONCE_MAX), (children, children_at_once.min(AT_ONCE_MAX))], enter, go);
        // Whoever stopped the thread stopped its children after it; that they ended must not be heard before that.
        if has_children && let Ok(Some(stop)) = self.held.said_to_stop() {
            cancel.say(stop);
        }
        // What was lost on the way may be known to the tool.
        flights.iter_mut().for_each(|flight| flight.look_again(cancel));
    }

    /// Commits every result there is, in the order of the calls.
    fn commit_results(&mut self, flights: Vec<Flight>) -> Result<()> {
        let (mut state, mut failed) = (self.held.fold.state().clone(), None);
        for mut flight in flights {
            let output = match std::mem::replace(&mut flight.landed, Landed::No) {
                Landed::Output(output) => flight.told(output),
                // The ask is on record.
                Landed::Asked(_) => continue,
                Landed::Limited(suspended) => {
                    self.live.traces.insert(flight.open.id, Trace::Limited(suspended));
                    continue;
                }
                Landed::No | Landed::Unknown => {
                    self.live.traces.insert(flight.open.id, Trace::Unknown);
                    continue;
                }
            };
            match self.work.kind(&flight.open.name) {
                ToolKind::Return if !output.is_error => {
                    self.live.returned = Some(output.content.get("outputs").unwrap_or(&output.content).clone());
                }
                ToolKind::Handoff if !output.is_error => self.live.hands_over = true,
                _ => {}
            }
            self.held.delta.events.extend(flight.event);
            // What can't be recorded keeps nothing else from being so.
            failed = failed.or(self.held.add_outcome(&flight.open, output, flight.failure, &mut state).err());
        }
        match failed {
            Some(error) => Err(error),
            None if self.held.delta.messages.is_empty() => Ok(()),
            None => self.commit(Reason::ToolResultsCommitted),
        }
    }
}

/// Lets everything of each group go, so many of it at the same time, and waits until all of it has ended. What comes first in its group
/// enters first: nothing enters before whatever stands before it has.
fn side_by_side<T: Send, const N: usize>(
    groups: [(Vec<T>, usize); N],
    enter: impl Fn(&mut T) + Sync,
    go: impl Fn(T) + Sync,
) {
    let entered = |mut item: T| {
        enter(&mut item);
        item
    };
    if groups.iter().map(|(group, _)| group.len()).sum::<usize>() <= 1 {
        groups.into_iter().flat_map(|(group, _)| group).map(entered).for_each(go);
        return;
    }
    let (entered, go) = (&entered, &go);
    thread::scope(|scope| {
        for (group, most) in groups {
            let workers = group.len().min(most);
            let queue = Arc::new(Mutex::new(group.into_iter()));
            for _ in 0..workers {
                let queue = queue.clone();
                scope.spawn(move || {
                    let next = || {
                        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                        queue.next().map(entered)
                    };
                    while let Some(item) = next() {
                        go(item);
                    }
                });
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn everything_goes_once_and_no_more_at_the_same_time_than_allowed() {
        let (inside, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
        let came = Mutex::new(Vec::new());
        let enter = |item: &mut i32| came.lock().unwrap().push(*item);
        side_by_side([((0..200).collect(), 7), ((200..203).collect(), 2), (Vec::new(), 5)], enter, |item| {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            done.lock().unwrap().push(item);
            inside.fetch_sub(1, Ordering::SeqCst);
        });
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..203).collect::<Vec<_>>());
        let (first, second): (Vec<i32>, Vec<i32>) =
            came.into_inner().unwrap().into_iter().partition(|item| *item < 200);
        assert!(first.is_sorted() && second.is_sorted(), "in the order in which they stand");
        assert!(most.into_inner() <= 9);
    }
}
