//! `selvedge repair`: repairs one thread.

use std::sync::Arc;

use selvedge::snapshot::{Schema, newest_of};
use selvedge_model::ThreadId;
use selvedge_store::{Backend, Error};
use selvedge_store_local::{Access, Provisional, Repair, RepairStep};
use serde::Serialize;

use crate::config::configuration;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{WARN, paint};
use crate::text::{clean, count};

/// Repair a thread
///
/// Repairs: unsigned bytes after the end of a log (moved to a quarantine file); a `thread.json` that is missing, old or not what was
/// signed (the old one is set aside); a `capabilities.md` that is not what was signed (set aside; the next run writes a new one); a
/// database that is older than a signed log or does not list it. Nothing is deleted, no log is edited before its last checkpoint, and
/// each repair is signed into the log. Refused while another process holds the thread.
///
/// A log that was cut off permanently is continued only if you accept the loss: the next version follows the last known one, and the
/// log records which versions are lost. Damage before the last checkpoint can't be repaired: restore the file from a copy.
///
/// With --from-snapshot, the loss is accepted too, and the messages and the state in the newest signed snapshot of a lost version are
/// recovered. A snapshot is not a log, so the log marks them as provisional, with their snapshot.
///
/// JSON: {"thread_id", "version", "dry_run", "repairs":[{"kind", …}]}, where "kind" is "foreign_bytes" ("bytes"), "manifest" and
/// "capabilities" ("why", "aside"), "database_behind" ("database", "file"), "not_indexed" ("version"), "loss" ("from_version",
/// "to_version", "by") or "provisional" ("log_version", "messages", "by")
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix; the whole id if it is not in the database
    thread: String,
    /// Continue a log that was cut off, and record what is lost
    #[arg(long)]
    accept_loss: bool,
    /// Accept the loss, and recover what a signed snapshot of a lost version contains
    #[arg(long)]
    from_snapshot: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct RepairReport<'a> {
    thread_id: &'a ThreadId,
    version: u64,
    dry_run: bool,
    repairs: &'a [RepairStep],
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open_local(Access::ReadWrite)?;
    let thread = resolve(&store, &args.thread)?;
    let how = Repair { accept_loss: args.accept_loss || args.from_snapshot, dry_run: args.dry_run };
    let from = if args.from_snapshot { snapshot_of_lost(&store, &thread, context)? } else { None };
    let repaired = store.repair_from(&thread, how, from.as_ref()).map_err(|error| proven(&store, &thread, error))?;
    context.close(Arc::new(store));
    let done = RepairReport {
        thread_id: &thread,
        version: repaired.version,
        dry_run: args.dry_run,
        repairs: &repaired.mended,
    };
    if context.output.is_json() {
        return context.output.record(&done);
    }
    if done.repairs.is_empty() {
        return context.output.text(format_args!("{thread} needs no repair; it is at version {}", done.version));
    }
    for one in done.repairs {
        context.output.text(sentence(one, args.dry_run))?;
    }
    if args.dry_run {
        context.output.tell("Dry run: nothing was changed.")
    } else {
        context.output.text(format_args!("{thread} is at version {}, which records this", done.version))?
    }
    Ok(())
}

/// The newest valid snapshot of a version that the log lacks.
fn snapshot_of_lost(store: &dyn Backend, thread: &ThreadId, context: &Context<'_>) -> Result<Option<Provisional>> {
    let verdict = store.verify(thread, &mut |_| {})?;
    let proven = verdict.judgement.unchanged_up_to;
    let is_lost = |version| Some(version) > proven || verdict.lost.iter().any(|lost| lost.contains(version));
    let config = configuration(context)?.state_persistence;
    let archive = config.retention.on_completion.archive_folder().unwrap_or("archive");
    let schema = Schema::new(&config.state).map_err(|error| Failure::of(&error))?;
    let Some((kept, body)) = newest_of(store, &schema, archive, thread, &is_lost)?.good else {
        context.output.say("there is no valid snapshot of a lost version: nothing can be recovered");
        return Ok(None);
    };
    let read = || {
        Some(Provisional {
            name: kept.name.clone(),
            log_version: kept.version,
            log_hash: serde_json::from_value(body.get("log_hash")?.clone()).ok()?,
            messages: serde_json::from_value(body.get("messages")?.clone()).ok()?,
            state: body.get("thread")?.get("fold")?.get("state")?.clone(),
        })
    };
    let unreadable = || Failure::usage(format!("the snapshot `{}` can't be read back", kept.name));
    Ok(Some(read().ok_or_else(unreadable)?))
}

/// A thread by the beginning of its id, or one that has a log and is not in the database by its whole id.
fn resolve(store: &dyn Backend, name: &str) -> Result<ThreadId> {
    match (store.resolve(name), ThreadId::new(name)) {
        (Err(Error::NoThread(_)), Ok(thread)) if store.is_unindexed(&thread)? => Ok(thread),
        (resolved, _) => Ok(resolved?),
    }
}

/// The failure with the versions of the log that are still proven.
fn proven(store: &dyn Backend, thread: &ThreadId, error: Error) -> Failure {
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

fn sentence(mended: &RepairStep, dry_run: bool) -> String {
    let would = if dry_run { "would be " } else { "" };
    match mended {
        RepairStep::ForeignBytes { bytes } => {
            format!("{} after the end of the log {would}moved to a quarantine file", count(*bytes, "byte"))
        }
        RepairStep::Manifest { why, aside: Some(aside) } => {
            format!("thread.json written again ({}); the old one is now {aside}", clean(why))
        }
        RepairStep::Manifest { why, aside: None } => format!("thread.json {would}written again ({})", clean(why)),
        RepairStep::Capabilities { why, aside: Some(aside) } => {
            format!("capabilities.md set aside ({}) as {aside}; the next run writes a new one", clean(why))
        }
        RepairStep::Capabilities { why, aside: None } => format!("capabilities.md {would}set aside ({})", clean(why)),
        RepairStep::Snapshot { why, aside: Some(aside) } => {
            format!("state.json set aside ({}) as {aside}; a later run saves a new one", clean(why))
        }
        RepairStep::Snapshot { why, aside: None } => format!("state.json {would}set aside ({})", clean(why)),
        RepairStep::DatabaseBehind { database, file } => {
            format!("the database {would}updated from version {database} to {file}, where the signed log ends")
        }
        RepairStep::NotIndexed { version } => {
            format!("the log, which ends at version {version}, {would}added to the database")
        }
        RepairStep::Provisional { log_version, messages, by } => {
            let what = count(*messages, "message");
            format!("{what} and the state of version {log_version} {would}recovered from {}, provisionally", clean(by))
        }
        RepairStep::Loss { from_version, to_version, by } => {
            let lost = if from_version == to_version {
                format!("version {from_version}")
            } else {
                format!("versions {from_version} to {to_version}")
            };
            paint(WARN, format!("{lost}, known from {}, {would}recorded as lost", clean(by)))
        }
    }
}
