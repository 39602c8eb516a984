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
    /// The thread has a title, or there is none to set: only the usage of the call was recorded.
    Unneeded,
    /// Another run or process holds the thread, or it ends in a successor: nothing was recorded.
    Busy,
}

impl Engine {
    /// Gives a thread a title, unless it has one other than `provisional`. `title` is none if the call that was to make it gave none.
    ///
    /// It is judged under the thread's lease, after the requests that wait for the thread, so a title that a person gave is never replaced: one
    /// that was given before counts, and one that is given meanwhile comes after this. The usage of the call is recorded in the same commit,
    /// also if its title is not used.
    pub fn title_untitled(
        &self,
        thread: &ThreadId,
        provisional: Option<&str>,
        title: Option<&str>,
        usage: TurnUsage,
    ) -> Result<Titled> {
        let lease = match self.lease(thread, Acquire::default()) {
            Ok(lease) => lease,
            Err(StoreError::LeaseHeld { .. }) => return Ok(Titled::Busy),
            Err(error) => return Err(error.into()),
        };
        self.under_lease(lease, None, |held| {
            let manifest = held.fold.manifest();
            if matches!(manifest.status, Status::Continued | Status::Running) {
                return Ok(Titled::Busy);
            }
            let is_untitled = manifest.title.is_none() || manifest.title.as_deref() == provisional;
            let title = title.filter(|_| is_untitled).map(str::to_owned);
            let titled = if title.is_some() { Titled::Set } else { Titled::Unneeded };
            let title_usage = Some(Box::new(usage));
            let changed = ManifestChanged { title, title_usage, ..ManifestChanged::default() };
            held.delta.events.push(Event::ManifestChanged(changed));
            held.commit(Reason::Lifecycle, RunContext::default())?;
            Ok(titled)
        })
    }
}
