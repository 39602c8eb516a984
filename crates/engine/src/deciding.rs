//! What people decide about calls: whether one may be made, and what became of one that nobody saw end.
//!
//! A decision is an event of its own, signed like every other. It is judged where it is recorded, under the lease: a call that is not
//! open, a time that is over, a word that was given before and a decision about another action change nothing. Who can't have the
//! lease leaves a note, and whoever holds the thread judges it with the next batch.

use selvedge_model::event::Decision;
use selvedge_model::{Call, CallId, Digest, Event, Note, Reason, RunId, ThreadId};
use selvedge_store::{Acquire, Error as StoreError};
use serde_json::{Value, json};

use crate::approval;
use crate::assignment::{Assignment, Permission};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::fold::Fold;
use crate::held::{Held, Of};
use crate::spawn;
use crate::told::Told;

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
        Decision { call_id, action, who: who.to_owned(), action_hash: None, reason, result }
    }
}

/// The kind of note that carries a decision.
pub(crate) const DECIDE: &str = "decide";

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
        if let Choice::Edit(arguments) = &choice {
            self.check_edit(thread, call, arguments, work)?;
        }
        let mut decision = choice.of(call.clone(), who);
        decision.result.iter_mut().for_each(|result| self.redactor.value(result));
        decision.reason.iter_mut().for_each(|reason| {
            if let Some(masked) = self.redactor.text(reason) {
                *reason = masked;
            }
        });
        match self.store.acquire(thread, Acquire::default()) {
            Ok(lease) => {
                let mut held = self.take(lease, &mut |_| {})?;
                let decided = held.decide(decision, work);
                self.give_back(held)?;
                decided
            }
            Err(StoreError::LeaseHeld { .. }) => self.leave_decision(thread, decision, work),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a call could be made with other arguments: it is made ready, and not made.
    fn check_edit(&self, thread: &ThreadId, id: &CallId, arguments: &Value, work: &Assignment) -> Result<()> {
        let fold = Fold::load(&*self.store, thread, &self.trust)?;
        let open = fold.conversation.open().iter().find(|open| open.id == *id);
        let Some(tool) = open.and_then(|open| work.tool(&open.name)) else { return Ok(()) };
        let call = Call {
            thread: thread.clone(),
            // Nothing runs under it.
            run: RunId::new("none").map_err(|_| StoreError::BadBatch)?,
            id: id.clone(),
            name: tool.spec().name.clone(),
            arguments: arguments.clone(),
            key: String::new(),
        };
        match tool.start(&call) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::EditRefused { call: id.clone(), why: error.to_string() }),
        }
    }

    /// Leaves a decision with whoever holds the thread; if nobody does any more, takes it in here.
    fn leave_decision(&self, thread: &ThreadId, decision: Decision, work: &Assignment) -> Result<Decided> {
        let fold = Fold::load(&*self.store, thread, &self.trust)?;
        let Some(decision) = judge(&fold, decision, Some(work), self.clock.now())? else {
            return Ok(Decided { recorded: Recorded::Before, undecided: undecided(&fold) });
        };
        let left = |note: &Note| note.kind == DECIDE && decision_of(note).is_some_and(|other| other == decision);
        if !self.store.pending(thread)?.iter().any(left) {
            self.post(thread, DECIDE, &self.ids.hex12(), json!({"decision": decision}))?;
        }
        match self.store.acquire(thread, Acquire::default()) {
            Ok(lease) => {
                let mut held = self.take(lease, &mut |_| {})?;
                held.hear(Some(work), Of::default(), &mut |_| {})?;
                let undecided = undecided(&held.fold);
                self.give_back(held)?;
                Ok(Decided { recorded: Recorded::Now, undecided })
            }
            // It can't give the thread back before it has heard this.
            Err(StoreError::LeaseHeld { .. }) => Ok(Decided { recorded: Recorded::Left, undecided: Vec::new() }),
            Err(error) => Err(error.into()),
        }
    }
}

impl Held<'_> {
    fn decide(&mut self, decision: Decision, work: &Assignment) -> Result<Decided> {
        let decision = judge(&self.fold, decision, Some(work), self.engine.clock.now())?;
        let recorded = if decision.is_some() { Recorded::Now } else { Recorded::Before };
        if let Some(decision) = decision {
            self.delta.events.push(Event::Decision(decision));
            self.commit(Reason::Lifecycle, Of::default(), &mut |_| {})?;
        }
        Ok(Decided { recorded, undecided: undecided(&self.fold) })
    }

    /// Takes in what others decided and raised meanwhile; gives whether anything changed. What does not count is answered by being
    /// consumed.
    pub(crate) fn hear(&mut self, work: Option<&Assignment>, of: Of, tell: &mut dyn FnMut(Told<'_>)) -> Result<bool> {
        let notes = self.engine.store.pending(self.thread())?;
        let mut changed = false;
        for note in notes {
            let event = match note.kind.as_str() {
                DECIDE => decision_of(&note)
                    .and_then(|decision| judge(&self.fold, decision, work, self.engine.clock.now()).ok().flatten())
                    .map(Event::Decision),
                crate::hearing::RAISE => self.raise_of(&note, work),
                spawn::CHILD_SETTLED => spawn::settled_of(&note),
                _ => continue,
            };
            changed |= matches!(event, Some(Event::Decision(_) | Event::ManifestChanged(_)));
            self.delta.events.extend(event);
            self.delta.consumed.push(note.key);
            // One by one, so that each is judged by what the one before it left.
            self.commit(Reason::Lifecycle, of.clone(), tell)?;
        }
        Ok(changed)
    }
}

fn decision_of(note: &Note) -> Option<Decision> {
    serde_json::from_value(note.body.get("decision")?.clone()).ok()
}

/// The calls of a thread that wait for somebody.
pub(crate) fn undecided(fold: &Fold) -> Vec<CallId> {
    fold.manifest().suspended.as_ref().map(|why| why.calls.clone()).unwrap_or_default()
}

/// What is to be recorded of a decision: nothing if the very same is on record.
fn judge(
    fold: &Fold,
    mut decision: Decision,
    work: Option<&Assignment>,
    now: selvedge_model::Timestamp,
) -> Result<Option<Decision>> {
    let (thread, call) = (&fold.manifest().thread_id, decision.call_id.clone());
    let no_open_call = || Error::NoOpenCall { thread: thread.clone(), call: call.clone() };
    let known = fold.call(&call);
    let is_dispatched = known.is_some_and(|known| known.intent.is_some());
    if is_dispatched == decision.is_word() {
        return Err(no_open_call());
    }
    if decision.is_word() {
        let asked = asked(fold, &call, work).ok_or_else(no_open_call)?;
        // A decision that names another action than the one that is asked about is about something else.
        if decision.action_hash.is_some_and(|hash| hash != asked) {
            return Err(no_open_call());
        }
        if approval::is_expired(known, &asked, now) {
            return Err(Error::TooLate { thread: thread.clone(), call });
        }
        decision.action_hash = Some(asked);
    } else if known.is_some_and(|known| known.outcome.is_some()) {
        return Err(no_open_call());
    }
    let is_rival =
        |other: &&Decision| other.is_word() == decision.is_word() && other.action_hash == decision.action_hash;
    match known.and_then(|known| known.decisions.iter().find(is_rival)) {
        None => Ok(Some(decision)),
        Some(before) if (&before.action, &before.result) == (&decision.action, &decision.result) => Ok(None),
        Some(before) => {
            let said = match before.action.as_str() {
                Decision::APPROVE => "may be made",
                Decision::EDIT => "may be made with other arguments",
                Decision::DENY => "must not be made",
                "done" => "was done",
                "not_done" => "was not done",
                _ => "is unknown to everybody",
            };
            let said = said.to_owned();
            Err(Error::AlreadyDecided { thread: thread.clone(), call, said })
        }
    }
}

/// The action that somebody is asked about, or will be once the run comes to it.
fn asked(fold: &Fold, call: &CallId, work: Option<&Assignment>) -> Option<Digest> {
    let open = fold.conversation.open().iter().find(|open| open.id == *call)?;
    if let Some(ask) = fold.call(call).and_then(|known| known.ask.as_ref()) {
        return Some(ask.action_hash);
    }
    let work = work?;
    let tool = work.tool(&open.name)?;
    match (work.gate)(tool.spec(), &open.arguments) {
        Permission::Ask(_) => Some(approval::action_hash(&fold.head.log_id, open, tool.spec())),
        _ => None,
    }
}
