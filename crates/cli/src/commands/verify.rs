//! `selvedge verify`: verifies signatures, and says what they prove and what not. Writes nothing.
//!
//! - `verdict`: the verdict on one thread, as text and JSON. `statement`: signed checkpoints. `committed_together`: threads that were committed
//!   together, compared.
//! - `archive`: the verdict on an exported thread. `document`: the verdict on one signed document.

mod archive;
mod committed_together;
pub(crate) mod document;
mod statement;
mod verdict;

use std::path::PathBuf;

use selvedge_log::document::DocumentKind;
use selvedge_log::scan::ScannedChangeset;
use selvedge_model::ThreadId;
use selvedge_store::{Backend, Cursor, Error, Filter};
use selvedge_store_local::Access;

use crate::context::Context;
use crate::document::parse_kind;
use crate::error::{Exit, Failure, Result};
use crate::imported;
use crate::text::count;
use statement::Statement;
use verdict::ThreadVerdict;

/// How many threads are listed at once.
const PAGE: usize = 1000;

/// Verify the signatures of threads, and say what that proves
///
/// Prints one verdict per thread. The exit code is 6 if any log is not exactly what was signed; the damage is reported with file,
/// line, byte and version. Every blob that a log refers to is hashed; missing, changed and erased ones are listed. The database is
/// compared with each log; a log that is not in the database is verified alone, and listed. Versions whose loss was accepted with
/// `repair --accept-loss` stay listed. With --all, logs that were committed together are also compared with each other. For a thread
/// that was imported without the rest of its family, the missing threads are listed.
///
/// An exported archive is verified without a store, with the key that --public-key names and those of its chain, or, if its name ends in
/// `.tar`, with the keys you trust: `selvedge verify FILE --public-key PUBLIC.pem`. Any key of the signer's chain is enough, old or new: the
/// archive contains the rotations, each signed by both keys. It contains those up to the day it was made: an archive from before a
/// rotation is verified with an earlier key.
///
/// With --document, verifies one signed file instead: Markdown, YAML, JSON or a script, in the format of Selvedge or of Rye, an earlier system. It must be
/// signed as the kind and id that follow from its path, or as --kind and --id say, by a key you trust, or by --public-key.
///
/// With --heads, no signature is verified: the store is compared with a list of heads that was kept elsewhere, as by `selvedge heads
/// verify`. This detects that a whole store was rolled back.
///
/// JSON: one object per thread, {"thread_id", "sound", "code", "message", "unchanged_up_to", "signers":[{"fingerprint", "owner",
/// "checkpoints"}], "lines", "bytes", "erased", "erased_blobs":[…], "lost":[{"from_version", "to_version", "since", "by"}],
/// "bad_blobs":[{"blob", "version", "why"}], "unnamed_blobs":[…], "trailing_bytes" (after the end of an archive),
/// "missing":[{"thread_id", "version"}], "pending_bytes", "foreign_bytes", "damage":{"file", "inside", "line", "first_line", "byte",
/// "version", "why"}, "untrusted_key", "named_by":[{"by", "version"}], "proves", "does_not_prove":[…], "imported":{"format",
/// "source", "at", "witnessed"}, "statements":[…]}; "imported" only for an imported thread, "archive" (the file) and "inside" (the
/// file in it) only for an archive, "statements" only with --explain, each with "version", "reason", "key", "run_id", "turn",
/// "timestamp", "signer", "byte_offset", "hash", "with":[{"thread_id", "version"}], "epoch", "settled" and "seq". With --document
/// {"file", "sound", "form":"selvedge"|"rye", "kind", "id", "signer", "owner", "signed_at", "time_covered", "key_id" (Rye's name of
/// the key), "proves", "does_not_prove":[…]}, or an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A thread (any unique prefix of its id or of its hex suffix), or an archive
    #[arg(value_name = "THREAD", required_unless_present_any = ["all", "document", "heads"], conflicts_with = "all")]
    threads: Vec<String>,
    /// Verify every thread of the store
    #[arg(long)]
    all: bool,
    /// Show every signed checkpoint: version, reason, run, time, signer, hash
    #[arg(long)]
    explain: bool,
    /// Verify a signed file instead of threads
    #[arg(long, value_name = "FILE", conflicts_with_all = ["threads", "all", "explain"])]
    document: Option<PathBuf>,
    /// Compare with a list of `selvedge heads export` instead, to detect a rollback
    #[arg(long, value_name = "FILE", conflicts_with_all = ["explain", "document", "public_key"])]
    heads: Option<PathBuf>,
    /// Trust this public key only, instead of those you trust
    #[arg(long, value_name = "PUBLIC.pem", conflicts_with = "all")]
    public_key: Option<PathBuf>,
    /// The kind that the document must be signed as; default: from its path
    #[arg(long, value_name = "KIND", requires = "document", value_parser = parse_kind)]
    kind: Option<DocumentKind>,
    /// The id that it must be signed under; default: its path
    #[arg(long, requires = "document")]
    id: Option<String>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    if let Some(file) = &args.document {
        let key = args.public_key.as_deref();
        let kind = args.kind;
        let id = args.id.as_deref();
        return document::run(document::DocumentRequest { file, key, kind, id }, context);
    }
    if let Some(list) = &args.heads {
        return super::heads::check(Some(list), &args.threads, context);
    }
    if let Some(archives) = archive::named(args, context)? {
        return archive::run(&archives, args, context);
    }
    let store = context.open(Access::ReadOnly)?;
    let threads = named(args, &*store)?;
    let bar = context.output.progress(threads.len() as u64, "verifying");
    let mut checked = Vec::with_capacity(threads.len());
    for thread in threads {
        checked.push(check(thread, args.explain, &*store));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let has_come_to = |thread: &ThreadId, version| store.get(thread).is_ok_and(|now| now.version >= version);
    committed_together::compare(
        &mut checked,
        has_come_to,
        // A thread that was imported without its family does not prove that the others were ever here.
        |thread, version, by| Ok(args.all && !store.is_imported(by) && !was_deleted(thread, version, &*store)?),
    )?;
    for one in &mut checked {
        let absent = absent_mates(one, &*store)?;
        one.set_missing(absent);
    }
    for one in &checked {
        one.show(context.output)?;
    }
    if checked.is_empty() {
        context.output.tell("no threads");
    } else if !context.output.is_json() {
        context.output.text(verdict::closing(&checked))?;
    }
    let failures: Vec<Failure> = checked.iter().filter_map(ThreadVerdict::failure).collect();
    conclude(failures, checked.len(), || {
        let first = checked.iter().find(|one| !one.is_sound()).map_or("THREAD", |one| one.thread().as_str());
        format!("`selvedge verify {first} --explain` shows what is still proven")
    })
}

fn named(args: &Args, store: &dyn Backend) -> Result<Vec<ThreadId>> {
    if args.all {
        return every(store);
    }
    let mut threads = Vec::new();
    for prefix in &args.threads {
        let thread = resolve(prefix, store)?;
        if !threads.contains(&thread) {
            threads.push(thread);
        }
    }
    Ok(threads)
}

/// A thread by a prefix of its id, or one that is not in the database by its whole id.
fn resolve(prefix: &str, store: &dyn Backend) -> Result<ThreadId> {
    match (store.resolve(prefix), ThreadId::new(prefix)) {
        (Err(Error::NoThread(_)), Ok(thread)) if store.is_unindexed(&thread)? => Ok(thread),
        (resolved, _) => Ok(resolved?),
    }
}

fn every(store: &dyn Backend) -> Result<Vec<ThreadId>> {
    let mut threads = Vec::new();
    let mut cursor: Option<Cursor> = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE)?;
        threads.extend(page.items.into_iter().map(|summary| summary.manifest.thread_id));
        cursor = page.next;
        if cursor.is_none() {
            // Also those that are not in the database.
            threads.extend(store.unindexed()?);
            return Ok(threads);
        }
    }
}

/// Verifies one thread. An unreadable one gets a verdict too, so that the others get theirs.
fn check(thread: ThreadId, explain: bool, store: &dyn Backend) -> ThreadVerdict {
    let mut statements = Vec::new();
    let mut keep = |entry: &ScannedChangeset| {
        if explain {
            statements.extend(Statement::of(entry));
        }
    };
    let verdict = store.verify(&thread, &mut keep);
    let file = store.location(&thread).join("transcript.jsonl");
    let origin = imported::find(store, &thread);
    ThreadVerdict::new(thread, file, verdict, explain.then_some(statements), store.trust()).imported(origin)
}

/// Fails unless the log of a thread is what was signed.
pub(crate) fn insist(thread: &ThreadId, store: &dyn Backend) -> Result<()> {
    check(thread.clone(), false, store).failure().map_or(Ok(()), Err)
}

/// The threads that the log of an imported thread names, and that are missing here.
fn absent_mates(one: &ThreadVerdict, store: &dyn Backend) -> Result<Vec<(ThreadId, u64)>> {
    let mut absent = Vec::new();
    if !store.is_imported(one.thread()) {
        return Ok(absent);
    }
    for (other, version) in one.committed_with() {
        let is_absent = matches!(store.get(other), Err(Error::NoThread(_))) && !store.is_unindexed(other)?;
        if is_absent && !was_deleted(other, *version, store)? {
            absent.push((other.clone(), *version));
        }
    }
    Ok(absent)
}

fn was_deleted(thread: &ThreadId, version: u64, store: &dyn Backend) -> Result<bool> {
    Ok(store.tombstone(thread)?.is_some_and(|tombstone| tombstone.head.version >= version))
}

/// The result of the command: the worst failure, with its own code if all have the same.
fn conclude(failures: Vec<Failure>, total: usize, hint: impl FnOnce() -> String) -> Result<()> {
    let number = failures.len();
    let is_worst = |failure: &&Failure| failure.exit == Exit::Integrity;
    let Some(worst) = failures.iter().find(is_worst).or(failures.first()) else { return Ok(()) };
    if number == 1 {
        return Err(worst.clone());
    }
    let is_one = failures.iter().all(|failure| failure.code == worst.code);
    if is_one && worst.code == "database_differs" {
        // One problem, however many logs show it.
        let message =
            format!("the database differs from the logs of {}; every log is valid", count(number as u64, "thread"));
        let failure = Failure::new(worst.exit, worst.code, message);
        return Err(failure.hint("`selvedge reindex` rebuilds the database from the logs"));
    }
    let message = format!("{number} of {} are not what was signed", count(total as u64, "thread"));
    let code = if is_one || worst.exit != Exit::Integrity { worst.code } else { "integrity" };
    Err(Failure::new(worst.exit, code, message).hint(hint()))
}
