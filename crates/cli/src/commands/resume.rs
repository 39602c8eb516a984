//! `selvedge resume`: goes on with a thread that waits.

use selvedge::Input;

use crate::context::Context;
use crate::error::Result;
use crate::running::Running;

/// Go on with a thread that waits
///
/// A thread waits because a limit was reached, because somebody must decide, or because its process died. What has an outcome
/// is not done again: calls that may run at most once are asked after, others are repeated. A message is optional.
///
/// JSON: as `selvedge run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
    /// What to say first
    message: Option<String>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let running = Running::open(context)?;
    let thread = running.resolve(&args.thread)?;
    let work = running.assignment(&thread)?;
    let input = args.message.clone().map_or_else(Input::nothing, Input::text);
    running.show(context, |running, cancel, tell| running.engine.resume(&thread, input, &work, cancel, tell))
}
