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

    /// Thirty-two random hex characters, as logs, runs and messages are named by.
    fn hex32(&self) -> String {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        hex(&bytes)
    }
}
