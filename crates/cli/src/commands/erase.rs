//! `selvedge erase`: erases the content of one blob, recorded in the log.

use std::collections::BTreeSet;

use selvedge_model::{Digest, ThreadId};
use selvedge_store::Backend;
use selvedge_store_local::Access;
use serde::Serialize;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};

const REASON_BYTES_MAX: usize = 1000;

/// Erase the content of a blob permanently
///
/// The log records, signed, that it was erased and why, and still verifies. The reason can't be erased: don't quote the content in
/// it. The file is deleted and its folder synced. That is all a program can do: the disk, its snapshots, and earlier backups and
/// exports may still have the content. A blob that is already lost can be erased too: the log then records that it is missing on
/// purpose.
///
/// JSON: {"thread_id", "blob", "reason", "version"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// The blob's name, or any unique prefix of it
    blob: String,
    /// The reason, recorded in the log for ever
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
    context.output.text(format_args!("blob {} of {thread} is erased, recorded in version {version}", blob.short()))?;
    context.output.tell("Earlier backups and exports, and the disk itself, may still have it.");
    Ok(())
}

/// The one blob whose name has this prefix.
fn resolve(store: &dyn Backend, thread: &ThreadId, prefix: &str) -> Result<Digest> {
    // An erased blob has a better error than "not found".
    if let Ok(blob) = prefix.parse::<Digest>() {
        return Ok(blob);
    }
    // A blob that is named and lost can be erased too.
    let lost = store.verify(thread, &mut |_| {})?.bad_blobs.into_iter().map(|bad| bad.blob);
    let named: BTreeSet<_> = store.blobs(thread)?.into_iter().chain(lost).collect();
    let found: Vec<_> = named.into_iter().filter(|blob| blob.to_string().starts_with(prefix)).collect();
    match (found.as_slice(), prefix.is_empty()) {
        ([one], false) => Ok(*one),
        ([], _) | (_, true) => {
            let message = format!("thread `{thread}` has no blob whose name begins with `{prefix}`");
            let failure = Failure::new(Exit::NotFound, "blob_not_found", message);
            Err(failure.hint(format!("the blobs are in `{}`", store.location(thread).join("blobs").display())))
        }
        (many, false) => {
            let message = format!("`{prefix}` matches {} blobs of thread `{thread}`", many.len());
            Err(Failure::new(Exit::NotFound, "ambiguous", message).hint("type more of the name"))
        }
    }
}
