//! What happens beside the runs of this process: requests come, running time ends, and the process is alive.
//!
//! One thread of the operating system watches for all of them, as long as any thread runs here. Ten times a second it records a beat and
//! asks for the number of the newest request; only a run to which a request came has its inbox read. So a run that waits costs nothing.
//!
//! - A request that came before a run was watched is found when its watching begins, and one that comes later by its number: none is missed.
//! - What can't be read now is read the next time.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use selvedge_model::{Cancel, Clock, Posted, Request, RequestId, Stop, ThreadId};
use selvedge_store::Store;

/// How often the watcher looks, and records a beat.
const EVERY: Duration = Duration::from_millis(100);
/// How many requests are looked up at a time.
const ARRIVALS: usize = 1024;

/// Watches for all runs of this process.
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
    /// When running times end, soonest first.
    ends: BTreeSet<(Instant, ThreadId)>,
    /// Runs whose inbox is to be read.
    unread: BTreeSet<ThreadId>,
    /// How many runs were watched so far.
    begun: u64,
    is_closed: bool,
}

/// A run that is watched.
struct Watched {
    /// Which one it is of those that were watched: runs of one thread follow each other.
    number: u64,
    /// Requests that it has taken from the inbox and not answered yet.
    taken: Vec<RequestId>,
    /// Ends more than this run.
    cancel: Cancel,
    /// Ends this run alone.
    own: Cancel,
    is_noted: Arc<AtomicBool>,
    until: Option<Instant>,
}

/// How a run hears that a request came. It is watched until this is dropped.
pub(crate) struct Watch {
    is_noted: Arc<AtomicBool>,
    /// Who watches; absent for a run that is replayed.
    watched: Option<(Arc<Shared>, ThreadId, u64)>,
}

/// Says to a run that a request came.
pub(crate) struct Note(Arc<AtomicBool>);

impl Note {
    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Watcher {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let shared = Shared { store, clock, runs: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Watches a run: a stop that is asked for is said to `cancel`, that its time is over to `own`. What it has taken from the inbox
    /// already, to answer it with its first commit, does not count.
    pub(crate) fn watch(&self, thread: &ThreadId, cancel: &Cancel, own: &Cancel, taken: &[RequestId]) -> Watch {
        let is_noted = Arc::<AtomicBool>::default();
        let (noted, cancel, own, taken) = (is_noted.clone(), cancel.clone(), own.clone(), taken.to_vec());
        let mut runs = self.shared.lock();
        runs.begun += 1;
        let number = runs.begun;
        runs.of.insert(thread.clone(), Watched { number, taken, cancel, own, is_noted: noted, until: None });
        runs.unread.insert(thread.clone());
        drop(runs);
        let mut running = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // One that panicked is followed by another.
        if running.as_ref().is_none_or(JoinHandle::is_finished) {
            let shared = self.shared.clone();
            *running = Some(std::thread::spawn(move || shared.run()));
        }
        drop(running);
        self.shared.changed.notify_one();
        Watch { is_noted, watched: Some((self.shared.clone(), thread.clone(), number)) }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_one();
        let running = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // What it panicked with was reported where that happened.
        running.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl Watch {
    /// One that only its owner notes anything in.
    pub(crate) fn by_hand() -> Self {
        Self { is_noted: Arc::default(), watched: None }
    }

    /// Whether a request came since this was last asked.
    pub(crate) fn was_noted(&self) -> bool {
        self.is_noted.swap(false, Ordering::SeqCst)
    }

    /// What says that a request came.
    pub(crate) fn note(&self) -> Note {
        Note(self.is_noted.clone())
    }

    /// Gives the run this much time from now on.
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
        before.into_iter().for_each(|before| _ = self.ends.remove(&(before, thread.clone())));
        self.ends.extend(until.map(|until| (until, thread.clone())));
    }

    /// Says to the runs whose time is over that it is.
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
        // The newest request that was looked at; unknown before the first look.
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
                // The inbox of the next run is read whole.
                seen = None;
            } else {
                // Before any inbox is read, so that what comes meanwhile is seen the next time.
                let arrived = self.arrived(&mut seen);
                self.read(unread.into_iter().chain(arrived).collect());
                // One that can't be written costs nothing but the time it would have saved.
                _ = self.store.beat(self.clock.now());
            }
            let runs = self.lock();
            // A run that has begun meanwhile is looked at with the others.
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

    /// The watched threads to which requests came since the last look.
    fn arrived(&self, seen: &mut Option<u64>) -> Vec<ThreadId> {
        let Some(after) = *seen else {
            *seen = self.store.newest().ok();
            // What came before that is found by reading every inbox.
            return self.lock().of.keys().cloned().collect();
        };
        let Some(newest) = self.store.newest().ok().filter(|newest| *newest > after) else { return Vec::new() };
        let Ok(arrivals) = self.store.arrivals(after, ARRIVALS) else { return Vec::new() };
        // Those that were consumed meanwhile are not among them.
        let is_all = arrivals.len() < ARRIVALS;
        *seen = arrivals.last().map(|last| last.number).max(is_all.then_some(newest)).or(*seen);
        arrivals.into_iter().map(|arrival| arrival.thread).collect()
    }

    /// What is asked of a thread by those who may, and was not answered before.
    fn unanswered(&self, thread: &ThreadId) -> selvedge_store::Result<Vec<Posted>> {
        let mut found = Vec::new();
        for waiting in self.store.pending(thread)?.into_iter().filter(|waiting| waiting.is_sealed) {
            if self.store.answered(thread, &waiting.posted.id)?.is_none() {
                found.push(waiting.posted);
            }
        }
        Ok(found)
    }

    /// Tells runs what their inboxes have for them.
    fn read(&self, threads: BTreeSet<ThreadId>) {
        for thread in threads {
            let Some(number) = self.lock().of.get(&thread).map(|watched| watched.number) else { continue };
            let pending = self.unanswered(&thread);
            let mut runs = self.lock();
            // What was asked of the run before does not mean the one that follows it.
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
                    | Request::ChildSettled(_) => watched.is_noted.store(true, Ordering::SeqCst),
                    Request::Send(_) | Request::Resume(_) => {}
                }
            }
        }
    }
}
