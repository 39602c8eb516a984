//! Waiting in line for a thread within one process: first come, first served, and different threads side by side.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_model::ThreadId;

/// One queue per thread.
#[derive(Debug, Default)]
pub struct Queues {
    lines: Mutex<HashMap<ThreadId, VecDeque<Arc<Place>>>>,
}

/// Somebody's place in a queue. A condition of its own, so that a departure wakes one and not a thousand.
#[derive(Debug, Default)]
struct Place {
    first: Mutex<bool>,
    moved: Condvar,
}

/// Being first in line; the next one is let in when this is dropped.
#[derive(Debug)]
pub struct Turn {
    queues: Arc<Queues>,
    thread: ThreadId,
}

// A panic elsewhere can't leave these values half changed: each is one flag or one map entry.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queues {
    /// Waits in line for `thread`, at most `wait` (for ever if absent).
    pub fn enter(self: &Arc<Self>, thread: &ThreadId, wait: Option<Duration>) -> Option<Turn> {
        self.enter_and_look(thread, wait, (Duration::MAX, || {}))
    }

    /// The same, calling `look` again and again while waiting.
    pub fn enter_and_look(
        self: &Arc<Self>,
        thread: &ThreadId,
        wait: Option<Duration>,
        (every, look): (Duration, impl Fn()),
    ) -> Option<Turn> {
        let place = Arc::new(Place::default());
        {
            let mut lines = lock(&self.lines);
            let line = lines.entry(thread.clone()).or_default();
            line.push_back(place.clone());
            *lock(&place.first) = line.len() == 1;
        }
        let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
        loop {
            let left = deadline.map_or(every, |deadline| deadline.saturating_duration_since(Instant::now()));
            let waits = |first: &mut bool| !*first;
            let waited = place.moved.wait_timeout_while(lock(&place.first), left.min(every), waits);
            let (first, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            let is_over = *first || left.is_zero();
            drop(first);
            if is_over || !waited.timed_out() {
                return self.settle(thread, &place);
            }
            look();
        }
    }

    /// Runs `work` when it is this caller's turn.
    pub fn with_thread_lock<T>(self: &Arc<Self>, thread: &ThreadId, work: impl FnOnce() -> T) -> T {
        let _turn = self.enter(thread, None);
        work()
    }

    /// Takes the turn if it came, perhaps at the last moment; else leaves the line.
    fn settle(self: &Arc<Self>, thread: &ThreadId, place: &Arc<Place>) -> Option<Turn> {
        let mut lines = lock(&self.lines);
        if *lock(&place.first) {
            return Some(Turn { queues: self.clone(), thread: thread.clone() });
        }
        if let Some(line) = lines.get_mut(thread) {
            line.retain(|other| !Arc::ptr_eq(other, place));
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lines = lock(&self.queues.lines);
        let Some(line) = lines.get_mut(&self.thread) else { return };
        line.pop_front();
        match line.front() {
            Some(next) => {
                *lock(&next.first) = true;
                next.moved.notify_one();
            }
            None => {
                lines.remove(&self.thread);
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
    fn those_who_wait_are_served_in_the_order_they_came() {
        let queues = Arc::new(Queues::default());
        let thread_id = ThreadId::new("t").unwrap();
        let first = queues.enter(&thread_id, None).unwrap();
        let (served, order) = mpsc::channel();
        let mut waiting = Vec::new();
        for number in 0..20 {
            let queues = queues.clone();
            let thread_id = thread_id.clone();
            let served = served.clone();
            let before = lock(&queues.lines)[&thread_id].len();
            let lines = queues.clone();
            let id = thread_id.clone();
            waiting.push(thread::spawn(move || {
                queues.with_thread_lock(&thread_id, || served.send(number).unwrap());
            }));
            while lock(&lines.lines)[&id].len() == before {
                thread::yield_now();
            }
        }
        drop(first);
        waiting.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        assert!(lock(&queues.lines).is_empty());
    }

    #[test]
    fn whoever_gives_up_leaves_the_line_and_other_threads_are_free() {
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
