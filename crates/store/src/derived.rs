//! What the rows of a thread are, derived from its log: a backend that imports, repairs or rebuilds writes them.
//!
//! Each valid changeset becomes what its commit wrote. Only the fold of one thread is kept in memory, and what its log records that concerns
//! more than the thread: postings, the versions of other threads, and the time of each version.

use std::collections::BTreeMap;
use std::ops::Range;

use selvedge_log::Head;
use selvedge_log::hash::sha256;
use selvedge_log::scan::ScannedChangeset;
use selvedge_model::account::Record;
use selvedge_model::account::replay::DeletedPostings;
use selvedge_model::event::BlobErased;
use selvedge_model::fold::{FoldError, apply_to_state, empty_state};
use selvedge_model::{CommitKey, Digest, Event, Manifest, MessageId, RequestId, Run, RunId, ThreadId, Timestamp};
use serde_json::Value;

use crate::contract::Committed;
use crate::error::{Error, Result};
use crate::seal::{self, PostedVersions};

/// What a log records that concerns more than its thread.
#[derive(Debug, Default)]
pub struct LogRecords {
    /// Postings, with the type of the event that records them.
    pub postings: Vec<(&'static str, Record)>,
    /// Postings that it records as lost.
    pub lost: Vec<DeletedPostings>,
    /// Other threads and their versions at the time.
    pub memories: Vec<(ThreadId, u64)>,
    /// Its versions, in order.
    pub versions: Vec<DerivedVersion>,
}

/// One version of a thread.
#[derive(Clone, Debug)]
pub struct DerivedVersion {
    /// The version.
    pub version: u64,
    /// Its time; times never go back within a thread.
    pub at: Timestamp,
    /// The numbers of its lines.
    pub lines: Range<u64>,
}

/// What a changeset adds to the rows of its thread, besides the head.
#[derive(Debug)]
pub struct DerivedChangeset {
    /// The head of the log behind it.
    pub head: Head,
    /// Its time.
    pub at: Timestamp,
    /// Messages with ids, and the digests of their contents. A log that was imported may have one twice.
    pub messages: Vec<(MessageId, Digest)>,
    /// Runs that it began or ended.
    pub runs: Vec<Run>,
    /// The run that it belongs to.
    pub touched_run: Option<RunId>,
    /// Blobs that it erased.
    pub erased: Vec<BlobErased>,
    /// Requests that it answered.
    pub answered: Vec<RequestId>,
    /// Its key, the digest of what was asked under it, and the answer. Every log of a batch has the same.
    pub key: Option<(CommitKey, Digest, Committed)>,
}

/// A log whose rows are being derived.
#[derive(Debug)]
pub struct Derivation {
    thread: ThreadId,
    known: Option<u64>,
    manifest: Option<Manifest>,
    state: Value,
    state_changed: bool,
    runs: BTreeMap<RunId, Run>,
    posted: PostedVersions,
    gathered: LogRecords,
}

/// A thread whose log was read to its end.
#[derive(Debug)]
pub struct Derived {
    /// Its manifest.
    pub manifest: Manifest,
    /// Its state, unless it is that of a new thread.
    pub state: Option<Value>,
    /// The newest version of each account that it posted to.
    pub posted: PostedVersions,
    /// What it records that concerns more than the thread.
    pub gathered: LogRecords,
}

impl Derivation {
    /// A log of which everything up to the version `known` is in the rows already, if anything is.
    pub fn new(thread: &ThreadId, known: Option<u64>) -> Self {
        Self {
            thread: thread.clone(),
            known,
            manifest: None,
            state: empty_state(),
            state_changed: false,
            runs: BTreeMap::new(),
            posted: PostedVersions::new(),
            gathered: LogRecords::default(),
        }
    }

    /// The manifest after the changesets that were taken.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Takes the next changeset; returns what it adds, unless that is known.
    pub fn take(&mut self, entry: &ScannedChangeset) -> Result<Option<DerivedChangeset>> {
        let (Some(checkpoint), Some(last)) = (entry.checkpoint(), entry.lines.last()) else { return Ok(None) };
        let at = last.timestamp;
        let mut made = DerivedChangeset {
            head: entry.head.clone(),
            at,
            messages: Vec::new(),
            runs: Vec::new(),
            touched_run: checkpoint.run_id.clone(),
            erased: Vec::new(),
            answered: Vec::new(),
            key: None,
        };
        let is_known = self.known.is_some_and(|known| entry.head.version <= known);
        for line in &entry.lines {
            self.fold(&line.event, line.timestamp)?;
            seal::note_postings(&mut self.posted, std::slice::from_ref(&line.event));
            if let Event::RunStarted(run) | Event::RunFinished(run) = &line.event {
                let run = Run::upsert(self.runs.remove(&run.run_id), &self.thread, run, line.timestamp);
                self.runs.insert(run.run_id.clone(), run.clone());
                made.runs.push(run);
            } else if !is_known {
                self.add(&mut made, &line.event);
            }
        }
        let Some(manifest) = &mut self.manifest else { return Ok(None) };
        manifest.updated_at = at;
        if is_known {
            return Ok(None);
        }
        if let (Some(key), Some(request)) = (&checkpoint.key, &checkpoint.request) {
            let mut versions = checkpoint.with.clone();
            versions.push((self.thread.clone(), checkpoint.version));
            versions.sort();
            made.key = Some((key.clone(), *request, Committed { versions, ..Committed::default() }));
        }
        self.gathered.memories.extend(checkpoint.with.iter().cloned());
        let at = self.gathered.versions.last().map_or(at, |latest| at.max(latest.at));
        let end = entry.head.lines;
        let lines = end.saturating_sub(entry.lines.len() as u64)..end;
        self.gathered.versions.push(DerivedVersion { version: entry.head.version, at, lines });
        Ok(Some(made))
    }

    /// The thread, once every changeset was taken.
    pub fn finish(self) -> Result<Derived> {
        let Some(manifest) = self.manifest else {
            return Err(Error::Fold { thread: self.thread, source: FoldError::NotBorn });
        };
        let state = self.state_changed.then_some(self.state);
        Ok(Derived { manifest, state, posted: self.posted, gathered: self.gathered })
    }

    fn fold(&mut self, event: &Event, at: Timestamp) -> Result<()> {
        let refuse = |source: FoldError| Error::Fold { thread: self.thread.clone(), source };
        match (event, &mut self.manifest) {
            (Event::ThreadCreated(created), None) => {
                self.manifest = Some(Manifest::born(&self.thread, created, at));
                let predecessor = created.thread.continuation_of.as_ref();
                let memory = predecessor.map(|predecessor| (predecessor.thread_id.clone(), predecessor.version));
                self.gathered.memories.extend(memory);
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

    fn add(&mut self, made: &mut DerivedChangeset, event: &Event) {
        match event {
            Event::Message(message) => {
                made.messages.extend(message.id.clone().map(|id| (id, sha256(&message.content_bytes()))));
            }
            Event::BlobErased(one) => made.erased.push(one.clone()),
            Event::RequestAnswered(one) => made.answered.push(one.request_id.clone()),
            Event::Recovery(found) => self.gathered.lost.extend(found.postings.iter().cloned()),
            other => self.gathered.postings.extend(other.posting().map(|(name, record)| (name, record.clone()))),
        }
    }
}
