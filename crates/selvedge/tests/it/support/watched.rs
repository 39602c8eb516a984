//! A store with an observer, which is called before and after each commit, and for each read.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};

use selvedge::log::{Head, Line};
use selvedge::model::account::{Account, AccountId, Reservation};
use selvedge::model::{Batch, CommitKey, Digest, OwnerId, Run, ThreadId, Timestamp};
use selvedge::store::{
    Acquire, Commit, Committed, Cursor, Filter, Lease, Leases, Ledger, Logs, Page, Registry, Result, Store, Summary,
    Tombstone,
};

/// A store with an observer.
pub(crate) struct Watched<S> {
    pub(crate) inner: S,
    /// How often the log itself was read.
    pub(crate) reads: AtomicU64,
    /// How often anything else was asked.
    pub(crate) questions: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) before: Box<dyn Fn(u64) + Send + Sync>,
    pub(crate) after: Box<dyn Fn(u64) + Send + Sync>,
}

impl<S: Store> Watched<S> {
    pub(crate) fn new(inner: S) -> Self {
        let (reads, questions, commits) = Default::default();
        Self { inner, reads, questions, commits, before: Box::new(|_| {}), after: Box::new(|_| {}) }
    }

    fn asked(&self) -> &S {
        self.questions.fetch_add(1, Ordering::SeqCst);
        &self.inner
    }

    fn read_from(&self) -> &S {
        self.reads.fetch_add(1, Ordering::SeqCst);
        &self.inner
    }
}

impl<S: Store> Commit for Watched<S> {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        let number = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        (self.before)(number);
        let committed = self.inner.commit(batch);
        (self.after)(number);
        committed
    }
    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>> {
        self.asked().outcome(key)
    }
    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest> {
        self.asked().put_blob(thread, bytes)
    }
    fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        self.asked().delete(thread)
    }
}

impl<S: Store> Logs for Watched<S> {
    fn head(&self, thread: &ThreadId) -> Result<Head> {
        self.asked().head(thread)
    }
    fn read(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>> {
        self.read_from().read(thread, from, limit)
    }
    fn transcript(&self, thread: &ThreadId) -> Result<(Head, Box<dyn BufRead + Send>)> {
        self.read_from().transcript(thread)
    }
    fn blob(&self, thread: &ThreadId, blob: &Digest) -> Result<Vec<u8>> {
        self.read_from().blob(thread, blob)
    }
}

impl<S: Store> Leases for Watched<S> {
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.asked().acquire(thread, how)
    }
    fn renew(&self, lease: &Lease) -> Result<()> {
        self.asked().renew(lease)
    }
    fn owner(&self) -> &OwnerId {
        self.inner.owner()
    }
    fn beat(&self, at: Timestamp) -> Result<()> {
        // Not counted: that happens several times a second, beside the run.
        self.inner.beat(at)
    }
    fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>> {
        self.inner.last_beat(owner)
    }
    fn release(&self, lease: &Lease) -> Result<()> {
        self.asked().release(lease)
    }
    fn abandon(&self, lease: &Lease) -> Result<()> {
        self.asked().abandon(lease)
    }
    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>> {
        self.asked().holder(thread)
    }
    fn expired(&self) -> Result<Vec<Lease>> {
        self.asked().expired()
    }
}

impl<S: Store> Registry for Watched<S> {
    fn get(&self, thread: &ThreadId) -> Result<Summary> {
        self.asked().get(thread)
    }
    fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>> {
        self.asked().list(filter, after, limit)
    }
    fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.asked().chain(thread)
    }
    fn children(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.asked().children(thread)
    }
    fn runs(&self, thread: &ThreadId) -> Result<Vec<Run>> {
        self.asked().runs(thread)
    }
    fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        self.asked().resolve(prefix)
    }
    fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>> {
        self.asked().tombstone(thread)
    }
}

impl<S: Store> Ledger for Watched<S> {
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        self.asked().reservations(account)
    }
    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        self.asked().account(id)
    }
    fn tree(&self, id: &AccountId) -> Result<Vec<Account>> {
        self.asked().tree(id)
    }
}

// Not counted: a poller reads it a few times a second, regardless of the number of turns.
selvedge::store::forward!([S: Store] Watched<S>, inner: Inbox, Feed);
