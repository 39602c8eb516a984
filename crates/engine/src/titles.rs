//! A title that the system gives to a thread without one.

use selvedge_model::event::{ManifestChanged, TurnUsage};
use selvedge_model::{Event, Reason, Status, ThreadId};
use selvedge_store::{Acquire, Error as StoreError};

use crate::engine::Engine;
use crate::error::Result;
use crate::held::RunContext;

/// What became of a title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Titled {
    /// It is in the log, with the usage of the call that made it.
    Set,
    /// The thread has a title, or ends in a successor: nothing was changed.
    Unneeded,
    /// Another run or process holds the thread: nothing was changed.
    Busy,
}

impl Engine {
    /// Gives a thread a title, unless it has one.
    ///
    /// It is judged under the thread's lease, after the requests that wait for the thread, so a title that a person gave is never replaced: one
    /// that was given before counts, and one that is given meanwhile comes after this. The usage of the call that made the title is recorded
    /// with it, in the same commit.
    pub fn title_untitled(&self, thread: &ThreadId, title: &str, usage: TurnUsage) -> Result<Titled> {
        let lease = match self.lease(thread, Acquire::default()) {
            Ok(lease) => lease,
            Err(StoreError::LeaseHeld { .. }) => return Ok(Titled::Busy),
            Err(error) => return Err(error.into()),
        };
        self.under_lease(lease, None, |held| {
            let manifest = held.fold.manifest();
            if manifest.title.is_some() || matches!(manifest.status, Status::Continued | Status::Running) {
                return Ok(Titled::Unneeded);
            }
            let changed = ManifestChanged {
                title: Some(title.to_owned()),
                title_usage: Some(Box::new(usage)),
                ..ManifestChanged::default()
            };
            held.delta.events.push(Event::ManifestChanged(changed));
            held.commit(Reason::Lifecycle, RunContext::default())?;
            Ok(Titled::Set)
        })
    }
}
