//! Reading a log into the database: each valid changeset becomes the rows that its commit wrote.
//!
//! Only the fold of one thread is kept in memory, and what its log records that concerns more than the thread: postings, the versions of
//! other threads, and the time of each version. The caller writes those.

use std::io::{self, BufReader};
use std::ops::Range;

use selvedge_log::hash::{SealKey, sha256};
use selvedge_log::scan::{Examined, ScannedChangeset, Scanner, Signatures, examine};
use selvedge_log::{Tail, Trust};
use selvedge_model::account::Record;
use selvedge_model::account::replay::DeletedPostings;
use selvedge_model::event::BlobErased;
use selvedge_model::fold::{FoldError, apply_to_state, empty_state};
use selvedge_model::{Event, Manifest, Run, ThreadId, Timestamp};
use selvedge_store::seal::{self, ConsumedRequests, PostedVersions};
use selvedge_store::{Committed, Error, Result};
use serde_json::Value;

use crate::anchor;
use crate::db::Db;
use crate::disk::{Disk, OpenMode};
use crate::inbox;
use crate::index::{self, AddedRows, RowUpdate};
use crate::layout::Layout;
use crate::overlay::Overlay;
use crate::rows::{self, Row, bad_row};
use crate::saved_state;
use crate::sealed::Mark;

/// What a log records that concerns more than its thread.
#[derive(Debug, Default)]
pub(crate) struct LogRecords {
    /// Postings, with the type of the event that records them.
    pub(crate) postings: Vec<(&'static str, Record)>,
    /// Postings that it records as lost.
    pub(crate) lost: Vec<DeletedPostings>,
    /// Other threads and their versions at the time.
    pub(crate) memories: Vec<(ThreadId, u64)>,
    /// Its versions, in order.
    pub(crate) versions: Vec<ReplayedVersion>,
}

/// One version of a thread.
#[derive(Clone, Debug)]
pub(crate) struct ReplayedVersion {
    pub(crate) version: u64,
    /// Its time; times never go back within a thread.
    pub(crate) at: Timestamp,
    /// The numbers of its lines.
    pub(crate) lines: Range<u64>,
}

/// The rows that a log is read into.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplayTarget {
    /// There are none yet.
    New,
    /// The rows of this thread, which have everything up to this version, if any.
    Existing(i64, Option<u64>),
}

/// A log that is being read into the database.
pub(crate) struct Replay<'a> {
    connection: &'a Db,
    thread: &'a ThreadId,
    id: Option<i64>,
    known: Option<u64>,
    manifest: Option<Manifest>,
    state: Value,
    state_changed: bool,
    posted: PostedVersions,
    consumed: ConsumedRequests,
    gathered: LogRecords,
    failed: Option<Error>,
}

/// A thread whose log is in the database.
pub(crate) struct Replayed {
    pub(crate) id: i64,
    pub(crate) manifest: Manifest,
    pub(crate) gathered: LogRecords,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(connection: &'a Db, thread: &'a ThreadId, into: ReplayTarget) -> Self {
        let (id, known) = match into {
            ReplayTarget::New => (None, None),
            ReplayTarget::Existing(id, known) => (Some(id), known),
        };
        Self {
            connection,
            thread,
            id,
            known,
            manifest: None,
            state: empty_state(),
            state_changed: false,
            posted: PostedVersions::new(),
            consumed: ConsumedRequests::default(),
            gathered: LogRecords::default(),
            failed: None,
        }
    }

    /// The same, for a thread that has consumed these requests.
    pub(crate) fn having_consumed(self, consumed: ConsumedRequests) -> Self {
        Self { consumed, ..self }
    }

    /// Adds one changeset; an error is returned by [`Replay::finish`].
    pub(crate) fn entry(&mut self, entry: &ScannedChangeset) {
        if self.failed.is_none() {
            self.failed = self.take(entry).err();
        }
    }

    fn take(&mut self, entry: &ScannedChangeset) -> Result<()> {
        let (Some(checkpoint), Some(last)) = (entry.checkpoint(), entry.lines.last()) else { return Ok(()) };
        let at = last.timestamp;
        for line in &entry.lines {
            self.fold(&line.event, line.timestamp)?;
            seal::note_postings(&mut self.posted, std::slice::from_ref(&line.event));
        }
        let Some(manifest) = &mut self.manifest else { return Ok(()) };
        manifest.updated_at = at;
        if self.known.is_some_and(|known| entry.head.version <= known) {
            return Ok(());
        }
        let id = match self.id {
            Some(id) => id,
            None => {
                let (text, digest) = index::stored(manifest)?;
                let row = Row {
                    id: 0,
                    manifest: manifest.clone(),
                    stored: digest,
                    head: entry.head.clone(),
                    sealed: Vec::new(),
                    epoch: entry.head.epoch,
                    owner: None,
                    posted: PostedVersions::new(),
                    consumed: self.consumed.clone(),
                    leads: 0,
                    anchor: anchor::epoch(self.connection)?,
                    mark: Mark::NONE,
                };
                let now =
                    RowUpdate { row: &row, manifest: Some(&text), manifest_shown: true, counts: None, redo: None };
                let exists = || Error::Exists(self.thread.clone());
                index::insert_thread(self.connection, &now, self.connection.seals())?.ok_or_else(exists)?.id
            }
        };
        self.id = Some(id);
        self.add(id, entry, at)?;
        if let (Some(key), Some(request)) = (&checkpoint.key, &checkpoint.request) {
            let mut versions = checkpoint.with.clone();
            versions.push((self.thread.clone(), checkpoint.version));
            versions.sort();
            // The other logs of this batch have the same key; the first one inserts it.
            rows::put_key(self.connection, key, request, &Committed { versions, ..Committed::default() })?;
        }
        self.gathered.memories.extend(checkpoint.with.iter().cloned());
        let at = self.gathered.versions.last().map_or(at, |latest| at.max(latest.at));
        let end = entry.head.lines;
        let lines = end.saturating_sub(entry.lines.len() as u64)..end;
        self.gathered.versions.push(ReplayedVersion { version: entry.head.version, at, lines });
        Ok(())
    }

    fn fold(&mut self, event: &Event, at: Timestamp) -> Result<()> {
        let refuse = |source: FoldError| Error::Fold { thread: self.thread.clone(), source };
        match (event, &mut self.manifest) {
            (Event::ThreadCreated(created), None) => {
                self.manifest = Some(Manifest::born(self.thread, created, at));
                let predecessor = created.thread.continuation_of.as_ref();
                self.gathered
                    .memories
                    .extend(predecessor.map(|predecessor| (predecessor.thread_id.clone(), predecessor.version)));
            }
            (_, Some(manifest)) => manifest.apply(event, at).map_err(|error| refuse(error.into()))?,
            (_, None) => return Err(refuse(FoldError::NotBorn)),
        }
        if matches!(event, Event::Snapshot(_) | Event::Patch(_)) {
            apply_to_state(&mut self.state, event).map_err(|error| refuse(error.into()))?;
            self.state_changed = true;
        }
        Ok(())
    }

    fn add(&mut self, id: i64, entry: &ScannedChangeset, at: Timestamp) -> Result<()> {
        let mut messages = Vec::new();
        let mut runs = Vec::new();
        let mut erased: Vec<BlobErased> = Vec::new();
        let mut answered = Vec::new();
        for line in &entry.lines {
            match &line.event {
                Event::Message(message) => {
                    messages.extend(message.id.clone().map(|id| (id, sha256(&message.content_bytes()))));
                }
                Event::RunStarted(run) | Event::RunFinished(run) => {
                    let known =
                        rows::run(self.connection, &rows::existing(self.connection, self.thread)?, &run.run_id)?;
                    runs.push(Run::upsert(known, self.thread, run, line.timestamp));
                }
                Event::BlobErased(one) => erased.push(one.clone()),
                Event::RequestAnswered(one) => answered.push(one.request_id.clone()),
                Event::Recovery(found) => self.gathered.lost.extend(found.postings.iter().cloned()),
                other => self.gathered.postings.extend(posting(other)),
            }
        }
        let touched_run = entry.checkpoint().and_then(|checkpoint| checkpoint.run_id.as_ref());
        let log = &entry.head.log_id;
        let added = AddedRows { log, messages: &messages, runs: &runs, erased: &erased, touched_run, at };
        // An imported log may have a message twice.
        index::add(self.connection, id, &added)?;
        match &self.manifest {
            Some(manifest) => {
                let root = &manifest.chain_root_id;
                inbox::remember(self.connection, id, (self.thread, root), &answered, entry.head.version)
            }
            None => Ok(()),
        }
    }

    /// Moves the head of the thread to the end of its log. `epoch` is the lowest epoch that the lease may have.
    pub(crate) fn finish(self, tail: &Tail, key: Option<&SealKey>, epoch: u64) -> Result<Replayed> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let (Some(id), Some(manifest), Some(head)) = (self.id, self.manifest, &tail.head) else {
            return Err(Error::Fold { thread: self.thread.clone(), source: FoldError::NotBorn });
        };
        let seen = rows::existing(self.connection, self.thread)?;
        let sealed = key.map(|key| index::seal(key, head, &tail.hash)).unwrap_or_default();
        let (text, digest) = index::stored(&manifest)?;
        let is_changed = index::changed(&manifest, &seen.manifest);
        let row = Row {
            id,
            manifest: manifest.clone(),
            stored: if is_changed { digest } else { seen.stored },
            head: head.clone(),
            sealed,
            epoch: epoch.max(head.epoch),
            owner: seen.owner.clone(),
            posted: self.posted,
            consumed: seen.consumed.clone(),
            leads: seen.leads,
            anchor: anchor::epoch(self.connection)?.max(seen.anchor),
            mark: Mark::NONE,
        }
        .sealed(self.connection.seals());
        let text = is_changed.then_some(text.as_str());
        let now = RowUpdate { row: &row, manifest: text, manifest_shown: true, counts: None, redo: None };
        if !index::move_head(self.connection, &now, &seen)? {
            return Err(bad_row("a head changed during the transaction"));
        }
        // Without a key it would not be valid.
        if let Some(key) = key.filter(|_| self.state_changed) {
            let text = saved_state::seal(key, head, tail, &self.state)?;
            rows::save_state(self.connection, id, head, &text)?;
        }
        Ok(Replayed { id, manifest, gathered: self.gathered })
    }
}

/// The record of a posting, with the type of its event.
fn posting(event: &Event) -> Option<(&'static str, Record)> {
    event.posting().map(|(name, record)| (name, record.clone()))
}

/// Reads a transcript, every hash and every signature of it, and passes each valid changeset to `each`. A missing file is treated as empty.
pub(crate) fn read_log(
    disk: &dyn Disk,
    layout: &Layout,
    thread: &ThreadId,
    trust: &Trust,
    watched: Option<u64>,
    mut each: impl FnMut(&ScannedChangeset),
) -> io::Result<Examined> {
    let file = match disk.open(&layout.transcript(thread), OpenMode::Read) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let reader = BufReader::with_capacity(1 << 16, Overlay::of_file(file)?);
    let scanner = Scanner::new(thread, trust, Signatures::Every).watching(watched);
    examine(reader, scanner, |entry| each(&entry))
}
