//! The heartbeat of this process: recorded a few times a second, by one timer for all its runs, and read when one of its runs was lost.
//!
//! Each commit records how long the run has lasted. The time after the last commit is lost if the process dies, except for what the
//! heartbeat shows: the process that settles the lost run counts the time from the last commit to the last heartbeat, and records it.
//!
//! - When a process dies, the running time since its last heartbeat is lost; after a power cut, all since the last commit.
//! - Never more is counted than the time between the last commit and now.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use selvedge_model::{Clock, Timestamp};
use selvedge_store::Store;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// How often it is recorded.
const EVERY: Duration = Duration::from_millis(100);

/// Records that this process is alive, while it has runs.
pub(crate) struct Heartbeat(Arc<Mutex<Beats>>);

struct Beats {
    /// Weak: the timer does not keep the store open.
    store: Weak<dyn Store>,
    clock: Arc<dyn Clock>,
    runs: usize,
    timer: Option<AbortHandle>,
}

/// While one exists, the heartbeat is recorded.
pub(crate) struct Beating(Arc<Mutex<Beats>>);

impl Heartbeat {
    pub(crate) fn new(store: &Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Mutex::new(Beats { store: Arc::downgrade(store), clock, runs: 0, timer: None })))
    }

    /// A run begins. Must be called in a task.
    pub(crate) fn begin(&self) -> Beating {
        let mut beats = lock(&self.0);
        beats.runs += 1;
        if beats.timer.is_none() {
            let own = self.0.clone();
            let beat = async move {
                loop {
                    lock(&own).beat();
                    sleep(EVERY).await;
                }
            };
            beats.timer = Some(tokio::spawn(beat).abort_handle());
        }
        drop(beats);
        Beating(self.0.clone())
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        // Under the lock, so that no heartbeat is being written when the last run is over.
        let mut beats = lock(&self.0);
        beats.runs -= 1;
        if beats.runs == 0
            && let Some(timer) = beats.timer.take()
        {
            timer.abort();
        }
    }
}

impl Beats {
    fn beat(&self) {
        // A heartbeat that can't be written only makes the recorded running time of a lost run shorter.
        if self.runs > 0
            && let Some(store) = self.store.upgrade()
        {
            _ = store.beat(self.clock.now());
        }
    }
}

fn lock(beats: &Mutex<Beats>) -> MutexGuard<'_, Beats> {
    beats.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a lost run lasted after its last commit.
pub(crate) fn ran_on_ms(beat: Option<Timestamp>, committed: Timestamp, now: Timestamp) -> u64 {
    let since = |at: Timestamp| at.as_micros().saturating_sub(committed.as_micros()) / 1000;
    let ran = beat.map_or(0, since).min(since(now));
    u64::try_from(ran).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_counts_from_the_last_commit_and_for_no_more_than_the_time_that_passed() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        assert_eq!(ran_on_ms(Some(at(104)), at(100), at(200)), 4000);
        assert_eq!(ran_on_ms(Some(at(99)), at(100), at(200)), 0, "it committed once more, and died");
        assert_eq!(ran_on_ms(Some(at(104)), at(100), at(103)), 3000);
        assert_eq!(ran_on_ms(Some(at(104)), at(100), at(50)), 0, "the clock was set back");
        assert_eq!(ran_on_ms(None, at(100), at(200)), 0);
    }
}
