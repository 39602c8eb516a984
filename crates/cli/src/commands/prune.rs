//! `selvedge prune`: deletes old threads that have ended, never automatically.

mod archive;
mod snapshots;

use std::path::{Path, PathBuf};

use selvedge_model::account::Account;
use selvedge_model::{Classify, Clock, Manifest, Status, ThreadId, Timestamp};
use selvedge_store::{Backend, Cursor, Error, Filter, Summary};
use selvedge_store_local::Access;
use selvedge_store_local::system::SystemClock;
use serde::Serialize;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::table;
use crate::text::{count, local_minute, shell_word};

/// How many threads are listed at once.
const PAGE: usize = 1000;

/// Delete old threads that have ended, and old snapshots
///
/// Deletes only threads that have ended, as `selvedge thread delete` does, leaving a signed tombstone. Threads that are created,
/// running or suspended are kept, and those whose chain or parent has not ended, and those whose accounts hold reserved money. With
/// --archive, each thread is first written to a file, as by `selvedge export`, with log, manifest and blobs; `selvedge import` can
/// import it into another store. A thread whose log is not what was signed is neither archived nor deleted. Nothing is ever pruned
/// automatically.
///
/// Also removes old snapshots of the remaining threads that are not running, as `state_persistence.retention` says
/// (`delete_older_than_days`, `max_checkpoints`). They are copies of what is in the log, so this needs no confirmation.
///
/// JSON: one object per thread, {"thread_id", "status", "completed_at", "version", "archived", "deleted"}; "archived" is the path of
/// the archive or null, "deleted" is false with --dry-run. Then one object per thread whose snapshots are removed, {"thread_id",
/// "snapshots":[NAME…], "removed"}; "removed" is false with --dry-run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only threads that ended at least this long ago: hours, days or weeks, as in 12h, 90d, 2w
    #[arg(long, value_name = "AGE", default_value = "90d", value_parser = age)]
    older_than: Age,
    /// Only threads in this status; can be repeated
    #[arg(long, value_name = "STATUS", value_parser = ended)]
    status: Vec<Status>,
    /// Write each thread to a file in DIR before it is deleted
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,
    /// Show what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Don't ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Age(i64);

fn age(text: &str) -> Result<Age, String> {
    let bad = || format!("`{text}` is not a valid age; use 12h, 90d or 2w");
    let unit = text.chars().last().ok_or_else(bad)?;
    let hours = match unit {
        'h' => 1,
        'd' => 24,
        'w' => 7 * 24,
        _ => return Err(bad()),
    };
    let digits = &text[..text.len() - unit.len_utf8()];
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(bad());
    }
    let long = || format!("`{text}` is too long: at most {}{unit}", i64::MAX / (hours * 3_600_000_000));
    let number: i64 = digits.parse().map_err(|_| long())?;
    number.checked_mul(hours * 3_600_000_000).map(Age).ok_or_else(long)
}

fn ended(text: &str) -> Result<Status, String> {
    let status: Status = text.parse()?;
    if status.is_terminal() {
        Ok(status)
    } else {
        Err(format!("a thread that is {status} has not ended and is never pruned"))
    }
}

#[derive(Serialize)]
struct Pruned<'a> {
    thread_id: &'a ThreadId,
    status: Status,
    completed_at: Option<Timestamp>,
    version: u64,
    archived: Option<String>,
    deleted: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let access = if args.dry_run { Access::ReadOnly } else { Access::ReadWrite };
    let store = context.open(access)?;
    let before = Timestamp::from_micros(SystemClock.now().as_micros().saturating_sub(args.older_than.0));
    let due = due(&*store, before, &args.status, context)?;
    if args.dry_run || due.is_empty() {
        show(&due, context)?;
    } else {
        if !args.yes {
            confirm(&due, args, context)?;
        }
        let archive = args.archive.as_ref().map(|folder| context.folder.join(folder));
        for thread in &due {
            prune(thread, archive.as_deref(), &*store, context)?;
        }
        context.output.tell(format_args!("{} deleted", count(due.len() as u64, "thread")));
    }
    let leaves = |thread: &ThreadId| due.iter().any(|due| due.manifest.thread_id == *thread);
    snapshots::prune(&*store, leaves, args.dry_run, context)?;
    if !args.dry_run {
        context.close(store);
    }
    Ok(())
}

/// The threads to delete, oldest first.
fn due(store: &dyn Backend, before: Timestamp, statuses: &[Status], context: &Context<'_>) -> Result<Vec<Summary>> {
    let mut due = Vec::new();
    let mut cursor: Option<Cursor> = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE)?;
        for thread in page.items {
            let manifest = &thread.manifest;
            let old = manifest.completed_at.is_some_and(|at| at <= before);
            let asked = statuses.is_empty() || statuses.contains(&manifest.status);
            let is_due = manifest.status.is_terminal() && old && asked && !is_needed(store, manifest)?;
            if is_due && !is_in_use(store, manifest, context)? {
                due.push(thread);
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            due.reverse();
            return Ok(due);
        }
    }
}

/// Whether the account of a thread's chain holds reserved money, so that the store would refuse; with a notice.
fn is_in_use(store: &dyn Backend, manifest: &Manifest, context: &Context<'_>) -> Result<bool> {
    let Some(account) = store.account(&manifest.chain_root_id)?.filter(Account::is_in_use) else { return Ok(false) };
    tell_kept(&Error::AccountInUse { thread: manifest.thread_id.clone(), account: account.id }, context);
    Ok(true)
}

fn tell_kept(why: &Error, context: &Context<'_>) {
    let hint = why.hint().map_or_else(String::new, |hint| format!("; {hint}"));
    context.output.say(format!("not pruned: {why}{hint}"));
}

/// Whether a thread that has not ended may still read this one: a successor or its parent.
fn is_needed(store: &dyn Backend, manifest: &Manifest) -> Result<bool> {
    if manifest.status == Status::Continued || manifest.continuation_of.is_some() {
        let chain = store.chain(&manifest.thread_id)?;
        if chain.iter().any(|other| !other.manifest.status.is_terminal()) {
            return Ok(true);
        }
    }
    let Some(parent) = &manifest.parent_id else { return Ok(false) };
    match store.get(parent) {
        Ok(parent) => Ok(!parent.manifest.status.is_terminal()),
        Err(Error::NoThread(_) | Error::Deleted(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn prune(thread: &Summary, archive: Option<&Path>, store: &dyn Backend, context: &Context<'_>) -> Result<()> {
    let id = &thread.manifest.thread_id;
    let archived = archive.map(|folder| archive::keep(id, store, folder)).transpose()?;
    // It may have been continued since it was listed.
    let now = store.get(id)?;
    if now.version != thread.version {
        context.output.say(format!("{id} was changed in the meantime and is kept"));
        return Ok(());
    }
    let tombstone = match store.delete(id) {
        Err(error @ Error::AccountInUse { .. }) => {
            tell_kept(&error, context);
            return Ok(());
        }
        deleted => deleted?,
    };
    let archived = archived.map(|path| path.display().to_string());
    if context.output.is_json() {
        return context.output.record(&Pruned { archived, ..Pruned::of(thread, true) });
    }
    let kept = archived.map_or_else(String::new, |path| format!(", archived in {path}"));
    context.output.text(format_args!("{id} is deleted (at version {}){kept}", tombstone.head.version))
}

impl<'a> Pruned<'a> {
    fn of(thread: &'a Summary, deleted: bool) -> Self {
        let manifest = &thread.manifest;
        Self {
            thread_id: &manifest.thread_id,
            status: manifest.status,
            completed_at: manifest.completed_at,
            version: thread.version,
            archived: None,
            deleted,
        }
    }
}

fn show(due: &[Summary], context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        return due.iter().try_for_each(|thread| context.output.record(&Pruned::of(thread, false)));
    }
    if due.is_empty() {
        context.output.tell("no threads to prune");
        return Ok(());
    }
    let row = |thread: &Summary| {
        let manifest = &thread.manifest;
        let at = manifest.completed_at.map_or_else(|| "-".to_owned(), local_minute);
        vec![manifest.thread_id.to_string(), manifest.status.to_string(), at, thread.version.to_string()]
    };
    context.output.text(table(&["THREAD", "STATUS", "ENDED", "VERSION"], &[3], due.iter().map(row)))?;
    context.output.tell(format_args!("{} would be deleted", count(due.len() as u64, "thread")));
    Ok(())
}

fn confirm(due: &[Summary], args: &Args, context: &Context<'_>) -> Result<()> {
    let threads = count(due.len() as u64, "thread");
    let question = format!("Delete {threads} and all their files permanently? [y/N]");
    match context.output.ask(&question).map(|answer| answer.to_lowercase()).as_deref() {
        Some("y" | "yes") => Ok(()),
        Some(_) => Err(Failure::new(Exit::Failed, "not_confirmed", "nothing was deleted")),
        None => {
            let failure = Failure::usage(format!("deleting {threads} needs confirmation, and there is no terminal"));
            let same = again(args);
            Err(failure.hint(format!("`{same} --dry-run` shows them; `{same} --yes` deletes them")))
        }
    }
}

/// The command as typed, without `--dry-run` and `--yes`.
fn again(args: &Args) -> String {
    let hours = args.older_than.0 / 3_600_000_000;
    let mut words = vec!["selvedge prune".to_owned(), format!("--older-than {hours}h")];
    words.extend(args.status.iter().map(|status| format!("--status {status}")));
    words.extend(args.archive.iter().map(|folder| format!("--archive {}", shell_word(&folder.display().to_string()))));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_hours_days_and_weeks() {
        let hour = 3_600_000_000;
        assert_eq!(age("12h"), Ok(Age(12 * hour)));
        assert_eq!(age("90d"), Ok(Age(90 * 24 * hour)));
        assert_eq!(age("2w"), Ok(Age(14 * 24 * hour)));
        for bad in ["", "d", "90", "-1d", "+1d", "1m", "1.5d", "é"] {
            assert!(age(bad).unwrap_err().contains("not a valid age"), "{bad}");
        }
        for long in ["4294967296d", "99999999999999999999d"] {
            assert!(age(long).unwrap_err().ends_with("is too long: at most 106751991d"), "{long}");
        }
    }
}
