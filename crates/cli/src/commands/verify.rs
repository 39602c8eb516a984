//! `selvedge verify`: what the signatures prove, and what they don't. Writes nothing.
//!
//! - `verdict`: one thread's verdict, in words and as JSON. `statement`: what was signed. `mates`: what the logs of one batch
//!   remember of each other.

mod mates;
mod statement;
mod verdict;

use selvedge_log::scan::Entry;
use selvedge_model::ThreadId;
use selvedge_store::{Cursor, Filter, Registry};
use selvedge_store_local::{Access, LocalStore};

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
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
/// JSON: one object per thread, {"thread_id", "sound", "code", "message", "unchanged_up_to", "signers":[{"fingerprint", "owner",
/// "checkpoints"}], "lines", "bytes", "healed_bytes", "foreign_bytes", "damage":{"file", "line", "first_line", "byte", "version",
/// "why"}, "remembered_by":[{"by", "version"}], "proves", "does_not_prove":[…], "statements":[…]}; "statements" only with --explain, each with "version", "reason",
/// "key", "run_id", "turn", "timestamp", "signer", "byte_offset", "hash", "with":[{"thread_id", "version"}], "epoch", "settled"
/// and "seq".
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of a thread's id or its hex
    #[arg(value_name = "THREAD", required_unless_present = "all", conflicts_with = "all")]
    threads: Vec<String>,
    /// Every thread of the store
    #[arg(long)]
    all: bool,
    /// Show every signed statement: version, reason, run, time, signer, hash
    #[arg(long)]
    explain: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let threads = named(args, &store)?;
    let bar = context.output.progress(threads.len() as u64, "verifying");
    let mut checked = Vec::with_capacity(threads.len());
    for thread in threads {
        checked.push(check(thread, args.explain, &store));
        bar.inc(1);
    }
    bar.finish_and_clear();
    mates::compare(&mut checked, |thread, version| Ok(args.all && !was_deleted(thread, version, &store)?))?;
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
    Checked::new(thread, file, verdict, explain.then_some(statements), store.trust())
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
