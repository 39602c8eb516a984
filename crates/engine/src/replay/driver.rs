//! Reads the recording changeset by changeset and repeats what led to each.
//!
//! - *A run begins*: it is run with its recorded input. During the run, requests arrive when the record has them: a decision or a raise
//!   before the changeset that served it, a stop before the one that ended the run.
//! - *A run was lost*: its lease is taken away after its last commit, as a killed process leaves it, and the run is settled.
//! - *A decision, a raise or a stop* while nothing ran: the same request is made again.
//! - *Everything else* is given: taken over as it is.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_items::config::{Class, ErrorClass};
use selvedge_log::hash::sha256;
use selvedge_log::{Signer, Trust};
use selvedge_model::blocking::wait;
use selvedge_model::event::{Decision, DecisionAction, Event, ManifestChanged, ResumeMode};
use selvedge_model::message::Block;
use selvedge_model::run::FailureClass;
use selvedge_model::tool::Started;
use selvedge_model::{
    Batch, CallId, Cancel, Expect, Input, Message, Part, Posted, Reason, Request, RequestId, Role, RunId, RunStatus,
    Status, Stop, ThreadId, Timestamp, ToolKind, ToolSpec,
};
use selvedge_store::memory::MemoryStore;
use selvedge_store::{Acquire, Commit, Error as StoreError, Inbox, Leases, Logs, Store};
use serde_json::json;

use super::cursor::{CallRecord, EngineClock, RecordedIds, ReplayCursor, StoreClock};
use super::judge::Judge;
use super::recording::RecordedChangeset;
use super::stand_ins::{self, NoProcesses, RecordedChildren, RecordedModel, RecordedTool};
use super::{ReplayOptions, Report};
use crate::calls::{EndedCall, call_end};
use crate::decide::calls::{PlannedCall, Probe, ReadyCall};
use crate::decide::hooks::failed_attempt;
use crate::decide::{CallFinding, Outcome, Prepared, Step};
use crate::engine::{Engine, Options};
use crate::error::Result;
use crate::events::CallerEvents;
use crate::held::{HeldThread, LeaseGuard, Observer};
use crate::outcome;
use crate::run::{RunControl, Running};
use crate::run_config::RunConfig;
use crate::spawn::Refused;
use crate::start::{RunRequest, Start};
use crate::watcher::{Signal, Watch};

/// Repeats what the record has.
pub(crate) struct Driver {
    tape: Arc<ReplayCursor>,
    thread: ThreadId,
    engine: Engine,
    store: Arc<MemoryStore>,
    /// Another process, which takes the lease away.
    other: MemoryStore,
    work: Arc<RunConfig>,
    /// The ids that the engine and the store assign.
    runs: RecordedIds,
    logs: RecordedIds,
    foreign: BTreeSet<RunId>,
    from: u64,
    pub(crate) judge: Arc<Mutex<Judge>>,
}

/// What led to a changeset.
enum Cause {
    Run,
    Lost,
    Request,
    Stopped(Stop),
    Given,
}

impl Driver {
    pub(crate) fn new(tape: Arc<ReplayCursor>, how: ReplayOptions, judge: Judge) -> Self {
        let runs = RecordedIds::of(tape.clone());
        let logs = RecordedIds::default();
        let signer = Signer::generate(&logs);
        let trust = Trust::of(&[signer.public()]);
        let store = Arc::new(MemoryStore::new(signer, Box::new(StoreClock(tape.clone())), Box::new(logs.clone())));
        let engine = Engine::new(Options {
            store: store.clone() as Arc<dyn Store>,
            trust,
            clock: Arc::new(EngineClock(tape.clone())),
            ids: Arc::new(runs.clone()),
            processes: Arc::new(NoProcesses),
            scopes: how.scopes,
            redactor: how.redactor,
            snapshots: None,
            prepare: None,
        });
        let thread = tape.recording.thread.clone();
        let foreign = tape.recording.foreign_runs();
        let work = Arc::new(offline(how.work, how.model, &tape));
        let other = store.another();
        // The earlier part of the same run is repeated, but not compared.
        let from = tape.recording.before_run(how.from.unwrap_or_default());
        Self { tape, thread, engine, store, other, work, runs, logs, foreign, from, judge: Arc::new(Mutex::new(judge)) }
    }

    /// Repeats everything, until the record ends or the two diverge.
    pub(crate) fn drive(&mut self) -> Result<()> {
        while let Some(step) = self.tape.next_step().filter(|_| !self.judge().is_over).cloned() {
            let before = self.tape.next();
            self.tape.wake();
            let done = match self.cause(&step) {
                Cause::Run => self.run(&step),
                Cause::Lost => self.settle(&step),
                Cause::Request => self.repeat_request(&step),
                Cause::Stopped(stop) => self.stop(&step, stop),
                Cause::Given => self.take_over(&step),
            };
            match done {
                Err(error) => self.judge().missing(Some(json!({"error": error.to_string()}))),
                Ok(()) if self.tape.next() == before => self.judge().missing(None),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// What led to a changeset outside of a run.
    fn cause(&self, step: &RecordedChangeset) -> Cause {
        let is_foreign = step.run().is_some_and(|run| self.foreign.contains(run));
        if is_foreign || step.version() <= self.from {
            return Cause::Given;
        }
        let is_running = || self.store_status() == Some(Status::Running);
        let is_verdict = |event: &&Event| matches!(event, Event::RequestAnswered(_));
        let events: Vec<Event> = step.events.iter().filter(|event| !is_verdict(event)).cloned().collect();
        match (step.reason(), events.as_slice()) {
            (Reason::UserMessage, _) if step.begins_run() => Cause::Run,
            (Reason::RunFinished, _) if step.is_lost() && is_running() => Cause::Lost,
            (Reason::RunFinished, _) if self.store_status() == Some(Status::Created) => stopped(step),
            (Reason::Lifecycle, [Event::Decision(_)]) if step.run().is_none() => Cause::Request,
            (Reason::Lifecycle, [Event::ManifestChanged(changed)]) if raise(changed).is_some() => Cause::Request,
            (Reason::Lifecycle, events) if step.run().is_none() => {
                status_change(events).map_or(Cause::Given, Cause::Stopped)
            }
            _ => Cause::Given,
        }
    }

    /// The report.
    pub(crate) fn conclude(self) -> Report {
        self.judge().conclude()
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        lock(&self.judge)
    }

    /// Opens a thread whose lease was acquired, with every commit judged.
    fn take(&self, lease: LeaseGuard) -> Result<Box<HeldThread>> {
        let judge = self.judge.clone();
        let observer: Observer = Arc::new(move |_, reason, events| lock(&judge).committed(reason, events));
        self.engine.take_observed(lease, &CallerEvents::default(), Some(observer))
    }

    fn store_status(&self) -> Option<Status> {
        use selvedge_store::Registry;
        self.store.get(&self.thread).ok().map(|summary| summary.manifest.status)
    }

    /// Takes a changeset over as it is.
    fn take_over(&mut self, step: &RecordedChangeset) -> Result<()> {
        let is_birth = step.version() == 0;
        if let Some(log_id) = self.tape.recording.log_id().filter(|_| is_birth) {
            self.logs.next_are([log_id.as_str()]);
        }
        let changeset = step.changeset().ok_or(StoreError::BadBatch)?;
        let expect = if is_birth { Expect::Absent } else { Expect::Any };
        self.store.commit(Batch::of(Part::new(self.thread.clone(), expect, changeset)))?;
        self.judge().given();
        Ok(())
    }

    /// Settles a run whose lease was taken away.
    fn settle(&mut self, step: &RecordedChangeset) -> Result<()> {
        let mut lease = self.engine.lease(&self.thread, Acquire::default())?;
        self.other.beat(self.last_beat(step)?)?;
        lease.set_taken_from(self.other.owner());
        let mut held = self.take(lease)?;
        held.observer = None;
        self.engine.release_thread(held)
    }

    /// When a lost run was last alive, computed from its recorded running time.
    fn last_beat(&self, step: &RecordedChangeset) -> Result<Timestamp> {
        use selvedge_store::Registry;
        let counted = step.finished().and_then(|meta| meta.cost.as_ref()).map_or(0, |cost| cost.duration_ms);
        let lost = self.store.runs(&self.thread)?.into_iter().find(|run| Some(&run.run_id) == step.run());
        let (began, committed) = lost.map_or((step.at, step.at), |run| (run.created_at, run.updated_at));
        let known = u64::try_from((committed.as_micros() - began.as_micros()) / 1000).unwrap_or(0);
        let ran_ms = counted.saturating_sub(known);
        // The run was settled later than that, whatever the store's clock showed then.
        self.tape.not_before(committed, ran_ms);
        Ok(Timestamp::from_micros(committed.as_micros() + i64::try_from(ran_ms.saturating_mul(1000)).unwrap_or(0)))
    }

    /// Repeats a decision or a raise that was made while nothing ran.
    fn repeat_request(&mut self, step: &RecordedChangeset) -> Result<()> {
        self.store.post(request(&self.thread, step))?;
        let lease = self.engine.lease(&self.thread, Acquire::default())?;
        let mut held = self.take(lease)?;
        let drained = held.drain(Some(&self.work));
        held.observer = None;
        self.engine.release_thread(held)?;
        drained.map(|_| ())
    }

    /// Repeats the stop of a suspended thread.
    fn stop(&mut self, step: &RecordedChangeset, stop: Stop) -> Result<()> {
        let lines = self.store.head(&self.thread)?.lines;
        self.runs.next_are(step.run().map(RunId::as_str));
        self.engine.stop(&self.thread, stop)?;
        let lines = self.store.read(&self.thread, lines, usize::MAX)?;
        let mut events: Vec<Event> = lines.into_iter().map(|line| line.event).collect();
        if let Some(Event::Checkpoint(checkpoint)) = events.pop() {
            self.judge().committed(checkpoint.reason, &events);
        }
        Ok(())
    }

    /// Redefines the tools from this run on, if the recorded run found them redefined and requested approvals again. The new definitions are
    /// not on record; that they differ is.
    fn redefine(&mut self, step: &RecordedChangeset) {
        let of_run = |other: &&RecordedChangeset| other.version() >= step.version() && other.run() == step.run();
        let asked = self.tape.recording.steps.iter().filter(of_run).flat_map(|step| &step.events);
        let asked = asked.filter_map(|event| match event {
            Event::Asked(ask) if ask.redefined => Some(ask.tool.clone()),
            _ => None,
        });
        let redefined: BTreeSet<String> = asked.collect();
        for tool in Arc::make_mut(&mut self.work).tools.iter_mut().filter(|tool| redefined.contains(&tool.spec().name))
        {
            let hash = sha256(&tool.spec().hash.0);
            let spec = ToolSpec { hash, ..tool.spec().clone() };
            *tool = Arc::new(RecordedTool { spec, kind: tool.kind(), tape: self.tape.clone() });
        }
    }

    /// Whether a retry could have helped a model that failed in this run. The record has the class of the failure, without the provider's
    /// status code, and how the run ended: if it was suspended, all attempts were used.
    fn classes(&self, step: &RecordedChangeset) -> Vec<ErrorClass> {
        let steps = &self.tape.recording.steps;
        let from = steps.partition_point(|other| other.version() < step.version());
        let rest = steps[from..].iter().filter(|other| other.run() == step.run());
        let end = rest.filter_map(|other| other.finished()).next().filter(|meta| meta.failure.is_some());
        let class = end.map(|meta| if meta.status == RunStatus::Waiting { Class::Transient } else { Class::Permanent });
        let all = |class| ErrorClass { id: "recorded".to_owned(), class, codes: Vec::new(), texts: Vec::new() };
        class.map(all).into_iter().collect()
    }

    /// Repeats a run, from its input to its end.
    fn run(&mut self, step: &RecordedChangeset) -> Result<()> {
        self.redefine(step);
        let classes = self.classes(step);
        Arc::make_mut(&mut self.work).classes = classes;
        let start = start(step);
        if let Some(asked) = start.request.as_ref().filter(|asked| asked.is_posted) {
            let thread = self.thread.clone();
            let request = Request::Send(start.input.clone());
            self.store.post(Posted { thread, id: asked.id.clone(), at: step.at, request })?;
        }
        self.runs.next_are(step.run().map(RunId::as_str));
        let lease = self.engine.lease(&self.thread, Acquire::default())?;
        let cancel = Cancel::new();
        let watch = Watch::unwatched();
        let outside = ExternalEvents {
            tape: self.tape.clone(),
            judge: self.judge.clone(),
            store: self.store.clone(),
            other: self.other.another(),
            runs: self.runs.clone(),
            cancel: cancel.clone(),
            note: watch.note(),
        };
        let mut held = self.take(lease)?;
        held.observer = Some(Arc::new(move |thread, reason, events| outside.committed(thread, reason, events)));
        let (mut held, ended) = self.by_the_record(held, start, RunControl { cancel, watch });
        held.observer = None;
        if self.tape.is_beyond() {
            self.judge().missing(Some(json!("the model is asked")));
        }
        match (ended, self.tape.is_lease_lost()) {
            (_, true) => Ok(()),
            (Err(error), false) => Err(error),
            (Ok(_), false) => self.engine.release_thread(held),
        }
    }

    /// Makes a run whose model, tools and children answer from the record: it never waits.
    fn by_the_record(
        &self,
        held: Box<HeldThread>,
        start: Start,
        control: RunControl,
    ) -> (Box<HeldThread>, Result<outcome::Outcome>) {
        let mut running = match Running::begin(held, start, self.work.clone(), control) {
            Ok(running) => running,
            Err(unbegun) => {
                let (held, error) = *unbegun;
                return (held, Err(error));
            }
        };
        let mut started = HashMap::new();
        loop {
            match running.next() {
                Step::Commit(commit) => running.commit(*commit),
                Step::Look(look) => running.look_up(look),
                Step::Prepare(planned) => self.make_ready(&mut running, planned, &mut started),
                Step::Dispatch => running.live.dispatched(),
                Step::Ask(turn) => wait(running.ask(*turn)),
                Step::Probe(probes) => {
                    for probe in probes {
                        found(&mut running, probe);
                    }
                }
                Step::Wait(Some(_)) => running.live.rested(),
                Step::Pause(pause) => {
                    let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
                    self.tape.not_before(running.live.now, millis);
                }
                Step::Wait(None) => self.land_next(&mut running, &mut started),
                Step::Done => return running.over(),
            }
        }
    }

    /// Makes calls ready from their record. Children are not started: whether one may be spawned is decided, and its tool gives the recorded
    /// result.
    fn make_ready(&self, running: &mut Running, planned: Vec<PlannedCall>, started: &mut Readied) {
        let ready = match running.plan(planned) {
            Ok(ready) => ready,
            Err(error) => return running.fail(error),
        };
        let mut before = 0;
        for ReadyCall { tool, call, child, .. } in ready {
            let spawning = self.work.spawning.as_ref().filter(|_| tool.kind() == ToolKind::Child && child.is_none());
            let born = spawning.map(|spawning| {
                let refused = stand_ins::refused(&self.tape, &call);
                let ordered =
                    refused.map_or_else(|| running.held.admit_child(&call, &self.work, spawning, before), Err);
                ordered.map(|(order, ..)| {
                    before += 1;
                    (running.held.child_id(&order.thread), order.detached)
                })
            });
            let readied = born.transpose().and_then(|born| Ok((born, tool.start(&call).map_err(Refused::from)?)));
            running.live.take(match readied {
                Ok((born, readied)) => {
                    started.insert(call.id.clone(), readied);
                    Outcome::Ready(call.id, Prepared { born, ..Prepared::default() })
                }
                Err(refused) => Outcome::NotReady(call.id, refused),
            });
        }
    }

    /// Lets those calls come back next that come back next in the record.
    fn land_next(&self, running: &mut Running, started: &mut Readied) {
        let next = self
            .tape
            .next_step()
            .filter(|_| !self.tape.is_lease_lost())
            .map(RecordedChangeset::outcomes)
            .unwrap_or_default();
        let is_next = |call: &CallId| next.contains(call);
        // A call without a recorded outcome came back as unknown.
        let is_lost = |call: &CallId| !matches!(self.tape.call_record(call), CallRecord::Ended(..));
        let away = running.live.flights.iter().filter(|flight| flight.is_in_flight());
        let away: Vec<(CallId, bool)> = away.map(|flight| (flight.open.id.clone(), flight.is_once())).collect();
        let has_next = away.iter().any(|(call, _)| is_next(call));
        let has_lost = !has_next && !next.is_empty() && away.iter().any(|(call, _)| is_lost(call));
        for (call, is_once) in away {
            let goes = if has_next {
                is_next(&call)
            } else if has_lost {
                is_lost(&call)
            } else {
                true
            };
            if let Some(started) = goes.then(|| started.remove(&call)).flatten() {
                let (landed, failure) = call_end(started.dispatch(&running.cancel).wait(), is_once);
                running.land(EndedCall { call, landed, failure, is_child: false });
            }
        }
    }
}

/// Calls that are ready to give their recorded result.
type Readied = HashMap<CallId, Box<dyn Started>>;

/// The outcome of a call, by the record.
fn found(running: &mut Running, Probe { ready, is_undone, .. }: Probe) {
    let trace =
        if is_undone { CallFinding::NotDone } else { ready.tool.reconcile(&ready.call, &running.cancel).into() };
    running.live.take(Outcome::Found(ready.call.id, trace));
}

fn lock(judge: &Mutex<Judge>) -> MutexGuard<'_, Judge> {
    judge.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Delivers what comes to a run from outside, when the record has it.
struct ExternalEvents {
    tape: Arc<ReplayCursor>,
    judge: Arc<Mutex<Judge>>,
    store: Arc<MemoryStore>,
    other: MemoryStore,
    runs: RecordedIds,
    cancel: Cancel,
    note: Arc<Signal>,
}

impl ExternalEvents {
    fn committed(&self, thread: &ThreadId, reason: Reason, events: &[Event]) {
        let is_over = {
            let mut judge = lock(&self.judge);
            judge.committed(reason, events);
            judge.is_over
        };
        if reason == Reason::RunFinished || self.tape.is_lease_lost() {
            return;
        }
        let run = self.tape.next().checked_sub(1).and_then(|last| self.tape.recording.steps.get(last)?.run());
        let next = self.tape.next_step().filter(|step| step.run() == run && !is_over && is_decided(step));
        match next {
            // A process that died during a model call had reserved money for it.
            None if self.tape.is_paid() && reason != Reason::Reserved && !is_over => {}
            None => self.take_away(thread),
            Some(_) if reason == Reason::Reserved => {}
            Some(step) if step.reason() == Reason::Lifecycle => self.say(thread, run),
            Some(step) => {
                let handoff = step.events.iter().find_map(|event| match event {
                    Event::ThreadHandoff(handoff) => handoff.new_thread_id.as_str().get(..).map(last_name),
                    _ => None,
                });
                if let Some(name) = handoff {
                    self.runs.next_are([name]);
                }
                if let Some(stop) = stand_ins::stop(step).filter(|_| step.asked_ms().is_none()) {
                    self.cancel.say(stop);
                }
            }
        }
    }

    /// Posts all requests that the run reads next.
    fn say(&self, thread: &ThreadId, run: Option<&RunId>) {
        let rest = self.tape.recording.steps.get(self.tape.next()..).unwrap_or_default();
        for step in rest.iter().take_while(|step| step.reason() == Reason::Lifecycle && step.run() == run) {
            // If a request is refused, the missing changeset shows it.
            _ = self.store.post(request(thread, step));
        }
        self.note.note();
    }

    /// Takes the lease away: the run can't commit any more.
    fn take_away(&self, thread: &ThreadId) {
        self.tape.take_away();
        if let Ok(lease) = self.other.acquire(thread, Acquire { take_over: true, ..Acquire::default() }) {
            _ = self.other.abandon(&lease);
        }
    }
}

/// The current agent, with nothing from outside but the record.
fn offline(mut work: RunConfig, model: Arc<dyn selvedge_model::Model>, tape: &Arc<ReplayCursor>) -> RunConfig {
    work.model = Arc::new(RecordedModel { today: work.model, recorded: model, tape: tape.clone() });
    let graph = work.graph.as_mut().map(Arc::make_mut);
    let of_nodes = graph.map(|graph| graph.tools.iter_mut()).into_iter().flatten();
    for tool in work.tools.iter_mut().chain(&mut Arc::make_mut(&mut work.hooks).tools).chain(of_nodes) {
        *tool = Arc::new(RecordedTool { spec: tool.spec().clone(), kind: tool.kind(), tape: tape.clone() });
    }
    // Children are not run again: the result of their call is the recorded one.
    if let Some(spawning) = &mut work.spawning {
        spawning.children = Arc::new(RecordedChildren { today: spawning.children.clone(), tape: tape.clone() });
        spawning.check_parent = Arc::new(|_| Ok(()));
    }
    // The record has one entry for all attempts; a second attempt reports their usage.
    work.retries.attempts_max = 2;
    // But for attempts at which hooks fired, which are repeated one by one.
    let has_failed = tape.recording.steps.iter().any(|step| failed_attempt(&step.events).is_some());
    if has_failed {
        work.retries.attempts_max = u32::MAX;
    }
    work.retries.wait = std::time::Duration::ZERO;
    work.retries.wait_max = std::time::Duration::ZERO;
    work
}

/// The hex at the end of a thread's id.
fn last_name(thread: &str) -> &str {
    thread.rsplit('-').next().unwrap_or_default()
}

/// Whether a changeset of a run is decided by the engine: not what a dead process left, nor the effect of a failing disk.
fn is_decided(step: &RecordedChangeset) -> bool {
    let Some(meta) = step.finished() else { return true };
    let is_decided = meta.failure.as_ref().is_some_and(|failure| failure.class != FailureClass::Engine);
    !step.is_lost() && (meta.outcome != Some(Status::Error) || is_decided)
}

fn stopped(step: &RecordedChangeset) -> Cause {
    let is_done = step.finished().is_some_and(|meta| meta.status == RunStatus::Done);
    match stand_ins::stop(step) {
        Some(stop) if is_done && stop != Stop::OutOfTime => Cause::Stopped(stop),
        _ => Cause::Given,
    }
}

fn status_change(events: &[Event]) -> Option<Stop> {
    events.iter().find_map(|event| match event {
        Event::ManifestChanged(ManifestChanged { status: Some(Status::Cancelled), .. }) => Some(Stop::Cancelled),
        Event::ManifestChanged(ManifestChanged { status: Some(Status::Killed), .. }) => Some(Stop::Killed),
        _ => None,
    })
}

fn raise(changed: &ManifestChanged) -> Option<&selvedge_model::limits::Limits> {
    let limits = changed.limits.as_ref()?;
    let alone = ManifestChanged { limits: Some(limits.clone()), ..ManifestChanged::default() };
    (alone == *changed).then_some(limits)
}

/// The request that led to a changeset that served one. A decision is repeated without its action hash, so it applies to the current
/// definition of the tool.
fn request(thread: &ThreadId, step: &RecordedChangeset) -> Posted {
    let request = step.events.iter().find_map(|event| match event {
        Event::Decision(decision) => {
            let mut decision = decision.clone();
            decision.action_hash = None;
            Some(if decision.is_word() { Request::Decide(decision) } else { Request::Settle(decision) })
        }
        Event::ManifestChanged(ManifestChanged { limits: Some(limits), .. }) => {
            Some(Request::Raise { limits: limits.clone() })
        }
        Event::ManifestChanged(ManifestChanged { title: Some(title), .. }) => {
            Some(Request::Rename { title: title.clone() })
        }
        Event::ChildSettled(fields) => {
            serde_json::from_value(serde_json::Value::Object(fields.clone())).ok().map(Request::ChildSettled)
        }
        _ => None,
    });
    let recorded = step.events.iter().find_map(|event| match event {
        Event::RequestAnswered(answered) => Some(answered.request_id.clone()),
        _ => None,
    });
    let id = recorded.map_or_else(|| RequestId::new(format!("replay-{}", step.version())), Ok);
    // A word and a number are a valid request id.
    let id = id.unwrap_or_else(|error| unreachable!("{error}"));
    // It was in time, or it would not be recorded. A request that changed nothing is not on record; a decision about no call does the same.
    let request = request.unwrap_or_else(|| Request::Decide(decision_about_nothing()));
    Posted { thread: thread.clone(), id, at: Timestamp::from_micros(0), request }
}

/// A decision about a call that does not exist.
fn decision_about_nothing() -> Decision {
    // One character is a valid call id.
    let call_id = CallId::new("-").unwrap_or_else(|error| unreachable!("{error}"));
    let action = DecisionAction::Deny;
    let who = String::new();
    let resume_mode = ResumeMode::default();
    Decision { call_id, action, who, action_hash: None, reason: None, result: None, resume_mode }
}

/// The recorded start of a run.
fn start(step: &RecordedChangeset) -> Start {
    let mut input = Input::nothing();
    let mut request = None;
    let answered: Vec<&CallId> = step
        .events
        .iter()
        .filter_map(|event| match event {
            Event::ToolOutcome(outcome) => Some(&outcome.call_id),
            _ => None,
        })
        .collect();
    // A result that the engine gave itself, because a message came instead of a decision, is not input.
    let is_answer = |message: &Message| {
        let is_one = |block: &Block| matches!(block, Block::ToolResult { call_id, .. } if answered.contains(&call_id));
        message.role == Role::Tool && message.content.iter().any(is_one)
    };
    for event in &step.events {
        match event {
            Event::Message(message) if !is_answer(message) => input.messages.push(message.clone()),
            Event::Snapshot(snapshot) => input.state = Some(snapshot.state.clone()),
            Event::ManifestChanged(changed) => input.raise = changed.limits.clone().or(input.raise),
            Event::RunStarted(run) => {
                input.origin = run.meta.origin.clone().into();
                let id = run.meta.source_mailbox_entry_id.as_ref().and_then(|id| RequestId::new(id).ok());
                request = id.map(|id| RunRequest { id, is_posted: true });
            }
            _ => {}
        }
    }
    Start { input, request }
}
