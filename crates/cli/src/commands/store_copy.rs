//! `selvedge store copy`: the threads of one store to another one, in either direction.
//!
//! A thread is copied as its archive: exported, verified, imported. So its log is the same bytes in both stores, and a copy that was
//! interrupted continues with the threads that are missing.

use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::Head;
use selvedge_model::ThreadId;
use selvedge_store::archive::{Accounts, ImportOutcome};
use selvedge_store::{Backend, Error, Filter};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LocalStore, Options};
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::{Exit, Failure, Result};
use crate::text::count;

/// How many threads are listed at once.
const PAGE: usize = 1000;

/// Copy the threads of a store to another one
///
/// Every log is copied byte for byte, with its blobs and capabilities, and verified before it is stored; money is computed again from the
/// logs. Threads that the other store has with the same end are left as they are, so a copy that was interrupted is repeated. A thread that
/// the other store has at an older version is continued there on PostgreSQL, and refused by a local store. Not copied: requests that
/// wait, leases, tombstones, snapshots, knowledge and the search index, which is built again.
///
/// STORE is a project's folder, or postgres://USER@HOST/DATABASE. The store that is written to is created if there is none.
///
/// JSON: {"thread_id", "version", "outcome": "copied"|"unchanged"|"refused", "error"?} for each thread, then
/// {"copied", "unchanged", "refused"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The store to read
    #[arg(long, value_name = "STORE")]
    from: String,
    /// The store to write to
    #[arg(long, value_name = "STORE")]
    to: String,
}

#[derive(Serialize)]
struct Copied<'a> {
    thread_id: &'a ThreadId,
    version: u64,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Default, Serialize)]
struct Summary {
    copied: u64,
    unchanged: u64,
    refused: u64,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    if args.from == args.to {
        return Err(Failure::usage("a store can't be copied to itself"));
    }
    let from = open(&args.from, Access::ReadOnly, context)?;
    create(&args.to, context)?;
    let to = open(&args.to, Access::ReadWrite, context)?;
    let threads = oldest_first(&*from)?;
    let progress = context.output.progress(threads.len() as u64, "threads");
    let mut summary = Summary::default();
    let mut accounts = Accounts::new();
    let mut first_failure = None;
    for (thread, head) in &threads {
        let result = copy(thread, head, &*from, &*to);
        let (outcome, error) = match result {
            Ok((ImportOutcome::Unchanged, _)) => ("unchanged", None),
            Ok((_, found)) => {
                accounts.extend(found);
                ("copied", None)
            }
            Err(failure) if context.is_overtaken_by_rotation(&failure) => return Err(failure),
            Err(failure) => {
                let text = failure.message.clone();
                first_failure.get_or_insert(failure);
                ("refused", Some(text))
            }
        };
        match outcome {
            "unchanged" => summary.unchanged += 1,
            "copied" => summary.copied += 1,
            _ => summary.refused += 1,
        }
        progress.inc(1);
        let copied = Copied { thread_id: thread, version: head.version, outcome, error };
        if context.output.is_json() {
            context.output.record(&copied)?;
        } else if let Some(error) = &copied.error {
            context.output.say(format!("`{thread}` was not copied: {error}"));
        }
    }
    progress.finish_and_clear();
    context.close(to);
    for (account, _) in accounts.iter().filter(|(_, is_whole)| !**is_whole) {
        context
            .output
            .say(format!("the account of `{account}` is incomplete: logs of its family are not in the other store"));
    }
    if context.output.is_json() {
        context.output.record(&summary)?;
    } else {
        let copied = count(summary.copied, "thread");
        context
            .output
            .text(format!("copied {copied}; {} unchanged, {} refused", summary.unchanged, summary.refused))?;
    }
    first_failure.map_or(Ok(()), Err)
}

fn copy(thread: &ThreadId, head: &Head, from: &dyn Backend, to: &dyn Backend) -> Result<(ImportOutcome, Accounts)> {
    match to.head(thread) {
        Ok(there) if there == *head => return Ok((ImportOutcome::Unchanged, Accounts::new())),
        Ok(_) | Err(Error::NoThread(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let mut archive = Vec::new();
    from.export(thread, &mut archive)?;
    let report = to.import(&mut Cursor::new(archive), true)?;
    // What the other store says it has is what this one has.
    let (ours, theirs) = (log_of(from, thread, report.head.bytes)?, log_of(to, thread, report.head.bytes)?);
    if ours != theirs {
        return Err(Failure::new(Exit::Integrity, "integrity", format!("the copy of `{thread}` has other bytes")));
    }
    Ok((report.arrival, report.accounts))
}

fn log_of(store: &dyn Backend, thread: &ThreadId, bytes: u64) -> Result<Vec<u8>> {
    let (_, log) = store.transcript(thread)?;
    let mut found = Vec::new();
    let read = io::Read::read_to_end(&mut io::Read::take(log, bytes), &mut found);
    read.map_err(|error| Failure::io("read", Path::new("transcript.jsonl"), &error))?;
    Ok(found)
}

/// Every thread of a store, parents before their children.
fn oldest_first(store: &dyn Backend) -> Result<Vec<(ThreadId, Head)>> {
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE)?;
        for one in page.items {
            let thread = one.manifest.thread_id;
            let head = store.head(&thread)?;
            found.push((thread, head));
        }
        cursor = page.next;
        if cursor.is_none() {
            found.reverse();
            return Ok(found);
        }
    }
}

fn is_address(place: &str) -> bool {
    place.starts_with("postgres://") || place.starts_with("postgresql://")
}

/// The project that a folder names: itself, or the one that its `.ai` belongs to.
fn project(place: &str, context: &Context<'_>) -> PathBuf {
    let folder = context.folder.join(place);
    match folder.file_name().is_some_and(|name| name == ".ai") {
        true => folder.parent().unwrap_or(&folder).to_owned(),
        false => folder,
    }
}

fn create(place: &str, context: &Context<'_>) -> Result<()> {
    if is_address(place) {
        return create_on_server(place);
    }
    let project = project(place, context);
    std::fs::create_dir_all(&project).map_err(|error| Failure::io("create", &project, &error))?;
    User::find()?.check_apart_from(&project)?;
    LocalStore::init(&project, Arc::new(RealDisk))?;
    Ok(())
}

#[cfg(feature = "postgres")]
fn create_on_server(address: &str) -> Result<()> {
    let password = std::env::var("PGPASSWORD").ok();
    let ids = selvedge_store_local::system::SystemIds;
    selvedge_store_postgres::PostgresStore::init(address, password.as_deref(), &ids)?;
    Ok(())
}

#[cfg(not(feature = "postgres"))]
fn create_on_server(_: &str) -> Result<()> {
    Err(without_postgres())
}

#[cfg(not(feature = "postgres"))]
fn without_postgres() -> Failure {
    Failure::usage("this program was built without PostgreSQL")
}

fn open(place: &str, access: Access, context: &Context<'_>) -> Result<Arc<dyn Backend>> {
    let user = User::find()?;
    let signer = match access {
        Access::ReadWrite => Some(user.signer()?),
        Access::ReadOnly => user.signer().ok(),
    };
    if is_address(place) {
        #[cfg(feature = "postgres")]
        return context.open_server(place, signer, user.trust()?);
        #[cfg(not(feature = "postgres"))]
        return Err(without_postgres());
    }
    let options = context.options_to_look(project(place, context), user.trust()?);
    Ok(Arc::new(LocalStore::open(Options { access, signer, ..options })?.closing_itself()))
}
