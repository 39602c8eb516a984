//! Waits for a chain that another process runs.
//!
//! The batch that continues a thread creates its successor with a lease of the same process. So a chain belongs to one process from its first
//! thread to its last. If that process dies in between, no process holds either thread, and the next one that finds the successor runs it.
//!
//! A process that finds its chain held by another one all the same waits for the outcome, and returns that.

use selvedge_model::blocking::on_thread;
use selvedge_model::{Cancel, Status, ThreadId};
use selvedge_store::{Acquire, Error as StoreError};

use crate::engine::Engine;
use crate::error::Result;
use crate::events::CallerEvents;
use crate::held::LeaseGuard;
use crate::outcome::Outcome;

/// The state of a chain that another process runs.
pub(crate) enum ChainState {
    /// It ended, or is suspended.
    Ended(Box<Outcome>),
    /// No process runs it any more, and this thread of it has not begun.
    Free(LeaseGuard),
}

impl Engine {
    /// Acquires the lease of a thread.
    pub(crate) fn lease(&self, thread: &ThreadId, how: Acquire) -> selvedge_store::Result<LeaseGuard> {
        Ok(LeaseGuard::new(self, self.store.acquire(thread, how)?))
    }

    /// Waits for the outcome of a chain that another process runs. If the caller is stopped meanwhile, the stop is passed on.
    pub(crate) async fn await_end(
        &self,
        thread: &ThreadId,
        cancel: &Cancel,
        audience: &CallerEvents,
    ) -> Result<ChainState> {
        let mut passed_on = None;
        let waiter = self.watcher.waiter([thread.clone()], true)?;
        loop {
            let (end, found) = self.check_end(thread, audience)?;
            if let Some(found) = found {
                return Ok(found);
            }
            if !waiter.follow([end.clone()], true).is_empty() {
                continue;
            }
            if let Some(stop) = cancel.said().filter(|stop| Some(*stop) > passed_on) {
                passed_on = Some(stop);
                let engine = self.clone();
                on_thread(move || engine.stop(&end, stop)).await?;
            }
            waiter.woken_or_stopped(cancel, passed_on).await;
        }
    }

    /// The end of a chain, and its state if it is known by now.
    fn check_end(&self, thread: &ThreadId, audience: &CallerEvents) -> Result<(ThreadId, Option<ChainState>)> {
        let end = self.end_of_chain(thread)?;
        let lease = match self.lease(&end, Acquire::default()) {
            Ok(lease) => lease,
            Err(StoreError::LeaseHeld { .. }) => return Ok((end, None)),
            Err(error) => return Err(error.into()),
        };
        if self.store.get(&end)?.manifest.status == Status::Created {
            return Ok((end, Some(ChainState::Free(lease))));
        }
        let held = self.take(lease, audience)?;
        let ended = held.last_outcome();
        self.release_thread(held)?;
        let is_over = ended.status != Status::Continued;
        Ok((end, is_over.then(|| ChainState::Ended(Box::new(ended)))))
    }
}
