//! The machine's clock and random source, for programs to pass to the libraries.

use selvedge_model::{Clock, Ids, Timestamp};

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(jiff::Timestamp::now().as_microsecond())
    }
}

/// The machine's random source.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemIds;

impl Ids for SystemIds {
    fn fill(&self, bytes: &mut [u8]) {
        // Without random bytes there are no keys and no ids; nothing sensible can be done.
        getrandom::fill(bytes).unwrap_or_else(|error| panic!("the operating system returns no random bytes: {error}"));
    }
}
