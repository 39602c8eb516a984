//! `selvedge repair`: mends what may be mended of one thread.

use selvedge_model::ThreadId;
use selvedge_store::{Error, Registry};
use selvedge_store_local::{Access, LocalStore, Mended, Repair};
use serde::Serialize;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{WARN, paint};
use crate::text::{clean, count};

/// Mend what may be mended of a thread
///
/// Mended are: bytes behind the end of a log that nobody signed (moved to a quarantine file), a `thread.json` that is missing,
/// old or not what was signed (the old one kept aside), a `capabilities.md` that is not what was signed (kept aside; the next run
/// writes a new one), a database that is behind a signed log or does not know it. Nothing is
/// deleted, no log is edited before its last checkpoint, and what was done is signed into the log. Refused while another
/// process holds the thread.
///
/// A log that was cut off for good is gone on with only if you accept the loss: the next version is the one behind the
/// last that anybody remembers, and the log says for ever which versions are lost. Damage before the last checkpoint is never
/// mended: put the file back from a copy.
///
/// JSON: {"thread_id", "version", "dry_run", "mended":[{"found", …}]}, where "found" is "foreign_bytes" ("bytes"), "manifest" and "capabilities" ("why",
/// "aside"), "database_behind" ("database", "file"), "not_indexed" ("version") or "loss" ("from_version", "to_version", "by")
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex; the whole id for a thread that the database does not know
    thread: String,
    /// Go on with a log that was cut off, and record what is lost
    #[arg(long)]
    accept_loss: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Done<'a> {
    thread_id: &'a ThreadId,
    version: u64,
    dry_run: bool,
    mended: &'a [Mended],
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadWrite)?;
    let thread = resolve(&store, &args.thread)?;
    let how = Repair { accept_loss: args.accept_loss, dry_run: args.dry_run };
    let repaired = store.repair(&thread, how).map_err(|error| proven(&store, &thread, error))?;
    context.close(store);
    let done = Done { thread_id: &thread, version: repaired.version, dry_run: args.dry_run, mended: &repaired.mended };
    if context.output.is_json() {
        return context.output.record(&done);
    }
    if done.mended.is_empty() {
        return context.output.text(format_args!("{thread} needs no repair; it is at version {}", done.version));
    }
    for one in done.mended {
        context.output.text(words(one, args.dry_run))?;
    }
    match args.dry_run {
        true => context.output.tell("Nothing was done."),
        false => context.output.text(format_args!("{thread} is at version {}, which records this", done.version))?,
    }
    Ok(())
}

/// A thread by the beginning of its id, or one that has a log and is not in the database by its whole id.
fn resolve(store: &LocalStore, name: &str) -> Result<ThreadId> {
    match (store.resolve(name), ThreadId::new(name)) {
        (Err(Error::NoThread(_)), Ok(thread)) if store.is_stray(&thread)? => Ok(thread),
        (resolved, _) => Ok(resolved?),
    }
}

/// The failure with what is still proven of the log.
fn proven(store: &LocalStore, thread: &ThreadId, error: Error) -> Failure {
    let is_log = matches!(error, Error::Log { .. });
    let mut failure = Failure::from(error);
    if let Some(verdict) = store.verify(thread, &mut |_| {}).ok().filter(|_| is_log) {
        let proven = match verdict.judgement.unchanged_up_to {
            Some(version) => format!("unchanged up to version {version} since it was signed"),
            None => "nothing of it is proven".to_owned(),
        };
        failure.message = format!("{}; {proven}", failure.message);
        failure = failure.detail("unchanged_up_to", verdict.judgement.unchanged_up_to);
    }
    failure
}

fn words(mended: &Mended, dry_run: bool) -> String {
    let would = if dry_run { "would be " } else { "" };
    match mended {
        Mended::ForeignBytes { bytes } => {
            format!("{} behind the end of the log {would}moved to a quarantine file", count(*bytes, "byte"))
        }
        Mended::Manifest { why, aside: Some(aside) } => {
            format!("thread.json written anew ({}); the old one is kept as {aside}", clean(why))
        }
        Mended::Manifest { why, aside: None } => format!("thread.json {would}written anew ({})", clean(why)),
        Mended::Capabilities { why, aside: Some(aside) } => {
            format!("capabilities.md set aside ({}), kept as {aside}; the next run writes it anew", clean(why))
        }
        Mended::Capabilities { why, aside: None } => format!("capabilities.md {would}set aside ({})", clean(why)),
        Mended::Snapshot { why, aside: Some(aside) } => {
            format!("state.json set aside ({}), kept as {aside}; a later run saves a new one", clean(why))
        }
        Mended::Snapshot { why, aside: None } => format!("state.json {would}set aside ({})", clean(why)),
        Mended::DatabaseBehind { database, file } => {
            format!("the database {would}moved on from version {database} to {file}, where the signed log ends")
        }
        Mended::NotIndexed { version } => {
            format!("the log, which ends at version {version}, {would}read into the database")
        }
        Mended::Loss { from_version, to_version, by } => {
            let lost = if from_version == to_version {
                format!("version {from_version}")
            } else {
                format!("versions {from_version} to {to_version}")
            };
            paint(WARN, format!("{lost}, remembered by {}, {would}given up as lost", clean(by)))
        }
    }
}
