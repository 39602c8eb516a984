//! The fold of a log, as far as a backend's rows are compared with it: the manifest, messages, runs, commit keys, answered requests and
//! erased blobs. Memory depends on how many of those a thread has.

use std::collections::{BTreeSet, HashMap};

use selvedge_log::Line;
use selvedge_log::hash::sha256;
use selvedge_log::scan::ScannedChangeset;
use selvedge_model::{Digest, Event, Manifest, MessageId, ThreadId};

/// The fold of a log, as far as it is compared.
pub struct Folded<'a> {
    thread: &'a ThreadId,
    manifest: Option<Manifest>,
    /// The messages with an id, and the digest of the first content under that id.
    pub messages: HashMap<MessageId, Digest>,
    /// The runs.
    pub runs: BTreeSet<String>,
    /// The requests that were answered.
    pub answered: BTreeSet<String>,
    /// The blobs that were erased.
    pub erased: BTreeSet<Vec<u8>>,
    /// The keys of its commits.
    pub keys: BTreeSet<String>,
    /// Its last signer.
    pub signer: Option<Digest>,
    /// Whether an event did not apply; then there is nothing to compare with.
    failed: bool,
}

impl<'a> Folded<'a> {
    /// The empty fold of a thread.
    pub fn new(thread: &'a ThreadId) -> Self {
        Self {
            thread,
            manifest: None,
            messages: HashMap::new(),
            runs: BTreeSet::new(),
            answered: BTreeSet::new(),
            erased: BTreeSet::new(),
            keys: BTreeSet::new(),
            signer: None,
            failed: false,
        }
    }

    /// Adds one changeset.
    pub fn take(&mut self, entry: &ScannedChangeset) {
        for line in &entry.lines {
            self.line(line);
        }
    }

    /// Adds one line.
    pub fn line(&mut self, line: &Line) {
        match (&line.event, &mut self.manifest) {
            (Event::ThreadCreated(created), None) => {
                self.manifest = Some(Manifest::born(self.thread, created, line.timestamp));
            }
            (event, Some(manifest)) => self.failed |= manifest.apply(event, line.timestamp).is_err(),
            (_, None) => self.failed = true,
        }
        match &line.event {
            Event::Message(message) => {
                if let Some(id) = &message.id {
                    // The first is used, as in the index.
                    self.messages.entry(id.clone()).or_insert_with(|| sha256(&message.content_bytes()));
                }
            }
            Event::RunStarted(run) | Event::RunFinished(run) => _ = self.runs.insert(run.run_id.to_string()),
            Event::RequestAnswered(answered) => _ = self.answered.insert(answered.request_id.to_string()),
            Event::BlobErased(erased) => _ = self.erased.insert(erased.blob.0.to_vec()),
            Event::Checkpoint(checkpoint) => {
                self.keys.extend(checkpoint.key.as_ref().map(ToString::to_string));
                self.signer = Some(checkpoint.signer);
            }
            _ => {}
        }
    }

    /// The manifest; none if an event did not apply, and then there is nothing to compare with.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref().filter(|_| !self.failed)
    }
}
