//! A store without a disk: for tests, and as the simplest implementation of the contracts.
//!
//! One mutex guards everything, so a commit is prepared and applied under one lock. The bytes are the same signed bytes that every backend
//! stores. Several handles may share one store; each is an owner of its own, and dies when dropped.
//!
//! `inner`: the data, and how a commit changes it. `logs`, `leases`, `registry`, `snapshots`, `search`, `effects`, `pages`, `backend`: the contracts.

mod backend;
mod effects;
mod inner;
mod leases;
mod logs;
mod pages;
mod registry;
mod search;
mod snapshots;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use selvedge_log::{Signer, Tail, Trust};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::id::ReservationId;
use selvedge_model::{
    Clock, CommitKey, Digest, DirectiveId, Ids, Manifest, MessageId, OwnerId, Posted, RequestId, Run, ThreadId,
    Timestamp,
};
use serde_json::Value;

use crate::contract::{Committed, FeedEntry, Tombstone};
use crate::effects::{Effect, EffectState};
use crate::lease::LeaseQueue;
use crate::pages::PageId;
use snapshots::ThreadSnapshots;

/// A store without a disk.
pub struct MemoryStore {
    shared: Arc<Shared>,
    owner: OwnerId,
    lease_queue: LeaseQueue,
}

struct Shared {
    inner: Mutex<Inner>,
    committed: Condvar,
    signer: Signer,
    trust: Trust,
    /// The id of the store, generated when first needed.
    id: OnceLock<String>,
    clock: Box<dyn Clock>,
    ids: Box<dyn Ids>,
}

#[derive(Default)]
struct Inner {
    threads: BTreeMap<ThreadId, Slot>,
    created: u64,
    tombstones: BTreeMap<ThreadId, Tombstone>,
    keys: HashMap<CommitKey, (Digest, Committed)>,
    /// With their numbers, which are never reused.
    requests: Vec<(u64, Posted)>,
    requests_posted: u64,
    /// Where requests were consumed, by the first thread of the chain.
    answers: HashMap<(ThreadId, RequestId), (ThreadId, u64)>,
    feed: Vec<FeedEntry>,
    accounts: BTreeMap<AccountId, Account>,
    reservations: BTreeMap<(AccountId, ReservationId), Reservation>,
    alive: HashSet<OwnerId>,
    /// How often leases were released and owners died.
    leases_freed: u64,
    beats: HashMap<OwnerId, Timestamp>,
    /// Blobs of threads that are not created yet.
    early_blobs: HashMap<ThreadId, HashMap<Digest, Vec<u8>>>,
    vectors: search::Vectors,
    effects: HashMap<Effect, EffectState>,
    /// Entries of knowledge.
    knowledge: HashMap<DirectiveId, String>,
    /// The parts of pages, and their threads.
    pages: HashMap<PageId, (ThreadId, Vec<u8>)>,
}

struct Slot {
    number: u64,
    bytes: Vec<u8>,
    tail: Tail,
    manifest: Manifest,
    state: Arc<Value>,
    messages: HashMap<MessageId, Digest>,
    runs: Vec<Run>,
    blobs: HashMap<Digest, Vec<u8>>,
    erased: HashMap<Digest, (String, Timestamp)>,
    epoch: u64,
    holder: Option<OwnerId>,
    snapshots: ThreadSnapshots,
    capabilities: Option<Vec<u8>>,
    page_start: Option<Vec<u8>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(signer: Signer, clock: Box<dyn Clock>, ids: Box<dyn Ids>) -> Self {
        let trust = Trust::of(&[signer.public()]);
        let id = OnceLock::new();
        let shared = Shared { inner: Mutex::default(), committed: Condvar::new(), signer, trust, id, clock, ids };
        Self::attach(Arc::new(shared))
    }

    /// Another handle on the same store, as another process would have it.
    pub fn another(&self) -> Self {
        Self::attach(self.shared.clone())
    }

    fn attach(shared: Arc<Shared>) -> Self {
        // Thirty-two hex characters are always a valid name.
        let owner = OwnerId::new(shared.ids.hex32()).unwrap_or_else(|error| panic!("{error}"));
        let store = Self { shared, owner: owner.clone(), lease_queue: LeaseQueue::default() };
        store.inner().alive.insert(owner);
        store
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        let mut inner = self.inner();
        inner.alive.remove(&self.owner);
        inner.leases_freed += 1;
        drop(inner);
        self.shared.committed.notify_all();
    }
}
