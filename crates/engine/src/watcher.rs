//! Watches the runs of this process: requests that arrive, running times that end; and records that the process is alive.
//!
//! One thread of the operating system does this for all runs, while there are any. Ten times a second it records a heartbeat and reads the
//! number of the newest request; only the inbox of a run that got a request is read. So a waiting run costs nothing.
//!
//! - A request that arrived before a run was watched is found when the watching begins, a later one by its number: none is missed.
//! - An inbox that can't be read is read again the next time.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use selvedge_model::{Cancel, Clock, Request, RequestId, Stop, ThreadId};
use selvedge_store::Store;
use tokio::sync::Notify;

use crate::inbox::unanswered;

/// How often the watcher checks, and records a heartbeat.
const EVERY: Duration = Duration::from_millis(100);
/// The most requests that are looked up at a time.
const ARRIVALS: usize = 1024;

/// Watches all runs of this process.
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    /// The thread that watches; absent before the first run.
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    runs: Mutex<Runs>,
    changed: Condvar,
}

#[derive(Default)]
struct Runs {
    of: HashMap<ThreadId, Watched>,
    /// When running times end, earliest first.
    ends: BTreeSet<(Instant, ThreadId)>,
    /// Runs whose inbox is to be read.
    unread: BTreeSet<ThreadId>,
    /// How many runs were watched so far.
    begun: u64,
    is_closed: bool,
}

/// A run that is watched.
struct Watched {
    /// Its number among all watched runs: runs of one thread follow each other.
    number: u64,
    /// Requests that it has taken from the inbox and not answered yet.
    taken: Vec<RequestId>,
    /// Stops more than this run.
    cancel: Cancel,
    /// Stops this run alone.
    own: Cancel,
    signal: Arc<RequestSignal>,
    until: Option<Instant>,
}

/// Tells a run whether a request arrived. The run is watched until this is dropped.
pub(crate) struct Watch {
    signal: Arc<RequestSignal>,
    /// The watcher; absent for a run that is replayed.
    watched: Option<(Arc<Shared>, ThreadId, u64)>,
}

/// Signals to a run that a request arrived, and wakes it if it waits.
#[derive(Default)]
pub(crate) struct RequestSignal {
    is_noted: AtomicBool,
    wake: Notify,
}

impl RequestSignal {
    pub(crate) fn note(&self) {
        self.is_noted.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }
}

impl Watcher {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let shared = Shared { store, clock, runs: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Watches a run: a requested stop is signalled to `cancel`, the end of its running time to `own`. The requests in `taken`, which the
    /// run answers with its first commit, are ignored.
    pub(crate) fn watch(&self, thread: &ThreadId, cancel: &Cancel, own: &Cancel, taken: &[RequestId]) -> Watch {
        let signal = Arc::<RequestSignal>::default();
        let run = Watched {
            number: 0,
            taken: taken.to_vec(),
            cancel: cancel.clone(),
            own: own.clone(),
            signal: signal.clone(),
            until: None,
        };
        let mut runs = self.shared.lock();
        runs.begun += 1;
        let number = runs.begun;
        runs.of.insert(thread.clone(), Watched { number, ..run });
        runs.unread.insert(thread.clone());
        drop(runs);
        let mut running = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that panicked is replaced.
        if running.as_ref().is_none_or(JoinHandle::is_finished) {
            let shared = self.shared.clone();
            *running = Some(std::thread::spawn(move || shared.run()));
        }
        drop(running);
        self.shared.changed.notify_one();
        Watch { signal, watched: Some((self.shared.clone(), thread.clone(), number)) }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_one();
        let running = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A panic was reported where it happened.
        if let Some(thread) = running {
            _ = thread.join();
        }
    }
}

impl Watch {
    /// A watch without a watcher, signalled only by its owner.
    pub(crate) fn unwatched() -> Self {
        Self { signal: Arc::default(), watched: None }
    }

    /// Whether a request arrived since the last call.
    pub(crate) fn was_noted(&self) -> bool {
        self.signal.is_noted.swap(false, Ordering::SeqCst)
    }

    /// Waits until a request has arrived that `was_noted` has not reported.
    pub(crate) async fn noted(&self) {
        while !self.signal.is_noted.load(Ordering::SeqCst) {
            self.signal.wake.notified().await;
        }
    }

    /// The sender of the signal that a request arrived.
    pub(crate) fn note(&self) -> Arc<RequestSignal> {
        self.signal.clone()
    }

    /// Sets how much time the run has from now on.
    pub(crate) fn set_time(&self, left: Option<Duration>) {
        let Some((shared, thread, number)) = &self.watched else { return };
        shared.lock().set_time(thread, *number, left.and_then(|left| Instant::now().checked_add(left)));
        shared.changed.notify_one();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some((shared, thread, number)) = &self.watched else { return };
        let mut runs = shared.lock();
        runs.set_time(thread, *number, None);
        if runs.of.get(thread).is_some_and(|watched| watched.number == *number) {
            runs.unread.remove(thread);
            runs.of.remove(thread);
        }
    }
}

impl Runs {
    fn set_time(&mut self, thread: &ThreadId, number: u64, until: Option<Instant>) {
        let Some(watched) = self.of.get_mut(thread).filter(|watched| watched.number == number) else { return };
        let before = std::mem::replace(&mut watched.until, until);
        if let Some(before) = before {
            self.ends.remove(&(before, thread.clone()));
        }
        self.ends.extend(until.map(|until| (until, thread.clone())));
    }

    /// Signals the end of their running time to the runs that reached it.
    fn end(&mut self, now: Instant) {
        while let Some((until, _)) = self.ends.first()
            && *until <= now
            && let Some((_, thread)) = self.ends.pop_first()
        {
            if let Some(watched) = self.of.get_mut(&thread) {
                watched.until = None;
                watched.own.say(Stop::OutOfTime);
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches until the engine is dropped.
    fn run(&self) {
        // The newest request that was seen; unknown before the first check.
        let mut seen = None;
        loop {
            let mut runs = self.lock();
            runs.end(Instant::now());
            if runs.is_closed {
                return;
            }
            let unread = std::mem::take(&mut runs.unread);
            let is_idle = runs.of.is_empty();
            drop(runs);
            if is_idle {
                // The whole inbox of the next run is read.
                seen = None;
            } else {
                // Before any inbox is read, so that what arrives meanwhile is seen the next time.
                let arrived = self.arrived(&mut seen);
                self.read(unread.into_iter().chain(arrived).collect());
                // A heartbeat that can't be written only makes the recorded running time of a lost run shorter.
                _ = self.store.beat(self.clock.now());
            }
            let runs = self.lock();
            // A run that has begun meanwhile is checked at once.
            let wait = match (runs.ends.first(), is_idle && runs.of.is_empty()) {
                (_, true) => Duration::MAX,
                (None, false) => EVERY,
                (Some((until, _)), false) => until.saturating_duration_since(Instant::now()).min(EVERY),
            };
            let is_woken = runs.is_closed || (is_idle && !runs.of.is_empty());
            if !is_woken {
                drop(self.changed.wait_timeout(runs, wait));
            }
        }
    }

    /// The watched threads that got requests since the last check.
    fn arrived(&self, seen: &mut Option<u64>) -> Vec<ThreadId> {
        let Some(after) = *seen else {
            *seen = self.store.newest().ok();
            // Earlier ones are found by reading every inbox.
            return self.lock().of.keys().cloned().collect();
        };
        let Some(newest) = self.store.newest().ok().filter(|newest| *newest > after) else { return Vec::new() };
        let Ok(arrivals) = self.store.arrivals(after, ARRIVALS) else { return Vec::new() };
        // Requests that were consumed meanwhile are not among them.
        let is_all = arrivals.len() < ARRIVALS;
        *seen = arrivals.last().map(|last| last.number).max(is_all.then_some(newest)).or(*seen);
        arrivals.into_iter().map(|arrival| arrival.thread).collect()
    }

    /// Reads the inboxes of runs and signals what is in them.
    fn read(&self, threads: BTreeSet<ThreadId>) {
        for thread in threads {
            let Some(number) = self.lock().of.get(&thread).map(|watched| watched.number) else { continue };
            let pending = unanswered(&*self.store, &thread);
            let mut runs = self.lock();
            // A request to the previous run is not for the one that follows it.
            let Some(watched) = runs.of.get_mut(&thread).filter(|watched| watched.number == number) else { continue };
            let Ok(pending) = pending else {
                runs.unread.insert(thread);
                continue;
            };
            for posted in pending.into_iter().filter(|posted| !watched.taken.contains(&posted.id)) {
                match posted.request {
                    Request::Cancel => watched.cancel.say(Stop::Cancelled),
                    Request::Kill => watched.cancel.say(Stop::Killed),
                    Request::Decide(_)
                    | Request::Settle(_)
                    | Request::Raise { .. }
                    | Request::Rename { .. }
                    | Request::ChildSettled(_) => watched.signal.note(),
                    Request::Send(_) | Request::Resume(_) => {}
                }
            }
        }
    }
}
