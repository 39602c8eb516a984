//! How every backend hands out leases: those of one process wait in line, and the first of them asks the backend.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::{OwnerId, ThreadId};

use crate::contract::{Acquire, Lease};
use crate::error::{Error, Result};
use crate::queue::{Queues, Turn};

/// How often the first in line asks again for a lease that another process holds.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// How often those in line look whether the one before them still holds what it waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a backend answers to whoever asks for a lease.
#[derive(Debug)]
pub enum Answer {
    /// It is theirs.
    Granted(Lease),
    /// Somebody alive holds it.
    HeldBy(OwnerId),
}

/// What a backend knows of the leases.
pub trait Backend {
    /// Takes the lease of a thread, if it is free, its holder is dead, or it is to be taken over.
    fn ask(&self, thread: &ThreadId, take_over: bool) -> Result<Answer>;

    /// Who holds the lease of a thread, dead or alive, and its epoch.
    fn holder(&self, thread: &ThreadId) -> Result<Option<(OwnerId, u64)>>;
}

/// The line of one process, and the turns of those who hold leases.
#[derive(Debug, Default)]
pub struct Desk {
    queues: Arc<Queues>,
    /// By thread and epoch, in order: of thousands of leases those of one thread are found at once.
    turns: Mutex<BTreeMap<(ThreadId, u64), Turn>>,
}

impl Desk {
    /// Waits in line, then asks the backend until the lease is granted or the time is up. Taking over does not wait.
    pub fn acquire(&self, thread: &ThreadId, how: Acquire, us: &OwnerId, backend: &dyn Backend) -> Result<Lease> {
        let deadline = Instant::now().checked_add(how.wait);
        let left = || deadline.map_or(ASK_AGAIN, |deadline| deadline.saturating_duration_since(Instant::now()));
        let turn = match how.take_over {
            true => None,
            false => {
                self.dismiss_stale(thread, us, backend);
                // Whoever is first in line may have lost its lease to another process, and never say so.
                let every = (LOOK_AGAIN, || self.dismiss_stale(thread, us, backend));
                Some(self.queues.enter_and_look(thread, Some(how.wait), every).ok_or(()))
            }
        };
        if let Some(Err(())) = turn {
            let holder = backend.holder(thread)?.map_or_else(|| us.clone(), |(holder, _)| holder);
            return Err(Error::LeaseHeld { thread: thread.clone(), holder });
        }
        let turn = turn.and_then(std::result::Result::ok);
        loop {
            match backend.ask(thread, how.take_over)? {
                Answer::Granted(lease) => {
                    // Whoever was robbed of the lease in this process was robbed of its turn too.
                    let turn = turn.or_else(|| self.dismiss(thread, |_| false));
                    if let Some(turn) = turn {
                        self.turns().insert((thread.clone(), lease.epoch), turn);
                    }
                    return Ok(lease);
                }
                Answer::HeldBy(holder) if left().is_zero() => {
                    return Err(Error::LeaseHeld { thread: thread.clone(), holder });
                }
                Answer::HeldBy(_) => thread::sleep(ASK_AGAIN.min(left())),
            }
        }
    }

    /// Lets the next one in line go ahead.
    pub fn leave(&self, lease: &Lease) {
        let turn = self.turns().remove(&(lease.thread.clone(), lease.epoch));
        drop(turn);
    }

    fn dismiss_stale(&self, thread: &ThreadId, us: &OwnerId, backend: &dyn Backend) {
        if !self.held_epochs(thread).is_empty() {
            // If the backend can't say, the turn stays; the wait is bounded.
            let now = backend.holder(thread);
            let stands = |epoch| now.as_ref().is_ok_and(|now| *now == Some((us.clone(), epoch))) || now.is_err();
            drop(self.dismiss(thread, stands));
        }
    }

    /// Ends the turn of whoever has one for a lease that does not stand any more, and gives it.
    fn dismiss(&self, thread: &ThreadId, stands: impl Fn(u64) -> bool) -> Option<Turn> {
        let stale = self.held_epochs(thread).into_iter().find(|epoch| !stands(*epoch))?;
        self.turns().remove(&(thread.clone(), stale))
    }

    /// The epochs under which somebody here has a turn for a thread.
    fn held_epochs(&self, thread: &ThreadId) -> Vec<u64> {
        let all = (thread.clone(), 0)..=(thread.clone(), u64::MAX);
        self.turns().range(all).map(|((_, epoch), _)| *epoch).collect()
    }

    fn turns(&self) -> std::sync::MutexGuard<'_, BTreeMap<(ThreadId, u64), Turn>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
