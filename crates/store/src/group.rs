//! Group commit: jobs that wait at the same time are committed together.
//!
//! There is no committing thread. The first to arrive leads: it takes all waiting jobs, commits them in one transaction with one sync,
//! hands each its outcome, and passes the lead to one of the threads that arrived meanwhile.
//!
//! A leader that woke a whole crowd would make it compete for the processor with the next leader, which soon waits for the disk. So it
//! wakes only a few threads, and each of them first wakes one more.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Error;

/// The threads that wait to commit. The backend defines jobs and outcomes; an outcome must be able to express [`Error::OutcomeUnknown`].
pub struct Group<Job, Outcome> {
    queue: Mutex<Queue<Job, Outcome>>,
}

struct Queue<Job, Outcome> {
    waiting: Vec<(Job, Arc<Waiter<Outcome>>)>,
    led: bool,
}

/// Where a thread waits for an outcome, or to become the leader.
struct Waiter<Outcome> {
    wakeup: Mutex<Option<Wakeup<Outcome>>>,
    woken: Condvar,
}

enum Wakeup<Outcome> {
    Lead,
    /// The outcome of the job, and the thread to wake next.
    Done(Outcome, Option<Arc<Waiter<Outcome>>>),
}

impl<Job, Outcome> Default for Group<Job, Outcome> {
    fn default() -> Self {
        Self { queue: Mutex::new(Queue { waiting: Vec::new(), led: false }) }
    }
}

/// The value is consistent between any two statements, so a panic elsewhere does not corrupt it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The maximum number of jobs of one transaction, so that a long queue does not wait for one sync for ever.
const TOGETHER_MAX: usize = 256;

/// How many threads a leader wakes itself: enough that no processor waits for the next in a chain.
const CHAINS: usize = 3;

impl<Job, Outcome: From<Error>> Group<Job, Outcome> {
    /// Submits a job and returns its outcome; `commit` is called by the leading thread and must return one outcome per job.
    pub fn submit(&self, job: Job, commit: impl Fn(Vec<Job>) -> Vec<Outcome>) -> Outcome {
        let waiter = Arc::new(Waiter { wakeup: Mutex::new(None), woken: Condvar::new() });
        let leads = {
            let mut queue = lock(&self.queue);
            queue.waiting.push((job, waiter.clone()));
            !std::mem::replace(&mut queue.led, true)
        };
        if !leads && let Wakeup::Done(outcome, next) = waiter.wait() {
            if let Some(next) = &next {
                next.wake();
            }
            return outcome;
        }
        let (jobs, waiters): (Vec<_>, Vec<_>) = {
            let mut queue = lock(&self.queue);
            let count = queue.waiting.len().min(TOGETHER_MAX);
            queue.waiting.drain(..count).unzip()
        };
        let led = LeadGuard { group: self, waiters: &waiters, own: &waiter };
        let outcomes = commit(jobs);
        std::mem::forget(led);
        self.pass_lead();
        let mut own = None;
        let mut chains = [const { None }; CHAINS];
        // From the last to the first, so that each knows the next one; a chain wakes in the order of arrival.
        for (index, (other, outcome)) in waiters.iter().zip(outcomes).enumerate().rev() {
            if Arc::ptr_eq(other, &waiter) {
                own = Some(outcome);
            } else {
                let next = chains[index % CHAINS].replace(other.clone());
                other.answer(Wakeup::Done(outcome, next));
            }
        }
        for first in chains.iter().flatten() {
            let first: &Arc<Waiter<Outcome>> = first;
            first.wake();
        }
        own.unwrap_or_else(|| unknown("the group commit returned no outcome for this job"))
    }

    fn pass_lead(&self) {
        let next = {
            let mut queue = lock(&self.queue);
            queue.led = !queue.waiting.is_empty();
            queue.waiting.first().map(|(_, waiter)| waiter.clone())
        };
        // Woken after the queue is unlocked, because the leader locks it first.
        if let Some(waiter) = next {
            waiter.answer(Wakeup::Lead);
            waiter.wake();
        }
    }
}

fn unknown<Outcome: From<Error>>(why: &str) -> Outcome {
    Outcome::from(Error::OutcomeUnknown { why: why.to_owned() })
}

/// Held while leading; if the leader panics, the others get an unknown outcome, and the next one leads.
struct LeadGuard<'a, Job, Outcome: From<Error>> {
    group: &'a Group<Job, Outcome>,
    waiters: &'a [Arc<Waiter<Outcome>>],
    own: &'a Arc<Waiter<Outcome>>,
}

impl<Job, Outcome: From<Error>> Drop for LeadGuard<'_, Job, Outcome> {
    fn drop(&mut self) {
        self.group.pass_lead();
        for waiter in self.waiters.iter().filter(|waiter| !Arc::ptr_eq(waiter, self.own)) {
            waiter.answer(Wakeup::Done(unknown("the thread that led the group commit panicked"), None));
            waiter.wake();
        }
    }
}

impl<Outcome> Waiter<Outcome> {
    fn answer(&self, wakeup: Wakeup<Outcome>) {
        *lock(&self.wakeup) = Some(wakeup);
    }

    fn wake(&self) {
        self.woken.notify_one();
    }

    fn wait(&self) -> Wakeup<Outcome> {
        let mut wakeup = lock(&self.wakeup);
        loop {
            if let Some(wakeup) = wakeup.take() {
                return wakeup;
            }
            wakeup = self.woken.wait(wakeup).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[derive(Debug)]
    struct TestOutcome(Result<u64, Error>);

    impl From<Error> for TestOutcome {
        fn from(error: Error) -> Self {
            Self(Err(error))
        }
    }

    #[test]
    fn each_thread_gets_its_own_outcome_however_many_wait() {
        let group = Group::<u64, TestOutcome>::default();
        let all = Barrier::new(32);
        thread::scope(|scope| {
            for number in 0..32 {
                let group = &group;
                let all = &all;
                scope.spawn(move || {
                    all.wait();
                    for job in (0..50).map(|round| number * 1000 + round) {
                        let outcome =
                            group.submit(job, |jobs| jobs.into_iter().map(|job| TestOutcome(Ok(job + 1))).collect());
                        assert_eq!(outcome.0.unwrap(), job + 1);
                    }
                });
            }
        });
    }

    #[test]
    fn jobs_of_a_panicking_leader_get_an_unknown_outcome() {
        let group = Arc::new(Group::<u64, TestOutcome>::default());
        let commit = |jobs: Vec<u64>| -> Vec<TestOutcome> {
            thread::sleep(Duration::from_millis(50));
            assert!(!jobs.contains(&13), "a leader that panics");
            jobs.into_iter().map(|job| TestOutcome(Ok(job))).collect()
        };
        let submit = |job| {
            let group = group.clone();
            let handle = thread::spawn(move || group.submit(job, commit));
            thread::sleep(Duration::from_millis(10));
            handle
        };
        // The first leads alone; the other two wait meanwhile and are committed together, led by one of them.
        let [first, second, third] = [submit(1), submit(13), submit(2)];
        assert_eq!(first.join().unwrap().0.unwrap(), 1);
        assert!(second.join().is_err());
        assert!(matches!(third.join().unwrap().0, Err(Error::OutcomeUnknown { .. })));
        assert_eq!(group.submit(3, commit).0.unwrap(), 3);
    }
}
