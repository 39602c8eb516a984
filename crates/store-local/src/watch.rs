//! Waiting for what is committed, here or by another process.
//!
//! Commits of this process ring a bell. Those of others are pushed by the operating system: one thread, started by the first who waits,
//! watches the folder of the database and rings the same bell. What holds:
//!
//! - A ring is only a hint. Whoever waits looks first, watches, looks again and only then sleeps, so that nothing falls between.
//! - The database is written before its commit can be seen, so a hint may come too early, and none may follow. Whoever was woken
//!   for nothing therefore looks again soon, then ever more rarely.
//! - Behind all that everybody looks twice a second. Where nothing can be watched (the system's limits are reached, the folder is
//!   gone), everybody looks as often as they can afford, and nobody is told.
//! - Reading the database does not write to the file that is watched, so nobody wakes themselves.
//! - The thread sleeps while nobody waits, and ends with the store.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_store::Result;

use crate::core::lock;

#[cfg(target_os = "linux")]
mod inotify;

/// How often somebody looks who is told when to.
const LOOK_PUSHED: Duration = Duration::from_millis(500);
/// How often somebody looks whom nobody tells.
const LOOK_ALONE: Duration = Duration::from_millis(20);
/// How soon somebody looks again who was woken for nothing.
const SOON: Duration = Duration::from_millis(1);

/// Those who wait in this process, and whoever watches for them.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    bell: Arc<Bell>,
    watcher: Mutex<Watcher>,
}

/// Where the watching of a folder stands.
#[derive(Debug, Default)]
enum Watcher {
    /// Nobody has waited yet.
    #[default]
    Unasked,
    /// It can't be had.
    Refused,
    #[cfg(target_os = "linux")]
    Watching { _thread: inotify::Thread },
}

impl Watch {
    /// Tells all who wait that something was committed.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Waits until `is_there`, at most this long. `folder` is where the database lies.
    pub(crate) fn wait(
        &self,
        folder: &Path,
        timeout: Duration,
        mut is_there: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now().checked_add(timeout);
        let left = || deadline.map_or(LOOK_PUSHED, |deadline| deadline.saturating_duration_since(Instant::now()));
        if is_there()? || left().is_zero() {
            return Ok(());
        }
        self.arm(folder);
        let _wanted = Wanted::new(&self.bell);
        loop {
            let heard = self.bell.count();
            if is_there()? || left().is_zero() {
                return Ok(());
            }
            self.bell.listen(heard, left());
        }
    }

    /// Has the folder watched, if nobody does yet.
    fn arm(&self, folder: &Path) {
        let mut watcher = lock(&self.watcher);
        if matches!(*watcher, Watcher::Unasked) {
            *watcher = start(folder, &self.bell);
        }
    }
}

#[cfg(target_os = "linux")]
fn start(folder: &Path, bell: &Arc<Bell>) -> Watcher {
    inotify::start(folder, bell).map_or(Watcher::Refused, |thread| Watcher::Watching { _thread: thread })
}

#[cfg(not(target_os = "linux"))]
fn start(_: &Path, _: &Arc<Bell>) -> Watcher {
    Watcher::Refused
}

/// Wakes those who wait.
#[derive(Debug, Default)]
struct Bell {
    state: Mutex<State>,
    rung: Condvar,
    /// Somebody waits, or it is over.
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How often it was rung.
    count: u64,
    rung_at: Option<Instant>,
    /// How many wait.
    waiting: usize,
    /// Whether somebody watches the folder.
    is_pushed: bool,
    /// Whether whoever watches is to end.
    is_over: bool,
}

impl State {
    /// How long to sleep: as long as it has been quiet.
    fn pause(&self) -> Duration {
        let longest = if self.is_pushed { LOOK_PUSHED } else { LOOK_ALONE };
        self.rung_at.map_or(longest, |rung_at| rung_at.elapsed().clamp(SOON, longest))
    }
}

impl Bell {
    fn ring(&self) {
        let mut state = lock(&self.state);
        state.count += 1;
        state.rung_at = Some(Instant::now());
        if state.waiting > 0 {
            self.rung.notify_all();
        }
    }

    fn count(&self) -> u64 {
        lock(&self.state).count
    }

    /// Sleeps until the bell was rung more often than `heard`, or it is time to look again, at most this long.
    fn listen(&self, heard: u64, timeout: Duration) {
        let state = lock(&self.state);
        let pause = state.pause().min(timeout);
        let waited = self.rung.wait_timeout_while(state, pause, |state| state.count == heard);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// What whoever watches needs.
#[cfg(target_os = "linux")]
impl Bell {
    /// Says whether somebody watches the folder.
    fn set_pushed(&self, is_pushed: bool) {
        lock(&self.state).is_pushed = is_pushed;
    }

    /// Sleeps while nobody waits; false once it is over.
    fn is_wanted(&self) -> bool {
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

/// Somebody waits; over when dropped.
struct Wanted<'a>(&'a Bell);

impl<'a> Wanted<'a> {
    fn new(bell: &'a Bell) -> Self {
        lock(&bell.state).waiting += 1;
        bell.wanted.notify_all();
        Self(bell)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).waiting -= 1;
    }
}

#[cfg(test)]
mod tests;
