//! `selvedge send`: another run of a thread.

use std::path::PathBuf;

use selvedge_model::RequestId;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::running::{self, Recording, Running};

/// Send a message to a thread and run it
///
/// An unfinished run is finished first. While another process runs the thread, the message is queued. If the thread was continued by
/// a successor, the message goes to the end of its chain. The message is read from stdin if it is `-` or missing.
///
/// JSON: as `selvedge run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// The message
    message: Option<String>,
    /// An idempotency key: if the same message is sent again with the same key, it runs once and its outcome is returned
    #[arg(long, value_name = "KEY")]
    key: Option<RequestId>,
    /// Replace the thread's state with the JSON object in FILE, in the commit that has the message
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    #[command(flatten)]
    recording: Recording,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let state = args.state.as_deref().map(|file| crate::input::state(context, file)).transpose()?;
    let Some(input) = running::message(context, args.message.as_deref())? else {
        return Err(Failure::usage("there is no message").hint("give a message, or pipe one to stdin"));
    };
    let input = input.with_state(state);
    let running = Running::open(context, &args.recording)?;
    let thread = running.resolve(&args.thread)?;
    let work = running.run_config(&thread)?;
    let key = args.key.clone();
    running.show(context, work, |running, work, cancel, tell| match key {
        Some(key) => running.engine.send_as(&thread, key, input, work.clone(), cancel, tell),
        None => running.engine.send(&thread, input, work.clone(), cancel, tell),
    })
}
