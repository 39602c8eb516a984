//! A store that measures the time spent in it.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use selvedge_log::{Head, Line};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::{Batch, CommitKey, Digest, OwnerId, Run, ThreadId, Timestamp};
use selvedge_store::{
    Acquire, Commit, Committed, Cursor, Filter, Lease, Leases, Ledger, Logs, Page, Registry, Result, Summary, Tombstone,
};
use selvedge_store_local::LocalStore;

/// A store, and the time that was spent in it.
pub(crate) struct Timed {
    inner: LocalStore,
    nanos: AtomicU64,
    /// How long each commit over several threads took, in microseconds.
    batches_us: Mutex<Vec<f64>>,
}

impl Timed {
    pub(crate) fn new(inner: LocalStore) -> Self {
        Self { inner, nanos: AtomicU64::new(0), batches_us: Mutex::default() }
    }

    pub(crate) fn inner(&self) -> &LocalStore {
        &self.inner
    }

    /// How long each commit over several threads took since the last call, in microseconds.
    pub(crate) fn take_batches(&self) -> Vec<f64> {
        std::mem::take(&mut *self.batches_us.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn micros(&self) -> f64 {
        self.nanos.load(Ordering::Relaxed) as f64 / 1e3
    }

    fn timed<T>(&self, ask: impl FnOnce(&LocalStore) -> T) -> T {
        let began = Instant::now();
        let answer = ask(&self.inner);
        self.nanos.fetch_add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        answer
    }
}

impl Commit for Timed {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        let is_over_several = batch.parts.len() > 1;
        let began = Instant::now();
        let committed = self.timed(|store| store.commit(batch));
        if is_over_several {
            let took = began.elapsed().as_secs_f64() * 1e6;
            self.batches_us.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        }
        committed
    }
    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>> {
        self.timed(|store| store.outcome(key))
    }
    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest> {
        self.timed(|store| store.put_blob(thread, bytes))
    }
    fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        self.timed(|store| store.delete(thread))
    }
}

impl Logs for Timed {
    fn head(&self, thread: &ThreadId) -> Result<Head> {
        self.timed(|store| store.head(thread))
    }
    fn read(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>> {
        self.timed(|store| store.read(thread, from, limit))
    }
    fn transcript(&self, thread: &ThreadId) -> Result<(Head, Box<dyn BufRead + Send>)> {
        self.timed(|store| store.transcript(thread))
    }
    fn blob(&self, thread: &ThreadId, blob: &Digest) -> Result<Vec<u8>> {
        self.timed(|store| store.blob(thread, blob))
    }
}

impl Leases for Timed {
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.timed(|store| store.acquire(thread, how))
    }
    fn renew(&self, lease: &Lease) -> Result<()> {
        self.timed(|store| store.renew(lease))
    }
    fn owner(&self) -> &OwnerId {
        self.inner.owner()
    }
    fn beat(&self, at: Timestamp) -> Result<()> {
        // Not timed: it happens beside the run.
        self.inner.beat(at)
    }
    fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>> {
        self.inner.last_beat(owner)
    }
    fn release(&self, lease: &Lease) -> Result<()> {
        self.timed(|store| store.release(lease))
    }
    fn abandon(&self, lease: &Lease) -> Result<()> {
        self.timed(|store| store.abandon(lease))
    }
    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>> {
        self.timed(|store| store.holder(thread))
    }
    fn expired(&self) -> Result<Vec<Lease>> {
        self.timed(|store| store.expired())
    }
}

impl Registry for Timed {
    fn get(&self, thread: &ThreadId) -> Result<Summary> {
        self.timed(|store| store.get(thread))
    }
    fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>> {
        self.timed(|store| store.list(filter, after, limit))
    }
    fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.timed(|store| store.chain(thread))
    }
    fn children(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.timed(|store| store.children(thread))
    }
    fn runs(&self, thread: &ThreadId) -> Result<Vec<Run>> {
        self.timed(|store| store.runs(thread))
    }
    fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        self.timed(|store| store.resolve(prefix))
    }
    fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>> {
        self.timed(|store| store.tombstone(thread))
    }
}

impl Ledger for Timed {
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        self.timed(|store| store.reservations(account))
    }
    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        self.timed(|store| store.account(id))
    }
    fn tree(&self, id: &AccountId) -> Result<Vec<Account>> {
        self.timed(|store| store.tree(id))
    }
}

// Not timed: another reader uses it, beside the run.
selvedge_store::forward!([] Timed, inner: Inbox, Feed);
