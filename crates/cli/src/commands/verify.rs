//! `selvedge verify`: what the signatures prove, and what they don't. Writes nothing.
//!
//! - `verdict`: one thread's verdict, in words and as JSON. `statement`: what was signed. `mates`: what the logs of one batch
//!   remember of each other.
//! - `document`: the verdict on one signed document.

pub(crate) mod document;
mod mates;
mod statement;
mod verdict;

use std::path::PathBuf;

use selvedge_log::document::DocumentKind;
use selvedge_log::scan::Entry;
use selvedge_model::ThreadId;
use selvedge_store::{Cursor, Filter, Registry};
use selvedge_store_local::{Access, LocalStore};

use crate::context::Context;
use crate::document::parse_kind;
use crate::error::{Exit, Failure, Result};
use crate::imported;
use crate::text::count;
use statement::Statement;
use verdict::Checked;

/// How many threads are listed at once.
const PAGE: usize = 1000;

/// Check every signature of threads, and say what that proves and what it doesn't
///
/// One verdict per thread. Exit code 6 if any log is not exactly what was signed; the damage is named by file, line, byte
/// and version. With --all, logs that were committed together are also checked against each other.
///
/// With --document, one signed file instead: Markdown, YAML, JSON or a script, in Selvedge's form or the older Rye form. It must be
/// signed as what its place says, or as --kind and --id say, by a key you trust, or by --key.
///
/// JSON: one object per thread, {"thread_id", "sound", "code", "message", "unchanged_up_to", "signers":[{"fingerprint", "owner",
/// "checkpoints"}], "lines", "bytes", "erased", "healed_bytes", "foreign_bytes", "damage":{"file", "line", "first_line", "byte", "version",
/// "why"}, "remembered_by":[{"by", "version"}], "proves", "does_not_prove":[…], "imported":{"format", "source", "at", "witnessed"}, "statements":[…]}; "imported" only if it was, "statements" only with --explain, each with "version", "reason",
/// "key", "run_id", "turn", "timestamp", "signer", "byte_offset", "hash", "with":[{"thread_id", "version"}], "epoch", "settled"
/// and "seq". With --document {"file", "sound", "form":"selvedge"|"rye", "kind", "id", "signer", "owner", "signed_at", "time_covered",
/// "proves", "does_not_prove":[…]}, or an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of a thread's id or its hex
    #[arg(value_name = "THREAD", required_unless_present_any = ["all", "document"], conflicts_with = "all")]
    threads: Vec<String>,
    /// Every thread of the store
    #[arg(long)]
    all: bool,
    /// Show every signed statement: version, reason, run, time, signer, hash
    #[arg(long)]
    explain: bool,
    /// A signed file instead of threads
    #[arg(long, value_name = "FILE", conflicts_with_all = ["threads", "all", "explain"])]
    document: Option<PathBuf>,
    /// Believe this public key, and no other, instead of those you trust
    #[arg(long, value_name = "PUBLIC.pem", requires = "document")]
    key: Option<PathBuf>,
    /// What the document must be signed as, instead of what its place says
    #[arg(long, value_name = "KIND", requires = "document", value_parser = parse_kind)]
    kind: Option<DocumentKind>,
    /// The id it must be signed under, instead of its path
    #[arg(long, requires = "document")]
    id: Option<String>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    if let Some(file) = &args.document {
        let (key, kind, id) = (args.key.as_deref(), args.kind, args.id.as_deref());
        return document::run(document::Asked { file, key, kind, id }, context);
    }
    let store = context.open(Access::ReadOnly)?;
    let threads = named(args, &store)?;
    let bar = context.output.progress(threads.len() as u64, "verifying");
    let mut checked = Vec::with_capacity(threads.len());
    for thread in threads {
        checked.push(check(thread, args.explain, &store));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let has_come_to = |thread: &ThreadId, version| store.get(thread).is_ok_and(|now| now.version >= version);
    mates::compare(
        &mut checked,
        has_come_to,
        |thread, version| Ok(args.all && !was_deleted(thread, version, &store)?),
    )?;
    for one in &checked {
        one.show(context.output)?;
    }
    if checked.is_empty() {
        context.output.tell("no threads");
    } else if !context.output.is_json() {
        context.output.text(verdict::closing(&checked))?;
    }
    conclude(&checked)
}

fn named(args: &Args, store: &LocalStore) -> Result<Vec<ThreadId>> {
    if args.all {
        return every(store);
    }
    let mut threads = Vec::new();
    for prefix in &args.threads {
        let thread = store.resolve(prefix)?;
        if !threads.contains(&thread) {
            threads.push(thread);
        }
    }
    Ok(threads)
}

fn every(store: &LocalStore) -> Result<Vec<ThreadId>> {
    let mut threads = Vec::new();
    let mut cursor: Option<Cursor> = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE)?;
        threads.extend(page.items.into_iter().map(|summary| summary.manifest.thread_id));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(threads);
        }
    }
}

/// Checks one thread. One that can't even be read has a verdict too, so that the others get theirs.
fn check(thread: ThreadId, explain: bool, store: &LocalStore) -> Checked {
    let mut statements = Vec::new();
    let mut keep = |entry: &Entry| {
        if explain {
            statements.extend(Statement::of(entry));
        }
    };
    let verdict = store.verify(&thread, &mut keep);
    let file = store.thread_folder(&thread).join("transcript.jsonl");
    let origin = imported::find(store, &thread);
    Checked::new(thread, file, verdict, explain.then_some(statements), store.trust()).imported(origin)
}

fn was_deleted(thread: &ThreadId, version: u64, store: &LocalStore) -> Result<bool> {
    Ok(store.tombstone(thread)?.is_some_and(|tombstone| tombstone.head.version >= version))
}

/// What the whole command answers.
fn conclude(checked: &[Checked]) -> Result<()> {
    let bad: Vec<&Checked> = checked.iter().filter(|one| !one.is_sound()).collect();
    let failures: Vec<Failure> = bad.iter().filter_map(|one| one.failure()).collect();
    let Some(first) = failures.first() else { return Ok(()) };
    if let [only] = failures.as_slice() {
        return Err(only.clone());
    }
    let exit =
        if failures.iter().any(|failure| failure.exit == Exit::Integrity) { Exit::Integrity } else { first.exit };
    let total = count(checked.len() as u64, "thread");
    let message = format!("{} of {total} are not what was signed", bad.len());
    let failure = Failure::new(exit, "integrity", message);
    Err(failure.hint(format!("`selvedge verify {} --explain` shows what is still proven", bad[0].thread())))
}
