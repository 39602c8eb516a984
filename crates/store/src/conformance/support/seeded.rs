//! A clock and a random source that a test controls.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_model::{Clock, Ids, Timestamp};

/// Seeded random ids: the same seed gives the same values, so a failing test can be repeated.
///
/// A clone shares the sequence of the original; handles on one store must share one sequence, or their names collide.
#[derive(Clone, Debug)]
pub struct SeededIds(Arc<Mutex<u64>>);

impl SeededIds {
    /// The values of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    /// The next value below `limit`, for a test that chooses.
    pub fn below(&self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// SplitMix64: short, and good enough for names.
    fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Ids for SeededIds {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A scripted clock: every read advances it by one step, and a test may set it. Clones share one time.
#[derive(Clone, Debug)]
pub struct ScriptedClock {
    micros: Arc<AtomicI64>,
    step: i64,
}

impl ScriptedClock {
    /// Begins at `at` and advances by `step` at every read.
    pub fn new(at: Timestamp, step: Duration) -> Self {
        let step = i64::try_from(step.as_micros()).unwrap_or(i64::MAX);
        Self { micros: Arc::new(AtomicI64::new(at.as_micros())), step }
    }

    /// The same clock, running backwards: times never decide an order.
    #[must_use]
    pub fn backwards(mut self) -> Self {
        self.step = -self.step;
        self
    }

    /// Sets the time, also to an earlier one.
    pub fn set(&self, at: Timestamp) {
        self.micros.store(at.as_micros(), Ordering::SeqCst);
    }
}

impl Default for ScriptedClock {
    /// Begins on a day in November 2026 and advances by a millisecond.
    fn default() -> Self {
        Self::new(Timestamp::from_micros(1_794_700_000_000_000), Duration::from_millis(1))
    }
}

impl Clock for ScriptedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.fetch_add(self.step, Ordering::SeqCst))
    }
}
