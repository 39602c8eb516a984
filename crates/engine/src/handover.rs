//! How a chain passes from one thread to the next while others wait for it, speak to it or stop it.
//!
//! The batch that continues a thread creates its successor held by the same process. So a chain belongs to the process that runs it from
//! its first thread to its last; if that one dies in between, nobody holds either, and the process that finds the successor goes on.
//!
//! Who finds all the same that somebody else goes on with its chain waits for what comes of it, and says that.

use std::time::Duration;

use selvedge_model::{Cancel, Status, ThreadId};
use selvedge_store::{Acquire, Error as StoreError};

use crate::engine::Engine;
use crate::error::Result;
use crate::held::Leased;
use crate::outcome::Outcome;
use crate::told::Told;

/// How often is looked whether somebody has come to an end.
const LOOK: Duration = Duration::from_millis(100);

/// What became of a chain that somebody else went on with.
pub(crate) enum Awaited<'e> {
    /// It came to its end, or waits.
    Ended(Box<Outcome>),
    /// Nobody goes on with it any more, and this thread of it has not begun.
    Free(Leased<'e>),
}

impl Engine {
    /// Takes the lease of a thread.
    pub(crate) fn lease(&self, thread: &ThreadId, how: Acquire) -> selvedge_store::Result<Leased<'_>> {
        Ok(Leased::new(self, self.store.acquire(thread, how)?))
    }

    /// Waits for what comes of a chain that somebody else goes on with. Who is told to stop meanwhile says so to that one.
    pub(crate) fn await_end(
        &self,
        thread: &ThreadId,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Awaited<'_>> {
        let mut is_said = false;
        loop {
            let position = self.store.position()?;
            let end = self.end_of_chain(thread)?;
            match self.lease(&end, Acquire::default()) {
                Ok(lease) => {
                    if self.store.get(&end)?.manifest.status == Status::Created {
                        return Ok(Awaited::Free(lease));
                    }
                    let held = self.take(lease, tell)?;
                    let ended = held.last_outcome();
                    let is_over = ended.status != Status::Continued;
                    self.give_back(held)?;
                    if is_over {
                        return Ok(Awaited::Ended(Box::new(ended)));
                    }
                }
                Err(StoreError::LeaseHeld { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(stop) = cancel.said().filter(|_| !std::mem::replace(&mut is_said, true)) {
                self.stop(&end, stop)?;
            }
            self.store.wait(position, LOOK)?;
        }
    }
}
