//! What waits costs nothing: no run, no wait and no waiting sender asks the store for anything until something happens.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use selvedge_engine::thread_state::ThreadState;
use selvedge_engine::{Engine, Input, Options};
use selvedge_model::blocking::wait;
use selvedge_model::{Batch, Cancel, CommitKey, Digest, Posted, Request, RequestId, Status, ThreadId, Timestamp};
use selvedge_store::conformance::support::{part, starts};
use selvedge_store::{Acquire, Commit, Committed, Inbox, Leases, Result, Store, Tombstone};

use crate::support::{FaultyStore, Harness, Reply, agent};
use crate::watching::Waiting;

const RUNS: usize = 100;
/// How long the store is watched.
const MEASURED: Duration = Duration::from_secs(1);
/// How often the store may be asked meanwhile, by the whole process: the watcher's own waits and the heartbeat.
const ASKED_MAX: usize = 40;

/// A store that counts what it is asked.
struct CountingStore {
    inner: Counter,
}

struct Counter {
    store: Arc<FaultyStore>,
    asked: AtomicUsize,
}

impl Deref for Counter {
    type Target = FaultyStore;

    fn deref(&self) -> &FaultyStore {
        self.asked.fetch_add(1, Ordering::SeqCst);
        &self.store
    }
}

selvedge_store::forward!([] CountingStore, inner: Leases, Inbox, Registry, Feed, Ledger, Logs);

impl Commit for CountingStore {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        self.inner.store.commit(batch)
    }
    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>> {
        self.inner.store.outcome(key)
    }
    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest> {
        self.inner.store.put_blob(thread, bytes)
    }
    fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        self.inner.store.delete(thread)
    }
}

/// The watcher polled ten times a second, each waiting sender did, and each wait checked its threads twice a second.
#[test]
fn runs_waits_and_senders_ask_the_store_for_nothing_while_they_wait() {
    let harness = Harness::new();
    let store =
        Arc::new(CountingStore { inner: Counter { store: harness.store.clone(), asked: AtomicUsize::default() } });
    let engine = Engine::new(Options { store: store.clone() as Arc<dyn Store>, ..harness.options() });
    let model = Arc::new(Waiting::default());
    let mut work = agent(vec![Reply::Waits], Vec::new());
    work.model = model.clone();
    let work = Arc::new(work);
    let threads: Vec<_> = (0..RUNS).map(|_| harness.thread()).collect();
    let submit = |thread| engine.submit(thread, Input::text("go"), work.clone(), &Cancel::new()).unwrap();
    let running: Vec<_> = threads.iter().map(submit).collect();
    while model.0.load(Ordering::SeqCst) < RUNS {
        std::thread::yield_now();
    }
    // A thread that another process runs.
    let other = harness.another();
    let elsewhere = harness.thread();
    let lease = other.store.acquire(&elsewhere, Acquire::default()).unwrap();
    other.store.commit(Batch::of(part(&elsewhere, starts("r1")).under(lease.epoch))).unwrap();
    let long = Duration::from_secs(600);
    let mut waited = threads.clone();
    waited.push(elsewhere.clone());
    let ended = Cancel::new();
    let waits: Vec<_> =
        waited.iter().map(|thread| engine.submit_wait(vec![thread.clone()], long, ended.clone()).unwrap()).collect();
    // A second message to each.
    let sent: Vec<_> = threads.iter().map(submit).collect();
    // All of them have begun to wait once the store is not asked any more.
    let asked = || store.inner.asked.load(Ordering::SeqCst);
    let until = Instant::now() + Duration::from_secs(60);
    let mut least = usize::MAX;
    while Instant::now() < until && least > ASKED_MAX {
        let before = asked();
        std::thread::sleep(MEASURED);
        least = least.min(asked() - before);
    }
    assert!(least <= ASKED_MAX, "the store was asked {least} times in {MEASURED:?}");
    // And what happens is seen at once: the death of another process, and a stop.
    drop((other, lease));
    let began = Instant::now();
    let mut waits = waits.into_iter();
    let lost = wait(waits.next_back().unwrap()).unwrap();
    assert_eq!(lost.results[&elsewhere].status, ThreadState::Stalled);
    for thread in &threads {
        let id = RequestId::new(format!("stop-{thread}")).unwrap();
        let at = Timestamp::from_micros(0);
        let request = Request::Cancel;
        store.post(Posted { thread: thread.clone(), id, at, request }).unwrap();
    }
    for wait_for in waits {
        let outcomes = wait(wait_for).unwrap();
        assert_eq!(outcomes.results.into_values().next().unwrap().status.status(), Some(Status::Cancelled));
    }
    // The second messages are being answered now.
    drop((running, sent));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}
