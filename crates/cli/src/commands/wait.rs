//! `selvedge wait`: waits until threads have ended, in any process.

use std::time::Duration;

use selvedge::Outcome;
use selvedge::tools::ProcessGroups;
use selvedge_engine::thread_state::ThreadState;
use selvedge_engine::wait::wait_threads;
use selvedge_model::{Status, ThreadId};
use selvedge_store::{Backend, Error as StoreError};
use selvedge_store_local::Access;

use crate::config::configuration;
use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::hints;
use crate::output::{BAD, BOLD, GOOD, WARN, paint};
use crate::text::{clean, clean_json};

/// The maximum timeout: a year.
const SECONDS_MAX: f64 = 31_536_000.0;

/// Wait until threads have ended
///
/// The wait for a thread ends with the run that is active when it starts; a chain of threads is followed to its end. A thread that is
/// suspended ends the wait too. One whose process died is `stalled`: `selvedge resume` continues it. Writes nothing. Every log is
/// verified; if one is not what was signed, nothing of it is shown, and its status is `unverified`.
///
/// The exit code is that of the commands that run threads: 0 completed; 1 error, killed, completed_with_errors, stalled, deleted or
/// timeout; 3 not found; 6 unverified; 7 needs a decision; 8 limit or budget; 130 cancelled. With several threads, the first one that
/// did not complete counts.
///
/// JSON: {"success", "results":{ID:{…}}}: each as the last object of `selvedge run`. ID is the requested thread; "status" may also be
/// stalled, deleted, unverified, not_found or timeout.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The threads: any unique prefixes of their ids or of their hex suffixes
    #[arg(required = true, value_name = "THREAD")]
    threads: Vec<String>,
    /// How long to wait at most; default: `coordination.wait_threads.default_timeout`
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<f64>,
}

fn seconds(typed: &str) -> std::result::Result<f64, String> {
    let seconds: f64 = typed.parse().map_err(|_| format!("`{typed}` is not a number of seconds"))?;
    (0.0..=SECONDS_MAX).contains(&seconds).then_some(seconds).ok_or("it must be between 0 and a year".to_owned())
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let threads = args.threads.iter().map(|prefix| find(&*store, prefix)).collect::<Result<Vec<_>>>()?;
    let timeout = match args.timeout {
        Some(seconds) => seconds,
        None => configuration(context)?.coordination.wait_threads.default_timeout,
    };
    let timeout = Duration::from_secs_f64(timeout.clamp(0.0, SECONDS_MAX));
    let waited = wait_threads(&*store, store.trust(), &ProcessGroups, &threads, timeout);
    let waited = waited.map_err(|error| Failure::of(&error))?;
    let outcomes = || threads.iter().filter_map(|thread| waited.results.get(thread));
    if context.output.is_json() {
        context.output.record(&waited)?;
    } else {
        for outcome in outcomes() {
            show(outcome, context)?;
        }
    }
    outcomes().try_for_each(|outcome| ended(&*store, outcome))
}

/// The thread that a prefix names. A deleted one may have a successor.
pub(crate) fn find(store: &dyn Backend, prefix: &str) -> Result<ThreadId> {
    match store.resolve(prefix) {
        Err(StoreError::Deleted(thread)) => Ok(thread),
        other => Ok(other?),
    }
}

fn show(outcome: &Outcome, context: &Context<'_>) -> Result<()> {
    let output = context.output;
    let state = painted_state(outcome.status);
    output.text(format_args!("{} {state}", paint(BOLD, &outcome.thread_id)))?;
    if let Some(result) = &outcome.result {
        output.text(clean(result))?;
    }
    match &outcome.outputs {
        Some(outputs) => output.text(format_args!("{} {}", paint(BOLD, "outputs"), clean_json(&outputs.to_string()))),
        None => Ok(()),
    }
}

/// The status of a thread, coloured.
pub(crate) fn painted_state(state: ThreadState) -> String {
    match state {
        ThreadState::Is(Status::Completed) => paint(GOOD, state),
        ThreadState::Is(Status::Created | Status::Running | Status::Continued) => state.to_string(),
        ThreadState::Is(Status::Suspended | Status::Cancelled) | ThreadState::Timeout | ThreadState::Interrupted => {
            paint(WARN, state)
        }
        _ => paint(BAD, state),
    }
}

/// The result of a command whose thread has this outcome.
pub(crate) fn ended(store: &dyn Backend, outcome: &Outcome) -> Result<()> {
    let thread = &outcome.thread_id;
    let why = outcome.why.as_deref().unwrap_or("no process is running it");
    match (outcome.status, outcome.status.status()) {
        (ThreadState::NotFound, _) => Err(StoreError::NoThread(thread.to_string()).into()),
        (ThreadState::Deleted, _) => {
            Err(Failure::new(Exit::Failed, "wait_deleted", format!("thread `{thread}` was deleted"))
                .hint("`selvedge thread list` lists the threads"))
        }
        (ThreadState::Unverified, _) => {
            let code = if outcome.code.as_deref() == Some("untrusted_key") { "untrusted_key" } else { "integrity" };
            Err(Failure::new(Exit::Integrity, code, format!("the outcome of `{thread}` is not shown: {why}"))
                .hint(format!("`selvedge verify {thread} --explain` shows which versions are valid")))
        }
        (ThreadState::Stalled, _) => {
            Err(Failure::new(Exit::Failed, "thread_stalled", format!("`{thread}` is stalled: {why}"))
                .hint(hints::stalled(store, thread)))
        }
        (ThreadState::Timeout | ThreadState::Interrupted, _) | (_, None) => {
            let message = format!("`{thread}` had not ended before the timeout: {why}");
            let failure = Failure { retryable: true, ..Failure::new(Exit::Failed, "wait_timeout", message) };
            Err(failure.hint(format!(
                "`selvedge wait {thread}` waits again; `selvedge log --follow {thread}` shows what it is doing"
            )))
        }
        (_, Some(_)) => hints::ended(store, outcome),
    }
}
