//! What a run does next.
//!
//! A pure function of three things: what the log says (`Fold`), what this process knows and a crash forgets (`Live`), and what the run
//! goes by (`Assignment`). It reads no clock, no store and no inbox, so every answer can be had again, and a test needs nothing but
//! values. `run.rs` does what it says and asks again.
//!
//! ```text
//! ended here?  the model answered without a call, failed for good, or the outputs were given back     ending
//! calls        what does each call without a result need?                                             calls
//! stop         a stop was requested, or the running time is over                                       ending
//! circles      does it only repeat itself?                                                            ending
//! limits       would the next turn break a ceiling?                                                   ending
//! context      does the next prompt fit?                                                              context
//! otherwise    ask the model
//! ```

pub(crate) mod asking;
pub(crate) mod calls;
pub(crate) mod context;
pub(crate) mod ending;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use selvedge_model::answer::End;
use selvedge_model::event::{HandoffReason, Suspended};
use selvedge_model::tool::Output;
use selvedge_model::{CallId, RunId, Stop, Timestamp};
use serde_json::Value;

use crate::assignment::Assignment;
use crate::fold::Fold;

use calls::{Planned, Probe};
use ending::{Trouble, Why};

/// What this process knows of a run, and a crash forgets.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// The run.
    pub(crate) run: RunId,
    /// The time.
    pub(crate) now: Timestamp,
    /// How long the run has been running.
    pub(crate) running_ms: u64,
    /// Whether it is to stop.
    pub(crate) stop: Option<Stop>,
    /// What is known of the inbox.
    pub(crate) inbox: Inbox,
    /// How many turns this run had.
    pub(crate) turns: u64,
    /// How many messages an earlier run was stopped over: whether it goes in circles is judged by what follows them.
    pub(crate) judged: usize,
    /// How many bytes of a prompt the system prompt and the tools take.
    pub(crate) prompt_base: usize,
    /// What the model said last.
    pub(crate) text: Option<String>,
    /// How the last answer ended, if it asked for nothing.
    pub(crate) answered: Option<End>,
    /// Why there is no answer.
    pub(crate) trouble: Option<Trouble>,
    /// Whether the model asked for a successor.
    pub(crate) hands_over: bool,
    /// What the run gives back.
    pub(crate) returned: Option<Value>,
    /// What is known of calls and not on record.
    pub(crate) traces: HashMap<CallId, Trace>,
}

impl Live {
    /// What is known of a run that begins now, whose system prompt and tools take so many bytes.
    pub(crate) fn new(run: RunId, now: Timestamp, prompt_base: usize) -> Self {
        Self {
            run,
            now,
            running_ms: 0,
            stop: None,
            inbox: Inbox::Unread,
            turns: 0,
            judged: 0,
            prompt_base,
            text: None,
            answered: None,
            trouble: None,
            hands_over: false,
            returned: None,
            traces: HashMap::new(),
        }
    }
}

/// What is known of the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inbox {
    /// It was not read since the last step.
    Unread,
    /// A request came that changes something.
    Noted,
    /// Everything in it was heard.
    Heard,
}

/// What is known of a call and not on record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Trace {
    /// It was dispatched before, and this became of it.
    Done(Output),
    /// It was dispatched before, and nothing came of it.
    NotDone,
    /// It was dispatched, and what became of it is not known.
    Unknown,
    /// A ceiling keeps it from being made.
    Limited(Suspended),
}

/// What a run does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Hear what is in the inbox.
    Hear,
    /// Find out what became of calls that an earlier life dispatched.
    Probe(Vec<Probe>),
    /// Make these calls, and commit what they come to.
    Calls(Vec<Planned>),
    /// Ask the model.
    Ask,
    /// Let another thread go on that takes along this many bytes.
    HandOver { reason: HandoffReason, room: usize },
    /// End.
    End(Why),
}

/// What a run does next.
pub(crate) fn decide(fold: &Fold, live: &Live, rules: &Assignment) -> Step {
    if let Some(why) = ending::ended(fold, live, rules) {
        return Step::End(why);
    }
    if live.inbox == Inbox::Noted {
        return Step::Hear;
    }
    if let Some(step) = calls::next(fold, live, rules) {
        return step;
    }
    if let Some(why) = ending::stopped(fold, live, rules) {
        return Step::End(why);
    }
    if let Some(met) = ending::met(fold, live, rules) {
        return Step::End(Why::Reached(met));
    }
    if !fold.conversation.wants_answer() {
        return Step::End(ending::completed(fold, rules));
    }
    if let Some(suspended) = ending::limit(fold, live, rules) {
        return waits(live, suspended);
    }
    context::full(fold, live, rules).unwrap_or(Step::Ask)
}

/// The run waits, unless a request that came meanwhile lets it go on.
fn waits(live: &Live, suspended: Suspended) -> Step {
    match live.inbox {
        Inbox::Heard => Step::End(Why::Suspended(suspended)),
        Inbox::Unread | Inbox::Noted => Step::Hear,
    }
}
