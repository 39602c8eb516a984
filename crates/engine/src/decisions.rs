//! Decisions about tool calls: whether a call may be made, and the outcome of a call whose outcome is unknown.
//!
//! A decision is an event of its own, signed like every other. It is judged where it is recorded, under the lease. It changes nothing if the
//! call is not open, if the approval request has expired, if it repeats an earlier decision, or if it is about another action. If the lease
//! is held, the decision is posted as a request, and the lease holder judges it with its next batch.

use std::time::Duration;

use selvedge_model::event::{Ask, Decision, DecisionAction, ResumeMode};
use selvedge_model::{Call, CallId, Event, Posted, Reason, Request, RequestId, RunId, ThreadId, Timestamp};
use selvedge_store::{Acquire, Error as StoreError};
use serde_json::Value;

use crate::approval;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::fold::Fold;
use crate::held::{HeldThread, RunContext};
use crate::inbox::Arrival;
use crate::run_config::RunConfig;

/// A decision about a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// Approves the call as requested; the value, if any, is used as the resume mode says.
    Approve(Option<Value>),
    /// Approves the call with these arguments instead; the model gets to know them.
    Edit(Value),
    /// Denies the call, for this reason, which the model gets as the result.
    Deny(Option<String>),
    /// The call was executed, with this result.
    Done(Value),
    /// The call was not executed; it is dispatched again.
    NotDone,
    /// Whether the call was executed can't be known; the model gets that as the result.
    Unknown,
}

/// The effect of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Where it is recorded.
    pub recorded: Recorded,
    /// The calls of the thread that still need a decision.
    pub undecided: Vec<CallId>,
    /// How an approval affects the call.
    pub mode: ResumeMode,
}

/// Where a decision is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is in the log, signed.
    Now,
    /// The same decision was in the log before.
    Before,
    /// It is queued: the process that runs the thread will record it.
    Queued,
}

/// A decision about a thread that another process holds.
struct QueuedDecision {
    /// The decision, bound to the action that it is about: the holder refuses it if the call asks for another action by then.
    decision: Decision,
    /// Whether it is to be posted: the same one does not wait already, and is not on record.
    is_new: bool,
    /// The answer, if the same one is on record.
    recorded: Option<Decided>,
    fold: Fold,
    mode: ResumeMode,
}

impl Choice {
    /// What of it is recorded as the action.
    pub fn action(&self) -> DecisionAction {
        match self {
            Self::Approve(_) => DecisionAction::Approve,
            Self::Edit(_) => DecisionAction::Edit,
            Self::Deny(_) => DecisionAction::Deny,
            Self::Done(_) => DecisionAction::Done,
            Self::NotDone => DecisionAction::NotDone,
            Self::Unknown => DecisionAction::Unknown,
        }
    }

    fn of(self, call_id: CallId, who: &str) -> Decision {
        let action = self.action();
        let (reason, result) = match self {
            Self::Approve(result) => (None, result),
            Self::Edit(result) | Self::Done(result) => (None, Some(result)),
            Self::Deny(reason) => (reason, None),
            Self::NotDone | Self::Unknown => (None, None),
        };
        let resume_mode = ResumeMode::default();
        Decision { call_id, action, who: who.to_owned(), action_hash: None, reason, result, resume_mode }
    }
}

impl Engine {
    /// Records a decision about a call. On return it is durable in the log, or queued for the process that runs the thread; nothing has run
    /// because of it. The first decision counts: the same one again changes nothing, another one is refused.
    pub fn decide(
        &self,
        thread: &ThreadId,
        call: &CallId,
        choice: Choice,
        who: &str,
        work: &RunConfig,
    ) -> Result<Decided> {
        self.check_value(thread, call, &choice, work)?;
        let mut decision = choice.of(call.clone(), who);
        if let Some(result) = &mut decision.result {
            self.redactor.value(result);
        }
        if let Some(reason) = &mut decision.reason
            && let Some(masked) = self.redactor.text(reason)
        {
            *reason = masked;
        }
        let posted = self.posted(thread, request_of(decision.clone()))?;
        let mut queued = None;
        let arrival = self.deliver(thread, posted.request.kind(), Some(Duration::ZERO), || {
            let judged = self.judge_held(thread, &decision)?;
            let bound =
                judged.is_new.then(|| Posted { request: request_of(judged.decision.clone()), ..posted.clone() });
            queued = Some(judged);
            Ok(bound)
        })?;
        match (arrival, queued) {
            (Arrival::Lease(lease), _) => self.under_lease(lease, Some(work), |held| held.decide(decision)),
            (Arrival::Queued(_), None) => Err(StoreError::BadBatch.into()),
            (Arrival::Queued(None), Some(QueuedDecision { recorded: Some(before), .. })) => Ok(before),
            (Arrival::Queued(_), Some(queued)) => self.await_decision(thread, &posted.id, queued, work),
        }
    }

    /// Checks whether the value that comes with a decision can be used as intended: the tool validates the arguments, and nothing runs.
    fn check_value(&self, thread: &ThreadId, id: &CallId, choice: &Choice, work: &RunConfig) -> Result<()> {
        let (Choice::Edit(value) | Choice::Approve(Some(value))) = choice else { return Ok(()) };
        let fold = Fold::load(&*self.store, thread, &self.trust)?;
        let open = fold.conversation.open().iter().find(|open| open.id == *id);
        let tool = open.and_then(|open| work.tool(&open.name));
        // If no approval is pending, the judgement of the decision says why.
        let (Some(tool), Some(asked)) = (tool, asked(&fold, id)) else { return Ok(()) };
        match (choice, asked.resume_mode) {
            (Choice::Approve(_), ResumeMode::ReplayToolCall) => {
                return Err(Error::ValueUnused { thread: thread.clone(), call: id.clone() });
            }
            (Choice::Approve(_), ResumeMode::UseDecisionAsToolResult) => return Ok(()),
            // A plain yes, and a plain no, which contradicts an approval.
            (Choice::Approve(Some(Value::Bool(true))), ResumeMode::PassDecisionToTool) => return Ok(()),
            (Choice::Approve(Some(Value::Bool(false))), ResumeMode::PassDecisionToTool) => {
                return Err(Error::EditRefused { call: id.clone(), why: "`false` refuses it".to_owned() });
            }
            _ => {}
        }
        let call = Call {
            thread: thread.clone(),
            // A placeholder: the call is not dispatched.
            run: RunId::new("none").map_err(|_| StoreError::BadBatch)?,
            id: id.clone(),
            name: tool.spec().name.clone(),
            arguments: value.clone(),
            key: String::new(),
        };
        match tool.start(&call) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::EditRefused { call: id.clone(), why: error.to_string() }),
        }
    }

    /// Judges a decision about a thread that another process holds, before it is queued in the inbox. The first one posted counts.
    fn judge_held(&self, thread: &ThreadId, decision: &Decision) -> Result<QueuedDecision> {
        let fold = Fold::load(&*self.store, thread, &self.trust)?;
        let now = self.clock.now();
        let mode = asked(&fold, &decision.call_id).map(|ask| ask.resume_mode).unwrap_or_default();
        let Some(decision) = judge(&fold, decision.clone(), now)? else {
            let recorded = Some(Decided { recorded: Recorded::Before, undecided: undecided(&fold, now), mode });
            return Ok(QueuedDecision { decision: decision.clone(), is_new: false, recorded, fold, mode });
        };
        match self.posted_before(&decision, &fold, None)? {
            Some(before) if !is_same(&before, &decision) => Err(already_decided(thread, &before)),
            before => Ok(QueuedDecision { decision, is_new: before.is_none(), recorded: None, fold, mode }),
        }
    }

    /// What a decision that was queued becomes: if the thread is free by now, it is recorded here.
    fn await_decision(
        &self,
        thread: &ThreadId,
        id: &RequestId,
        queued: QueuedDecision,
        work: &RunConfig,
    ) -> Result<Decided> {
        let QueuedDecision { decision, is_new, fold, mode, .. } = queued;
        if is_new {
            // Another one may have been posted at the same moment.
            let before = self.posted_before(&decision, &fold, Some(id))?;
            if let Some(before) = before.filter(|before| !is_same(before, &decision)) {
                return Err(already_decided(thread, &before));
            }
        }
        let now = self.clock.now();
        let free = match self.lease(thread, Acquire::default()) {
            Ok(lease) => lease,
            // The holder serves it when it reads its inbox next, or else the next process that acquires the lease.
            Err(StoreError::LeaseHeld { .. }) => {
                return Ok(Decided { recorded: Recorded::Queued, undecided: Vec::new(), mode });
            }
            Err(error) => return Err(error.into()),
        };
        let (undecided, judged) = self
            .under_lease(free, Some(work), |held| Ok((undecided(&held.fold, now), judge(&held.fold, decision, now))))?;
        match judged {
            Err(error @ (Error::AlreadyDecided { .. } | Error::TooLate { .. })) => Err(error),
            // It is not in this log: the thread was continued, and the decision is in the inbox of its successor.
            Ok(Some(_)) => Ok(Decided { recorded: Recorded::Queued, undecided, mode }),
            _ => Ok(Decided { recorded: Recorded::Now, undecided, mode }),
        }
    }

    /// An earlier pending decision about the same action; with an id, one before the request of that id.
    fn posted_before(&self, decision: &Decision, fold: &Fold, own: Option<&RequestId>) -> Result<Option<Decision>> {
        let waiting = self.store.pending(&fold.manifest().thread_id)?;
        let until = match own {
            None => waiting.len(),
            Some(own) => waiting.iter().position(|waiting| waiting.posted.id == *own).unwrap_or(0),
        };
        let earlier = waiting.into_iter().take(until).filter(|waiting| waiting.is_sealed);
        let decisions = earlier.filter_map(|waiting| decision_of(waiting.posted));
        Ok(decisions.into_iter().find(|other| is_about_same_action(other, decision)))
    }
}

impl HeldThread {
    fn decide(&mut self, decision: Decision) -> Result<Decided> {
        let now = self.engine.clock.now();
        let mode = asked(&self.fold, &decision.call_id).map(|ask| ask.resume_mode).unwrap_or_default();
        let decision = judge(&self.fold, decision, now)?;
        let recorded = if decision.is_some() { Recorded::Now } else { Recorded::Before };
        if let Some(decision) = decision {
            self.delta.events.push(Event::Decision(decision));
            self.commit(Reason::Lifecycle, RunContext::default())?;
        }
        Ok(Decided { recorded, undecided: undecided(&self.fold, now), mode })
    }
}

fn request_of(decision: Decision) -> Request {
    if decision.is_word() { Request::Decide(decision) } else { Request::Settle(decision) }
}

fn decision_of(posted: Posted) -> Option<Decision> {
    match posted.request {
        Request::Decide(decision) | Request::Settle(decision) => Some(decision),
        _ => None,
    }
}

/// The calls of a thread that need a decision; one whose approval request has expired does not.
pub(crate) fn undecided(fold: &Fold, now: Timestamp) -> Vec<CallId> {
    fold.manifest().undecided(now).cloned().collect()
}

/// The decision to record: none if the same one is on record.
pub(crate) fn judge(fold: &Fold, mut decision: Decision, now: Timestamp) -> Result<Option<Decision>> {
    let thread = &fold.manifest().thread_id;
    let call = decision.call_id.clone();
    let no_open_call = || Error::NoOpenCall { thread: thread.clone(), call: call.clone() };
    let known = fold.call(&call);
    // A settled call stays settled: the same again changes nothing, also after the thread has resumed.
    if !decision.is_word()
        && known.is_some_and(|known| known.settled.as_ref().is_some_and(|before| is_same(before, &decision)))
    {
        return Ok(None);
    }
    let is_dispatched = known.is_some_and(|known| known.intent.is_some());
    let is_about_outcome = known.is_some_and(selvedge_model::fold::CallState::may_have_run);
    if if decision.is_word() { is_dispatched } else { !is_about_outcome } {
        return Err(no_open_call());
    }
    if decision.is_word() {
        let asked = asked(fold, &call).ok_or_else(no_open_call)?;
        // A decision that names another action, or another resume mode, than the approval request is about something else.
        if decision
            .action_hash
            .is_some_and(|hash| hash != asked.action_hash || decision.resume_mode != asked.resume_mode)
        {
            return Err(no_open_call());
        }
        if approval::is_expired(known, &asked.action_hash, now) {
            return Err(Error::TooLate { thread: thread.clone(), call });
        }
        decision.action_hash = Some(asked.action_hash);
        decision.resume_mode = asked.resume_mode;
    } else if known.is_some_and(|known| known.outcome.is_some()) {
        return Err(no_open_call());
    }
    match known.and_then(|known| known.decisions.iter().find(|other| is_about_same_action(other, &decision))) {
        None => Ok(Some(decision)),
        Some(before) if is_same(before, &decision) => Ok(None),
        Some(before) => Err(already_decided(thread, before)),
    }
}

/// Whether two decisions are about the same call and action, so that only the first counts.
fn is_about_same_action(one: &Decision, other: &Decision) -> bool {
    (&one.call_id, one.is_word(), one.action_hash) == (&other.call_id, other.is_word(), other.action_hash)
}

fn is_same(one: &Decision, other: &Decision) -> bool {
    (&one.action, &one.result) == (&other.action, &other.result)
}

fn already_decided(thread: &ThreadId, before: &Decision) -> Error {
    let said = match before.action {
        DecisionAction::Approve => "may be made",
        DecisionAction::Edit => "may be made with other arguments",
        DecisionAction::Deny => "must not be made",
        DecisionAction::Done => "was done",
        DecisionAction::NotDone => "was not done",
        DecisionAction::Unknown => "has an unknown outcome",
    };
    Error::AlreadyDecided { thread: thread.clone(), call: before.call_id.clone(), said: said.to_owned() }
}

/// The approval request about an open call.
fn asked<'f>(fold: &'f Fold, call: &CallId) -> Option<&'f Ask> {
    let is_open = fold.conversation.open().iter().any(|open| open.id == *call);
    fold.call(call).filter(|_| is_open)?.ask.as_ref()
}
