//! `selvedge cancel` and `selvedge kill`: stop a thread, here or wherever it runs.

use selvedge_model::{Status, Stop, ThreadId};
use serde::Serialize;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::running::Running;

/// Stop a thread
///
/// A run is asked to stop when it can; `kill` tears down what it is doing. A thread that waits, or never ran, ends at once; one that
/// has ended stays as it is.
///
/// JSON: {"thread_id", "status"}: where the thread stood when this returned; one that runs elsewhere stops soon after.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
}

#[derive(Serialize)]
struct Stopped<'a> {
    thread_id: &'a ThreadId,
    status: Status,
}

pub(crate) fn run(args: &Args, stop: Stop, context: &Context<'_>) -> Result<()> {
    let running = Running::open(context)?;
    let thread = running.resolve(&args.thread)?;
    let status = running.engine.stop(&thread, stop).map_err(|error| Failure::of(&error));
    running.close(context);
    let status = status?;
    if context.output.is_json() {
        return context.output.record(&Stopped { thread_id: &thread, status });
    }
    match status {
        Status::Running => context.output.text(format_args!("{thread} is asked to stop")),
        status => context.output.text(format_args!("{thread} is {status}")),
    }
}
