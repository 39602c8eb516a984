//! `selvedge send`: a further run on a thread.

use selvedge_model::RequestId;

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
    /// A name for this message: sent again under the same name it is answered with what came of it, and nothing is done twice
    #[arg(long, value_name = "KEY")]
    key: Option<RequestId>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let Some(input) = running::message(context, args.message.as_deref())? else {
        return Err(Failure::usage("there is nothing to say").hint("give a message, or pipe one in"));
    };
    let running = Running::open(context)?;
    let thread = running.resolve(&args.thread)?;
    let work = running.assignment(&thread)?;
    let key = args.key.clone();
    running.show(context, work, |running, work, cancel, tell| match key {
        Some(key) => running.engine.send_as(&thread, key, input, work.clone(), cancel, tell),
        None => running.engine.send(&thread, input, work.clone(), cancel, tell),
    })
}
