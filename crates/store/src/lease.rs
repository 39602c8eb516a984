//! How every backend grants leases: waiters of one process queue, and the first of them asks the backend.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_model::{OwnerId, ThreadId};

use crate::contract::{Acquire, Lease};
use crate::error::{Error, Result};
use crate::queue::{QueueTurn, Queues};

/// How often the first in the queue asks again without a signal that a lease was freed.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How often waiters check whether the one before them lost its lease to a takeover, which nothing signals.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A backend's answer to a request for a lease.
#[derive(Debug)]
pub enum LeaseAnswer {
    /// The caller holds it now.
    Granted(Lease),
    /// A live owner holds it.
    HeldBy(OwnerId),
}

/// The operations of a backend on leases.
pub trait LeaseBackend {
    /// Acquires the lease of a thread, if it is free, its holder is dead, or it is to be taken over.
    fn try_acquire(&self, thread: &ThreadId, take_over: bool) -> Result<LeaseAnswer>;

    /// The holder of a thread's lease, dead or alive, and its epoch.
    fn holder(&self, thread: &ThreadId) -> Result<Option<(OwnerId, u64)>>;

    /// As [`Feed::leases_freed`](crate::contract::Feed::leases_freed).
    fn leases_freed(&self) -> u64;

    /// As [`Feed::wait_for_lease`](crate::contract::Feed::wait_for_lease).
    fn wait_for_lease(&self, freed: u64, timeout: Duration) -> Result<()>;
}

/// The queues of one process, and the turns of its lease holders.
#[derive(Debug, Default)]
pub struct LeaseQueue {
    queues: Arc<Queues>,
    /// By thread and epoch, in order: the leases of one thread are found at once among thousands.
    turns: Mutex<BTreeMap<(ThreadId, u64), QueueTurn>>,
}

impl LeaseQueue {
    /// Waits in the queue, then asks the backend until the lease is granted or the time is up. A takeover does not wait.
    pub fn acquire(&self, thread: &ThreadId, how: Acquire, us: &OwnerId, backend: &dyn LeaseBackend) -> Result<Lease> {
        let deadline = Instant::now().checked_add(how.wait);
        let left = || deadline.map_or(ASK_AGAIN, |deadline| deadline.saturating_duration_since(Instant::now()));
        let turn = if how.take_over {
            None
        } else {
            self.dismiss_stale(thread, us, backend);
            // The first in the queue may have lost its lease to another process without noticing.
            let every = (LOOK_AGAIN, || self.dismiss_stale(thread, us, backend));
            Some(self.queues.enter_and_poll(thread, Some(how.wait), every).ok_or(()))
        };
        if let Some(Err(())) = turn {
            let holder = backend.holder(thread)?.map_or_else(|| us.clone(), |(holder, _)| holder);
            return Err(Error::LeaseHeld { thread: thread.clone(), holder });
        }
        let turn = turn.and_then(std::result::Result::ok);
        loop {
            // Before the lease is tried, so that its end is not missed in between.
            let freed = backend.leases_freed();
            match backend.try_acquire(thread, how.take_over)? {
                LeaseAnswer::Granted(lease) => {
                    // A holder in this process that lost the lease to this takeover loses its turn too.
                    let turn = turn.or_else(|| self.dismiss(thread, |_| false));
                    if let Some(turn) = turn {
                        self.turns().insert((thread.clone(), lease.epoch), turn);
                    }
                    return Ok(lease);
                }
                LeaseAnswer::HeldBy(holder) if left().is_zero() => {
                    return Err(Error::LeaseHeld { thread: thread.clone(), holder });
                }
                LeaseAnswer::HeldBy(_) => backend.wait_for_lease(freed, ASK_AGAIN.min(left()))?,
            }
        }
    }

    /// Ends the turn of a lease, so that the next waiter proceeds.
    pub fn end_turn(&self, lease: &Lease) {
        let turn = self.turns().remove(&(lease.thread.clone(), lease.epoch));
        drop(turn);
    }

    fn dismiss_stale(&self, thread: &ThreadId, us: &OwnerId, backend: &dyn LeaseBackend) {
        if !self.held_epochs(thread).is_empty() {
            // If the backend fails, the turn stays; the wait is bounded.
            let now = backend.holder(thread);
            let stands = |epoch| now.as_ref().is_ok_and(|now| *now == Some((us.clone(), epoch))) || now.is_err();
            drop(self.dismiss(thread, stands));
        }
    }

    /// Removes and returns the turn of a lease that is not held any more.
    fn dismiss(&self, thread: &ThreadId, stands: impl Fn(u64) -> bool) -> Option<QueueTurn> {
        let stale = self.held_epochs(thread).into_iter().find(|epoch| !stands(*epoch))?;
        self.turns().remove(&(thread.clone(), stale))
    }

    /// The epochs under which this process has turns for a thread.
    fn held_epochs(&self, thread: &ThreadId) -> Vec<u64> {
        let all = (thread.clone(), 0)..=(thread.clone(), u64::MAX);
        self.turns().range(all).map(|((_, epoch), _)| *epoch).collect()
    }

    fn turns(&self) -> std::sync::MutexGuard<'_, BTreeMap<(ThreadId, u64), QueueTurn>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
