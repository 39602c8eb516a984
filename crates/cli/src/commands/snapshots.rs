//! `selvedge snapshots`: lists the snapshots of a thread.

use selvedge::snapshot::{Schema, examined};
use selvedge_model::{ThreadId, Timestamp};
use selvedge_store::Summary;
use selvedge_store::snapshot::SnapshotInfo;
use selvedge_store_local::Access;
use serde::Serialize;

use crate::config::configuration;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::table;
use crate::text::{clean, grouped, local_minute};

/// List the snapshots of a thread, newest first
///
/// A snapshot is a copy of the state of a thread at a version: the newest in `state.json`, older ones in `checkpoints/`, those of
/// completed threads in `archive/`. They can be deleted: everything in them is in the log. `selvedge state THREAD --snapshot` shows
/// the newest.
///
/// JSON: {"thread_id", "log_version", "snapshots":[{"log_version", "saved_at", "place", "name", "base", "bytes", "usable", "why"}],
/// "unreadable_folders":[…]}; "place" is newest, older or archived, "base" the version of the snapshot that it builds on or null, "usable"
/// whether it can be used (its signature is valid, the snapshot it builds on exists, its format is known, it matches the schema, and
/// its version is not lost), and "why" is the reason if not. "log_version" and "saved_at" are null for a file that is in the place of
/// the newest and is not a snapshot. "unreadable_folders" says why a folder of snapshots could not be listed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
}

#[derive(Serialize)]
struct SnapshotList {
    thread_id: ThreadId,
    log_version: u64,
    snapshots: Vec<SnapshotEntry>,
    unreadable_folders: Vec<String>,
}

#[derive(Serialize)]
struct SnapshotEntry {
    log_version: Option<u64>,
    saved_at: Option<Timestamp>,
    place: &'static str,
    name: String,
    base: Option<u64>,
    bytes: u64,
    usable: bool,
    why: Option<String>,
}

impl SnapshotEntry {
    fn of(kept: SnapshotInfo, why: Option<String>) -> Self {
        let is_snapshot = kept.is_snapshot();
        let SnapshotInfo { place, name, version, saved_at, base, bytes } = kept;
        let log_version = is_snapshot.then_some(version);
        let saved_at = is_snapshot.then_some(saved_at);
        Self { log_version, saved_at, place: place.as_str(), name, base, bytes, usable: why.is_none(), why }
    }

    fn row(&self) -> Vec<String> {
        let form = match (self.log_version, self.base) {
            (None, _) => "?".to_owned(),
            (_, None) => "whole".to_owned(),
            (_, Some(base)) => format!("changes since {base}"),
        };
        let state =
            self.why.as_deref().map_or_else(|| "usable".to_owned(), |why| format!("not usable: {}", clean(why)));
        let version = self.log_version.map_or_else(|| "?".to_owned(), |version| version.to_string());
        let saved = self.saved_at.map_or_else(|| "?".to_owned(), local_minute);
        vec![version, saved, self.place.to_owned(), form, grouped(self.bytes), state]
    }
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread_id = store.resolve(&args.thread)?;
    let config = configuration(context)?.state_persistence;
    let archive = config.retention.on_completion.archive_folder().unwrap_or("archive");
    let schema = Schema::new(&config.state).map_err(|error| Failure::of(&error))?;
    let found = examined(&*store, &schema, archive, &thread_id)?;
    let Summary { manifest, version: log_version, .. } = store.get(&thread_id)?;
    let lost = |kept: &SnapshotInfo| {
        let lost = manifest.lost.iter().find(|lost| lost.contains(kept.version))?;
        Some(format!("the log has lost {} since {}", lost.in_words(), lost.since))
    };
    let snapshots: Vec<SnapshotEntry> =
        found.into_iter().map(|(kept, why)| SnapshotEntry::of(kept.clone(), lost(&kept).or(why))).collect();
    let refused = store.blocked_folders(&thread_id, archive);
    let unreadable_folders: Vec<String> = refused.iter().map(ToString::to_string).collect();
    for why in &unreadable_folders {
        context.output.say(format_args!("the folder of snapshots can't be used: {why}; move it away"));
    }
    if context.output.is_json() {
        return context.output.record(&SnapshotList { thread_id, log_version, snapshots, unreadable_folders });
    }
    if snapshots.is_empty() {
        context.output.tell("there are no snapshots; they are saved when a thread is suspended, fails or grows long");
        return Ok(());
    }
    let rows = snapshots.iter().map(SnapshotEntry::row);
    context.output.text(table(&["VERSION", "SAVED", "PLACE", "FORM", "BYTES", "STATE"], &[0, 4], rows))
}
