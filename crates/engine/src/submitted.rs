//! The handle of work that an engine does in the background: awaited, or waited for.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use selvedge_model::blocking::wait;

use crate::error::Result;
use crate::events::{CallerEvents, RunEvent, Subscription};
use crate::outcome::Outcome;
use crate::tasks::Task;

/// Receives the events of the work done for a caller, on the caller's own thread.
pub type EventHandler<'a> = dyn FnMut(RunEvent) + 'a;

/// Work that an engine does for a caller. Awaited on any runtime, or waited for with [`Submitted::wait`], it gives its outcome; dropped, the
/// work continues.
#[must_use = "the outcome is only known when it is awaited"]
pub struct Submitted {
    task: Task<Result<Outcome>>,
    events: Subscription,
}

impl fmt::Debug for Submitted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Submitted")
    }
}

impl Submitted {
    pub(crate) fn new(task: Task<Result<Outcome>>, events: Subscription) -> Self {
        Self { task, events }
    }

    /// The events of the work, in order, until it is over: commits of its runs, drafts, calls, notices.
    pub fn events(&mut self) -> &mut Subscription {
        &mut self.events
    }

    /// Waits on this thread until the work is over, passing its events to `tell`. A caller that is too slow misses events, and gets
    /// [`RunEvent::Missed`] instead. On return everything is committed.
    pub fn wait(mut self, tell: &mut EventHandler<'_>) -> Result<Outcome> {
        while !self.events.is_closed() {
            if let Some(event) = self.events.recv(Duration::MAX) {
                tell(event);
            }
        }
        wait(self.task)
    }
}

impl Future for Submitted {
    type Output = Result<Outcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task).poll(context)
    }
}

/// Closes the caller's event queue on drop: also if the work panicked.
pub(crate) struct Closing(pub(crate) CallerEvents);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}
