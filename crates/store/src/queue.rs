//! Queues for threads within one process: first come, first served, and different threads in parallel.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_model::ThreadId;

/// One queue per thread.
#[derive(Debug, Default)]
pub struct Queues {
    queues: Mutex<HashMap<ThreadId, VecDeque<Arc<Waiter>>>>,
}

/// A waiter's entry in a queue. It has a condition variable of its own, so that leaving the queue wakes one waiter and not a thousand.
#[derive(Debug, Default)]
struct Waiter {
    first: Mutex<bool>,
    moved: Condvar,
}

/// Being first in the queue; the next waiter proceeds when this is dropped.
#[derive(Debug)]
pub struct QueueTurn {
    queues: Arc<Queues>,
    thread: ThreadId,
}

// A panic elsewhere can't leave these values inconsistent: each is one flag or one map entry.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queues {
    /// Waits in the queue of `thread`, at most `wait` (for ever if absent).
    pub fn enter(self: &Arc<Self>, thread: &ThreadId, wait: Option<Duration>) -> Option<QueueTurn> {
        self.enter_and_poll(thread, wait, (Duration::MAX, || {}))
    }

    /// The same, calling `poll` at this interval while waiting.
    pub fn enter_and_poll(
        self: &Arc<Self>,
        thread: &ThreadId,
        wait: Option<Duration>,
        (every, poll): (Duration, impl Fn()),
    ) -> Option<QueueTurn> {
        let waiter = Arc::new(Waiter::default());
        {
            let mut queues = lock(&self.queues);
            let queue = queues.entry(thread.clone()).or_default();
            queue.push_back(waiter.clone());
            *lock(&waiter.first) = queue.len() == 1;
        }
        let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
        loop {
            let left = deadline.map_or(every, |deadline| deadline.saturating_duration_since(Instant::now()));
            let waits = |first: &mut bool| !*first;
            let waited = waiter.moved.wait_timeout_while(lock(&waiter.first), left.min(every), waits);
            let (first, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            let is_over = *first || left.is_zero();
            drop(first);
            if is_over || !waited.timed_out() {
                return self.take_or_leave(thread, &waiter);
            }
            poll();
        }
    }

    /// Runs `work` when it is this caller's turn.
    pub fn with_thread_lock<T>(self: &Arc<Self>, thread: &ThreadId, work: impl FnOnce() -> T) -> T {
        let _turn = self.enter(thread, None);
        work()
    }

    /// Takes the turn if it came, perhaps at the last moment; else leaves the queue.
    fn take_or_leave(self: &Arc<Self>, thread: &ThreadId, waiter: &Arc<Waiter>) -> Option<QueueTurn> {
        let mut queues = lock(&self.queues);
        if *lock(&waiter.first) {
            return Some(QueueTurn { queues: self.clone(), thread: thread.clone() });
        }
        if let Some(queue) = queues.get_mut(thread) {
            queue.retain(|other| !Arc::ptr_eq(other, waiter));
        }
        None
    }
}

impl Drop for QueueTurn {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues.queues);
        let Some(queue) = queues.get_mut(&self.thread) else { return };
        queue.pop_front();
        match queue.front() {
            Some(next) => {
                *lock(&next.first) = true;
                next.moved.notify_one();
            }
            None => {
                queues.remove(&self.thread);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn waiters_are_served_in_the_order_of_arrival() {
        let queues = Arc::new(Queues::default());
        let thread_id = ThreadId::new("t").unwrap();
        let first = queues.enter(&thread_id, None).unwrap();
        let (served, order) = mpsc::channel();
        let mut waiting = Vec::new();
        for number in 0..20 {
            let queues = queues.clone();
            let thread_id = thread_id.clone();
            let served = served.clone();
            let before = lock(&queues.queues)[&thread_id].len();
            let watched = queues.clone();
            let id = thread_id.clone();
            waiting.push(thread::spawn(move || {
                queues.with_thread_lock(&thread_id, || served.send(number).unwrap());
            }));
            while lock(&watched.queues)[&id].len() == before {
                thread::yield_now();
            }
        }
        drop(first);
        for worker in waiting {
            worker.join().unwrap();
        }
        assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        assert!(lock(&queues.queues).is_empty());
    }

    #[test]
    fn a_waiter_that_gives_up_leaves_the_queue_and_other_threads_are_free() {
        let queues = Arc::new(Queues::default());
        let one = ThreadId::new("one").unwrap();
        let two = ThreadId::new("two").unwrap();
        let held = queues.enter(&one, None).unwrap();
        assert!(queues.enter(&one, Some(Duration::from_millis(5))).is_none());
        assert!(queues.enter(&two, Some(Duration::ZERO)).is_some());
        drop(held);
        assert!(queues.enter(&one, Some(Duration::ZERO)).is_some());
    }
}
