//! What people decide about calls: whether one may be made, and what became of one that nobody saw end.
//!
//! A decision is an event of its own, signed like every other. It is judged where it is recorded, under the lease: a call that is not
//! open, a time that is over, a word that was given before and a decision about another action change nothing. Who can't have the
//! lease leaves a request, and the process that holds the thread judges it with its next batch.

use selvedge_model::event::{Ask, Decision, ResumeMode};
use selvedge_model::{Call, CallId, Event, Posted, Reason, Request, RequestId, RunId, ThreadId, Timestamp};
use selvedge_store::{Acquire, Error as StoreError};
use serde_json::Value;

use crate::approval;
use crate::assignment::Assignment;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::Audience;
use crate::fold::Fold;
use crate::held::{Held, Of};

/// What a person decides about a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// It may be made as it was asked for; what comes along is used as its rule says.
    Approve(Option<Value>),
    /// It may be made with these arguments instead; the model is told.
    Edit(Value),
    /// It must not be made, for this reason; the model is told.
    Deny(Option<String>),
    /// It was made, with this result.
    Done(Value),
    /// It was not made; it is dispatched again.
    NotDone,
    /// Nobody can know whether it was made; the model is told so.
    Unknown,
}

/// What became of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Where it stands.
    pub recorded: Recorded,
    /// The calls of the thread that still wait for somebody.
    pub undecided: Vec<CallId>,
    /// What becomes of the call once it is allowed.
    pub mode: ResumeMode,
}

/// Where a decision stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is in the log, signed.
    Now,
    /// The very same was in the log before.
    Before,
    /// Whoever runs the thread will take it in.
    Left,
}

impl Choice {
    /// The word for it, as recorded.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Approve(_) => Decision::APPROVE,
            Self::Edit(_) => Decision::EDIT,
            Self::Deny(_) => Decision::DENY,
            Self::Done(_) => "done",
            Self::NotDone => "not_done",
            Self::Unknown => "unknown",
        }
    }

    fn of(self, call_id: CallId, who: &str) -> Decision {
        let action = self.as_str().to_owned();
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
    /// Records what somebody decides about a call. On return it is durable, or left with whoever runs the thread; nothing has run
    /// because of it. The first decision counts: the same one again changes nothing, another one is refused.
    pub fn decide(
        &self,
        thread: &ThreadId,
        call: &CallId,
        choice: Choice,
        who: &str,
        work: &Assignment,
    ) -> Result<Decided> {
        self.check_value(thread, call, &choice, work)?;
        let mut decision = choice.of(call.clone(), who);
        decision.result.iter_mut().for_each(|result| self.redactor.value(result));
        decision.reason.iter_mut().for_each(|reason| {
            if let Some(masked) = self.redactor.text(reason) {
                *reason = masked;
            }
        });
        match self.lease(thread, Acquire::default()) {
            Ok(lease) => {
                let mut held = self.take(lease, &Audience::default())?;
                // Whoever left a word with a process that died said it first.
                let heard = held.drain(Some(work), Of::default());
                let decided = heard.and_then(|_| held.decide(decision));
                self.give_back(held)?;
                decided
            }
            Err(StoreError::LeaseHeld { .. }) => self.leave_decision(thread, decision, work),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether what comes with a decision can be used as it will be: arguments are made ready, and not made.
    fn check_value(&self, thread: &ThreadId, id: &CallId, choice: &Choice, work: &Assignment) -> Result<()> {
        let (Choice::Edit(value) | Choice::Approve(Some(value))) = choice else { return Ok(()) };
        let fold = Fold::load(&*self.store, thread, &self.trust)?;
        let open = fold.conversation.open().iter().find(|open| open.id == *id);
        let tool = open.and_then(|open| work.tool(&open.name));
        // Whoever judges the decision says why nobody is asked.
        let (Some(tool), Some(asked)) = (tool, asked(&fold, id)) else { return Ok(()) };
        match (choice, asked.resume_mode) {
            (Choice::Approve(_), ResumeMode::ReplayToolCall) => {
                return Err(Error::ValueUnused { thread: thread.clone(), call: id.clone() });
            }
            (Choice::Approve(_), ResumeMode::UseDecisionAsToolResult) => return Ok(()),
            // A plain yes, and a plain no, which nobody means who allows a call.
            (Choice::Approve(Some(Value::Bool(true))), ResumeMode::PassDecisionToTool) => return Ok(()),
            (Choice::Approve(Some(Value::Bool(false))), ResumeMode::PassDecisionToTool) => {
                return Err(Error::EditRefused { call: id.clone(), why: "`false` refuses it".to_owned() });
            }
            _ => {}
        }
        let call = Call {
            thread: thread.clone(),
            // Nothing runs under it.
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

    /// Leaves a decision with whoever holds the thread; if nobody does any more, takes it in here. The first that was left counts.
    fn leave_decision(&self, thread: &ThreadId, decision: Decision, work: &Assignment) -> Result<Decided> {
        let (fold, now) = (Fold::load(&*self.store, thread, &self.trust)?, self.clock.now());
        let mode = asked(&fold, &decision.call_id).map(|ask| ask.resume_mode).unwrap_or_default();
        let Some(decision) = judge(&fold, decision, now)? else {
            return Ok(Decided { recorded: Recorded::Before, undecided: undecided(&fold, now), mode });
        };
        match self.left_before(&decision, &fold, None)? {
            Some(before) if is_same(&before, &decision) => {}
            Some(before) => return Err(already_decided(thread, &before)),
            None => {
                // It counts as said now, whenever it is served.
                let request = match decision.is_word() {
                    true => Request::Decide(decision.clone()),
                    false => Request::Settle(decision.clone()),
                };
                let posted = self.posted(thread, request)?;
                let id = posted.id.clone();
                self.store.post(posted)?;
                // Another one may have been left at the same moment.
                let before = self.left_before(&decision, &fold, Some(&id))?;
                if let Some(before) = before.filter(|before| !is_same(before, &decision)) {
                    return Err(already_decided(thread, &before));
                }
            }
        }
        match self.lease(thread, Acquire::default()) {
            Ok(lease) => {
                let mut held = self.take(lease, &Audience::default())?;
                let heard = held.drain(Some(work), Of::default());
                let undecided = undecided(&held.fold, now);
                let counts = judge(&held.fold, decision, now);
                self.give_back(held)?;
                heard?;
                match counts {
                    Err(error @ Error::AlreadyDecided { .. }) => Err(error),
                    _ => Ok(Decided { recorded: Recorded::Now, undecided, mode }),
                }
            }
            // The holder serves it when it reads its inbox next, or else the next process that takes the thread.
            Err(StoreError::LeaseHeld { .. }) => Ok(Decided { recorded: Recorded::Left, undecided: Vec::new(), mode }),
            Err(error) => Err(error.into()),
        }
    }

    /// What was left about the same action and not served yet, before the request of this id if it still waits.
    fn left_before(&self, decision: &Decision, fold: &Fold, own: Option<&RequestId>) -> Result<Option<Decision>> {
        let waiting = self.store.pending(&fold.manifest().thread_id)?;
        let until = match own {
            None => waiting.len(),
            Some(own) => waiting.iter().position(|waiting| waiting.posted.id == *own).unwrap_or(0),
        };
        let earlier = waiting.into_iter().take(until).filter(|waiting| waiting.is_sealed);
        let decisions = earlier.filter_map(|waiting| decision_of(waiting.posted));
        Ok(decisions.into_iter().find(|other| is_rival(other, decision)))
    }
}

impl Held {
    fn decide(&mut self, decision: Decision) -> Result<Decided> {
        let now = self.engine.clock.now();
        let mode = asked(&self.fold, &decision.call_id).map(|ask| ask.resume_mode).unwrap_or_default();
        let decision = judge(&self.fold, decision, now)?;
        let recorded = if decision.is_some() { Recorded::Now } else { Recorded::Before };
        if let Some(decision) = decision {
            self.delta.events.push(Event::Decision(decision));
            self.commit(Reason::Lifecycle, Of::default())?;
        }
        Ok(Decided { recorded, undecided: undecided(&self.fold, now), mode })
    }
}

fn decision_of(posted: Posted) -> Option<Decision> {
    match posted.request {
        Request::Decide(decision) | Request::Settle(decision) => Some(decision),
        _ => None,
    }
}

/// The calls of a thread that wait for somebody; one whose time is over is decided.
pub(crate) fn undecided(fold: &Fold, now: Timestamp) -> Vec<CallId> {
    fold.manifest().undecided(now).cloned().collect()
}

/// What is to be recorded of a decision: nothing if the very same is on record.
pub(crate) fn judge(fold: &Fold, mut decision: Decision, now: Timestamp) -> Result<Option<Decision>> {
    let (thread, call) = (&fold.manifest().thread_id, decision.call_id.clone());
    let no_open_call = || Error::NoOpenCall { thread: thread.clone(), call: call.clone() };
    let known = fold.call(&call);
    // What was settled before stays settled: the same said again changes nothing, also once the thread went on.
    if !decision.is_word()
        && known.is_some_and(|known| known.settled.as_ref().is_some_and(|before| is_same(before, &decision)))
    {
        return Ok(None);
    }
    let is_dispatched = known.is_some_and(|known| known.intent.is_some());
    if is_dispatched == decision.is_word() {
        return Err(no_open_call());
    }
    if decision.is_word() {
        let asked = asked(fold, &call).ok_or_else(no_open_call)?;
        // A decision that names another action than the one that is asked about, or was to do something else with it, is about
        // something else.
        if decision
            .action_hash
            .is_some_and(|hash| hash != asked.action_hash || decision.resume_mode != asked.resume_mode)
        {
            return Err(no_open_call());
        }
        if approval::is_expired(known, &asked.action_hash, now) {
            return Err(Error::TooLate { thread: thread.clone(), call });
        }
        (decision.action_hash, decision.resume_mode) = (Some(asked.action_hash), asked.resume_mode);
    } else if known.is_some_and(|known| known.outcome.is_some()) {
        return Err(no_open_call());
    }
    match known.and_then(|known| known.decisions.iter().find(|other| is_rival(other, &decision))) {
        None => Ok(Some(decision)),
        Some(before) if is_same(before, &decision) => Ok(None),
        Some(before) => Err(already_decided(thread, before)),
    }
}

/// Whether two decisions are about the same thing, so that the first of them counts.
fn is_rival(one: &Decision, other: &Decision) -> bool {
    (&one.call_id, one.is_word(), one.action_hash) == (&other.call_id, other.is_word(), other.action_hash)
}

fn is_same(one: &Decision, other: &Decision) -> bool {
    (&one.action, &one.result) == (&other.action, &other.result)
}

fn already_decided(thread: &ThreadId, before: &Decision) -> Error {
    let said = match before.action.as_str() {
        Decision::APPROVE => "may be made",
        Decision::EDIT => "may be made with other arguments",
        Decision::DENY => "must not be made",
        "done" => "was done",
        "not_done" => "was not done",
        _ => "is unknown to everybody",
    };
    Error::AlreadyDecided { thread: thread.clone(), call: before.call_id.clone(), said: said.to_owned() }
}

/// What somebody is asked about an open call.
fn asked<'f>(fold: &'f Fold, call: &CallId) -> Option<&'f Ask> {
    let is_open = fold.conversation.open().iter().any(|open| open.id == *call);
    fold.call(call).filter(|_| is_open)?.ask.as_ref()
}
