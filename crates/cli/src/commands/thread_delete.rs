//! `selvedge thread delete`: deletes a thread permanently, leaving a signed tombstone.

use selvedge_model::{ThreadId, Timestamp};
use selvedge_store_local::Access;
use serde::Serialize;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};

/// Delete a thread permanently
///
/// A signed tombstone remains, which says what was deleted; the id is never used again. A thread that is running, that a process
/// holds, or whose account holds reserved money can't be deleted.
///
/// JSON: {"thread_id", "version", "deleted_at"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// Don't ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

#[derive(Serialize)]
struct Deleted<'a> {
    thread_id: &'a ThreadId,
    version: u64,
    deleted_at: Timestamp,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadWrite)?;
    let thread = store.resolve(&args.thread)?;
    if !args.yes {
        confirm(&thread, context)?;
    }
    let tombstone = store.delete(&thread)?;
    context.close(store);
    let deleted = Deleted { thread_id: &thread, version: tombstone.head.version, deleted_at: tombstone.deleted_at };
    if context.output.is_json() {
        return context.output.record(&deleted);
    }
    context.output.text(format_args!("{thread} is deleted (at version {})", deleted.version))
}

fn confirm(thread: &ThreadId, context: &Context<'_>) -> Result<()> {
    let question = format!("Delete {thread} and all its files permanently? [y/N]");
    match context.output.ask(&question).map(|answer| answer.to_lowercase()).as_deref() {
        Some("y" | "yes") => Ok(()),
        Some(_) => Err(Failure::new(Exit::Failed, "not_confirmed", "nothing was deleted")),
        None => {
            let failure = Failure::usage(format!("deleting {thread} needs confirmation, and there is no terminal"));
            Err(failure.hint(format!("`selvedge thread delete {thread} --yes`")))
        }
    }
}
