//! The outside world as the libraries are handed it: what time it is and where chance comes from.
//!
//! No library of this project asks the operating system for either; a test hands in a script.

use crate::digest::hex;
use crate::time::Timestamp;

/// Tells the time.
pub trait Clock: Send + Sync {
    /// The present moment, as this clock claims it.
    fn now(&self) -> Timestamp;
}

/// Makes values nobody can guess.
pub trait Ids: Send + Sync {
    /// Fills `bytes` with random ones.
    fn fill(&self, bytes: &mut [u8]);

    /// Twelve random hex characters, as a thread id ends in.
    fn hex12(&self) -> String {
        let mut bytes = [0; 6];
        self.fill(&mut bytes);
        hex(&bytes)
    }

    /// The version that names are derived from which are made up for the changeset that comes to `version`. Another one where what is
    /// done again has fewer changesets than its record.
    fn derived_at(&self, version: u64) -> u64 {
        version
    }

    /// Thirty-two random hex characters, as logs and reservations are named by.
    fn hex32(&self) -> String {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        hex(&bytes)
    }
}
