//! How the calls of a turn are made: all that a decision names, concurrently.
//!
//! Every call is made ready behind its gate (`prepare`); after the intents are committed all are dispatched (`dispatch`), and results are
//! taken as they come (`wait`, `land`). What a call needs, and what is recorded of it, is decided elsewhere (`decide/calls.rs`); the outcome
//! of a call that an earlier process dispatched is found out here (`probe`).

mod flight;
mod guarded;

use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use selvedge_model::blocking::{BoxFuture, try_on_thread};
use selvedge_model::event::{Probed, ProcessFate, ReconcileAnswer};
use selvedge_model::fold::Spawned;
use selvedge_model::limits::Limits;
use selvedge_model::tool::{Output, Reconciled};
use selvedge_model::{Call, CallId, Cancel, Digest, ToolKind};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::carryover::shortened;
use crate::conversation::OpenCall;
use crate::decide::calls::{PlannedCall, Probe, ReadyCall};
use crate::decide::results::as_text;
use crate::decide::{CallFinding, Flight, Outcome, Prepared, Stage, money};
use crate::engine::Engine;
use crate::error::Result;
use crate::events::RunEvent;
use crate::held::HeldThread;
use crate::ledger::Book;
use crate::probed;
use crate::run::Running;
use crate::spawn::{Child, ChildCreation, Children, ParentNeeds, Refused, Spawning};

pub(crate) use flight::{CallEnd, EndedCall, PreparedCall, call_end};

/// A result above this many bytes is stored as a blob, and the model gets its beginning and its end.
const INLINE_MAX: usize = 32 << 10;
/// The same for a result that a hook brings into prompts, and for one of a graph's node: both are recorded whole.
const CONTEXT_MAX: usize = 1 << 20;
/// How many bytes of such a result the model gets of each end.
const SHOWN_BYTES: usize = 4 << 10;

/// Calls that are in flight.
pub(crate) type InFlight = FuturesUnordered<BoxFuture<'static, EndedCall>>;

impl Running {
    /// Plans calls, and makes those ready that are to be dispatched: nothing is executed yet.
    pub(crate) fn prepare(&mut self, planned: Vec<PlannedCall>) {
        let planned = self.plan(planned).and_then(|ready| self.start(ready));
        if let Err(error) = planned {
            self.fail(error);
        }
    }

    /// Plans calls; returns those that are to be made ready.
    pub(crate) fn plan(&mut self, planned: Vec<PlannedCall>) -> Result<Vec<ReadyCall>> {
        self.live.plan(planned, &self.held.fold);
        for flight in &mut self.live.flights {
            if let Stage::Done { output, blob: blob @ None, .. } = &mut flight.stage {
                *blob = self.held.put_large(output, INLINE_MAX)?;
            }
        }
        // Others, of a graph's loop, are ready or in flight already.
        let planned = self.live.flights.iter().filter(|flight| flight.is_planned());
        Ok(planned.filter_map(|flight| flight.ready.clone()).collect())
    }

    /// Makes calls ready; one that can't be gets an error as its result.
    fn start(&mut self, ready: Vec<ReadyCall>) -> Result<()> {
        let engine = self.held.engine.clone();
        let rules = self.rules.clone();
        let mut book = Book::over(&*engine.store, &*engine.ids);
        let turn = money::next_turn_cost(&self.held.fold, &rules);
        let mut born = 0;
        for ReadyCall { tool, call, child, .. } in ready {
            let spawning = rules.spawning.as_ref().filter(|_| tool.kind() == ToolKind::Child);
            let way = match (spawning, child) {
                (None, _) => guarded::start(&*tool, &call).map(PreparedCall::Tool).map_err(Refused::from),
                (Some(spawning), Some(Spawned { thread_id: thread, detached: is_detached, .. })) => {
                    let launched = is_detached.then(|| spawning.children.launch(&thread)).transpose();
                    let lowered = Limits::default();
                    let child = |launched| Child { thread, birth: None, launched, is_detached, lowered, slot: None };
                    launched.map(child).map(Box::new).map(PreparedCall::Child).map_err(Refused::told)
                }
                (Some(spawning), None) => self
                    .held
                    .child(&call, &rules, spawning, ParentNeeds { born, turn }, &mut book)?
                    .map(|child| PreparedCall::Child(Box::new(child))),
            };
            let mut way = match way {
                Ok(way) => way,
                Err(refused) => {
                    self.live.take(Outcome::NotReady(call.id, refused));
                    continue;
                }
            };
            let mut prepared = Prepared { process: way.process(), sandbox: way.sandbox(), ..Prepared::default() };
            if let PreparedCall::Child(child) = &mut way {
                prepared.is_child = true;
                if let Some(ChildCreation { part, first, postings }) = child.birth.take() {
                    born += 1;
                    self.births.more.parts.push(part);
                    self.births.more.posted.extend(first);
                    self.births.postings.extend(postings);
                    prepared.born = Some((child.thread.clone(), child.is_detached));
                }
            }
            self.prepared_calls.insert(call.id.clone(), way);
            self.live.take(Outcome::Ready(call.id, prepared));
        }
        Ok(())
    }

    /// Opens the gates of all calls that are ready.
    pub(crate) fn dispatch(&mut self) {
        self.publish_calls();
        // Children enter in order: each waits for the one before it.
        let mut before = None;
        for Flight { open, ready, .. } in self.live.flights.iter().filter(|flight| flight.is_ready()) {
            let call = open.id.clone();
            let ready = ready.clone();
            let time_box = self.rules.hooks.time_box(open);
            let cancel = if time_box.is_some() { self.cancel.child() } else { self.cancel.clone() };
            match (self.prepared_calls.remove(&call), self.rules.spawning.clone()) {
                (Some(PreparedCall::Tool(started)), _) => {
                    let work = flight::execute(started, ready, cancel.clone());
                    self.in_flight.push(Box::pin(async move {
                        let (landed, failure) = flight::in_time(work, time_box, &cancel).await;
                        EndedCall { call, landed, failure, is_child: false }
                    }));
                }
                (Some(PreparedCall::Child(child)), Some(spawning)) => {
                    let (entered, next) = oneshot::channel();
                    let gate = Gate { before: before.replace(next), entered };
                    let engine = self.held.engine.clone();
                    let made = ready.map(|ready| ready.call);
                    self.in_flight.push(Box::pin(async move {
                        let children = spawning.children.clone();
                        let stopped = cancel.clone();
                        let work = async {
                            let output = run_in_slot(child, gate, engine, spawning, stopped).await;
                            (CallEnd::Output(returned(children, made, output).await), None)
                        };
                        let (landed, failure) = flight::in_time(work, time_box, &cancel).await;
                        EndedCall { call, landed, failure, is_child: true }
                    }));
                }
                // Without a way to spawn children, none was made ready.
                (Some(PreparedCall::Child(_)) | None, _) => {}
            }
        }
        self.live.dispatched();
    }

    /// Waits until a call is back, and takes the results of all that are; or until a request arrives.
    pub(crate) async fn wait(&mut self) {
        let mut next = {
            let noted = pin!(self.watch.noted());
            match select(self.in_flight.next(), noted).await {
                Either::Left((landing, _)) => landing,
                Either::Right(_) => return,
            }
        };
        while let Some(landing) = next {
            self.land(landing);
            next = self.in_flight.next().now_or_never().flatten();
        }
    }

    /// Takes the result of a call.
    pub(crate) fn land(&mut self, EndedCall { call, landed, failure, is_child }: EndedCall) {
        // A stop of the thread is passed on to its children; this run must see the stop before it sees that they ended.
        if is_child && let Ok(Some(stop)) = self.held.requested_stop() {
            self.cancel.say(stop);
        }
        let CallEnd::Output(output) = landed else { return self.live.take(Outcome::Lost(call)) };
        let ready = self.live.flight(&call).and_then(|flight| flight.ready.as_ref());
        let mut output = ready.map(|ready| ready.annotated(output.clone())).unwrap_or(output);
        let flight = self.live.flight(&call).map(|flight| &flight.open);
        let is_context = flight.is_some_and(|open| self.rules.hooks.brings_context(open));
        if is_context {
            // What is injected is what is recorded.
            self.held.engine.redactor.value(&mut output.content);
        }
        let is_of_node = flight.is_some_and(OpenCall::is_of_node);
        let inline_max = if is_context || is_of_node { CONTEXT_MAX } else { INLINE_MAX };
        match self.held.put_large(&mut output, inline_max) {
            Ok(blob) => self.live.take(Outcome::Ended { call, output, blob, failure }),
            Err(error) => {
                // Without its result, the patches of a call are not recorded either.
                self.live.take(Outcome::Lost(call));
                self.fail(error);
            }
        }
    }

    /// Finds out the outcome of calls that an earlier process dispatched.
    pub(crate) async fn probe(&mut self, probes: Vec<Probe>) {
        let engine = self.held.engine.clone();
        let cancel = self.cancel.clone();
        let unknown: Vec<_> = probes.iter().map(|probe| (probe.ready.call.id.clone(), CallFinding::Unknown)).collect();
        // It may take as long as the tool does.
        let children = self.rules.spawning.as_ref().map(|spawning| spawning.children.clone());
        let asked = move || find_out(&engine, children.as_deref(), probes, &cancel);
        let (findings, found) = match try_on_thread(asked) {
            Ok(asked) => asked.await,
            Err(_) => (unknown, Vec::new()),
        };
        for (call, trace) in findings {
            self.live.take(Outcome::Found(call, trace));
        }
        for found in found {
            self.held.findings.add(found);
        }
    }

    fn publish_calls(&self) {
        if !self.held.is_watched() {
            return;
        }
        for flight in self.live.flights.iter().filter(|flight| flight.is_ready()) {
            let OpenCall { id, name, .. } = &flight.open;
            // The approver may have changed them.
            let arguments = flight.ready.as_ref().map_or(&flight.open.arguments, |ready| &ready.call.arguments);
            let mut arguments = arguments.clone();
            self.held.engine.redactor.value(&mut arguments);
            self.held.publish(&RunEvent::Calling {
                thread: self.held.thread().clone(),
                run: self.live.run.clone(),
                call: id.clone(),
                tool: name.clone(),
                arguments: arguments.into(),
            });
        }
    }
}

impl HeldThread {
    /// Stores a result that is too large for a line as a blob; its beginning and its end stay.
    fn put_large(&self, output: &mut Output, inline_max: usize) -> Result<Option<Digest>> {
        let text = as_text(&output.content);
        if text.len() <= inline_max {
            return Ok(None);
        }
        let mut kept = Value::String(text);
        self.engine.redactor.value(&mut kept);
        let text = kept.as_str().unwrap_or_default();
        let blob = self.engine.store.put_blob(self.thread(), text.as_bytes())?;
        output.content = Value::String(shortened(text, 2 * SHOWN_BYTES, &blob));
        Ok(Some(blob))
    }
}

/// The result of a call whose child has ended. It may write files, so it has a thread of its own.
async fn returned(children: Arc<dyn Children>, call: Option<Call>, output: Output) -> Output {
    let Some(call) = call else { return output };
    let as_it_is = output.clone();
    match try_on_thread(move || children.returned(&call, output)) {
        Ok(returned) => returned.await,
        Err(_) => as_it_is,
    }
}

/// Finds out the outcome of calls, and how it was found.
fn find_out(
    engine: &Engine,
    children: Option<&dyn Children>,
    probes: Vec<Probe>,
    cancel: &Cancel,
) -> (Vec<(CallId, CallFinding)>, Vec<Probed>) {
    let find_out = |Probe { ready, process, is_undone }: Probe| {
        let process = process.map(|process| probed::end(&*engine.processes, &process));
        // A tool is not asked while the process of the call may still be alive.
        let answer = match process {
            Some(ProcessFate::Alive) => None,
            _ if is_undone => Some(Reconciled::NotDone),
            _ => Some(reconcile(engine, children, &ready, cancel)),
        };
        let reconciled = matches!(answer, Some(Reconciled::Unknown)).then_some(ReconcileAnswer::Unknown);
        let no_reconcile = matches!(answer, Some(Reconciled::Unsupported));
        let call_id = ready.call.id;
        let found = Probed { call_id: call_id.clone(), process, reconciled, no_reconcile };
        ((call_id, answer.map_or(CallFinding::Unknown, CallFinding::from)), found)
    };
    probes.into_iter().map(find_out).unzip()
}

fn reconcile(engine: &Engine, children: Option<&dyn Children>, ready: &ReadyCall, cancel: &Cancel) -> Reconciled {
    let ReadyCall { tool, call, child, .. } = ready;
    // The outcome of a call that spawned a child is the outcome of the child.
    if let Some(child) = child {
        return match engine.existing_child_result(&child.thread_id, child.detached) {
            Ok(Some(output)) => Reconciled::Done(match children {
                Some(children) => children.returned(call, output),
                None => output,
            }),
            Ok(None) => Reconciled::NotDone,
            Err(error) => Reconciled::Done(Output::error(format!("the outcome of the child is unknown: {error}"))),
        };
    }
    guarded::reconcile(&**tool, call, cancel)
}

impl From<Reconciled> for CallFinding {
    fn from(reconciled: Reconciled) -> Self {
        match reconciled {
            Reconciled::Done(output) => Self::Done(output),
            Reconciled::NotDone => Self::NotDone,
            Reconciled::Unknown | Reconciled::Unsupported => Self::Unknown,
        }
    }
}

/// Lets children enter in order.
struct Gate {
    /// Resolves when the one before has entered.
    before: Option<oneshot::Receiver<()>>,
    /// Signals the next one.
    entered: oneshot::Sender<()>,
}

/// Runs a child once there is a slot for it, and waits for the result that its parent gets.
async fn run_in_slot(mut child: Box<Child>, gate: Gate, engine: Engine, spawning: Spawning, cancel: Cancel) -> Output {
    if let Some(before) = gate.before {
        // A child that panicked is not waited for.
        _ = before.await;
    }
    child.wait_for_slot(&engine, &spawning, &cancel).await;
    _ = gate.entered.send(());
    child.start(&engine, &spawning, &cancel).await
}
