//! What a run does next.
//!
//! A pure function of three things: the log (`Fold`), what this process knows and a crash forgets (`Live`), and the rules of the run
//! (`Rules`). It reads no clock, no store and no inbox, so every decision can be repeated, and a test needs nothing but values. Changesets
//! are built here; `run.rs` performs a step, passes its outcome to `Live`, and calls `decide` again.
//!
//! ```text
//! under way    commit an outcome that is not on record; continue calls in flight and attempts       calls, asking
//! turn over    after_step, directive_return                                                         hooks
//! ended here?  the model answered without a call, or the outputs were returned                      ending
//! requests     give verdicts on the requests that were read from the inbox                          requests
//! calls        what does each call without a result need?                                           calls
//! stop         a stop was requested, or the running time is over                                    ending
//! loops        does the run only repeat itself?                                                     ending
//! first turn?  thread_started and the like                                                          hooks
//! limits       would the next turn exceed a limit?                                                  ending
//! context      does the next prompt fit?                                                            context
//! otherwise    reserve what an answer may cost, and ask the model                                   asking, money
//! ```

pub(crate) mod asking;
mod beginning;
pub(crate) mod calls;
pub(crate) mod context;
pub(crate) mod ending;
pub(crate) mod graph;
pub(crate) mod hooks;
pub(crate) mod live;
pub(crate) mod money;
pub(crate) mod requests;
pub(crate) mod results;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use selvedge_model::event::{Fields, HandoffReason, Suspended};
use selvedge_model::limits::Limits;
use selvedge_model::scope::Scopes;
use selvedge_model::{Reason, RunMeta, ToolSpec};

use crate::fold::Fold;
use crate::held::Delta;
use crate::run_config::RunConfig;

pub(crate) use asking::Turn;
use calls::{PlannedCall, Probe};
use ending::EndReason;
pub(crate) use live::{CallFinding, Flight, Inbox, Live, Outcome, Prepared, Stage};

/// The rules of a run: its run configuration, and what follows from it. Resolved once, and shared.
pub(crate) struct Rules {
    pub(crate) work: Arc<RunConfig>,
    /// The lifetime of each part of the state.
    pub(crate) scopes: Scopes,
    /// The tool definitions sent to the model.
    pub(crate) tools: Vec<ToolSpec>,
    /// How many bytes of a prompt the system prompt and the tools take.
    pub(crate) prompt_base: usize,
}

impl Rules {
    pub(crate) fn new(work: Arc<RunConfig>, scopes: Scopes) -> Self {
        let tools: Vec<ToolSpec> = work.offered().cloned().collect();
        let size = |spec: &ToolSpec| spec.name.len() + spec.description.len() + spec.input_schema.to_string().len();
        let prompt_base = work.system.len() + tools.iter().map(size).sum::<usize>();
        Self { work, scopes, tools, prompt_base }
    }
}

impl Deref for Rules {
    type Target = RunConfig;

    fn deref(&self) -> &RunConfig {
        &self.work
    }
}

/// What a run does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Commit this.
    Commit(Box<Commit>),
    /// Read something that is needed and not known.
    Look(Look),
    /// Make calls ready behind their gates: nothing is executed yet.
    Prepare(Vec<PlannedCall>),
    /// Open the gates of the calls that are ready: their intents are on record.
    Dispatch,
    /// Ask the model: the possible cost is reserved.
    Ask(Box<Turn>),
    /// Find out the outcome of calls that an earlier process dispatched.
    Probe(Vec<Probe>),
    /// Wait for a call that is in flight, or for this long.
    Wait(Option<Duration>),
    /// Wait for this long, or for a request.
    Pause(Duration),
    /// Nothing: the end of the run is on record.
    Done,
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The inbox.
    Inbox,
    /// The account that the run spends from.
    Account,
}

/// One commit. The driver adds what can't be known here: ids, the first changesets of new threads, and postings to other accounts than the
/// thread's own.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) reason: Reason,
    pub(crate) delta: Delta,
    /// The turn that it belongs to.
    pub(crate) turn: Option<u64>,
    /// The record of the run, where it begins and where it ends.
    pub(crate) meta: Option<RunMeta>,
    /// Whether a provider charged more than its bound: all runs that spend from the same account are stopped.
    pub(crate) is_overcharged: bool,
    /// What it does besides.
    pub(crate) with: With,
}

/// What a commit does besides its delta.
#[derive(Debug)]
pub(crate) enum With {
    Nothing,
    /// The account is opened, opened again, or raised, as a run begins.
    Funds {
        raise: Option<Limits>,
    },
    /// The account is raised, as requested.
    Raise(Limits),
    /// The prepared children are created.
    Children,
    /// The possible cost of an attempt is reserved, and the attempt is issued.
    Attempt(Box<Turn>),
    /// The run ends.
    End {
        is_stopped: bool,
    },
    /// The run ends, and a successor starts with messages of this many bytes.
    Handoff {
        reason: HandoffReason,
        room: usize,
        /// The inputs of the successor.
        inputs: Box<Fields>,
    },
}

impl Commit {
    fn of(live: &Live, reason: Reason, delta: Delta) -> Self {
        Self { reason, delta, turn: live.turn_number(), meta: None, is_overcharged: false, with: With::Nothing }
    }

    fn step(self) -> Step {
        Step::Commit(Box::new(self))
    }
}

/// What a run does next.
pub(crate) fn decide(fold: &Fold, live: &Live, rules: &Rules) -> Step {
    if live.is_over {
        return Step::Done;
    }
    if let Some(start) = &live.start {
        return beginning::begin(fold, live, rules, start);
    }
    if let Some(graph) = &rules.graph {
        return graph::walk(fold, live, rules, graph);
    }
    if let Some(step) = calls::under_way(fold, live, rules) {
        return step;
    }
    if let Some(step) = asking::under_way(fold, live, rules) {
        return step;
    }
    if let Some(step) = hooks::after_turn(fold, live, rules) {
        return step;
    }
    if let Some(why) = ending::ended(fold, live, rules) {
        return hooks::complete(fold, live, rules, why);
    }
    if let Some(pending) = live.requests.first() {
        return requests::serve(fold, live, rules, pending);
    }
    if live.inbox == Inbox::Notified {
        return Step::Look(Look::Inbox);
    }
    if let Some(step) = calls::next(fold, live, rules) {
        return step;
    }
    if let Some(why) = ending::stopped(fold, live, rules) {
        return ending::end(fold, live, rules, why);
    }
    if let Some(met) = ending::met(fold, live, rules) {
        return hooks::complete(fold, live, rules, EndReason::Reached(met));
    }
    if !fold.conversation.wants_answer() {
        return hooks::complete(fold, live, rules, ending::completed(fold, rules));
    }
    if let Some(step) = hooks::beginning(fold, live, rules) {
        return step;
    }
    if let Some(suspended) = ending::limit(fold, live, rules)
        && let Some(step) = hooks::limit(fold, live, rules, suspended)
    {
        return step;
    }
    context::full(fold, live, rules).unwrap_or_else(|| asking::ask(fold, live, rules))
}

/// Suspends the run, unless a request that arrived meanwhile lets it continue.
fn suspend(fold: &Fold, live: &Live, rules: &Rules, suspended: Suspended) -> Step {
    match live.inbox {
        Inbox::Read => ending::end(fold, live, rules, EndReason::Suspended(suspended)),
        Inbox::Unread | Inbox::Notified => Step::Look(Look::Inbox),
    }
}
