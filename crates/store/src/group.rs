//! Group commit: jobs that wait at the same time are committed together.
//!
//! There is no committing thread. The first to arrive leads: it takes everything that waits, commits it in one
//! transaction with one sync, tells each what became of it, and hands the lead to one of those who came meanwhile.
//!
//! Being told is not being woken. A leader that woke a whole crowd would put it between the next leader, which soon waits for
//! the disk, and its processor. So it wakes a few, and each of them, before anything else, wakes one more.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Error;

/// Those who wait to commit. What a job and its outcome are is the backend's affair; an outcome that is not known must be one.
pub struct Group<Job, Outcome> {
    line: Mutex<Line<Job, Outcome>>,
}

struct Line<Job, Outcome> {
    waiting: Vec<(Job, Arc<Seat<Outcome>>)>,
    led: bool,
}

/// Where a thread waits for an outcome, or to be made the leader.
struct Seat<Outcome> {
    call: Mutex<Option<Call<Outcome>>>,
    called: Condvar,
}

enum Call<Outcome> {
    Lead,
    /// What became of the job, and who is to be woken next.
    Done(Outcome, Option<Arc<Seat<Outcome>>>),
}

impl<Job, Outcome> Default for Group<Job, Outcome> {
    fn default() -> Self {
        Self { line: Mutex::new(Line { waiting: Vec::new(), led: false }) }
    }
}

/// What a lock guards here is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many jobs one transaction takes at most, so that a long line does not wait on one sync for ever.
const TOGETHER_MAX: usize = 256;

/// How many a leader wakes itself: enough that no processor waits for the next in a chain.
const CHAINS: usize = 3;

impl<Job, Outcome: From<Error>> Group<Job, Outcome> {
    /// Hands a job in and returns its outcome; `commit` is called by the thread that leads and must give one outcome per job.
    pub fn submit(&self, job: Job, commit: impl Fn(Vec<Job>) -> Vec<Outcome>) -> Outcome {
        let seat = Arc::new(Seat { call: Mutex::new(None), called: Condvar::new() });
        let leads = {
            let mut line = lock(&self.line);
            line.waiting.push((job, seat.clone()));
            !std::mem::replace(&mut line.led, true)
        };
        if !leads && let Call::Done(outcome, next) = seat.wait() {
            next.iter().for_each(|next| next.wake());
            return outcome;
        }
        let (jobs, seats): (Vec<_>, Vec<_>) = {
            let mut line = lock(&self.line);
            let count = line.waiting.len().min(TOGETHER_MAX);
            line.waiting.drain(..count).unzip()
        };
        let led = Led { group: self, seats: &seats, own: &seat };
        let outcomes = commit(jobs);
        std::mem::forget(led);
        self.pass_the_lead();
        let mut own = None;
        let mut chains = [const { None }; CHAINS];
        // From the last to the first, so that each knows who comes after it; in a chain they wake in the order they came in.
        for (place, (other, outcome)) in seats.iter().zip(outcomes).enumerate().rev() {
            match Arc::ptr_eq(other, &seat) {
                true => own = Some(outcome),
                false => {
                    let next = chains[place % CHAINS].replace(other.clone());
                    other.tell(Call::Done(outcome, next));
                }
            }
        }
        chains.iter().flatten().for_each(|first: &Arc<Seat<Outcome>>| first.wake());
        own.unwrap_or_else(|| unknown("the commit of the group says nothing of this job"))
    }

    fn pass_the_lead(&self) {
        let next = {
            let mut line = lock(&self.line);
            line.led = !line.waiting.is_empty();
            line.waiting.first().map(|(_, seat)| seat.clone())
        };
        // Called when the line is free: the first thing a leader does is to take it.
        if let Some(seat) = next {
            seat.tell(Call::Lead);
            seat.wake();
        }
    }
}

fn unknown<Outcome: From<Error>>(why: &str) -> Outcome {
    Outcome::from(Error::OutcomeUnknown { why: why.to_owned() })
}

/// Leading; if the leader panics, the others are told that nothing is known, and the next one leads.
struct Led<'a, Job, Outcome: From<Error>> {
    group: &'a Group<Job, Outcome>,
    seats: &'a [Arc<Seat<Outcome>>],
    own: &'a Arc<Seat<Outcome>>,
}

impl<Job, Outcome: From<Error>> Drop for Led<'_, Job, Outcome> {
    fn drop(&mut self) {
        self.group.pass_the_lead();
        for seat in self.seats.iter().filter(|seat| !Arc::ptr_eq(seat, self.own)) {
            seat.tell(Call::Done(unknown("the thread that committed for others panicked"), None));
            seat.wake();
        }
    }
}

impl<Outcome> Seat<Outcome> {
    fn tell(&self, call: Call<Outcome>) {
        *lock(&self.call) = Some(call);
    }

    fn wake(&self) {
        self.called.notify_one();
    }

    fn wait(&self) -> Call<Outcome> {
        let mut call = lock(&self.call);
        loop {
            if let Some(call) = call.take() {
                return call;
            }
            call = self.called.wait(call).unwrap_or_else(PoisonError::into_inner);
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
    struct Told(Result<u64, Error>);

    impl From<Error> for Told {
        fn from(error: Error) -> Self {
            Self(Err(error))
        }
    }

    #[test]
    fn each_gets_its_own_outcome_however_many_wait() {
        let group = Group::<u64, Told>::default();
        let all = Barrier::new(32);
        thread::scope(|scope| {
            for number in 0..32 {
                let group = &group;
                let all = &all;
                scope.spawn(move || {
                    all.wait();
                    for job in (0..50).map(|round| number * 1000 + round) {
                        let told = group.submit(job, |jobs| jobs.into_iter().map(|job| Told(Ok(job + 1))).collect());
                        assert_eq!(told.0.unwrap(), job + 1);
                    }
                });
            }
        });
    }

    #[test]
    fn those_a_panicking_leader_commits_for_hear_that_nothing_is_known() {
        let group = Arc::new(Group::<u64, Told>::default());
        let commit = |jobs: Vec<u64>| -> Vec<Told> {
            thread::sleep(Duration::from_millis(50));
            assert!(!jobs.contains(&13), "a leader that panics");
            jobs.into_iter().map(|job| Told(Ok(job))).collect()
        };
        let submit = |job| {
            let group = group.clone();
            let handle = thread::spawn(move || group.submit(job, commit));
            thread::sleep(Duration::from_millis(10));
            handle
        };
        // The first leads alone; the other two wait meanwhile and are committed together, by one of them.
        let [first, second, third] = [submit(1), submit(13), submit(2)];
        assert_eq!(first.join().unwrap().0.unwrap(), 1);
        assert!(second.join().is_err());
        assert!(matches!(third.join().unwrap().0, Err(Error::OutcomeUnknown { .. })));
        assert_eq!(group.submit(3, commit).0.unwrap(), 3);
    }
}
