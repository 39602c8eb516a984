//! The clock and the source of random numbers, as they are passed to the libraries.
//!
//! No library of this project asks the operating system for either; a test passes in scripted ones.

use crate::digest::hex;
use crate::time::Timestamp;

/// A clock.
pub trait Clock: Send + Sync {
    /// The current time, as this clock claims it.
    fn now(&self) -> Timestamp;
}

/// A source of unguessable ids.
pub trait Ids: Send + Sync {
    /// Fills `bytes` with random bytes.
    fn fill(&self, bytes: &mut [u8]);

    /// Twelve random hex characters: the end of a thread id.
    fn hex12(&self) -> String {
        let mut bytes = [0; 6];
        self.fill(&mut bytes);
        hex(&bytes)
    }

    /// The version from which the names generated for changeset `version` are derived. Differs from `version` only when a replay
    /// has fewer changesets than its recording.
    fn derived_at(&self, version: u64) -> u64 {
        version
    }

    /// Thirty-two random hex characters: the name of a log or a reservation.
    fn hex32(&self) -> String {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        hex(&bytes)
    }
}
