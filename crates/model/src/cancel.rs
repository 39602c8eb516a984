//! Cancels work that runs elsewhere.
//!
//! A token is passed to everything that may take long: a model's answer, a tool, a wait. It only ever gets more urgent. Work checks it
//! between steps, blocks on it ([`Cancel::wait`]) or awaits it ([`Cancel::stopped`], on any runtime); a commit is never interrupted.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Why work must stop; each variant is more urgent than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Its deadline has passed.
    OutOfTime,
    /// It was asked to stop at the next opportunity.
    Cancelled,
    /// It was killed: all its work is torn down at once.
    Killed,
}

/// A cancellation token, shared between the code that cancels and the work.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The tokens that this one cancels too.
    children: Mutex<Vec<Weak<Shared>>>,
}

#[derive(Debug, Default)]
struct State {
    stop: Option<Stop>,
    /// The waiting futures, each under its number.
    wakers: Vec<(u64, Waker)>,
    /// The number of the latest waiting future.
    waited: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self, stop: Stop) {
        let mut state = self.lock();
        if state.stop >= Some(stop) {
            return;
        }
        state.stop = Some(stop);
        let wakers = std::mem::take(&mut state.wakers);
        self.changed.notify_all();
        // A waker may run arbitrary code.
        drop(state);
        for (_, waker) in wakers {
            waker.wake();
        }
        let children: Vec<_> = {
            let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
            children.retain(|child| child.strong_count() > 0);
            children.iter().filter_map(Weak::upgrade).collect()
        };
        for child in children {
            child.cancel(stop);
        }
    }
}

impl Cancel {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the work. Later calls only have an effect if they are more urgent.
    pub fn say(&self, stop: Stop) {
        self.shared.cancel(stop);
    }

    /// A token that is cancelled whenever this one is; cancelling it alone does not affect this one.
    #[must_use]
    pub fn child(&self) -> Self {
        let child = Self::new();
        let mut children = self.shared.children.lock().unwrap_or_else(PoisonError::into_inner);
        // Dropped children are removed when the list would grow, so that the cost per child stays constant.
        if children.len() == children.capacity() {
            children.retain(|other| other.strong_count() > 0);
        }
        children.push(Arc::downgrade(&child.shared));
        drop(children);
        // A cancellation after this point is passed on by the parent; one before it is seen here.
        if let Some(stop) = self.said() {
            child.say(stop);
        }
        child
    }

    /// The most urgent reason so far, if any.
    pub fn said(&self) -> Option<Stop> {
        self.shared.lock().stop
    }

    /// Blocks until the token is cancelled or `most` has passed; returns the reason, if any.
    pub fn wait(&self, most: Duration) -> Option<Stop> {
        self.wait_beyond(None, most)
    }

    /// Blocks until the reason is more urgent than `known` or `most` has passed; returns the reason, if any.
    pub fn wait_beyond(&self, known: Option<Stop>, most: Duration) -> Option<Stop> {
        let until = Instant::now().checked_add(most);
        let mut state = self.shared.lock();
        while state.stop <= known {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.stop
    }

    /// A future that is ready once the token is cancelled.
    pub fn stopped(&self) -> Stopped {
        self.stopped_beyond(None)
    }

    /// A future that is ready once the reason is more urgent than `known`.
    pub fn stopped_beyond(&self, known: Option<Stop>) -> Stopped {
        Stopped { shared: self.shared.clone(), known, number: None }
    }
}

/// Ready once a token is cancelled: see [`Cancel::stopped`]. It needs no runtime.
#[derive(Debug)]
#[must_use = "it only waits when it is awaited"]
pub struct Stopped {
    shared: Arc<Shared>,
    known: Option<Stop>,
    /// The number under which its waker is stored.
    number: Option<u64>,
}

impl Future for Stopped {
    type Output = Stop;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Stop> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        if let Some(stop) = state.stop.filter(|stop| Some(*stop) > self.known) {
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
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => return done,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    #[test]
    fn a_token_only_gets_more_urgent() {
        let cancel = Cancel::new();
        assert_eq!(cancel.said(), None);
        cancel.say(Stop::Killed);
        cancel.say(Stop::Cancelled);
        assert_eq!(cancel.said(), Some(Stop::Killed));
    }

    #[test]
    fn a_child_is_cancelled_with_its_parent_but_not_the_other_way_round() {
        let parent = Cancel::new();
        let child = parent.child();
        child.say(Stop::OutOfTime);
        assert_eq!((parent.said(), child.said()), (None, Some(Stop::OutOfTime)));
        parent.say(Stop::Cancelled);
        assert_eq!(child.said(), Some(Stop::Cancelled));
        assert_eq!(parent.child().said(), Some(Stop::Cancelled));
    }

    #[test]
    fn a_blocked_waiter_is_woken() {
        let cancel = Cancel::new();
        let other = cancel.clone();
        let sleeper = std::thread::spawn(move || other.wait(Duration::from_secs(60)));
        cancel.say(Stop::Cancelled);
        assert_eq!(sleeper.join().unwrap(), Some(Stop::Cancelled));
        assert_eq!(cancel.wait_beyond(Some(Stop::Cancelled), Duration::from_millis(1)), Some(Stop::Cancelled));
    }

    #[test]
    fn a_token_can_be_awaited_many_times_without_a_runtime() {
        let cancel = Cancel::new();
        let child = cancel.child();
        let waiting = [cancel.clone(), child.clone(), cancel.clone()];
        let waiting = waiting.map(|cancel| std::thread::spawn(move || awaited(cancel.stopped())));
        let urgent = std::thread::spawn(move || awaited(child.stopped_beyond(Some(Stop::Cancelled))));
        cancel.say(Stop::Cancelled);
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), Stop::Cancelled);
        }
        assert!(!urgent.is_finished());
        cancel.say(Stop::Killed);
        assert_eq!(urgent.join().unwrap(), Stop::Killed);
    }

    #[test]
    fn a_dropped_future_leaves_no_waker() {
        let cancel = Cancel::new();
        {
            let mut stopped = pin!(cancel.stopped());
            let mut context = Context::from_waker(Waker::noop());
            assert!(stopped.as_mut().poll(&mut context).is_pending());
            assert!(stopped.as_mut().poll(&mut context).is_pending(), "a second poll registers no second waker");
            assert_eq!(cancel.shared.lock().wakers.len(), 1);
        }
        assert!(cancel.shared.lock().wakers.is_empty());
    }
}
