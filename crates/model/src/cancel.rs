//! Telling work that goes on elsewhere to stop.
//!
//! A token is handed to everything that may last: a model's answer, a tool, a wait. It only ever gets more urgent. Whoever
//! holds it looks at it between steps, or sleeps on it; nobody is interrupted in the middle of a commit.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why work is to stop; a later variant is more urgent than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// The time it was given is over.
    OutOfTime,
    /// Somebody asked it to stop when it can.
    Cancelled,
    /// Somebody ended it: whatever it is doing is torn down.
    Killed,
}

/// A word to stop, shared by who says it and who hears it.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    said: Mutex<Option<Stop>>,
    changed: Condvar,
}

impl Cancel {
    /// A token that nobody has said anything to.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says to stop. Said again it changes nothing, unless it is more urgent now.
    pub fn say(&self, stop: Stop) {
        let mut said = self.lock();
        if *said < Some(stop) {
            *said = Some(stop);
            self.shared.changed.notify_all();
        }
    }

    /// What was said, if anything.
    pub fn said(&self) -> Option<Stop> {
        *self.lock()
    }

    /// Sleeps until something is said or `most` is over; gives what was said.
    pub fn wait(&self, most: Duration) -> Option<Stop> {
        self.wait_beyond(None, most)
    }

    /// Sleeps until something more urgent than `known` is said or `most` is over; gives what was said.
    pub fn wait_beyond(&self, known: Option<Stop>, most: Duration) -> Option<Stop> {
        let until = Instant::now().checked_add(most);
        let mut said = self.lock();
        while *said <= known {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            said = self.shared.changed.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *said
    }

    fn lock(&self) -> MutexGuard<'_, Option<Stop>> {
        self.shared.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_only_gets_more_urgent() {
        let cancel = Cancel::new();
        assert_eq!(cancel.said(), None);
        cancel.say(Stop::Killed);
        cancel.say(Stop::Cancelled);
        assert_eq!(cancel.said(), Some(Stop::Killed));
    }

    #[test]
    fn who_sleeps_on_it_is_woken() {
        let cancel = Cancel::new();
        let other = cancel.clone();
        let sleeper = std::thread::spawn(move || other.wait(Duration::from_secs(60)));
        cancel.say(Stop::Cancelled);
        assert_eq!(sleeper.join().unwrap(), Some(Stop::Cancelled));
        assert_eq!(cancel.wait_beyond(Some(Stop::Cancelled), Duration::from_millis(1)), Some(Stop::Cancelled));
    }
}
