//! What this process knows of a run and a crash forgets, and how the outcome of a step changes it.

use std::collections::HashMap;

use selvedge_model::account::Account;
use selvedge_model::answer::{Answer, End};
use selvedge_model::event::{Ask, EffectClass, Process, SuspendReason, Suspended, ToolFailure};
use selvedge_model::limits::Cost;
use selvedge_model::message::Block;
use selvedge_model::tool::{Output, SandboxReached};
use selvedge_model::{
    CallId, Digest, Event, ModelError, Reason, RunId, RunMeta, Status, Stop, ThreadId, Timestamp, ToolKind,
};
use serde_json::json;

use crate::conversation::OpenCall;
use crate::decide::asking::Turn;
use crate::decide::calls::{CallPlan, PlannedCall, ReadyCall, is_on_record, sandboxed};
use crate::decide::ending::Failed;
use crate::decide::hooks::HookMemory;
use crate::decide::requests::{Pending, changes_run};
use crate::decide::{Commit, With};
use crate::fold::Fold;
use crate::graph;
use crate::spawn::{Refusal, Refused};
use crate::start::Beginning;

/// What this process knows of a run, and a crash forgets.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// The run.
    pub(crate) run: RunId,
    /// The record of the run at its beginning.
    pub(crate) meta: RunMeta,
    /// What it begins with, until that is on record.
    pub(crate) start: Option<Beginning>,
    /// The time.
    pub(crate) now: Timestamp,
    /// For how long the run has been running.
    pub(crate) running_ms: u64,
    /// The stop that was requested, if any.
    pub(crate) stop: Option<Stop>,
    /// The state of the inbox.
    pub(crate) inbox: Inbox,
    /// The requests that were read from it and are not answered.
    pub(crate) requests: Vec<Pending>,
    /// The account that it spends from, as read for the next attempt.
    pub(crate) account: Option<Account>,
    /// How many turns this run had.
    pub(crate) turns: u64,
    /// The usage of those turns.
    pub(crate) used: Cost,
    /// The turn that is under way, or that has its answer and is not on record.
    pub(crate) turn: Option<Turn>,
    /// How many attempts were paid for.
    pub(crate) attempts: u64,
    /// How many messages an earlier run was stopped over: only what follows them counts as repetition.
    pub(crate) judged: usize,
    /// The text of the model's last answer.
    pub(crate) text: Option<String>,
    /// How the last answer ended, if it had no calls.
    pub(crate) answered: Option<End>,
    /// Why nothing can be committed any more but the end.
    pub(crate) failed: Option<Failed>,
    /// Calls that are ready, in flight, or back and not on record, in their order.
    pub(crate) flights: Vec<Flight>,
    /// Approval requests that are not on record.
    pub(crate) asks: Vec<Ask>,
    /// What was found out about calls and is not on record.
    pub(crate) findings: HashMap<CallId, CallFinding>,
    /// What is known of hooks.
    pub(crate) hooks: HookMemory,
    /// Whether the end of the run is on record.
    pub(crate) is_over: bool,
}

/// The state of the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inbox {
    /// It was not read since the last step.
    Unread,
    /// A request arrived that changes something.
    Notified,
    /// Everything in it was read.
    Read,
}

/// What was found out about a call and is not on record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallFinding {
    /// It was dispatched before, with this outcome.
    Done(Output),
    /// It was dispatched before, and was not executed.
    NotDone,
    /// It was dispatched, and its outcome is unknown.
    Unknown,
    /// A limit prevents it.
    Limited(Suspended),
}

/// A call that this run makes, or answers without making it.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) open: OpenCall,
    /// What it is made with; absent if it gets its result without being made.
    pub(crate) ready: Option<ReadyCall>,
    pub(crate) stage: Stage,
    /// Another event to record with its result.
    pub(crate) event: Option<Event>,
}

/// How far a call has come.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// It is to be made ready.
    Planned,
    /// It is ready behind its gate.
    Ready { prepared: Prepared, is_recorded: bool },
    /// Its gate is open: it is in flight.
    InFlight,
    /// It has its result. `was_made`: it was executed for it.
    Done { output: Output, blob: Option<Digest>, failure: Option<ToolFailure>, was_made: bool },
}

/// A call that is ready behind its gate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prepared {
    /// The process that executes it.
    pub(crate) process: Option<Process>,
    /// The child that is created with its intent; whether the parent does not wait for it.
    pub(crate) born: Option<(ThreadId, bool)>,
    /// Whether it resumes a child that has its intent already.
    pub(crate) is_child: bool,
    /// How much of its sandbox is enforced, if it has one.
    pub(crate) sandbox: Option<SandboxReached>,
}

/// The outcome of a step. A successful commit has none: it changes the fold.
pub(crate) enum Outcome {
    /// A call is ready.
    Ready(CallId, Prepared),
    /// A call can't be made ready.
    NotReady(CallId, Refused),
    /// A call has its result, as it is recorded.
    Ended { call: CallId, output: Output, blob: Option<Digest>, failure: Option<ToolFailure> },
    /// A call was dispatched, and its outcome is unknown.
    Lost(CallId),
    /// What was found out about a call that an earlier process dispatched.
    Found(CallId, CallFinding),
    /// The model answered.
    Answered(Box<Answer>),
    /// The model failed.
    Failed(ModelError),
    /// Nothing can be committed any more but the end of the run.
    Refused(Failed),
}

impl Flight {
    fn of(PlannedCall { open, plan }: PlannedCall) -> Option<Self> {
        let (ready, stage, event) = match plan {
            CallPlan::Answer(output, event) => {
                (None, Stage::Done { output, blob: None, failure: None, was_made: false }, event)
            }
            CallPlan::Make(ready) => (Some(ready), Stage::Planned, None),
            CallPlan::Probe(_) | CallPlan::AwaitApproval(_) | CallPlan::Unknown | CallPlan::Limited(_) => return None,
        };
        Some(Self { open, ready, stage, event: event.map(|event| *event) })
    }

    pub(crate) fn is_planned(&self) -> bool {
        matches!(self.stage, Stage::Planned)
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self.stage, Stage::InFlight)
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready { .. })
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done { .. })
    }

    /// Whether it was executed, may run only once, and is back: that must be recorded at once.
    pub(super) fn must_be_recorded(&self) -> bool {
        self.is_once() && matches!(self.stage, Stage::Done { was_made: true, .. })
    }

    /// Whether it may run only once.
    pub(crate) fn is_once(&self) -> bool {
        self.ready.as_ref().is_none_or(|ready| ready.tool.spec().class == EffectClass::AtMostOnce)
    }
}

impl Live {
    /// The state of a run that begins now.
    pub(crate) fn new(run: RunId, meta: RunMeta, now: Timestamp) -> Self {
        Self {
            run,
            meta,
            start: None,
            now,
            running_ms: 0,
            stop: None,
            inbox: Inbox::Unread,
            requests: Vec::new(),
            account: None,
            turns: 0,
            used: Cost::default(),
            turn: None,
            attempts: 0,
            judged: 0,
            text: None,
            answered: None,
            failed: None,
            flights: Vec::new(),
            asks: Vec::new(),
            findings: HashMap::new(),
            hooks: HookMemory::default(),
            is_over: false,
        }
    }

    /// The number of the current turn, if there is one.
    pub(crate) fn turn_number(&self) -> Option<u64> {
        (self.turns > 0).then_some(self.turns)
    }

    /// Sets the calls that are to be made or answered.
    pub(crate) fn plan(&mut self, planned: Vec<PlannedCall>, fold: &Fold) {
        self.asks.extend(planned.iter().filter_map(|call| match &call.plan {
            CallPlan::AwaitApproval(ask) if !is_on_record(fold, ask) => Some(ask.clone()),
            _ => None,
        }));
        // Others of a graph's loop may be in flight.
        self.flights.extend(planned.into_iter().filter_map(Flight::of));
    }

    /// Begins an attempt of a turn.
    pub(crate) fn begin(&mut self, turn: Turn) {
        if self.turn.is_none() {
            self.turns += 1;
        }
        self.turn = Some(turn);
    }

    /// Sets the requests that were read from the inbox. The inbox counts as read until all of them are answered.
    pub(crate) fn set_requests(&mut self, requests: Vec<Pending>) {
        self.inbox = Inbox::Read;
        self.requests = requests;
    }

    /// A step was decided: it takes time, and requests may arrive meanwhile.
    pub(crate) fn stepped(&mut self) {
        if self.inbox == Inbox::Read && self.requests.is_empty() {
            self.inbox = Inbox::Unread;
        }
    }

    /// The first request can't be paid for.
    pub(crate) fn fell_short(&mut self, why: String) {
        if let Some(pending) = self.requests.first_mut() {
            pending.short = Some(why);
        }
    }

    /// The pause before the next attempt is over.
    pub(crate) fn rested(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.is_rested = true;
        }
    }

    /// The calls that were ready are in flight now.
    pub(crate) fn dispatched(&mut self) {
        for flight in &mut self.flights {
            if flight.is_ready() {
                flight.stage = Stage::InFlight;
            }
        }
    }

    pub(crate) fn flight(&self, call: &CallId) -> Option<&Flight> {
        self.flights.iter().find(|flight| flight.open.id == *call)
    }

    fn at(&mut self, call: &CallId, stage: Stage) {
        if let Some(flight) = self.flights.iter_mut().find(|flight| flight.open.id == *call) {
            flight.stage = stage;
        }
    }

    fn set_finding(&mut self, call: CallId, trace: CallFinding) {
        self.flights.retain(|flight| flight.open.id != call);
        self.findings.insert(call, trace);
    }

    /// Adds the outcome of a step.
    pub(crate) fn take(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Ready(call, prepared) => {
                // A call without an intent has its sandbox recorded with its result.
                let flight = self.flights.iter_mut().find(|flight| flight.open.id == call && !flight.is_once());
                if let (Some(flight), Some(reached)) = (flight, &prepared.sandbox) {
                    flight.event = Some(sandboxed(&call, &flight.open.name, reached));
                }
                self.at(&call, Stage::Ready { prepared, is_recorded: false });
            }
            Outcome::NotReady(call, Refused::Waits(suspended)) => {
                self.set_finding(call, CallFinding::Limited(*suspended))
            }
            Outcome::NotReady(call, Refused::Told(Refusal { text, failure })) => {
                let ready = self.flight(&call).and_then(|flight| flight.ready.as_ref());
                let is_child = ready.is_some_and(|ready| ready.tool.kind() == ToolKind::Child);
                let content = if is_child { json!({"success": false, "error": text}) } else { json!(text) };
                let output = Output { content, is_error: true, ..Output::default() };
                self.at(&call, Stage::Done { output, blob: None, failure, was_made: false });
            }
            Outcome::Ended { call, output, .. } if self.is_waiting_child(&call, &output) => {
                let suspended = Suspended::because(SuspendReason::Error, graph::CHILD_SUSPENDED);
                self.set_finding(call, CallFinding::Limited(suspended));
            }
            Outcome::Ended { call, output, blob, failure } => {
                self.at(&call, Stage::Done { output, blob, failure, was_made: true });
            }
            Outcome::Lost(call) => self.set_finding(call, CallFinding::Unknown),
            Outcome::Found(call, trace) => self.set_finding(call, trace),
            Outcome::Answered(answer) => {
                if let Some(turn) = &mut self.turn {
                    turn.take(Ok(answer));
                }
            }
            Outcome::Failed(error) => {
                if let Some(turn) = &mut self.turn {
                    turn.take(Err(error));
                }
            }
            Outcome::Refused(failed) => {
                // A call that was not dispatched never will be.
                self.flights.retain(|flight| flight.is_in_flight() || flight.is_done());
                self.asks.clear();
                self.failed.get_or_insert(failed);
            }
        }
    }

    /// Whether a node's child is suspended: its node has no outcome yet.
    fn is_waiting_child(&self, call: &CallId, output: &Output) -> bool {
        let is_suspended = output.content.get("status").is_some_and(|status| status == Status::Suspended.as_str());
        let flight = self.flight(call).filter(|_| is_suspended);
        let ready = flight.filter(|flight| flight.open.is_of_node()).and_then(|flight| flight.ready.as_ref());
        ready.is_some_and(|ready| ready.tool.kind() == ToolKind::Child)
    }

    /// Removes what is on record now.
    pub(crate) fn committed(&mut self, commit: Commit) {
        let Commit { reason, delta, with, .. } = commit;
        for event in &delta.events {
            if let Event::Usage(usage) = event {
                self.used.add(&usage.cost);
            }
        }
        match with {
            With::Attempt(turn) => {
                self.account = None;
                self.attempts += 1;
                self.begin(*turn);
            }
            With::End { .. } | With::Handoff { .. } => self.is_over = true,
            With::Nothing | With::Funds { .. } | With::Raise(_) | With::Children => {}
        }
        match reason {
            Reason::UserMessage => self.start = None,
            Reason::ToolIntentCommitted => {
                self.asks.clear();
                for flight in &mut self.flights {
                    if let Stage::Ready { is_recorded, .. } = &mut flight.stage {
                        *is_recorded = true;
                    }
                }
            }
            Reason::AssistantTurnCommitted => self.said(&delta.messages),
            // The results of all calls that are back are on record.
            Reason::ToolResultsCommitted | Reason::StepCommitted => {
                self.hooks.committed(&delta.events);
                self.flights.retain(|flight| !flight.is_done());
            }
            Reason::Lifecycle => {
                self.requests.retain(|pending| !delta.consumed.contains(&pending.posted.id));
                if changes_run(&delta) {
                    // Calls that were probed or limited before are planned again.
                    self.findings.clear();
                }
            }
            Reason::RunFinished | Reason::Reserved => {}
        }
    }

    /// The answer of a turn is on record.
    fn said(&mut self, messages: &[selvedge_model::Message]) {
        let (Some(turn), Some(message)) = (self.turn.take(), messages.last()) else { return };
        self.hooks.turn_is_over();
        let has_calls = message.content.iter().any(|block| matches!(block, Block::ToolCall { .. }));
        let text = message.plain_text();
        self.text = (!text.is_empty()).then_some(text);
        self.answered = turn.answer().map(|answer| answer.end).filter(|_| !has_calls);
    }
}
