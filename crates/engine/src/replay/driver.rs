//! Reads the recording changeset by changeset and does again what led to each.
//!
//! - *A run begins*: it is run with the input it had. While it goes on, whatever came to it from outside comes when the record has
//!   it: a decision or a raise before the changeset that heard it, a stop before the one that it ended.
//! - *A run was lost*: it is taken away from the engine behind its last commit, as a killed process leaves it, and settled.
//! - *Somebody decided, raised or stopped* while nothing ran: the same is said again.
//! - *Everything else* is given: taken over as it is.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_items::config::{Class, ErrorClass};
use selvedge_log::hash::sha256;
use selvedge_log::{Signer, Trust};
use selvedge_model::blocking::wait;
use selvedge_model::event::{Decision, Event, ManifestChanged, ResumeMode};
use selvedge_model::message::Block;
use selvedge_model::{
    Batch, CallId, Cancel, Expect, Input, Message, Part, Posted, Reason, Request, RequestId, Role, RunId, RunStatus,
    Status, Stop, ThreadId, Timestamp, ToolKind, ToolSpec,
};
use selvedge_store::memory::MemoryStore;
use selvedge_store::{Acquire, Commit, Error as StoreError, Inbox, Leases, Logs, Store};
use serde_json::json;

use super::judge::Judge;
use super::outside::{self, NoProcesses, Recorded, RecordedChildren, Timed};
use super::recording::Step;
use super::tape::{EngineClock, Fate, Names, StoreClock, Tape};
use super::{How, Report};
use crate::assignment::Assignment;
use crate::calls::{Flight, Prepared};
use crate::decide::Trace;
use crate::decide::calls::{Probe, Ready};
use crate::engine::{Engine, Options};
use crate::error::Result;
use crate::events::Audience;
use crate::held::{Held, Leased, Observer, Of};
use crate::outcome::Outcome;
use crate::run::{Heard, Running, Wait};
use crate::spawn::{Refused, spawned};
use crate::start::{Asked, Start};
use crate::watcher::{Note, Watch};

/// Does again what the record has.
pub(crate) struct Driver {
    tape: Arc<Tape>,
    thread: ThreadId,
    engine: Engine,
    store: Arc<MemoryStore>,
    /// Somebody else, who takes a thread away.
    other: MemoryStore,
    work: Arc<Assignment>,
    /// The names that the engine and the store give.
    runs: Names,
    logs: Names,
    foreign: BTreeSet<RunId>,
    from: u64,
    pub(crate) judge: Arc<Mutex<Judge>>,
}

/// What led to a changeset.
enum Led {
    Run,
    Lost,
    Heard,
    Stopped(Stop),
    Given,
}

impl Driver {
    pub(crate) fn new(tape: Arc<Tape>, how: How, judge: Judge) -> Self {
        let (runs, logs) = (Names::of(tape.clone()), Names::default());
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
        let (thread, foreign) = (tape.recording.thread.clone(), tape.recording.foreign_runs());
        let work = Arc::new(offline(how.work, how.model, &tape));
        let other = store.another();
        // What stands before in the same run is done again, but not compared.
        let from = tape.recording.before_run(how.from.unwrap_or_default());
        Self { tape, thread, engine, store, other, work, runs, logs, foreign, from, judge: Arc::new(Mutex::new(judge)) }
    }

    /// Does everything again, until the record ends or the two can't be laid side by side any more.
    pub(crate) fn drive(&mut self) -> Result<()> {
        while let Some(step) = self.tape.next_step().filter(|_| !self.judge().is_over).cloned() {
            let before = self.tape.next();
            self.tape.wake();
            let done = match self.led(&step) {
                Led::Run => self.run(&step),
                Led::Lost => self.settle(&step),
                Led::Heard => self.hear(&step),
                Led::Stopped(stop) => self.stop(&step, stop),
                Led::Given => self.give(&step),
            };
            match done {
                Err(error) => self.judge().missing(Some(json!({"error": error.to_string()}))),
                Ok(()) if self.tape.next() == before => self.judge().missing(None),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// What led to a changeset that stands outside of what is being run.
    fn led(&self, step: &Step) -> Led {
        let is_foreign = step.run().is_some_and(|run| self.foreign.contains(run));
        if is_foreign || step.version() <= self.from {
            return Led::Given;
        }
        let is_running = || self.store_status() == Some(Status::Running);
        let is_verdict = |event: &&Event| matches!(event, Event::RequestAnswered(_));
        let events: Vec<Event> = step.events.iter().filter(|event| !is_verdict(event)).cloned().collect();
        match (step.reason(), events.as_slice()) {
            (Reason::UserMessage, _) if step.begins_run() => Led::Run,
            (Reason::RunFinished, _) if step.is_lost() && is_running() => Led::Lost,
            (Reason::RunFinished, _) if self.store_status() == Some(Status::Created) => stopped(step),
            (Reason::Lifecycle, [Event::Decision(_)]) if step.run().is_none() => Led::Heard,
            (Reason::Lifecycle, [Event::ManifestChanged(changed)]) if raise(changed).is_some() => Led::Heard,
            (Reason::Lifecycle, events) if step.run().is_none() => {
                status_change(events).map_or(Led::Given, Led::Stopped)
            }
            _ => Led::Given,
        }
    }

    /// What came of it.
    pub(crate) fn conclude(self) -> Report {
        self.judge().conclude()
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        lock(&self.judge)
    }

    /// A thread whose lease was taken, and of which every commit is judged.
    fn take(&self, lease: Leased) -> Result<Box<Held>> {
        let judge = self.judge.clone();
        let observer: Observer = Arc::new(move |_, reason, events| lock(&judge).committed(reason, events));
        self.engine.take_observed(lease, &Audience::default(), Some(observer))
    }

    fn store_status(&self) -> Option<Status> {
        use selvedge_store::Registry;
        self.store.get(&self.thread).ok().map(|summary| summary.manifest.status)
    }

    /// Takes a changeset over as it is.
    fn give(&mut self, step: &Step) -> Result<()> {
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

    /// Settles a run that was taken away.
    fn settle(&mut self, step: &Step) -> Result<()> {
        let mut lease = self.engine.lease(&self.thread, Acquire::default())?;
        self.other.beat(self.last_beat(step)?)?;
        lease.set_taken_from(self.other.owner());
        let mut held = self.take(lease)?;
        held.observer = None;
        self.engine.give_back(held)
    }

    /// When a lost run was last alive, as what was counted for it tells.
    fn last_beat(&self, step: &Step) -> Result<Timestamp> {
        use selvedge_store::Registry;
        let counted = step.finished().and_then(|meta| meta.cost.as_ref()).map_or(0, |cost| cost.duration_ms);
        let lost = self.store.runs(&self.thread)?.into_iter().find(|run| Some(&run.run_id) == step.run());
        let (began, committed) = lost.map_or((step.at, step.at), |run| (run.created_at, run.updated_at));
        let known = u64::try_from((committed.as_micros() - began.as_micros()) / 1000).unwrap_or(0);
        let ran_ms = counted.saturating_sub(known);
        // Whoever settled it came later than that, whatever the clock of the store showed then.
        self.tape.not_before(committed, ran_ms);
        Ok(Timestamp::from_micros(committed.as_micros() + i64::try_from(ran_ms.saturating_mul(1000)).unwrap_or(0)))
    }

    /// Says again what somebody decided or raised while nothing ran.
    fn hear(&mut self, step: &Step) -> Result<()> {
        self.store.post(request(&self.thread, step))?;
        let lease = self.engine.lease(&self.thread, Acquire::default())?;
        let mut held = self.take(lease)?;
        let heard = held.drain(Some(&self.work), Of::default());
        held.observer = None;
        self.engine.give_back(held)?;
        heard.map(|_| ())
    }

    /// Stops a thread again that waited.
    fn stop(&mut self, step: &Step, stop: Stop) -> Result<()> {
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

    /// Lets the tools be others from a run on that found them defined anew and asked again about their calls. As what they were defined
    /// then is not on record; that it was something else is.
    fn redefine(&mut self, step: &Step) {
        let of_run = |other: &&Step| other.version() >= step.version() && other.run() == step.run();
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
            *tool = Arc::new(Recorded { spec, kind: tool.kind(), tape: self.tape.clone() });
        }
    }

    /// Whether asking again might have helped a model that failed in this run. The record has what it was by its class, without the
    /// code that the provider gave, and how the run ended: one that waits was asked often enough.
    fn classes(&self, step: &Step) -> Vec<ErrorClass> {
        let steps = &self.tape.recording.steps;
        let from = steps.partition_point(|other| other.version() < step.version());
        let rest = steps[from..].iter().filter(|other| other.run() == step.run());
        let end = rest.filter_map(|other| other.finished()).next().filter(|meta| meta.failure.is_some());
        let class = end.map(|meta| if meta.status == RunStatus::Waiting { Class::Transient } else { Class::Permanent });
        let all = |class| ErrorClass { id: "recorded".to_owned(), class, codes: Vec::new(), texts: Vec::new() };
        class.map(all).into_iter().collect()
    }

    /// Runs again what was run, from its input to its end.
    fn run(&mut self, step: &Step) -> Result<()> {
        self.redefine(step);
        let classes = self.classes(step);
        Arc::make_mut(&mut self.work).classes = classes;
        let start = start(step);
        if let Some(asked) = start.request.as_ref().filter(|asked| asked.is_posted) {
            let (thread, request) = (self.thread.clone(), Request::Send(start.input.clone()));
            self.store.post(Posted { thread, id: asked.id.clone(), at: step.at, request })?;
        }
        self.runs.next_are(step.run().map(RunId::as_str));
        let lease = self.engine.lease(&self.thread, Acquire::default())?;
        let (cancel, watch) = (Cancel::new(), Watch::by_hand());
        let outside = Outside {
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
        let (mut held, ended) = self.by_the_record(held, start, Heard { cancel, watch });
        held.observer = None;
        if self.tape.is_beyond() {
            self.judge().missing(Some(json!("the model is asked")));
        }
        match (ended, self.tape.is_away()) {
            (_, true) => Ok(()),
            (Err(error), false) => Err(error),
            (Ok(_), false) => self.engine.give_back(held),
        }
    }

    /// Makes a run whose model, tools and children answer from the record: nothing of it waits.
    fn by_the_record(&self, held: Box<Held>, start: Start, heard: Heard) -> (Box<Held>, Result<Outcome>) {
        let mut running = match Running::begin(held, start, self.work.clone(), heard) {
            Ok(running) => running,
            Err(unbegun) => {
                let (held, error) = *unbegun;
                return (held, Err(error));
            }
        };
        loop {
            match running.advance() {
                Wait::Model => wait(running.listen()),
                Wait::Retry(_) => {}
                Wait::Ready => {
                    self.make_ready(&mut running);
                    running.prepared = Some(Ok(Prepared::default()));
                }
                Wait::Calls => {
                    // Those come back next that do so in the record.
                    let next = self.tape.next_step().filter(|_| !self.tape.is_away()).map(Step::outcomes);
                    let next = next.unwrap_or_default();
                    let is_next = |flight: &Flight| flight.is_ready() && next.contains(flight.call());
                    // One of which nothing is on record came back as unknown.
                    let is_lost = |flight: &Flight| {
                        flight.is_ready() && !matches!(self.tape.fate(flight.call()), Fate::Ended(..))
                    };
                    let has_next = running.flights.iter().any(is_next);
                    let has_lost = !has_next && !next.is_empty() && running.flights.iter().any(is_lost);
                    let goes = |flight: &Flight| match (has_next, has_lost) {
                        (true, _) => is_next(flight),
                        (false, true) => is_lost(flight),
                        (false, false) => true,
                    };
                    for flight in running.flights.iter_mut().filter(|flight| goes(flight)) {
                        flight.go_here(&running.cancel);
                    }
                }
                Wait::Probes(probes) => {
                    let find_out = |Probe { ready, is_undone, .. }: Probe| {
                        let trace = match is_undone {
                            true => Trace::NotDone,
                            false => ready.tool.reconcile(&ready.call, &running.cancel).into(),
                        };
                        (ready.call.id, trace)
                    };
                    let traces: Vec<_> = probes.into_iter().map(find_out).collect();
                    running.live.traces.extend(traces);
                }
                Wait::Over(outcome) => return (running.held, *outcome),
            }
        }
    }

    /// Makes calls ready by what is on record of them. Children are not started: whether one may be is decided, and its tool answers what
    /// it answered.
    fn make_ready(&self, running: &mut Running) {
        let (mut flights, mut born) = (std::mem::take(&mut running.flights), 0);
        for flight in &mut flights {
            let Some(Ready { tool, call, child, .. }) = &flight.ready else { continue };
            let (tool, call, is_there) = (tool.clone(), call.clone(), child.is_some());
            let spawning = self.work.spawning.as_ref().filter(|_| tool.kind() == ToolKind::Child);
            let ordered = match spawning.filter(|_| !is_there) {
                Some(spawning) => outside::refused(&self.tape, &call)
                    .map_or_else(|| running.held.ordered(&call, &self.work, spawning, born), Err)
                    .map(|(order, ..)| {
                        born += 1;
                        let thread = running.held.child_id(&order.thread);
                        running.held.delta.events.push(spawned(&call.id, &thread, order.detached));
                    }),
                None => Ok(()),
            };
            flight.start_here(ordered.and_then(|()| tool.start(&call).map_err(Refused::from)), spawning.is_some());
        }
        running.flights = flights;
    }
}

fn lock(judge: &Mutex<Judge>) -> MutexGuard<'_, Judge> {
    judge.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What comes to a run from outside, when the record has it.
struct Outside {
    tape: Arc<Tape>,
    judge: Arc<Mutex<Judge>>,
    store: Arc<MemoryStore>,
    other: MemoryStore,
    runs: Names,
    cancel: Cancel,
    note: Note,
}

impl Outside {
    fn committed(&self, thread: &ThreadId, reason: Reason, events: &[Event]) {
        let is_over = {
            let mut judge = lock(&self.judge);
            judge.committed(reason, events);
            judge.is_over
        };
        if reason == Reason::RunFinished || self.tape.is_away() {
            return;
        }
        let run = self.tape.next().checked_sub(1).and_then(|last| self.tape.recording.steps.get(last)?.run());
        let next = self.tape.next_step().filter(|step| step.run() == run && !is_over && is_decided(step));
        match next {
            // A process that died while the model was asked had set money aside for that.
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
                if let Some(stop) = outside::stop(step).filter(|_| step.asked_ms().is_none()) {
                    self.cancel.say(stop);
                }
            }
        }
    }

    /// Leaves everything that the run hears next.
    fn say(&self, thread: &ThreadId, run: Option<&RunId>) {
        let rest = self.tape.recording.steps.get(self.tape.next()..).unwrap_or_default();
        for step in rest.iter().take_while(|step| step.reason() == Reason::Lifecycle && step.run() == run) {
            // A request that is refused is not heard, and that is seen.
            _ = self.store.post(request(thread, step));
        }
        self.note.note();
    }

    /// Takes the thread away: what the run does from here on can't be committed.
    fn take_away(&self, thread: &ThreadId) {
        self.tape.take_away();
        if let Ok(lease) = self.other.acquire(thread, Acquire { take_over: true, ..Acquire::default() }) {
            _ = self.other.abandon(&lease);
        }
    }
}

/// Today's agent, with nothing of the outside but the record.
fn offline(mut work: Assignment, model: Arc<dyn selvedge_model::Model>, tape: &Arc<Tape>) -> Assignment {
    work.model = Arc::new(Timed { today: work.model, recorded: model, tape: tape.clone() });
    for tool in &mut work.tools {
        *tool = Arc::new(Recorded { spec: tool.spec().clone(), kind: tool.kind(), tape: tape.clone() });
    }
    // Children are not run again: what they gave back is what their call answered.
    if let Some(spawning) = &mut work.spawning {
        spawning.children = Arc::new(RecordedChildren { today: spawning.children.clone(), tape: tape.clone() });
        spawning.vouch = Arc::new(|_| Ok(()));
    }
    // The record has one word for all attempts; a second one tells what they used.
    work.patience.attempts_max = 2;
    (work.patience.wait, work.patience.wait_max) = (std::time::Duration::ZERO, std::time::Duration::ZERO);
    work
}

/// The hex at the end of a thread's id.
fn last_name(thread: &str) -> &str {
    thread.rsplit('-').next().unwrap_or_default()
}

/// Whether a changeset of a run is something that the engine decides: not what a dead process left, nor what a failing disk made of it.
fn is_decided(step: &Step) -> bool {
    let Some(meta) = step.finished() else { return true };
    let is_of_model = meta.failure.as_ref().is_some_and(|failure| failure.class.is_of_model());
    !step.is_lost() && (meta.outcome != Some(Status::Error) || is_of_model)
}

fn stopped(step: &Step) -> Led {
    let is_done = step.finished().is_some_and(|meta| meta.status == RunStatus::Done);
    match outside::stop(step) {
        Some(stop) if is_done && stop != Stop::OutOfTime => Led::Stopped(stop),
        _ => Led::Given,
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

/// The request that led to a changeset which served one. What is said of a call is said of it as it is today: of which definition it was
/// said is not repeated.
fn request(thread: &ThreadId, step: &Step) -> Posted {
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
    // A word and a number are a request's name.
    let id = id.unwrap_or_else(|error| unreachable!("{error}"));
    // It was in time, or it would not stand there. What it was that changed nothing is not on record; a word on no call does not either.
    let request = request.unwrap_or_else(|| Request::Decide(word_on_nothing()));
    Posted { thread: thread.clone(), id, at: Timestamp::from_micros(0), request }
}

/// A decision about a call that there is not.
fn word_on_nothing() -> Decision {
    // One letter is a call's name.
    let call_id = CallId::new("-").unwrap_or_else(|error| unreachable!("{error}"));
    let (action, who) = (Decision::DENY.to_owned(), String::new());
    let resume_mode = ResumeMode::default();
    Decision { call_id, action, who, action_hash: None, reason: None, result: None, resume_mode }
}

/// What a run began with.
fn start(step: &Step) -> Start {
    let (mut input, mut request) = (Input::nothing(), None);
    let answered: Vec<&CallId> = step
        .events
        .iter()
        .filter_map(|event| match event {
            Event::ToolOutcome(outcome) => Some(&outcome.call_id),
            _ => None,
        })
        .collect();
    // What the engine answered itself, because somebody spoke instead of deciding, is no input.
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
                request = id.map(|id| Asked { id, is_posted: true });
            }
            _ => {}
        }
    }
    Start { input, request }
}
