//! `selvedge settle`: what became of a call that nobody saw end.

use selvedge::Input;
use selvedge_engine::engine::Verdict;
use selvedge_model::{CallId, Status, ThreadId};
use selvedge_store::load::load;
use selvedge_store::{Filter, Registry};
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::running::Running;

/// How many threads are looked at in one go.
const PAGE: usize = 500;

/// Say what became of a call that nobody saw end
///
/// Recorded, signed, in the thread's log. A call that was done is not made again, one that was not is dispatched, and of one that nobody
/// can know about the model is told so. Once nothing of the thread is undecided it goes on at once.
///
/// JSON: {"thread_id", "call_id", "verdict", "undecided":[…]}, the calls that still wait; then, if it goes on, as `selvedge run`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("verdict").required(true))]
pub(crate) struct Args {
    /// The call
    call: CallId,
    /// The thread, if the call waits in more than one
    #[arg(long, value_name = "THREAD")]
    thread: Option<String>,
    /// It was done; with its result, JSON or text
    #[arg(long, group = "verdict", value_name = "RESULT", num_args = 0..=1, default_missing_value = "done")]
    done: Option<String>,
    /// It was not done
    #[arg(long, group = "verdict")]
    not_done: bool,
    /// Nobody can know
    #[arg(long, group = "verdict")]
    unknown: bool,
    /// Record it and don't go on
    #[arg(long)]
    no_run: bool,
}

#[derive(Serialize)]
struct Settled<'a> {
    thread_id: &'a ThreadId,
    call_id: &'a CallId,
    verdict: &'a str,
    undecided: &'a [CallId],
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let (verdict, word) = match (args.done, args.not_done) {
        (Some(text), _) => (Verdict::Done(serde_json::from_str(&text).unwrap_or(Value::String(text))), "done"),
        (None, true) => (Verdict::NotDone, "not_done"),
        (None, false) => (Verdict::Unknown, "unknown"),
    };
    let (running, call) = (Running::open(context)?, args.call);
    let thread = match &args.thread {
        Some(thread) => running.resolve(thread)?,
        None => find(&running, &call)?,
    };
    running.engine.settle(&thread, &call, verdict, "cli").map_err(|error| Failure::of(&error))?;
    let undecided = undecided(&running, &thread)?;
    match context.output.is_json() {
        true => context.output.record(&Settled {
            thread_id: &thread,
            call_id: &call,
            verdict: word,
            undecided: &undecided,
        })?,
        false => context.output.text(format_args!("call {call} of {thread} is {}", word.replace('_', " ")))?,
    }
    if args.no_run || !undecided.is_empty() {
        running.close(context);
        let next = match undecided.first() {
            Some(call) => format!("call {call} waits too: `selvedge settle {call} --thread {thread} …`"),
            None => format!("`selvedge resume {thread}` goes on"),
        };
        context.output.tell(next);
        return Ok(());
    }
    let work = running.assignment(&thread)?;
    running.show(context, |running, cancel, tell| running.engine.resume(&thread, Input::nothing(), &work, cancel, tell))
}

/// The one thread that waits for somebody to say what became of a call.
fn find(running: &Running, call: &CallId) -> Result<ThreadId> {
    let waiting = Filter { status: Some(Status::Suspended), ..Filter::default() };
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = running.store.list(&waiting, cursor, PAGE)?;
        let manifests = page.items.into_iter().map(|summary| summary.manifest);
        let waits = manifests.filter(|thread| thread.suspended.as_ref().is_some_and(|why| why.calls.contains(call)));
        found.extend(waits.map(|manifest| manifest.thread_id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => {
            let message = format!("no thread waits for somebody to say what became of call `{call}`");
            let failure = Failure::new(Exit::NotFound, "no_open_call", message);
            Err(failure.hint("`selvedge thread list --status suspended` shows the threads that wait"))
        }
        several => {
            let names: Vec<String> = several.iter().take(5).map(ToString::to_string).collect();
            let message = format!("call `{call}` waits in more than one thread: {}", names.join(", "));
            let failure = Failure::new(Exit::NotFound, "ambiguous", message).detail("candidates", names);
            Err(failure.hint("say which one with `--thread`"))
        }
    }
}

/// The calls of a thread about which nobody has decided yet.
fn undecided(running: &Running, thread: &ThreadId) -> Result<Vec<CallId>> {
    let loaded = load(&*running.store, thread, running.store.trust(), None)?.thread;
    let waits = loaded.manifest.suspended.map(|why| why.calls).unwrap_or_default();
    let is_open = |call: &CallId| {
        loaded.calls.get(call).is_none_or(|known| known.decisions.is_empty() && known.outcome.is_none())
    };
    Ok(waits.into_iter().filter(is_open).collect())
}
