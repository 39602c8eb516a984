//! `selvedge erase`: the content of one blob gone, the log saying so.

use std::collections::BTreeSet;

use selvedge_model::{Digest, ThreadId};
use selvedge_store::Backend;
use selvedge_store_local::Access;
use serde::Serialize;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};

const REASON_BYTES_MAX: usize = 1000;

/// Erase the content of one blob for good
///
/// The log says, signed, that it was erased and why; it still verifies. The reason stays for ever: don't quote what must be
/// forgotten. The file is unlinked and its folder synced. That is all a program can promise: the disk, its snapshots, and
/// every backup and export made before may still have the content. A blob that the log names and that is lost can be erased as well: the
/// log says then that it is to be missing.
///
/// JSON: {"thread_id", "blob", "reason", "version"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
    /// The blob's name, or any unique beginning of it
    blob: String,
    /// Why; it stands in the log for ever
    #[arg(long, value_parser = check_reason)]
    reason: String,
}

#[derive(Serialize)]
struct Erased<'a> {
    thread_id: &'a ThreadId,
    blob: Digest,
    reason: &'a str,
    version: u64,
}

fn check_reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a reason can't be empty".to_owned()),
        long if long.len() > REASON_BYTES_MAX => Err(format!("a reason can't be longer than {REASON_BYTES_MAX} bytes")),
        text => Ok(text.to_owned()),
    }
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadWrite)?;
    let thread = store.resolve(&args.thread)?;
    let blob = resolve(&*store, &thread, &args.blob)?;
    let version = store.erase(&thread, &blob, &args.reason)?;
    context.close(store);
    let erased = Erased { thread_id: &thread, blob, reason: &args.reason, version };
    if context.output.is_json() {
        return context.output.record(&erased);
    }
    context.output.text(format_args!("blob {} of {thread} is erased, and version {version} says so", blob.short()))?;
    context.output.tell("Backups and exports made before may still have it, and so may the disk itself.");
    Ok(())
}

/// The one blob whose name begins like this.
fn resolve(store: &dyn Backend, thread: &ThreadId, prefix: &str) -> Result<Digest> {
    // One that is gone already has a better answer than that it is not there.
    if let Ok(blob) = prefix.parse::<Digest>() {
        return Ok(blob);
    }
    // One that is named and lost can be erased too.
    let lost = store.verify(thread, &mut |_| {})?.bad_blobs.into_iter().map(|bad| bad.blob);
    let named: BTreeSet<_> = store.blobs(thread)?.into_iter().chain(lost).collect();
    let found: Vec<_> = named.into_iter().filter(|blob| blob.to_string().starts_with(prefix)).collect();
    match (found.as_slice(), prefix.is_empty()) {
        ([one], false) => Ok(*one),
        ([], _) | (_, true) => {
            let message = format!("thread `{thread}` has no blob whose name begins with `{prefix}`");
            let failure = Failure::new(Exit::NotFound, "blob_not_found", message);
            Err(failure.hint(format!("the blobs lie in `{}`", store.location(thread).join("blobs").display())))
        }
        (many, false) => {
            let message = format!("`{prefix}` names {} blobs of thread `{thread}`", many.len());
            Err(Failure::new(Exit::NotFound, "ambiguous", message).hint("type more of the name"))
        }
    }
}
