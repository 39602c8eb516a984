//! A store whose commits fail on demand, as if the process were killed there.

use std::sync::atomic::{AtomicU64, Ordering};

use selvedge_model::{Batch, CommitKey, Digest, ThreadId};
use selvedge_store::memory::MemoryStore;
use selvedge_store::{Commit, Committed, Error, Result, Tombstone};

#[derive(Clone, Copy)]
enum Fault {
    /// The commit of this number fails, once.
    Once { at: u64, is_committed: bool },
    /// Every commit happens, and its first answer is lost.
    LostAnswers,
}

pub(crate) struct Fragile {
    inner: MemoryStore,
    fault: Fault,
    calls: AtomicU64,
}

impl Fragile {
    /// A store whose commit number `at` fails, before or after it happened.
    pub(crate) fn new(inner: MemoryStore, at: u64, is_committed: bool) -> Self {
        Self { inner, fault: Fault::Once { at, is_committed }, calls: AtomicU64::new(0) }
    }

    /// A store that loses the first answer of every commit.
    pub(crate) fn losing_every_answer(inner: MemoryStore) -> Self {
        Self { inner, fault: Fault::LostAnswers, calls: AtomicU64::new(0) }
    }
}

impl Commit for Fragile {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::Once { at, is_committed } if call == at => {
                if is_committed {
                    self.inner.commit(batch)?;
                }
                Err(Error::Database { why: "killed".to_owned(), retryable: false })
            }
            Fault::LostAnswers if call.is_multiple_of(2) => {
                self.inner.commit(batch)?;
                Err(Error::OutcomeUnknown { why: "the answer was lost".to_owned() })
            }
            _ => self.inner.commit(batch),
        }
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

selvedge_store::forward!([] Fragile, inner: Logs, Leases, Inbox, Registry, Feed, Ledger);
