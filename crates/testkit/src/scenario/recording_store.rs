//! A store that records its commits as facts as soon as they return.
//!
//! A run executes in threads of its own, and its caller learns of a commit some time later: an interruption in between would find a
//! commit that was not recorded. So the store itself records it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_engine::RunEvent;
use selvedge_model::{Batch, CommitKey, Digest, ThreadId};
use selvedge_store::{Commit, Committed, Result, Tombstone};
use selvedge_store_local::LocalStore;

use crate::LabResult;
use crate::fact::{Fact, FactRecorder};

/// A store that records what it commits.
pub(super) struct RecordingStore {
    inner: Arc<LocalStore>,
    shared: Mutex<SharedRecorder>,
}

struct SharedRecorder {
    recorder: FactRecorder,
    /// The first error of recording.
    recorded: LabResult,
}

/// Executes `work` with a store that records what it commits.
pub(super) fn recording(
    store: &Arc<LocalStore>,
    recorder: &mut FactRecorder,
    work: impl FnOnce(&Arc<RecordingStore>) -> LabResult,
) -> LabResult {
    let shared = Mutex::new(SharedRecorder { recorder: std::mem::take(recorder), recorded: Ok(()) });
    let recording = Arc::new(RecordingStore { inner: store.clone(), shared });
    let done = work(&recording);
    let mut shared = recording.lock();
    *recorder = std::mem::take(&mut shared.recorder);
    let recorded = std::mem::replace(&mut shared.recorded, Ok(()));
    done.and(recorded)
}

impl RecordingStore {
    /// Receives the events of a run: a reported commit is a fact as well.
    pub(super) fn receive(&self, event: RunEvent) {
        if let RunEvent::Committed { thread, version, .. } = event {
            self.reached(thread, version);
        }
    }

    fn reached(&self, thread: ThreadId, version: u64) {
        let fact = Fact::Reached { thread, version };
        let mut shared = self.lock();
        if shared.recorded.is_ok() && !shared.recorder.facts().contains(&fact) {
            shared.recorded = shared.recorder.record(fact);
        }
    }

    fn lock(&self) -> MutexGuard<'_, SharedRecorder> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Commit for RecordingStore {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        let committed = self.inner.commit(batch)?;
        for (thread, version) in &committed.versions {
            self.reached(thread.clone(), *version);
        }
        Ok(committed)
    }
    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>> {
        self.inner.outcome(key)
    }
    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest> {
        self.inner.put_blob(thread, bytes)
    }
    fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        self.inner.delete(thread)
    }
}

selvedge_store::forward!([] RecordingStore, inner: Logs, Leases, Inbox, Registry, Feed, Ledger);
