//! `selvedge resume`: resumes a suspended thread.

use std::sync::Arc;

use selvedge::Input;
use selvedge_engine::Error;
use selvedge_model::Status;
use selvedge_model::limits::Limits;
use selvedge_store::Error as StoreError;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::running::{Recording, Running};

/// Resume a suspended thread, or continue one that has ended
///
/// A thread is suspended because it reached a limit, needs a decision, or its process died. Calls that have an outcome are not
/// repeated. Of the others, those that may run at most once are reconciled with their tool, and the rest are repeated. A message is
/// optional.
///
/// While another process runs the thread, raised limits and the message are queued for that process.
///
/// A thread that has ended is continued in a new one, with the whole conversation and the message; here a message is required. Any
/// thread of a chain can be named: its end is resumed.
///
/// JSON: as `selvedge run`. If a thread that had ended is continued, "resumed" of the outcome is {"old_thread_id", "new_thread_id",
/// "original_thread_id", "resolved_thread_id", "directive", "reconstructed_turns"}; "original_thread_id" is the thread that was
/// named, or null if that was the end of its chain.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// A message to send first
    message: Option<String>,
    /// Raise a limit, recorded in the thread: turns, tokens, spend, spawns, depth or duration (seconds)
    #[arg(long, value_name = "LIMIT=VALUE", value_parser = crate::limit::parse)]
    raise: Vec<Limits>,
    /// Continue a graph's run although its definition has changed since; the change is recorded
    #[arg(long)]
    accept_changed: bool,
    #[command(flatten)]
    recording: Recording,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    if args.message.as_ref().is_some_and(|message| message.trim().is_empty()) {
        return Err(Failure::usage("the message is empty").hint("give a message, or leave it out"));
    }
    let running = Running::open(context, &args.recording)?;
    let thread = super::wait::find(&*running.store, &args.thread)?;
    let mut work = running.run_config(&thread)?;
    if let Some(graph) = work.graph.as_mut().filter(|_| args.accept_changed) {
        Arc::make_mut(graph).accept_changed = true;
    }
    let input = args.message.clone().map_or_else(Input::nothing, Input::text);
    if args.raise.is_empty() {
        return running.show(context, work, |running, work, cancel, tell| {
            running.engine.resume(&thread, input, work.clone(), cancel, tell)
        });
    }
    let raise = crate::limit::all(&args.raise);
    let mut is_queued = false;
    let shown = running.show(context, work, |running, work, cancel, tell| {
        let engine = &running.engine;
        let raised = engine.resume(&thread, input.clone().raising(raise.clone()), work.clone(), cancel, tell);
        let Err(Error::Store(StoreError::LeaseHeld { .. })) = raised else { return raised };
        // The holder serves pending requests before it releases the lease.
        let end = engine.end_of_chain(&thread)?;
        engine.raise(&end, &raise)?;
        is_queued = true;
        match (input.is_empty(), running.store.get(&end)?.manifest.status) {
            (false, _) => engine.send(&thread, input, work.clone(), cancel, tell),
            (true, Status::Running) => raised,
            // The holder did not run it, or the run has ended.
            (true, _) => engine.resume(&thread, input, work.clone(), cancel, tell),
        }
    });
    match shown {
        Err(failure) if is_queued && matches!(failure.code, "lease_held" | "not_runnable") => {
            context.output.tell(format!("queued: the process running {thread} will apply it"));
            Ok(())
        }
        shown => shown,
    }
}
