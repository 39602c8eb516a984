//! A store whose commits fail on demand, as if the process were killed there.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use selvedge_log::{Head, Line};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::{Batch, CommitKey, Committed, Digest, Note, OwnerId, Run, ThreadId};
use selvedge_store::memory::MemoryStore;
use selvedge_store::{
    Acquire, Alive, Commit, Commitment, Cursor, Error, Feed, Filter, Lease, Leases, Ledger, Logs, Notes, Page,
    Registry, Result, Summary, Tombstone,
};

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

    /// A store that never says what became of a commit unless it is asked twice.
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

impl Logs for Fragile {
    fn head(&self, thread: &ThreadId) -> Result<Head> {
        self.inner.head(thread)
    }

    fn read(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>> {
        self.inner.read(thread, from, limit)
    }

    fn transcript(&self, thread: &ThreadId) -> Result<(Head, Box<dyn BufRead + Send>)> {
        self.inner.transcript(thread)
    }

    fn blob(&self, thread: &ThreadId, blob: &Digest) -> Result<Vec<u8>> {
        self.inner.blob(thread, blob)
    }
}

impl Leases for Fragile {
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.inner.acquire(thread, how)
    }

    fn renew(&self, lease: &Lease) -> Result<()> {
        self.inner.renew(lease)
    }

    fn keep_alive(&self, lease: &Lease, alive: Alive) -> Result<()> {
        self.inner.keep_alive(lease, alive)
    }
    fn last_alive(&self, thread: &ThreadId) -> Result<Option<Alive>> {
        self.inner.last_alive(thread)
    }

    fn release(&self, lease: &Lease) -> Result<()> {
        self.inner.release(lease)
    }
    fn abandon(&self, lease: &Lease) -> Result<()> {
        self.inner.abandon(lease)
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>> {
        self.inner.holder(thread)
    }

    fn expired(&self) -> Result<Vec<Lease>> {
        self.inner.expired()
    }
}

impl Notes for Fragile {
    fn post(&self, note: Note) -> Result<()> {
        self.inner.post(note)
    }

    fn pending(&self, thread: &ThreadId) -> Result<Vec<Note>> {
        self.inner.pending(thread)
    }
}

impl Registry for Fragile {
    fn get(&self, thread: &ThreadId) -> Result<Summary> {
        self.inner.get(thread)
    }

    fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>> {
        self.inner.list(filter, after, limit)
    }

    fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.inner.chain(thread)
    }

    fn children(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.inner.children(thread)
    }

    fn runs(&self, thread: &ThreadId) -> Result<Vec<Run>> {
        self.inner.runs(thread)
    }

    fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        self.inner.resolve(prefix)
    }

    fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>> {
        self.inner.tombstone(thread)
    }
}

impl Feed for Fragile {
    fn position(&self) -> Result<u64> {
        self.inner.position()
    }

    fn after(&self, position: u64, limit: usize) -> Result<Vec<Commitment>> {
        self.inner.after(position, limit)
    }

    fn wait(&self, position: u64, timeout: Duration) -> Result<()> {
        self.inner.wait(position, timeout)
    }
}

impl Ledger for Fragile {
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        self.inner.reservations(account)
    }

    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        self.inner.account(id)
    }

    fn tree(&self, id: &AccountId) -> Result<Vec<Account>> {
        self.inner.tree(id)
    }
}
