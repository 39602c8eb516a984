//! Telling work that goes on elsewhere to stop.
//!
//! A token is handed to everything that may last: a model's answer, a tool, a wait. It only ever gets more urgent. Work looks at it
//! between steps, sleeps on it ([`Cancel::wait`]) or awaits it ([`Cancel::stopped`], on any runtime); nothing is interrupted in the
//! middle of a commit.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Why work is to stop; a later variant is more urgent than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// The time it was given is over.
    OutOfTime,
    /// It was asked to stop when it can.
    Cancelled,
    /// It was ended: whatever it is doing is torn down.
    Killed,
}

/// A word to stop, shared by who says it and who hears it.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Those that hear what is said here.
    children: Mutex<Vec<Weak<Shared>>>,
}

#[derive(Debug, Default)]
struct State {
    said: Option<Stop>,
    /// The futures that wait, each under the number it got.
    wakers: Vec<(u64, Waker)>,
    /// How many futures have waited so far.
    waited: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, stop: Stop) {
        let mut state = self.lock();
        if state.said >= Some(stop) {
            return;
        }
        state.said = Some(stop);
        let wakers = std::mem::take(&mut state.wakers);
        self.changed.notify_all();
        // A waker may run code of its own.
        drop(state);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
        let children: Vec<_> = {
            let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
            children.retain(|child| child.strong_count() > 0);
            children.iter().filter_map(Weak::upgrade).collect()
        };
        children.iter().for_each(|child| child.say(stop));
    }
}

impl Cancel {
    /// A token that nothing was said to.
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
        // Those that are gone are cleared when the list would grow: each costs the same, however many there are.
        if children.len() == children.capacity() {
            children.retain(|other| other.strong_count() > 0);
        }
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
        self.shared.lock().said
    }

    /// Sleeps until something is said or `most` is over; gives what was said.
    pub fn wait(&self, most: Duration) -> Option<Stop> {
        self.wait_beyond(None, most)
    }

    /// Sleeps until something more urgent than `known` is said or `most` is over; gives what was said.
    pub fn wait_beyond(&self, known: Option<Stop>, most: Duration) -> Option<Stop> {
        let until = Instant::now().checked_add(most);
        let mut state = self.shared.lock();
        while state.said <= known {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.said
    }

    /// A future that ends once something is said.
    pub fn stopped(&self) -> Stopped {
        self.stopped_beyond(None)
    }

    /// A future that ends once something more urgent than `known` is said.
    pub fn stopped_beyond(&self, known: Option<Stop>) -> Stopped {
        Stopped { shared: self.shared.clone(), known, number: None }
    }
}

/// Ends once a token says to stop: see [`Cancel::stopped`]. It needs no runtime of its own.
#[derive(Debug)]
#[must_use = "it only waits when it is awaited"]
pub struct Stopped {
    shared: Arc<Shared>,
    known: Option<Stop>,
    /// The number under which its waker is kept.
    number: Option<u64>,
}

impl Future for Stopped {
    type Output = Stop;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Stop> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        if let Some(stop) = state.said.filter(|stop| Some(*stop) > self.known) {
            return Poll::Ready(stop);
        }
        let kept = self.number.and_then(|number| state.wakers.iter_mut().find(|(other, _)| *other == number));
        match kept {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => {
                state.waited += 1;
                let number = state.waited;
                state.wakers.push((number, context.waker().clone()));
                self.number = Some(number);
            }
        }
        Poll::Pending
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.shared.lock().wakers.retain(|(other, _)| *other != number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Wake;
    use std::thread::Thread;

    use super::*;

    /// Wakes the thread that polls.
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn awaited<T>(future: impl Future<Output = T>) -> T {
        let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(std::thread::current()))));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => return done,
                Poll::Pending => std::thread::park(),
            }
        }
    }

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

    #[test]
    fn it_can_be_awaited_by_many_without_a_runtime() {
        let cancel = Cancel::new();
        let child = cancel.child();
        let waiting = [cancel.clone(), child.clone(), cancel.clone()];
        let waiting = waiting.map(|cancel| std::thread::spawn(move || awaited(cancel.stopped())));
        let urgent = std::thread::spawn(move || awaited(child.stopped_beyond(Some(Stop::Cancelled))));
        cancel.say(Stop::Cancelled);
        waiting.into_iter().for_each(|waiting| assert_eq!(waiting.join().unwrap(), Stop::Cancelled));
        assert!(!urgent.is_finished());
        cancel.say(Stop::Killed);
        assert_eq!(urgent.join().unwrap(), Stop::Killed);
    }

    #[test]
    fn a_future_that_is_dropped_leaves_nothing_behind() {
        let cancel = Cancel::new();
        {
            let mut stopped = pin!(cancel.stopped());
            let mut context = Context::from_waker(Waker::noop());
            assert!(stopped.as_mut().poll(&mut context).is_pending());
            assert!(stopped.as_mut().poll(&mut context).is_pending(), "polled again it waits once");
            assert_eq!(cancel.shared.lock().wakers.len(), 1);
        }
        assert!(cancel.shared.lock().wakers.is_empty());
    }
}
