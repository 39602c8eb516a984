//! The machine's own clock and chance, for programs to hand to the libraries.

use selvedge_model::{Clock, Ids, Timestamp};

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(jiff::Timestamp::now().as_microsecond())
    }
}

/// The machine's source of chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemIds;

impl Ids for SystemIds {
    fn fill(&self, bytes: &mut [u8]) {
        // Without chance there are no keys and no ids; there is nothing sensible to go on with.
        getrandom::fill(bytes).unwrap_or_else(|error| panic!("the operating system gives no random bytes: {error}"));
    }
}
