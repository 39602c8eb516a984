//! Group commit: whoever waits commits together.
//!
//! There is no committing thread. The first to arrive leads: it takes everything that waits, commits it in one
//! transaction with one sync, tells each what became of it, and hands the lead to one of those who came meanwhile.
//!
//! Being told is not being woken. A leader that woke a whole crowd would put it between the next leader, which soon waits for
//! the disk, and its processor. So it wakes a few, and each of them, before anything else, wakes one more.

use std::sync::{Arc, Condvar, Mutex};

use selvedge_store::Error;

use crate::commit::{Job, Outcome};
use crate::core::lock;

/// Those who wait to commit.
#[derive(Default)]
pub(crate) struct Group {
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    waiting: Vec<(Job, Arc<Seat>)>,
    led: bool,
}

/// Where somebody waits for an outcome, or to be made the leader.
#[derive(Default)]
struct Seat {
    call: Mutex<Option<Call>>,
    called: Condvar,
}

enum Call {
    Lead,
    /// What became of the job, and who is to be woken next.
    Done(Outcome, Option<Arc<Seat>>),
}

/// How many jobs one transaction takes at most, so that a long line does not wait on one sync for ever.
const TOGETHER_MAX: usize = 256;

/// How many a leader wakes itself: enough that no processor waits for the next in a chain.
const CHAINS: usize = 3;

impl Group {
    /// Hands a job in and returns its outcome; `commit` is called by whoever leads and must give one outcome per job.
    pub(crate) fn submit(&self, job: Job, commit: impl Fn(Vec<Job>) -> Vec<Outcome>) -> Outcome {
        let seat = Arc::new(Seat::default());
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
        let mut own = Outcome::Stale;
        let mut chains = [const { None }; CHAINS];
        // From the last to the first, so that each knows who comes after it; in a chain they wake in the order they came in.
        for (place, (other, outcome)) in seats.iter().zip(outcomes).enumerate().rev() {
            match Arc::ptr_eq(other, &seat) {
                true => own = outcome,
                false => {
                    let next = chains[place % CHAINS].replace(other.clone());
                    other.tell(Call::Done(outcome, next));
                }
            }
        }
        chains.iter().flatten().for_each(|first: &Arc<Seat>| first.wake());
        own
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

/// Leading; if the leader panics, the others are told that nothing is known, and the next one leads.
struct Led<'a> {
    group: &'a Group,
    seats: &'a [Arc<Seat>],
    own: &'a Arc<Seat>,
}

impl Drop for Led<'_> {
    fn drop(&mut self) {
        self.group.pass_the_lead();
        for seat in self.seats.iter().filter(|seat| !Arc::ptr_eq(seat, self.own)) {
            let why = "the thread that committed for others panicked".to_owned();
            seat.tell(Call::Done(Outcome::Refused(Error::OutcomeUnknown { why }), None));
            seat.wake();
        }
    }
}

impl Seat {
    fn tell(&self, call: Call) {
        *lock(&self.call) = Some(call);
    }

    fn wake(&self) {
        self.called.notify_one();
    }

    fn wait(&self) -> Call {
        let mut call = lock(&self.call);
        loop {
            if let Some(call) = call.take() {
                return call;
            }
            call = self.called.wait(call).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}
