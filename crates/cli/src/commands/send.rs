//! `selvedge send`: a further run on a thread.

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::running::{self, Running};

/// Say something to a thread and run it
///
/// What an earlier run left open is finished first. If another process runs the thread, the message waits for its turn. A
/// thread that goes on elsewhere is followed to where it goes on. The message is read from stdin if it is `-` or left out.
///
/// JSON: as `selvedge run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
    /// What to say
    message: Option<String>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let Some(input) = running::message(context, args.message.as_deref())? else {
        return Err(Failure::usage("there is nothing to say").hint("give a message, or pipe one in"));
    };
    let running = Running::open(context)?;
    let thread = running.resolve(&args.thread)?;
    let work = running.assignment(&thread)?;
    running.show(context, |running, cancel, tell| running.engine.send(&thread, input, &work, cancel, tell))
}
