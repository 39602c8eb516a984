//! `selvedge cancel` and `selvedge kill`: stop a thread, in any process.

use selvedge::Engine;
use selvedge_model::{Status, Stop, ThreadId};
use serde::Serialize;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::running::{Recording, Running, plain_engine};

/// Stop a thread
///
/// `cancel` lets a run stop at the next point where no work is lost; `kill` stops its calls at once. A thread that is suspended, or
/// never ran, ends at once; one that has ended does not change.
///
/// JSON: {"thread_id", "status", "pid"}: the status when this returned; a thread that runs in another process stops soon after. "pid"
/// is that process, or null.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
}

#[derive(Serialize)]
struct StopReport<'a> {
    thread_id: &'a ThreadId,
    status: Status,
    pid: Option<u32>,
}

fn stopped(engine: &Engine, thread: ThreadId, stop: Stop) -> Result<(ThreadId, selvedge::Stopped)> {
    let stopped = engine.stop(&thread, stop).map_err(|error| Failure::of(&error))?;
    Ok((thread, stopped))
}

pub(crate) fn run(args: &Args, stop: Stop, context: &Context<'_>) -> Result<()> {
    let (thread, selvedge::Stopped { status, pid }) = match Running::open(context, &Recording::default()) {
        Ok(running) => {
            let stopped = running.resolve(&args.thread).and_then(|thread| stopped(&running.engine, thread, stop));
            running.close(context);
            stopped?
        }
        // An invalid configuration must not prevent stopping a thread.
        Err(failure) if failure.exit == Exit::Usage => {
            context.output.say(format!("{}; the thread is stopped nevertheless", failure.message));
            let (store, engine) = plain_engine(context)?;
            stopped(&engine, store.resolve(&args.thread)?, stop)?
        }
        Err(failure) => return Err(failure),
    };
    if context.output.is_json() {
        return context.output.record(&StopReport { thread_id: &thread, status, pid });
    }
    match status {
        Status::Running => context.output.text(format_args!("{thread} is stopping")),
        status => context.output.text(format_args!("{thread} {}", status.in_words())),
    }
}
