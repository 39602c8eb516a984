//! Watches the store for this process: requests to its runs, and the commits and freed leases that its tasks wait for.
//!
//! One thread of the operating system does this, while there are runs or waiters. The store's feed wakes it, so a run or a task that waits
//! costs nothing.
//!
//! - A run reads its inbox when it is registered, and is notified of what arrives later: no request is missed.
//! - A waiter is registered before its task checks what it waits for, and is notified of what happens later: no wake-up is lost.
//! - A wake-up is only a hint. Wake-ups that follow each other closely are passed on together.
//! - What can't be read is read again, and all waiters check for themselves meanwhile.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use futures_util::future::select;
use selvedge_model::{Cancel, Request, RequestId, Stop, ThreadId};
use selvedge_store::{Position, Store};
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::heartbeat::Beating;
use crate::inbox::unanswered;

/// How long the thread gathers news before it looks again: commits may come fast.
const GATHER: Duration = Duration::from_millis(5);
/// How long it pauses after it could not read.
const RETRY: Duration = Duration::from_millis(100);
/// The longest wait for the store, which can't be interrupted: the end of the engine may take as long.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How many commits or requests are read at a time.
const PAGE: usize = 1024;

/// Watches the store for all runs and waiting tasks of this process.
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    /// The thread that watches; absent before the first run or waiter.
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    runs: HashMap<ThreadId, WatchedRun>,
    waiters: HashMap<u64, Waiting>,
    /// The waiters of each thread.
    by_thread: HashMap<ThreadId, HashSet<u64>>,
    /// How many runs and waiters were registered so far.
    registered: u64,
    is_closed: bool,
}

/// A run that is watched.
struct WatchedRun {
    /// Its number: runs of one thread follow each other.
    number: u64,
    /// Requests that it has taken from the inbox and not answered yet.
    taken: Vec<RequestId>,
    /// Stops the run, and what its caller does besides.
    cancel: Cancel,
    signal: Arc<Signal>,
}

/// A waiter that is registered.
#[derive(Default)]
struct Waiting {
    threads: HashSet<ThreadId>,
    leases: bool,
    news: News,
    signal: Arc<Signal>,
}

/// What may have happened since the last call of [`Waiter::news`].
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Anything: some of it could not be told apart.
    pub(crate) all: bool,
    /// A lease became free.
    pub(crate) leases: bool,
    /// The threads with commits.
    pub(crate) threads: HashSet<ThreadId>,
}

/// Wakes one task.
#[derive(Default)]
pub(crate) struct Signal {
    is_noted: AtomicBool,
    wake: Notify,
}

impl Signal {
    pub(crate) fn note(&self) {
        self.is_noted.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    fn was_noted(&self) -> bool {
        self.is_noted.swap(false, Ordering::SeqCst)
    }

    async fn noted(&self) {
        while !self.is_noted.load(Ordering::SeqCst) {
            self.wake.notified().await;
        }
    }
}

/// Tells a run whether a request arrived. The run is watched until this is dropped.
pub(crate) struct Watch {
    signal: Arc<Signal>,
    /// Its registration; absent for a run that is replayed.
    watched: Option<WatchGuard>,
}

struct WatchGuard {
    shared: Arc<Shared>,
    thread: ThreadId,
    number: u64,
    /// While it runs, the process records that it is alive.
    _beating: Beating,
}

/// Wakes a task when there may be a commit to the threads that it follows, or a free lease. It needs no runtime.
pub struct Waiter {
    shared: Arc<Shared>,
    number: u64,
    signal: Arc<Signal>,
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Waiter")
    }
}

impl Watcher {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let shared = Shared { store, state: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Watches a run: a requested stop is signalled to `cancel`. The requests in `taken`, which the run answers with its first commit, are
    /// ignored.
    pub(crate) fn watch(
        &self,
        thread: &ThreadId,
        cancel: &Cancel,
        taken: &[RequestId],
        beating: Beating,
    ) -> Result<Watch> {
        let signal = Arc::<Signal>::default();
        let mut state = self.shared.lock();
        let number = state.next_number();
        let taken = taken.to_vec();
        let cancel = cancel.clone();
        state.runs.insert(thread.clone(), WatchedRun { number, taken, cancel, signal: signal.clone() });
        drop(state);
        let guard = WatchGuard { shared: self.shared.clone(), thread: thread.clone(), number, _beating: beating };
        self.start()?;
        // What arrived before it was registered; the thread finds what arrives from now on.
        self.shared.read_inbox(thread)?;
        Ok(Watch { signal, watched: Some(guard) })
    }

    /// A waiter for commits to these threads, and for free leases. It is woken by what happens after this returned.
    pub(crate) fn waiter(&self, threads: impl IntoIterator<Item = ThreadId>, leases: bool) -> Result<Waiter> {
        let signal = Arc::<Signal>::default();
        let mut state = self.shared.lock();
        let number = state.next_number();
        state.waiters.insert(number, Waiting { signal: signal.clone(), ..Waiting::default() });
        drop(state);
        let waiter = Waiter { shared: self.shared.clone(), number, signal };
        waiter.follow(threads, leases);
        self.start()?;
        Ok(waiter)
    }

    /// Wakes those that wait for a thread whose run was interrupted in this process.
    pub(crate) fn abandoned(&self, thread: &ThreadId) {
        self.shared.lock().committed(thread);
    }

    /// Starts the thread, if it does not run, and wakes it.
    fn start(&self) -> Result<()> {
        let mut running = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that panicked is replaced.
        if running.as_ref().is_none_or(JoinHandle::is_finished) {
            let shared = self.shared.clone();
            let started = Builder::new().name("watcher".to_owned()).spawn(move || shared.run());
            *running = Some(started.map_err(|error| Error::NoRuntime { why: error.to_string() })?);
        }
        drop(running);
        self.shared.changed.notify_all();
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
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

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.is_some()
    }

    /// Whether a request arrived since the last call.
    pub(crate) fn was_noted(&self) -> bool {
        self.signal.was_noted()
    }

    /// Waits until a request has arrived that `was_noted` has not reported.
    pub(crate) async fn noted(&self) {
        self.signal.noted().await;
    }

    /// The sender of the signal that a request arrived.
    pub(crate) fn note(&self) -> Arc<Signal> {
        self.signal.clone()
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.runs.get(&self.thread).is_some_and(|watched| watched.number == self.number) {
            state.runs.remove(&self.thread);
        }
    }
}

impl Waiter {
    /// From now on, it is woken for these threads, instead of those before; returns those that are new.
    pub(crate) fn follow(&self, threads: impl IntoIterator<Item = ThreadId>, leases: bool) -> Vec<ThreadId> {
        let threads: HashSet<ThreadId> = threads.into_iter().collect();
        let mut state = self.shared.lock();
        let Some(waiting) = state.waiters.get_mut(&self.number) else { return Vec::new() };
        waiting.leases = leases;
        let before = std::mem::replace(&mut waiting.threads, threads.clone());
        state.unfollow(self.number, before.difference(&threads));
        let added: Vec<_> = threads.difference(&before).cloned().collect();
        for thread in &added {
            state.by_thread.entry(thread.clone()).or_default().insert(self.number);
        }
        added
    }

    /// What may have happened since the last call.
    pub(crate) fn news(&self) -> News {
        self.signal.was_noted();
        let mut state = self.shared.lock();
        state.waiters.get_mut(&self.number).map(|waiting| std::mem::take(&mut waiting.news)).unwrap_or_default()
    }

    /// Waits until something may have happened since the last call, or since it was made.
    pub async fn woken(&self) {
        self.signal.noted().await;
        self.news();
    }

    /// Waits until something may have happened, or the work is stopped for a more urgent reason than `known`.
    pub(crate) async fn woken_or_stopped(&self, cancel: &Cancel, known: Option<Stop>) {
        select(pin!(self.woken()), pin!(cancel.stopped_beyond(known))).await;
    }

    /// Waits until there is news; the next call of `news` returns it.
    pub(crate) async fn noted(&self) {
        self.signal.noted().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(waiting) = state.waiters.remove(&self.number) {
            state.unfollow(self.number, &waiting.threads);
        }
    }
}

impl News {
    pub(crate) fn add(&mut self, other: Self) {
        self.all |= other.all;
        self.leases |= other.leases;
        self.threads.extend(other.threads);
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.registered += 1;
        self.registered
    }

    fn unfollow<'t>(&mut self, number: u64, threads: impl IntoIterator<Item = &'t ThreadId>) {
        for thread in threads {
            if let Some(waiters) = self.by_thread.get_mut(thread) {
                waiters.remove(&number);
                if waiters.is_empty() {
                    self.by_thread.remove(thread);
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.waiters.is_empty()
    }

    fn wake(&mut self, wants: impl Fn(&Waiting) -> bool, note: impl Fn(&mut News)) {
        for waiting in self.waiters.values_mut().filter(|waiting| wants(waiting)) {
            note(&mut waiting.news);
            waiting.signal.note();
        }
    }

    fn committed(&mut self, thread: &ThreadId) {
        for number in self.by_thread.get(thread).into_iter().flatten() {
            if let Some(waiting) = self.waiters.get_mut(number) {
                waiting.news.threads.insert(thread.clone());
                waiting.signal.note();
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches until the engine is dropped.
    fn run(&self) {
        let mut seen = Position::default();
        let mut unread = BTreeSet::new();
        // Waiters of before the first position was read check once for themselves; so do those that ended an idle time.
        let mut is_behind = true;
        loop {
            let mut state = self.lock();
            while state.is_idle() && !state.is_closed {
                is_behind = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_closed {
                return;
            }
            drop(state);
            let looked = self.look(&mut seen, &mut is_behind, &mut unread);
            if looked.is_err() {
                self.lock().wake(|_| true, |news| news.all = true);
            }
            let pause = if looked.is_err() || !unread.is_empty() { RETRY } else { GATHER };
            let is_open = |state: &mut State| !state.is_closed;
            drop(self.changed.wait_timeout_while(self.lock(), pause, is_open));
            if looked.is_ok() && unread.is_empty() && !self.lock().is_idle() {
                // An error is found by the next look.
                _ = self.store.watch(seen, WAIT_MAX);
            }
        }
    }

    /// Passes on everything that happened since the last call.
    fn look(
        &self,
        seen: &mut Position,
        is_behind: &mut bool,
        unread: &mut BTreeSet<ThreadId>,
    ) -> selvedge_store::Result<()> {
        // A feed that can't be read keeps no request from a run, and no run from its stop.
        let passed = self.pass_on_commits(seen, is_behind);
        let arrived = self.take_arrivals(seen, unread);
        passed.and(arrived)
    }

    /// Passes on the commits and the ends of leases since the last call.
    fn pass_on_commits(&self, seen: &mut Position, is_behind: &mut bool) -> selvedge_store::Result<()> {
        // Each number is read before what it stands for is passed on, so that nothing in between is missed.
        let freed = self.store.leases_freed();
        let newest = self.store.position()?;
        let mut state = self.lock();
        if std::mem::take(is_behind) {
            seen.commits = newest;
            state.wake(|_| true, |news| news.all = true);
        }
        if freed > seen.leases {
            seen.leases = freed;
            state.wake(|waiting| waiting.leases, |news| news.leases = true);
        }
        let follows = !state.by_thread.is_empty();
        drop(state);
        if !follows {
            seen.commits = newest;
        }
        while seen.commits < newest {
            let page = self.store.after(seen.commits, PAGE)?;
            let mut state = self.lock();
            page.iter().for_each(|commit| state.committed(&commit.thread));
            // Positions that were withdrawn are not among them.
            seen.commits = page.last().map_or(newest, |last| last.position);
        }
        Ok(())
    }

    /// Reads the inboxes of the runs that got requests.
    fn take_arrivals(&self, seen: &mut Position, unread: &mut BTreeSet<ThreadId>) -> selvedge_store::Result<()> {
        let newest = self.store.newest()?;
        while seen.requests < newest {
            let page = self.store.arrivals(seen.requests, PAGE)?;
            // Requests that were consumed meanwhile are not among them.
            let is_all = page.len() < PAGE;
            seen.requests = page.last().map(|last| last.number).max(is_all.then_some(newest)).unwrap_or(newest);
            unread.extend(page.into_iter().map(|arrival| arrival.thread));
        }
        let mut failed = BTreeSet::new();
        for thread in std::mem::take(unread) {
            if self.read_inbox(&thread).is_err() {
                failed.insert(thread);
            }
        }
        *unread = failed;
        Ok(())
    }

    /// Reads the inbox of a run, and signals what is in it.
    fn read_inbox(&self, thread: &ThreadId) -> selvedge_store::Result<()> {
        let Some(number) = self.lock().runs.get(thread).map(|run| run.number) else { return Ok(()) };
        let pending = unanswered(&*self.store, thread)?;
        let state = self.lock();
        // A request to the previous run is not for the one that follows it.
        let Some(run) = state.runs.get(thread).filter(|run| run.number == number) else { return Ok(()) };
        for posted in pending.into_iter().filter(|posted| !run.taken.contains(&posted.id)) {
            match posted.request {
                Request::Cancel => run.cancel.say(Stop::Cancelled),
                Request::Kill => run.cancel.say(Stop::Killed),
                Request::Decide(_)
                | Request::Settle(_)
                | Request::Raise { .. }
                | Request::Rename { .. }
                | Request::ChildSettled(_) => run.signal.note(),
                Request::Send(_) | Request::Resume(_) => {}
            }
        }
        Ok(())
    }
}
