//! How every backend hands out leases: those of one process wait in line, and the first of them asks the backend.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::{OwnerId, ThreadId};

use crate::contract::{Acquire, Lease};
use crate::error::{Error, Result};
use crate::queue::{Queues, Turn};

/// How often the first in line asks again for a lease that another process holds.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// What a backend answers to whoever asks for a lease.
#[derive(Debug)]
pub enum Answer {
    /// It is theirs.
    Granted(Lease),
    /// Somebody alive holds it.
    HeldBy(OwnerId),
}

/// The line of one process, and the turns of those who hold leases.
#[derive(Debug, Default)]
pub struct Desk {
    queues: Arc<Queues>,
    turns: Mutex<HashMap<(ThreadId, u64), Turn>>,
}

impl Desk {
    /// Waits in line, then asks the backend until the lease is granted or the time is up. Taking over does not wait.
    pub fn acquire(
        &self,
        thread: &ThreadId,
        how: Acquire,
        us: &OwnerId,
        stands: impl Fn(&Lease) -> bool,
        mut ask: impl FnMut() -> Result<Answer>,
    ) -> Result<Lease> {
        let deadline = Instant::now().checked_add(how.wait);
        let left = || deadline.map_or(ASK_AGAIN, |deadline| deadline.saturating_duration_since(Instant::now()));
        self.dismiss(thread, |epoch| stands(&Lease { thread: thread.clone(), owner: us.clone(), epoch }));
        let turn = if how.take_over { None } else { self.queues.enter(thread, Some(how.wait)) };
        if turn.is_none() && !how.take_over {
            return Err(Error::LeaseHeld { thread: thread.clone(), holder: us.clone() });
        }
        loop {
            match ask()? {
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
        self.turns().remove(&(lease.thread.clone(), lease.epoch));
    }

    /// Ends the turn of whoever has one for a lease that does not stand any more, and gives it.
    fn dismiss(&self, thread: &ThreadId, stands: impl Fn(u64) -> bool) -> Option<Turn> {
        let held: Vec<_> = self.turns().keys().filter(|(held, _)| held == thread).cloned().collect();
        let stale = held.into_iter().find(|(_, epoch)| !stands(*epoch))?;
        self.turns().remove(&stale)
    }

    fn turns(&self) -> std::sync::MutexGuard<'_, HashMap<(ThreadId, u64), Turn>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
