//! How the calls of a turn are made: all that a decision names, at once.
//!
//! Everything that must run is made ready (`prepare`) and intents are committed (`make`), all of it is dispatched (`fly`), and the
//! results are committed (`land`): of a call that may run at most once as soon as it is back, of the others together. What a call needs is decided elsewhere (`decide/calls.rs`); what became of
//! one that an earlier life dispatched is found out here.

mod flight;
mod guarded;
mod results;

use std::panic::resume_unwind;
use std::sync::Arc;

use selvedge_model::blocking::try_on_thread;
use selvedge_model::event::{EffectClass, ToolFailure, ToolIntent};
use selvedge_model::fold::Spawned;
use selvedge_model::limits::Limits;
use selvedge_model::message::Block;
use selvedge_model::tool::{Output, Reconciled};
use selvedge_model::{CallId, Cancel, Event, Message, Reason, ToolKind};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::approval;
use crate::assignment::Permission;
use crate::conversation::OpenCall;
use crate::decide::Trace;
use crate::decide::calls::{self, Plan, Planned, Probe, Ready};
use crate::engine::Engine;
use crate::error::Result;
use crate::events::{Born, RunEvent};
use crate::held::More;
use crate::ledger::Book;
use crate::run::Running;
use crate::spawn::{Child, Own, Refused, Spawning, Unborn};

pub(crate) use flight::Flight;
use flight::{Back, Landed, Way};

/// How many calls run at the same time at most; the others follow as these end.
const AT_ONCE_MAX: usize = 64;

impl Running {
    /// Takes up what a decision says of calls: those that are to be made must be made ready next.
    pub(crate) fn plan(&mut self, planned: Vec<Planned>) {
        let flights: Vec<Flight> = planned.into_iter().map(Flight::of).collect();
        for ask in flights.iter().filter_map(Flight::ask).filter(|ask| !calls::is_on_record(&self.held.fold, ask)) {
            self.held.delta.events.push(Event::Asked(ask.clone()));
        }
        self.flights = flights;
    }

    /// Makes everything ready that is to be dispatched: nothing has happened yet.
    pub(crate) fn prepare(&mut self) -> Result<Prepared> {
        let (mut flights, mut more) = (std::mem::take(&mut self.flights), More::default());
        let started = self.start(&mut flights, &mut more);
        self.flights = flights;
        match started {
            Ok(()) => Ok(Prepared(more)),
            Err(error) => {
                // Those that were to be born are not.
                self.held.delta.forget(&more.parts.iter().map(Born::of).collect::<Vec<_>>());
                self.flights.clear();
                Err(error)
            }
        }
    }

    /// Commits the intents of what was made ready; gives whether any of it is to be dispatched. What can't be is answered at once.
    pub(crate) fn make(&mut self, Prepared(more): Prepared) -> Result<bool> {
        let flights = std::mem::take(&mut self.flights);
        self.commit_intents(&flights, more)?;
        self.publish_calls(&flights);
        self.flights = flights;
        match self.flights.iter().any(Flight::is_ready) {
            true => Ok(true),
            false => self.land(),
        }
    }

    /// Dispatches everything that is ready, and waits until something is back that must be on record at once, or everything is.
    pub(crate) async fn fly(&mut self) {
        let at_once = Arc::new(Semaphore::new(AT_ONCE_MAX));
        // Nothing enters before whatever stands before it has.
        let mut before = None;
        for (index, flight) in self.flights.iter_mut().enumerate() {
            let Some((way, ready)) = flight.leave() else { continue };
            let (at_once, cancel) = (at_once.clone(), self.cancel.clone());
            match (way, self.work.spawning.clone()) {
                (Way::Tool(started), _) => self.flying.spawn(async move {
                    let _one = at_once.acquire().await;
                    (index, flight::go(started, ready, cancel).await)
                }),
                (Way::Child(child), Some(spawning)) => {
                    let (entered, next) = oneshot::channel();
                    let gate = Gate { before: before.replace(next), entered };
                    let engine = self.held.engine.clone();
                    self.flying
                        .spawn(async move { (index, (go_as(child, gate, engine, spawning, cancel).await, None)) })
                }
                // Without a way to start children, none was made ready.
                (Way::Child(_), None) => continue,
            };
        }
        while let Some(back) = self.flying.join_next().await {
            // What a tool panics with is caught where it is called.
            let (index, (landed, failure)) = back.unwrap_or_else(|error| resume_unwind(error.into_panic()));
            let flight = &mut self.flights[index];
            flight.come_back(landed, failure);
            // What may run only once must not be forgotten while the others still run.
            if flight.is_once() {
                break;
            }
        }
        while let Some(Ok((index, (landed, failure)))) = self.flying.try_join_next() {
            self.flights[index].come_back(landed, failure);
        }
    }

    /// Commits what calls came to that are back, in the order of the calls; gives whether others are still on their way.
    pub(crate) fn land(&mut self) -> Result<bool> {
        let mut back = Vec::new();
        for flight in &mut self.flights {
            back.extend(flight.land());
        }
        let is_more = self.flights.iter().any(Flight::is_open);
        if !is_more {
            self.flights.clear();
        }
        // A stop of the thread is said to its children after it; that they ended must not be heard before that.
        if back.iter().any(|back| back.has_child)
            && let Ok(Some(stop)) = self.held.said_to_stop()
        {
            self.cancel.say(stop);
        }
        self.commit_results(back).map(|()| is_more)
    }

    /// Finds out what became of calls that an earlier life dispatched.
    pub(crate) async fn probe(&mut self, probes: Vec<Probe>) {
        let (engine, cancel) = (self.held.engine.clone(), self.cancel.clone());
        let unknown: Vec<_> = probes.iter().map(|probe| (probe.ready.call.id.clone(), Trace::Unknown)).collect();
        // It may take as long as the tool does.
        let traces = match try_on_thread(move || find_out(&engine, probes, &cancel)) {
            Ok(asked) => asked.await,
            Err(_) => unknown,
        };
        self.live.traces.extend(traces);
    }

    fn publish_calls(&self, flights: &[Flight]) {
        if !self.held.is_watched() {
            return;
        }
        for flight in flights.iter().filter(|flight| flight.is_ready()) {
            let OpenCall { id, name, .. } = &flight.open;
            // A person may have changed them.
            let arguments = flight.ready.as_ref().map_or(&flight.open.arguments, |ready| &ready.call.arguments);
            let mut arguments = arguments.clone();
            self.held.engine.redactor.value(&mut arguments);
            self.held.publish(&RunEvent::Calling {
                thread: self.held.thread().clone(),
                run: self.run.clone(),
                call: id.clone(),
                tool: name.clone(),
                arguments: arguments.into(),
            });
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
            is_asked && matches!(calls::plan(&self.held.fold, &self.live, &self.work, call), Plan::Word(_))
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
        let (engine, work) = (self.held.engine.clone(), self.work.clone());
        let mut book = Book::over(&*engine.store, &*engine.ids);
        let own_turn = self.next_turn_cost();
        let mut born = 0;
        for flight in flights {
            let Some(Ready { tool, call, child, .. }) = &mut flight.ready else { continue };
            let (tool, call) = (&*tool, &*call);
            let spawning = work.spawning.as_ref().filter(|_| tool.kind() == ToolKind::Child);
            let way = match (spawning, child.take()) {
                (None, _) => guarded::start(&**tool, call).map(Way::Tool).map_err(Refused::from),
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
                    .child(call, &work, spawning, Own { born, turn: own_turn }, &mut book)?
                    .map(|child| Way::Child(Box::new(child))),
            };
            match way {
                Ok(Way::Child(mut child)) => {
                    if let Some(Unborn { part, first, postings }) = child.birth.take() {
                        born += 1;
                        more.parts.push(part);
                        more.posted.extend(first);
                        self.held.delta.postings.extend(postings);
                        self.held.delta.events.push(child.spawned(&call.id));
                    }
                    flight.has_child = true;
                    flight.started = Some(Way::Child(child));
                }
                Ok(way) => flight.started = Some(way),
                Err(refused) => flight.refuse(refused, spawning.is_some()),
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
                let committed = self.held.commit_with(Reason::ToolIntentCommitted, of, more);
                if committed.is_err() {
                    // Nothing was dispatched, and a call without an intent never ran.
                    self.held.delta.events.retain(|event| !matches!(event, Event::ToolIntent(_)));
                }
                committed.map(|_| ())
            }
        }
    }

    /// Commits every result there is, in the order of the calls.
    fn commit_results(&mut self, back: Vec<Back>) -> Result<()> {
        if back.is_empty() {
            return Ok(());
        }
        let (mut state, mut failed) = (self.held.next_state(), None);
        for Back { open, landed, failure, event, .. } in back {
            let output = match landed {
                Landed::Output(output) => output,
                // The ask is on record.
                Landed::Asked(_) => continue,
                Landed::Limited(suspended) => {
                    self.live.traces.insert(open.id, Trace::Limited(suspended));
                    continue;
                }
                Landed::No | Landed::Unknown => {
                    self.live.traces.insert(open.id, Trace::Unknown);
                    continue;
                }
            };
            match self.work.kind(&open.name) {
                ToolKind::Return if !output.is_error => {
                    self.live.returned = Some(output.content.get("outputs").unwrap_or(&output.content).clone());
                }
                ToolKind::Handoff if !output.is_error => self.live.hands_over = true,
                _ => {}
            }
            self.held.delta.events.extend(event);
            // What can't be recorded keeps nothing else from being so.
            failed = failed.or(self.held.add_outcome(&open, output, failure, &mut state).err());
        }
        match failed {
            Some(error) => Err(error),
            None if self.held.delta.answered().next().is_none() => Ok(()),
            None => self.commit(Reason::ToolResultsCommitted),
        }
    }
}

/// What is committed beside the intents of calls that were made ready: the births of children.
#[derive(Default)]
pub(crate) struct Prepared(More);

/// Finds out what became of calls.
fn find_out(engine: &Engine, probes: Vec<Probe>, cancel: &Cancel) -> Vec<(CallId, Trace)> {
    let find_out = |Probe { ready, process, is_undone }: Probe| {
        let trace = match process.map(|process| engine.processes.end(&process)) {
            Some(Err(_)) => Trace::Unknown,
            _ if is_undone => Trace::NotDone,
            _ => reconcile(engine, &ready, cancel),
        };
        (ready.call.id, trace)
    };
    probes.into_iter().map(find_out).collect()
}

fn reconcile(engine: &Engine, ready: &Ready, cancel: &Cancel) -> Trace {
    let Ready { tool, call, child, .. } = ready;
    // What became of a call that started a child is what became of the child.
    if let Some(child) = child {
        return match engine.child_standing(&child.thread_id, child.detached) {
            Ok(Some(output)) => Trace::Done(output),
            Ok(None) => Trace::NotDone,
            Err(error) => Trace::Done(Output::error(format!("what became of the child is not known: {error}"))),
        };
    }
    guarded::reconcile(&**tool, call, cancel).into()
}

impl From<Reconciled> for Trace {
    fn from(reconciled: Reconciled) -> Self {
        match reconciled {
            Reconciled::Done(output) => Self::Done(output),
            Reconciled::NotDone => Self::NotDone,
            Reconciled::Unknown => Self::Unknown,
        }
    }
}

/// What calls on their way come to, by their place in the turn.
pub(crate) type Flying = JoinSet<(usize, (Landed, Option<ToolFailure>))>;

/// Lets children enter in order.
struct Gate {
    /// The one before has entered.
    before: Option<oneshot::Receiver<()>>,
    /// Says so to the next.
    entered: oneshot::Sender<()>,
}

/// Lets a child go once there is a place for it, and waits for what its parent is told.
async fn go_as(mut child: Box<Child>, gate: Gate, engine: Engine, spawning: Spawning, cancel: Cancel) -> Landed {
    if let Some(before) = gate.before {
        // One that panicked has no place either.
        _ = before.await;
    }
    child.enter(&engine, &spawning, &cancel).await;
    _ = gate.entered.send(());
    Landed::Output(child.go(&engine, &spawning, &cancel).await)
}
