//! Telling work that goes on elsewhere to stop.
//!
//! A token is handed to everything that may last: a model's answer, a tool, a wait. It only ever gets more urgent. Whoever
//! holds it looks at it between steps, or sleeps on it; nobody is interrupted in the middle of a commit.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
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
    /// Those that hear what is said here.
    children: Mutex<Vec<Weak<Shared>>>,
}

impl Shared {
    fn say(&self, stop: Stop) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said >= Some(stop) {
            return;
        }
        *said = Some(stop);
        self.changed.notify_all();
        drop(said);
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|child| child.upgrade().inspect(|child| child.say(stop)).is_some());
    }
}

impl Cancel {
    /// A token that nobody has said anything to.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says to stop. Said again it changes nothing, unless it is more urgent now.
    pub fn say(&self, stop: Stop) {
        self.shared.say(stop);
    }

    /// A token that hears everything that is said to this one; what is said to it alone stays with it.
    #[must_use]
    pub fn child(&self) -> Self {
        let child = Self::new();
        let mut children = self.shared.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|other| other.strong_count() > 0);
        children.push(Arc::downgrade(&child.shared));
        drop(children);
        // What is said after this line is passed on, and what was said before it is seen here.
        if let Some(stop) = self.said() {
            child.say(stop);
        }
        child
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
    fn a_child_hears_its_parent_and_keeps_its_own_to_itself() {
        let parent = Cancel::new();
        let child = parent.child();
        child.say(Stop::OutOfTime);
        assert_eq!((parent.said(), child.said()), (None, Some(Stop::OutOfTime)));
        parent.say(Stop::Cancelled);
        assert_eq!(child.said(), Some(Stop::Cancelled));
        assert_eq!(parent.child().said(), Some(Stop::Cancelled));
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
