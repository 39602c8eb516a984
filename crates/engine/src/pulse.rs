//! How long whoever holds a thread has been running since its last commit, and who is told of it.
//!
//! A commit says for itself how long a run went on. What comes after the last one is known to nobody if the process dies, unless it
//! left a sign of life: each time that whoever watches the run looks up, ten times a second, it writes down how long it has been running
//! since that commit. Whoever settles the lost run adds it to what the run used, and from then on it stands in the log.
//!
//! - What is lost of the running time at a death is what passed since that one last looked up, never a quarter of a second unless the
//!   machine itself is stuck; at a power cut, all since the last commit.
//! - It is measured on a clock that nobody sets and that stands still while the machine sleeps, and is never taken for more than the
//!   time that really passed between the last commit and now.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use selvedge_model::{ThreadId, Timestamp};
use selvedge_store::{Alive, Lease};

use crate::engine::Engine;

/// What a holder committed last, and when; shared with whoever says that it lives.
#[derive(Clone, Debug)]
pub(crate) struct Pulse(Arc<Mutex<(u64, Instant)>>);

impl Pulse {
    /// A holder that begins at this version.
    pub(crate) fn at(version: u64) -> Self {
        Self(Arc::new(Mutex::new((version, Instant::now()))))
    }

    /// It committed this version.
    pub(crate) fn committed(&self, version: u64) {
        *self.lock() = (version, Instant::now());
    }

    fn alive(&self) -> Alive {
        let (version, since) = *self.lock();
        Alive { version, ran_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX) }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Instant)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a holder lives.
pub(crate) struct Heart {
    pulse: Pulse,
    lease: Lease,
}

impl Heart {
    pub(crate) fn new(pulse: Pulse, lease: Lease) -> Self {
        Self { pulse, lease }
    }

    /// The thread that is held.
    pub(crate) fn thread(&self) -> &ThreadId {
        &self.lease.thread
    }

    /// Says it. One that can't be written costs nothing but the time it would have saved.
    pub(crate) fn beat(&self, engine: &Engine) {
        _ = engine.store.keep_alive(&self.lease, self.pulse.alive());
    }
}

/// How long a lost run went on after its last commit, which was the thread's newest and happened at `committed`.
pub(crate) fn ran_on_ms(alive: Option<Alive>, version: u64, committed: Timestamp, now: Timestamp) -> u64 {
    let said = alive.filter(|alive| alive.version == version).map_or(0, |alive| alive.ran_ms);
    let passed = now.as_micros().saturating_sub(committed.as_micros()) / 1000;
    said.min(u64::try_from(passed).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_sign_of_life_counts_for_its_own_version_and_for_no_more_than_the_time_that_passed() {
        let alive = Some(Alive { version: 5, ran_ms: 4000 });
        assert_eq!(ran_on_ms(alive, 5, at(100), at(200)), 4000);
        assert_eq!(ran_on_ms(alive, 6, at(100), at(200)), 0, "it committed once more, and died");
        assert_eq!(ran_on_ms(alive, 5, at(100), at(103)), 3000);
        assert_eq!(ran_on_ms(alive, 5, at(100), at(50)), 0, "somebody set the clock back");
        assert_eq!(ran_on_ms(None, 5, at(100), at(200)), 0);
    }
}
