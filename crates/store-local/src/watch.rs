//! Waiting for commits, requests and freed leases of this process or another one.
//!
//! Commits of this process ring a bell. Those of other processes are reported by the operating system: one thread, started by the first
//! waiter, watches the folder of the database and rings the same bell. Invariants:
//!
//! - The folder of the owners is watched, too. An owner keeps its file open for writing as long as it lives, and opens and closes it when
//!   it releases a lease. So the system reports the release of a lease, and the death of an owner, as the close of a file. It reports the
//!   close just before it unlocks the file, so this is signalled again a little later. Where it can't be watched, leases count as freed
//!   ten times a second.
//! - A ring is only a hint. A waiter checks, starts watching, checks again and only then sleeps, so that no commit is missed in between.
//! - The database is written before its commit is visible, so a hint may come too early, and none may follow. A waiter that was woken
//!   without finding a commit therefore checks again soon, then at growing intervals.
//! - In any case every waiter checks twice a second. Where nothing can be watched (the system's limits are reached, the folder was
//!   removed), every waiter polls at a short interval.
//! - Reading the database does not write to the watched file, so a waiter does not wake itself.
//! - The thread sleeps while there is no waiter, and ends with the store.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_store::Result;

use crate::core::lock;

#[cfg(target_os = "linux")]
mod inotify;

/// How often a waiter checks if the folder is watched.
const CHECK_WATCHED: Duration = Duration::from_millis(500);
/// How often a waiter checks if it is not.
const CHECK_UNWATCHED: Duration = Duration::from_millis(20);
/// How often leases count as freed if the folder of the owners is not watched.
const FREED_UNWATCHED: Duration = Duration::from_millis(100);
/// How soon a waiter checks again after a ring without a commit.
const SOON: Duration = Duration::from_millis(1);

/// The waiters of this process, and the thread that watches for them.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    bell: Arc<Wakeup>,
    watcher: Mutex<Watcher>,
}

/// The state of the thread that watches the folder.
#[derive(Debug, Default)]
enum Watcher {
    /// There was no waiter yet.
    #[default]
    NotStarted,
    /// It can't be started.
    Refused,
    #[cfg(target_os = "linux")]
    Watching { _thread: inotify::Thread },
}

impl Watch {
    /// Wakes all waiters: something was committed.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Wakes all waiters: a lease was released.
    pub(crate) fn free(&self) {
        self.bell.free();
    }

    /// How often leases may have been freed.
    pub(crate) fn leases_freed(&self) -> u64 {
        lock(&self.bell.state).leases_freed()
    }

    /// Waits until `is_there`, at most this long. `folder` has the database.
    pub(crate) fn wait(
        &self,
        folder: &Path,
        timeout: Duration,
        mut is_there: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now().checked_add(timeout);
        let left = || deadline.map_or(CHECK_WATCHED, |deadline| deadline.saturating_duration_since(Instant::now()));
        if is_there()? || left().is_zero() {
            return Ok(());
        }
        self.arm(folder);
        let _waiter = Waiter::new(&self.bell);
        loop {
            let seen = self.bell.count();
            if is_there()? || left().is_zero() {
                return Ok(());
            }
            self.bell.wait_beyond(seen, left());
        }
    }

    /// Starts the thread that watches the folder, if it was not started yet.
    fn arm(&self, folder: &Path) {
        let mut watcher = lock(&self.watcher);
        if matches!(*watcher, Watcher::NotStarted) {
            *watcher = start(folder, &self.bell);
            // What was freed before the folder was watched may have been missed. The first waiter, and nobody else, is about to check.
            lock(&self.bell.state).freed += 1;
        }
    }
}

#[cfg(target_os = "linux")]
fn start(folder: &Path, bell: &Arc<Wakeup>) -> Watcher {
    match inotify::start(folder, bell) {
        Some(thread) => Watcher::Watching { _thread: thread },
        None => {
            bell.unwatch_owners();
            Watcher::Refused
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn start(_: &Path, bell: &Arc<Wakeup>) -> Watcher {
    bell.unwatch_owners();
    Watcher::Refused
}

/// Wakes waiters.
#[derive(Debug, Default)]
struct Wakeup {
    state: Mutex<State>,
    rung: Condvar,
    /// There is a waiter, or the store is closing.
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How often it was rung.
    count: u64,
    rung_at: Option<Instant>,
    /// The number of waiters.
    waiting: usize,
    /// Whether the folder is watched.
    is_watched: bool,
    /// How often leases were freed.
    freed: u64,
    /// Since when the folder of the owners can't be watched.
    unwatched_since: Option<Instant>,
    /// Whether the thread that watches must end.
    is_over: bool,
}

impl State {
    fn leases_freed(&self) -> u64 {
        let guessed = |since: Instant| since.elapsed().as_millis() / FREED_UNWATCHED.as_millis();
        let guessed = u64::try_from(self.unwatched_since.map_or(0, guessed)).unwrap_or(u64::MAX);
        self.freed.saturating_add(guessed)
    }

    /// How long to sleep: as long as since the last ring.
    fn pause(&self) -> Duration {
        let longest = if self.is_watched { CHECK_WATCHED } else { CHECK_UNWATCHED };
        self.rung_at.map_or(longest, |rung_at| rung_at.elapsed().clamp(SOON, longest))
    }
}

impl Wakeup {
    fn ring(&self) {
        let mut state = lock(&self.state);
        state.count += 1;
        state.rung_at = Some(Instant::now());
        if state.waiting > 0 {
            self.rung.notify_all();
        }
    }

    fn free(&self) {
        lock(&self.state).freed += 1;
        self.ring();
    }

    /// From now on, owners are not watched.
    fn unwatch_owners(&self) {
        lock(&self.state).unwatched_since.get_or_insert_with(Instant::now);
    }

    fn count(&self) -> u64 {
        lock(&self.state).count
    }

    /// Sleeps until there were more rings than `seen`, or it is time to check again, at most this long.
    fn wait_beyond(&self, seen: u64, timeout: Duration) {
        let state = lock(&self.state);
        let pause = state.pause().min(timeout);
        let waited = self.rung.wait_timeout_while(state, pause, |state| state.count == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// For the thread that watches.
#[cfg(target_os = "linux")]
impl Wakeup {
    /// Sets whether the folder is watched.
    fn set_watched(&self, is_watched: bool) {
        lock(&self.state).is_watched = is_watched;
    }

    /// Sleeps while there is no waiter; false once the store is closing.
    fn has_waiters(&self) -> bool {
        let state = lock(&self.state);
        let idle = |state: &mut State| state.waiting == 0 && !state.is_over;
        let state = self.wanted.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        !state.is_over
    }

    fn end(&self) {
        lock(&self.state).is_over = true;
        self.wanted.notify_all();
    }
}

/// Counts a waiter until it is dropped.
struct Waiter<'a>(&'a Wakeup);

impl<'a> Waiter<'a> {
    fn new(bell: &'a Wakeup) -> Self {
        lock(&bell.state).waiting += 1;
        bell.wanted.notify_all();
        Self(bell)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).waiting -= 1;
    }
}

#[cfg(test)]
mod tests;
