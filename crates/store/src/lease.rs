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
        mut ask: impl FnMut() -> Result<Answer>,
    ) -> Result<Lease> {
        let deadline = Instant::now() + how.wait;
        let turn = if how.take_over { None } else { self.queues.enter(thread, Some(how.wait)) };
        if turn.is_none() && !how.take_over {
            return Err(Error::LeaseHeld { thread: thread.clone(), holder: us.clone() });
        }
        loop {
            match ask()? {
                Answer::Granted(lease) => {
                    if let Some(turn) = turn {
                        self.turns().insert((thread.clone(), lease.epoch), turn);
                    }
                    return Ok(lease);
                }
                Answer::HeldBy(holder) if Instant::now() >= deadline => {
                    return Err(Error::LeaseHeld { thread: thread.clone(), holder });
                }
                Answer::HeldBy(_) => thread::sleep(ASK_AGAIN.min(deadline.saturating_duration_since(Instant::now()))),
            }
        }
    }

    /// Lets the next one in line go ahead.
    pub fn leave(&self, lease: &Lease) {
        self.turns().remove(&(lease.thread.clone(), lease.epoch));
    }

    fn turns(&self) -> std::sync::MutexGuard<'_, HashMap<(ThreadId, u64), Turn>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
