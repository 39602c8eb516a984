//! The process that the demo kills: appends for as long as it lives, and tells each version when it is acknowledged.

use std::io::{self, Write};

use selvedge_model::{Batch, Changeset, Expect, Message, Part, Reason, Role, ThreadId};
use selvedge_store::{Acquire, Commit, Leases, Logs};
use selvedge_store_local::Access;

use crate::context::Context;
use crate::error::Result;

/// Where it ends by itself, if nobody kills it.
const VERSIONS_MAX: u64 = 20_000;

/// Write for the demo until killed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    thread: ThreadId,
}

/// What the writer says at a version.
pub(crate) fn words(version: u64) -> String {
    format!("I am version {version}, and I was told that I am safe.")
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadWrite)?;
    let mut stdout = io::stdout().lock();
    let lease = store.acquire(&args.thread, Acquire::default())?;
    let mut version = store.head(&args.thread)?.version;
    while version < VERSIONS_MAX {
        let message = Message::text(Role::User, words(version + 1));
        let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
        let part = Part::new(args.thread.clone(), Expect::Exact(version), changeset).under(lease.epoch);
        let committed = store.commit(Batch::of(part))?;
        version = committed.version_of(&args.thread).unwrap_or(version + 1);
        // Whoever listened is gone: so is the reason to go on.
        if writeln!(stdout, "{version}").and_then(|()| stdout.flush()).is_err() {
            break;
        }
    }
    Ok(())
}
