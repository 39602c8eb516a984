//! `selvedge reindex`: rebuilds the database from the logs.

use std::sync::Arc;

use selvedge::pages::rebuild;
use selvedge_log::Trust;
use selvedge_model::ThreadId;
use selvedge_model::account::AccountId;
use selvedge_store::{Backend, Filter};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LeftOut, LocalStore, Rebuild, Reindexed};
use serde::Serialize;

use crate::commands::heads::user_lists;
use crate::context::{Context, User};
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, paint};
use crate::text::{clean, count};

/// Rebuild the database from the logs
///
/// Every log is read whole and verified, every hash and every signature. A new database is built and replaces the old one; missing
/// manifests are written. Refused while another process has the store open for writing. If it is interrupted, run it again.
///
/// Committed bytes in the old database that are not in a log yet are written first, and queued requests are carried over. If the old
/// database can't be read, it is set aside, and the report says what could not be carried over. No log is shortened and no deleted thread
/// comes back: a log that does not verify, or is shorter than the old database or a signed file says, is listed and left as it is, and the
/// exit code is 6.
///
/// If the old database is lost and `thread.json` is older than the log, only the log itself says where it ends: a log that was cut at
/// a checkpoint would look the same. The report says how many such threads there are. The lists of heads in your Selvedge home
/// (`selvedge heads export`) are compared with the result: if it is behind one, the exit code is 6.
///
/// The pages of all threads are written again from their logs.
///
/// JSON: {"threads", "changesets", "pages", "tombstones", "finished_deletions", "drained_bytes", "requests", "unconfirmed_ends",
/// "left_out":[{"thread_id", "why", "known"}], "incomplete_accounts":[…], "notices":[…]}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// How many threads are listed at once.
const THREADS_AT_ONCE: usize = 200;

#[derive(Serialize)]
struct ReindexReport<'a> {
    threads: u64,
    changesets: u64,
    pages: u64,
    tombstones: u64,
    finished_deletions: u64,
    drained_bytes: u64,
    requests: u64,
    unconfirmed_ends: u64,
    left_out: Vec<LeftOutThread<'a>>,
    incomplete_accounts: &'a [AccountId],
    notices: &'a [String],
}

#[derive(Serialize)]
struct LeftOutThread<'a> {
    thread_id: &'a ThreadId,
    why: &'a str,
    known: bool,
}

pub(crate) fn run(Args {}: &Args, context: &Context<'_>) -> Result<()> {
    let project = context.project()?;
    let user = User::find()?;
    user.check_apart_from(&project)?;
    // The database can be rebuilt without the private key.
    let signer = user.signer().ok();
    let can_sign = signer.is_some();
    let rebuild = Rebuild { project, trust: user.trust()?, signer, disk: Arc::new(RealDisk) };
    let bar = context.output.progress(2, "reading logs");
    let rebuilt = LocalStore::reindex(&rebuild, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let rebuilt = rebuilt?;
    let mut pages = 0;
    if can_sign {
        // Opening for writing creates missing manifests.
        let store = context.open(Access::ReadWrite)?;
        pages = write_pages(&*store, &user.trust()?, context)?;
        context.close(store);
    }
    show(&rebuilt, pages, context)?;
    if let Some(first) = rebuilt.left_out.first() {
        return Err(failure(first, rebuilt.left_out.len()));
    }
    // Rebuilt without its old database, a store has a new id, and its logs alone say where they end.
    let store = context.open(Access::ReadOnly)?;
    user_lists::failure(&*store).map_or(Ok(()), Err)
}

/// Writes the pages of all threads again; returns how many there are. A thread whose page can't be written keeps no other from it.
fn write_pages(store: &dyn Backend, trust: &Trust, context: &Context<'_>) -> Result<u64> {
    let mut written = 0;
    let mut after = None;
    let bar = context.output.progress(2, "writing pages");
    loop {
        let found = store.list(&Filter::default(), after, THREADS_AT_ONCE)?;
        for thread in found.items.iter().map(|found| &found.manifest.thread_id) {
            match rebuild(store, trust, thread) {
                Ok(()) => written += 1,
                Err(error) => context.output.say(clean(&format!("the page of `{thread}` is not written: {error}"))),
            }
            bar.set_position(written);
        }
        after = found.next;
        if after.is_none() {
            bar.finish_and_clear();
            return Ok(written);
        }
    }
}

fn show(rebuilt: &Reindexed, pages: u64, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        let left = rebuilt.left_out.iter();
        return context.output.record(&ReindexReport {
            threads: rebuilt.threads,
            changesets: rebuilt.changesets,
            pages,
            tombstones: rebuilt.tombstones,
            finished_deletions: rebuilt.finished_deletions,
            drained_bytes: rebuilt.drained_bytes,
            requests: rebuilt.requests,
            unconfirmed_ends: rebuilt.unconfirmed_ends,
            left_out: left
                .map(|left| LeftOutThread { thread_id: &left.thread, why: &left.why, known: left.is_known })
                .collect(),
            incomplete_accounts: &rebuilt.incomplete_accounts,
            notices: &rebuilt.notices,
        });
    }
    let held = [
        count(rebuilt.threads, "thread"),
        count(rebuilt.changesets, "changeset"),
        count(rebuilt.tombstones, "tombstone"),
    ];
    context.output.text(format_args!("the database is rebuilt: {}", held.join(", ")))?;
    if rebuilt.drained_bytes > 0 {
        let bytes = count(rebuilt.drained_bytes, "committed byte");
        context.output.text(format_args!("{bytes} were written to transcripts"))?;
    }
    for left in &rebuilt.left_out {
        let known = if left.is_known { "its rows in the old database are kept" } else { "it is not in the database" };
        context.output.text(format_args!("{} {}; {known}", paint(BAD, "left out:"), clean(&left.why)))?;
    }
    if rebuilt.unconfirmed_ends > 0 {
        context.output.say(format!(
            "{}: only the log itself says where it ends; a log that was cut at a checkpoint would look the same, so compare it with a backup",
            count(rebuilt.unconfirmed_ends, "thread")
        ));
    }
    for account in &rebuilt.incomplete_accounts {
        context
            .output
            .say(format!("account `{account}`: logs with its postings are missing; unknown postings count as spent"));
    }
    for notice in &rebuilt.notices {
        context.output.say(clean(notice));
    }
    Ok(())
}

fn failure(first: &LeftOut, all: usize) -> Failure {
    let thread = &first.thread;
    let message = match all {
        1 => format!("thread `{thread}` was not indexed: {}", first.why),
        _ => format!("{all} threads were not indexed; the first is `{thread}`: {}", first.why),
    };
    Failure::new(Exit::Integrity, "threads_skipped", message)
        .hint(format!(
            "`selvedge verify {thread}` shows what is wrong, `selvedge doctor` what to do; its folder was not changed"
        ))
        .detail("thread_id", thread.as_str())
}
