//! How a chain passes from one thread to the next while others wait for it, speak to it or stop it.
//!
//! The batch that continues a thread creates its successor held by the same process. So a chain belongs to the process that runs it from
//! its first thread to its last; if that one dies in between, nobody holds either, and the process that finds the successor goes on.
//!
//! Who finds all the same that somebody else goes on with its chain waits for what comes of it, and says that.

use std::time::Duration;

use selvedge_model::blocking::on_thread;
use selvedge_model::{Cancel, Status, ThreadId};
use selvedge_store::{Acquire, Error as StoreError};

use crate::engine::Engine;
use crate::error::Result;
use crate::events::Audience;
use crate::held::Leased;
use crate::outcome::Outcome;

/// How often is looked whether its process died: that is in no feed.
const LOOK: Duration = Duration::from_millis(100);

/// What became of a chain that somebody else went on with.
pub(crate) enum Awaited {
    /// It came to its end, or waits.
    Ended(Box<Outcome>),
    /// Nobody goes on with it any more, and this thread of it has not begun.
    Free(Leased),
}

impl Engine {
    /// Takes the lease of a thread.
    pub(crate) fn lease(&self, thread: &ThreadId, how: Acquire) -> selvedge_store::Result<Leased> {
        Ok(Leased::new(self, self.store.acquire(thread, how)?))
    }

    /// Waits for what comes of a chain that another process goes on with. A caller that is told to stop meanwhile says so to that one.
    pub(crate) async fn await_end(&self, thread: &ThreadId, cancel: &Cancel, audience: &Audience) -> Result<Awaited> {
        let mut is_said = false;
        loop {
            let (engine, thread, own) = (self.clone(), thread.clone(), audience.clone());
            let (position, end, found) = self.tasks.block(move || engine.look_for_end(&thread, &own)).await?;
            if let Some(found) = found {
                return Ok(found);
            }
            if let Some(stop) = cancel.said().filter(|_| !std::mem::replace(&mut is_said, true)) {
                let engine = self.clone();
                on_thread(move || engine.stop(&end, stop)).await?;
            }
            self.feed.after(position, LOOK).await;
        }
    }

    /// What became of a chain, if it is known by now; with the place in the feed before the look, and the end of the chain.
    fn look_for_end(&self, thread: &ThreadId, audience: &Audience) -> Result<(u64, ThreadId, Option<Awaited>)> {
        let position = self.store.position()?;
        let end = self.end_of_chain(thread)?;
        let lease = match self.lease(&end, Acquire::default()) {
            Ok(lease) => lease,
            Err(StoreError::LeaseHeld { .. }) => return Ok((position, end, None)),
            Err(error) => return Err(error.into()),
        };
        if self.store.get(&end)?.manifest.status == Status::Created {
            return Ok((position, end, Some(Awaited::Free(lease))));
        }
        let held = self.take(lease, audience)?;
        let ended = held.last_outcome();
        self.give_back(held)?;
        let is_over = ended.status != Status::Continued;
        Ok((position, end, is_over.then(|| Awaited::Ended(Box::new(ended)))))
    }
}
