//! Serves a request that needs no run of its own: its verdict, and what it changes.

use selvedge_model::event::{Fields, ManifestChanged};
use selvedge_model::limits::Limits;
use selvedge_model::{Answered, CallId, Event, Manifest, Posted, Reason, Request, ThreadId, Timestamp, Verdict};
use serde_json::Value;

use crate::decide::{Commit, Live, Rules, Step, With, ending};
use crate::decisions;
use crate::error::{Error, Result};
use crate::fold::Fold;
use crate::held::Delta;

/// A pending request, with what its verdict depends on besides the thread itself.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) posted: Posted,
    /// The parent of the thread and its limits: no raise may exceed those.
    pub(crate) above: Option<(ThreadId, Limits)>,
    /// Why it can't be paid for.
    pub(crate) short: Option<String>,
}

impl Pending {
    pub(crate) fn new(posted: Posted, above: Option<(ThreadId, Limits)>) -> Self {
        Self { posted, above, short: None }
    }

    /// The limits that it raises, which must be paid for.
    pub(crate) fn raise(&self) -> Option<&Limits> {
        match &self.posted.request {
            Request::Raise { limits } => Some(limits),
            _ => None,
        }
    }

    /// The call that it decides about.
    pub(crate) fn call(&self) -> Option<&CallId> {
        match &self.posted.request {
            Request::Decide(decision) | Request::Settle(decision) => Some(&decision.call_id),
            _ => None,
        }
    }

    /// The change it makes in a thread with these limits, if any; the error says why it is refused.
    pub(crate) fn change(&self, fold: &Fold, limits: &Limits, now: Timestamp) -> Result<Option<Event>> {
        match &self.posted.request {
            Request::Decide(decision) | Request::Settle(decision) => {
                // It counts from when it was posted.
                Ok(decisions::judge(fold, decision.clone(), self.posted.at.min(now))?.map(Event::Decision))
            }
            Request::Raise { limits: raise } => {
                raised(fold.manifest(), self.above.as_ref(), raise, limits).map(Event::ManifestChanged).map(Some)
            }
            Request::Rename { title } => {
                let title = Some(title.clone()).filter(|title| fold.manifest().title.as_ref() != Some(title));
                Ok(title.map(|title| {
                    Event::ManifestChanged(ManifestChanged { title: Some(title), ..ManifestChanged::default() })
                }))
            }
            Request::ChildSettled(end) => Ok(Some(Event::ChildSettled(match serde_json::to_value(end) {
                Ok(Value::Object(fields)) => fields,
                _ => Fields::new(),
            }))),
            // These are served by a run, or end one.
            Request::Send(_) | Request::Resume(_) | Request::Cancel | Request::Kill => Ok(None),
        }
    }

    /// The record of the request: what it changes, and its verdict.
    pub(crate) fn answer(&self, fold: &Fold, limits: &Limits, now: Timestamp) -> Delta {
        let (event, verdict, why) = match (&self.short, self.change(fold, limits, now)) {
            (Some(why), _) => (None, Verdict::Refused, Some(why.clone())),
            (None, Err(refused)) => (None, Verdict::Refused, Some(refused.to_string())),
            (None, Ok(None)) => (None, Verdict::Unchanged, None),
            (None, Ok(event)) => (event, Verdict::Applied, None),
        };
        let mut delta = Delta::default();
        delta.events.extend(event);
        delta.events.push(Event::RequestAnswered(Answered::new(&self.posted, verdict, why)));
        delta.consumed.push(self.posted.id.clone());
        delta
    }
}

/// Commits the verdict on a request. One at a time, so that each is judged by the state after the one before.
pub(super) fn serve(fold: &Fold, live: &Live, rules: &Rules, pending: &Pending) -> Step {
    let delta = pending.answer(fold, &ending::limits(fold, rules), live.now);
    let raise = pending.raise().filter(|_| changes_run(&delta));
    let with = raise.map_or(With::Nothing, |raise| With::Raise(raise.clone()));
    Commit { with, ..Commit::of(live, Reason::Lifecycle, delta) }.step()
}

/// Whether a delta changes something that a run depends on: a decision, or limits.
pub(crate) fn changes_run(delta: &Delta) -> bool {
    delta.events.iter().any(|event| match event {
        Event::Decision(_) => true,
        Event::ManifestChanged(changed) => changed.limits.is_some(),
        _ => false,
    })
}

/// The change of limits that a raise makes; refused if it lowers a limit, or lifts one above the parent's.
pub(crate) fn raised(
    manifest: &Manifest,
    above: Option<&(ThreadId, Limits)>,
    raise: &Limits,
    limits: &Limits,
) -> Result<ManifestChanged> {
    let thread = &manifest.thread_id;
    if let Some((parent, most)) = above
        && let Some((limit, needs)) = raise.beyond(most)
    {
        return Err(Error::AboveParent { thread: thread.clone(), limit, parent: parent.clone(), needs });
    }
    match limits.lowered_by(raise) {
        Some(limit) => Err(Error::NotRaised { thread: thread.clone(), limit }),
        None => Ok(ManifestChanged { limits: Some(raise.over(limits)), ..ManifestChanged::default() }),
    }
}
