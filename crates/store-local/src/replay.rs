//! Reading a log into the database: each changeset that holds becomes the rows that its commit wrote.
//!
//! Nothing is kept in memory but the fold of one thread and what its log says about things that belong to no thread alone:
//! postings, the versions of others, and when each version came. Whoever replays decides what becomes of those.

use std::io::{self, BufReader};
use std::ops::Range;

use selvedge_log::hash::{SealKey, sha256};
use selvedge_log::scan::{Entry, Examined, Scanner, Signatures, examine};
use selvedge_log::{Tail, Trust};
use selvedge_model::account::Record;
use selvedge_model::account::replay::Buried;
use selvedge_model::event::BlobErased;
use selvedge_model::fold::{FoldError, apply_to_state, empty_state};
use selvedge_model::{Event, Manifest, Run, ThreadId, Timestamp};
use selvedge_store::seal::{self, Heard, PostedVersions};
use selvedge_store::{Committed, Error, Result};
use serde_json::Value;

use crate::anchor;
use crate::db::Db;
use crate::disk::{Disk, How};
use crate::inbox;
use crate::index::{self, Added, Standing};
use crate::layout::Layout;
use crate::overlay::Overlay;
use crate::rows::{self, Row, bad_row};
use crate::saved_state;
use crate::sealed::Mark;

/// What a log says about things that belong to no thread alone.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Postings, with the type of the event that records them.
    pub(crate) postings: Vec<(&'static str, Record)>,
    /// Postings that it says it has lost.
    pub(crate) lost: Vec<Buried>,
    /// Other threads and the versions they had come to.
    pub(crate) memories: Vec<(ThreadId, u64)>,
    /// Its versions, in order.
    pub(crate) arrivals: Vec<Arrival>,
}

/// That a thread came to a version.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) version: u64,
    /// When; times never go back within a thread.
    pub(crate) at: Timestamp,
    /// The numbers of its lines.
    pub(crate) lines: Range<u64>,
}

/// The rows that a log is read into.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Into {
    /// There are none yet.
    Fresh,
    /// Those of this thread, which have everything up to this version, if any.
    Known(i64, Option<u64>),
}

/// A log on its way into the database.
pub(crate) struct Replay<'a> {
    connection: &'a Db,
    thread: &'a ThreadId,
    id: Option<i64>,
    known: Option<u64>,
    manifest: Option<Manifest>,
    state: Value,
    state_changed: bool,
    posted: PostedVersions,
    heard: Heard,
    gathered: Gathered,
    failed: Option<Error>,
}

/// A thread whose log is in the database.
pub(crate) struct Replayed {
    pub(crate) id: i64,
    pub(crate) manifest: Manifest,
    pub(crate) gathered: Gathered,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(connection: &'a Db, thread: &'a ThreadId, into: Into) -> Self {
        let (id, known) = match into {
            Into::Fresh => (None, None),
            Into::Known(id, known) => (Some(id), known),
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
            heard: Heard::default(),
            gathered: Gathered::default(),
            failed: None,
        }
    }

    /// The same, of a thread that has consumed these requests.
    pub(crate) fn having_heard(self, heard: Heard) -> Self {
        Self { heard, ..self }
    }

    /// Takes one changeset in; what fails is told at the end.
    pub(crate) fn entry(&mut self, entry: &Entry) {
        if self.failed.is_none() {
            self.failed = self.take(entry).err();
        }
    }

    fn take(&mut self, entry: &Entry) -> Result<()> {
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
                    heard: self.heard.clone(),
                    leads: 0,
                    anchor: anchor::epoch(self.connection)?,
                    mark: Mark::NONE,
                }
                .sealed(self.connection.seals());
                let now = Standing { row: &row, manifest: Some(&text), manifest_shown: true, counts: None, redo: None };
                let exists = || Error::Exists(self.thread.clone());
                index::insert_thread(self.connection, &now)?.ok_or_else(exists)?
            }
        };
        self.id = Some(id);
        self.add(id, entry, at)?;
        if let (Some(key), Some(request)) = (&checkpoint.key, &checkpoint.request) {
            let mut versions = checkpoint.with.clone();
            versions.push((self.thread.clone(), checkpoint.version));
            versions.sort();
            // The mates of this changeset tell the same; who comes first puts it in.
            rows::put_key(self.connection, key, request, &Committed { versions, ..Committed::default() })?;
        }
        self.gathered.memories.extend(checkpoint.with.iter().cloned());
        let at = self.gathered.arrivals.last().map_or(at, |latest| at.max(latest.at));
        let end = entry.head.lines;
        let lines = end.saturating_sub(entry.lines.len() as u64)..end;
        self.gathered.arrivals.push(Arrival { version: entry.head.version, at, lines });
        Ok(())
    }

    fn fold(&mut self, event: &Event, at: Timestamp) -> Result<()> {
        let refuse = |source: FoldError| Error::Fold { thread: self.thread.clone(), source };
        match (event, &mut self.manifest) {
            (Event::ThreadCreated(created), None) => {
                self.manifest = Some(Manifest::born(self.thread, created, at));
                let left = created.thread.continuation_of.as_ref();
                self.gathered.memories.extend(left.map(|left| (left.thread_id.clone(), left.version)));
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

    fn add(&mut self, id: i64, entry: &Entry, at: Timestamp) -> Result<()> {
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
        let added = Added { log, messages: &messages, runs: &runs, erased: &erased, touched_run, at };
        // A log from elsewhere may have a message twice.
        index::add(self.connection, id, &added)?;
        match &self.manifest {
            Some(manifest) => {
                let root = &manifest.chain_root_id;
                inbox::remember(self.connection, id, (self.thread, root), &answered, entry.head.version)
            }
            None => Ok(()),
        }
    }

    /// Moves the head of the thread to where its log ends. `epoch` is the least that the lease goes on above.
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
            heard: seen.heard.clone(),
            leads: seen.leads,
            anchor: anchor::epoch(self.connection)?.max(seen.anchor),
            mark: Mark::NONE,
        }
        .sealed(self.connection.seals());
        let text = is_changed.then_some(text.as_str());
        let now = Standing { row: &row, manifest: text, manifest_shown: true, counts: None, redo: None };
        if !index::move_head(self.connection, &now, &seen)? {
            return Err(bad_row("a head changed while its log was read"));
        }
        // Without a key it would not count.
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

/// Reads a transcript, every hash and every signature of it, and hands each changeset that holds to `each`. One that is not
/// there has no bytes.
pub(crate) fn read_log(
    disk: &dyn Disk,
    layout: &Layout,
    thread: &ThreadId,
    trust: &Trust,
    watched: Option<u64>,
    mut each: impl FnMut(&Entry),
) -> io::Result<Examined> {
    let file = match disk.open(&layout.transcript(thread), How::Read) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let reader = BufReader::with_capacity(1 << 16, Overlay::of_file(file)?);
    let scanner = Scanner::new(thread, trust, Signatures::Every).watching(watched);
    examine(reader, scanner, |entry| each(&entry))
}
