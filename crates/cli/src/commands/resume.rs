//! `selvedge resume`: goes on with a thread that waits.

use selvedge::Input;
use selvedge_model::limits::Limits;
use selvedge_model::{Status, ThreadId};
use selvedge_store::Registry;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::hints;
use crate::running::Running;

/// Go on with a thread that waits, or that has ended
///
/// A thread waits because a limit was reached, because somebody must decide, or because its process died. What has an outcome
/// is not done again: calls that may run at most once are asked after, others are repeated. A message is optional.
///
/// A thread that has ended goes on in another one, which knows all that was said and is told the message; without one there is
/// nothing to do. Of a chain, any thread may be named: its end goes on.
///
/// JSON: as `selvedge run`. If a thread that had ended goes on, "resumed" of the last object is {"old_thread_id", "new_thread_id",
/// "original_thread_id", "resolved_thread_id", "directive", "reconstructed_turns"}; "original_thread_id" is the one that was named, or null
/// if that was the end of its chain.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
    /// What to say first
    message: Option<String>,
    /// A higher limit from now on, recorded in the thread: turns, tokens, spend, spawns, depth or duration (seconds)
    #[arg(long, value_name = "LIMIT=VALUE", value_parser = crate::limit::parse)]
    raise: Vec<Limits>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    if args.message.as_ref().is_some_and(|message| message.trim().is_empty()) {
        return Err(Failure::usage("the message is empty").hint("say something, or leave it out"));
    }
    let running = Running::open(context)?;
    let thread = super::wait::find(&running.store, &args.thread)?;
    let work = running.assignment(&thread)?;
    let input = args.message.clone().map_or_else(Input::nothing, Input::text);
    if args.raise.is_empty() {
        return running
            .show(context, |running, cancel, tell| running.engine.resume(&thread, input, &work, cancel, tell));
    }
    let raise = crate::limit::all(&args.raise);
    let end = running.engine.end_of_chain(&thread).map_err(|error| Failure::of(&error))?;
    if input.is_empty() && is_run_elsewhere(&running, &end)? {
        running.engine.leave_raise(&end, &raise).map_err(|error| hints::refused(&*running.store, &error))?;
        running.close(context);
        context.output.tell(format!("left with whoever runs {end}, who goes by it"));
        return Ok(());
    }
    let input = input.raising(raise);
    running.show(context, |running, cancel, tell| running.engine.resume(&thread, input, &work, cancel, tell))
}

/// Whether somebody alive runs a thread right now; those whose process is gone were settled when the project was opened.
fn is_run_elsewhere(running: &Running, thread: &ThreadId) -> Result<bool> {
    Ok(running.store.get(thread)?.manifest.status == Status::Running)
}
