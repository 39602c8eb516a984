//! Imports a file into a thread, step by step; killed at any step and run again, it gives the same result.

use std::io::BufReader;
use std::time::Duration;

use selvedge_log::Trust;
use selvedge_log::hash::{RunningHash, sha256};
use selvedge_model::event::{Fields, ManifestChanged};
use selvedge_model::{
    AgentId, Batch, Changeset, CommitKey, Event, Expect, Message, NewThread, Part, Reason, TaskId, ThreadId,
};
use selvedge_store::{Acquire, Error, Store};
use serde::Serialize;

use super::earlier_imports::{EarlierImports, FileBeginning, content_key};
use super::error::NovaError;
use super::mapping::{self, ImportedEvent, Provenance, fits};
use super::plan::{self, Plan};
use super::record::{ImportPosition, ImportRecord};
use super::source::Source;
use super::stored_bytes::{StoredBytes, keep, next_piece};
use super::survey::{Added, Survey, is_new, position_after, skip};
use crate::nova_file::{Counts, FileLine, Manifest, Reader, Start};

/// The maximum number of events of one commit, if no line has more.
const CHUNK_EVENTS: usize = 512;
/// The maximum number of the file's bytes of one commit, if no line is longer.
const CHUNK_BYTES: u64 = 1 << 20;
/// How long to wait for another process that imports into the same thread.
const WAIT: Duration = Duration::from_secs(60);
/// How often an import that conflicts with other writers is planned again.
const TRIES: usize = 8;
/// The agent of a file that names none.
const UNKNOWN_AGENT: &str = "unknown";

/// The outcome of an import, or of its preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is a new thread.
    New,
    /// An interrupted import is finished.
    Resumed,
    /// The file has grown or has another manifest, and only that is added.
    Extended,
    /// The file was imported before; nothing is added.
    Unchanged,
}

/// The result of an import, or of its preview.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The outcome.
    pub outcome: Outcome,
    /// The thread.
    pub thread_id: ThreadId,
    /// The thread's version; none in a preview of a new thread.
    pub version: Option<u64>,
    /// What is added.
    pub added: Added,
    /// Events that fit on no line of a log; they are only in the blobs.
    pub too_large: u64,
    /// What was found in the whole file.
    pub counts: Counts,
}

/// What an import would do, exactly; writes nothing.
pub fn preview(store: &dyn Store, trust: &Trust, source: &dyn Source) -> Result<Report, NovaError> {
    Importer::new(store, trust).preview(source)
}

/// Imports a file. After an interruption, running it again finishes it and adds nothing twice.
pub fn import(store: &dyn Store, trust: &Trust, source: &dyn Source) -> Result<Report, NovaError> {
    Importer::new(store, trust).import(source)
}

/// Imports any number of files, and looks up earlier imports only once.
pub struct Importer<'a> {
    store: &'a dyn Store,
    trust: &'a Trust,
    earlier_imports: EarlierImports,
}

impl<'a> Importer<'a> {
    /// An importer into a store.
    pub fn new(store: &'a dyn Store, trust: &'a Trust) -> Self {
        Self { store, trust, earlier_imports: EarlierImports::default() }
    }

    /// What an import would do, exactly; writes nothing.
    pub fn preview(&mut self, source: &dyn Source) -> Result<Report, NovaError> {
        Ok(plan::plan(self.store, self.trust, &mut self.earlier_imports, source)?.report())
    }

    /// Imports a file. After an interruption, running it again finishes it and adds nothing twice.
    pub fn import(&mut self, source: &dyn Source) -> Result<Report, NovaError> {
        let mut tries = TRIES;
        loop {
            let plan = plan::plan(self.store, self.trust, &mut self.earlier_imports, source)?;
            let mut report = plan.report();
            if plan.outcome == Outcome::Unchanged {
                return Ok(report);
            }
            tries -= 1;
            let beginning = FileBeginning::of(source, &plan.survey)?;
            match Import::of(self.store, source, plan, beginning).run() {
                // Another process imports the same file, or wrote to the thread: its work is not repeated.
                Err(NovaError::Store(Error::Conflict { .. } | Error::Exists(_) | Error::KeyReused(_))) if tries > 0 => {
                }
                done => {
                    report.version = Some(done?);
                    self.earlier_imports.add(&report.thread_id, beginning);
                    return Ok(report);
                }
            }
        }
    }
}

/// The same agent id if it is valid, else a valid one made from it; the original stays in the record.
fn agent_id(manifest: Option<&Manifest>) -> Option<AgentId> {
    let original = manifest.and_then(Manifest::agent_id).unwrap_or(UNKNOWN_AGENT);
    let fit = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9' | '_' | '-') => c,
        _ => '-',
    };
    let slug: String = original.chars().map(fit).take(100).collect();
    let slug = slug.trim_matches('-');
    [original, slug, UNKNOWN_AGENT].into_iter().find_map(|name| AgentId::new(name).ok())
}

/// An import in progress.
struct Import<'a> {
    store: &'a dyn Store,
    source: &'a dyn Source,
    thread: ThreadId,
    survey: Survey,
    record: ImportRecord,
    /// The version of the thread; none before it is created.
    version: Option<u64>,
    /// The epoch of the lease, once it is held.
    epoch: Option<u64>,
}

impl<'a> Import<'a> {
    fn of(store: &'a dyn Store, source: &'a dyn Source, plan: Plan, beginning: FileBeginning) -> Self {
        let Plan { thread, original_id, record, version, survey, .. } = plan;
        let begin = || ImportRecord { begins: Some(beginning), ..ImportRecord::begin(source.name(), &original_id) };
        Self { store, source, thread, survey, record: record.unwrap_or_else(begin), version, epoch: None }
    }

    fn run(mut self) -> Result<u64, NovaError> {
        if self.version.is_none() {
            self.create()?;
        }
        // One importer at a time: two that store the same bytes would give them two names.
        let lease = self.store.acquire(&self.thread, Acquire { wait: WAIT, take_over: false })?;
        self.epoch = Some(lease.epoch);
        let done = self.run_alone();
        // If the release fails, the lease is lost already, or the process is about to end.
        _ = self.store.release(&lease);
        done
    }

    fn run_alone(&mut self) -> Result<u64, NovaError> {
        let expected = self.version.unwrap_or_default();
        let actual = self.store.head(&self.thread)?.version;
        if expected != actual {
            return Err(Error::Conflict { thread: self.thread.clone(), expected, actual }.into());
        }
        self.keep_events()?;
        self.import_events()?;
        Ok(self.version.unwrap_or_default())
    }

    /// Creates the thread, with the fields of its manifest and the record of an import that has just begun.
    fn create(&mut self) -> Result<(), NovaError> {
        let manifest = self.survey.manifest.clone();
        let manifest = manifest.as_ref();
        if let Some(manifest) = manifest {
            self.record.set_manifest(manifest);
        }
        let Some(agent) = agent_id(manifest) else { return Err(Error::BadBirth.into()) };
        let thread = NewThread {
            title: manifest.and_then(Manifest::title).map(str::to_owned),
            task_id: manifest.and_then(Manifest::task_id).and_then(|task| TaskId::new(task).ok()),
            ..NewThread::of(agent)
        };
        let session = manifest.and_then(Manifest::session_id).map(str::to_owned);
        let change = ManifestChanged { session_id: session, ..ManifestChanged::default() };
        let events = change.session_id.is_some().then(|| Event::ManifestChanged(change.clone()));
        self.commit(Changeset {
            patches: vec![self.record.begin_patch()],
            events: events.into_iter().collect(),
            ..Changeset::creating(thread)
        })
    }

    /// Stores the bytes after the head that are not stored yet, and records that after each blob.
    fn keep_events(&mut self) -> Result<(), NovaError> {
        let source = self.source;
        let failed = || NovaError::reading(source.name());
        let mut input = source.open().map_err(failed())?;
        let mut hash = RunningHash::new();
        let mut at = 0;
        let mut buffer = Vec::new();
        skip(&mut *input, self.survey.head_bytes).map_err(failed())?;
        while at < self.survey.bytes {
            let end = if at < self.record.bytes { self.record.bytes } else { self.survey.bytes };
            next_piece(&mut *input, end - at, &mut buffer, source)?;
            hash.update(&buffer);
            let is_new = at >= self.record.bytes;
            at += buffer.len() as u64;
            if buffer.is_empty() || !is_new && at == self.record.bytes && hash.digest() != self.record.sha256 {
                return Err(NovaError::Changed { name: source.name().to_owned() });
            }
            if is_new {
                let piece = keep(self.store, &self.thread, &buffer)?;
                self.record.blobs.push(piece);
                self.record.bytes = at;
                self.record.sha256 = hash.digest();
                self.record.complete = false;
                let patches = vec![self.record.kept_patch(piece)];
                self.commit(Changeset { patches, ..Changeset::empty(Reason::Lifecycle) })?;
            }
        }
        if hash.digest() != self.survey.hash {
            return Err(NovaError::Changed { name: source.name().to_owned() });
        }
        Ok(())
    }

    /// Imports what is stored and not imported yet, read from the blobs, so that the log has what they have.
    fn import_events(&mut self) -> Result<(), NovaError> {
        let from = self.record.imported;
        let start = if from.bytes == 0 { self.survey.start } else { Start { line: from.line, part: 1 } };
        let store = self.store;
        let thread = self.thread.clone();
        let kept = StoredBytes::new(store, &thread, self.record.blobs.clone(), from.bytes);
        let mut reader = Reader::starting_at(BufReader::new(kept), start);
        let mut chunk = Chunk::default();
        while let Some(mut line) = reader.next_line().map_err(NovaError::reading(self.source.name()))? {
            line.start += from.bytes;
            line.end += from.bytes;
            if chunk.is_full_before(&line) {
                let changeset = std::mem::take(&mut chunk).into_changeset();
                let patches = vec![self.record.position_patch()];
                self.commit(Changeset { patches, ..changeset })?;
            }
            self.record.imported = position_after(&line);
            chunk.add(line, from);
        }
        self.finish(chunk)
    }

    /// The last commit: the current manifest, the exact counts, and completeness.
    fn finish(&mut self, chunk: Chunk) -> Result<(), NovaError> {
        self.keep_head()?;
        let change = self.survey.manifest.as_ref().and_then(|manifest| changed(self.record.manifest(), manifest));
        if let Some(manifest) = &self.survey.manifest {
            self.record.set_manifest(manifest);
        }
        self.record.counts = Some(self.survey.counts.clone());
        self.record.too_large = self.survey.too_large;
        self.record.complete = true;
        self.record.log_version = Some(self.version.map_or(0, |version| version + 1));
        let changeset = chunk.into_changeset();
        let events = change.map(Event::ManifestChanged).into_iter().collect();
        self.commit(Changeset { patches: vec![self.record.end_patch()], events, ..changeset })
    }

    fn keep_head(&mut self) -> Result<(), NovaError> {
        if self.record.head_sha256 == Some(self.survey.head_hash) {
            return Ok(());
        }
        let mut input = self.source.open().map_err(NovaError::reading(self.source.name()))?;
        let mut left = self.survey.head_bytes;
        let mut hash = RunningHash::new();
        let mut buffer = Vec::new();
        self.record.head_blobs.clear();
        while left > 0 {
            next_piece(&mut *input, left, &mut buffer, self.source)?;
            if buffer.is_empty() {
                break;
            }
            hash.update(&buffer);
            left -= buffer.len() as u64;
            self.record.head_blobs.push(keep(self.store, &self.thread, &buffer)?);
        }
        if hash.digest() != self.survey.head_hash {
            return Err(NovaError::Changed { name: self.source.name().to_owned() });
        }
        self.record.head_sha256 = Some(self.survey.head_hash);
        Ok(())
    }

    /// Commits one step. The key of the first is derived from the content, so that it creates one thread; the others are derived from
    /// thread, content and version. A step whose answer was lost is committed once.
    fn commit(&mut self, changeset: Changeset) -> Result<(), NovaError> {
        let survey = &self.survey;
        let (key, expect, step) = match self.version {
            None => (content_key(self.store, survey)?.0, Expect::Absent, 0),
            Some(version) => {
                let step = version + 1;
                let name = format!("{}\0{}\0{}\0{step}", self.thread, survey.head_hash, survey.hash);
                let key = CommitKey::new(format!("nova:{}", sha256(name.as_bytes()))).ok();
                (key, Expect::Exact(version), step)
            }
        };
        let part = Part::new(self.thread.clone(), expect, changeset);
        let part = if let Some(epoch) = self.epoch { part.under(epoch) } else { part };
        let batch = Batch { key, ..Batch::of(part) };
        let committed = match self.store.commit(batch.clone()) {
            Err(Error::OutcomeUnknown { .. }) => self.store.commit(batch)?,
            other => other?,
        };
        self.version = committed.version_of(&self.thread).or(Some(step));
        Ok(())
    }
}

/// The changed fields of the manifest.
fn changed(before: Option<Manifest>, now: &Manifest) -> Option<ManifestChanged> {
    let before = before.unwrap_or_default();
    let differs = |before: Option<&str>, now: Option<&str>| now.filter(|now| before != Some(now)).map(str::to_owned);
    let change = ManifestChanged {
        title: differs(before.title(), now.title()),
        session_id: differs(before.session_id(), now.session_id()),
        ..ManifestChanged::default()
    };
    (change != ManifestChanged::default()).then_some(change)
}

/// The content of the next commit.
#[derive(Default)]
struct Chunk {
    messages: Vec<Message>,
    origins: Vec<Provenance>,
    actions: Vec<Fields>,
    bytes: u64,
}

impl Chunk {
    fn is_full_before(&self, line: &FileLine) -> bool {
        let events = self.messages.len() + self.actions.len();
        events > 0 && (events + line.events.len() > CHUNK_EVENTS || self.bytes + (line.end - line.start) > CHUNK_BYTES)
    }

    /// Adds the content of a line after the position that was reached before.
    fn add(&mut self, line: FileLine, from: ImportPosition) {
        let length = line.end - line.start;
        self.bytes += length;
        let is_wanted = |part, event: &_| is_new(&line, part, from) && fits(event, length);
        let wanted: Vec<_> = line.events.iter().map(|found| is_wanted(found.part, &found.event)).collect();
        let wanted = line.events.into_iter().zip(wanted).filter(|(_, wanted)| *wanted);
        for ours in wanted.filter_map(|(found, _)| mapping::to_ours(found)) {
            match ours {
                ImportedEvent::Message(message, origin) => {
                    self.messages.push(message);
                    self.origins.push(origin);
                }
                ImportedEvent::Action(fields) => self.actions.push(fields),
            }
        }
    }

    fn into_changeset(self) -> Changeset {
        let state_actions = mapping::origin_of(self.origins).into_iter().chain(self.actions).collect();
        Changeset { messages: self.messages, state_actions, ..Changeset::empty(Reason::Lifecycle) }
    }
}
