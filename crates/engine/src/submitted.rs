//! What was given to an engine and goes on by itself: awaited, or waited for.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use selvedge_model::blocking::wait;

use crate::error::Result;
use crate::events::{Audience, RunEvent, Subscription};
use crate::outcome::Outcome;
use crate::tasks::Task;

/// Is told what is done for a caller, on the caller's own thread.
pub type Tell<'a> = dyn FnMut(RunEvent) + 'a;

/// Something that an engine does for a caller. Awaited on any runtime, or waited for with [`Submitted::wait`], it is what came of it;
/// dropped, it goes on all the same.
#[must_use = "how it ended is only known when it is awaited"]
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

    /// What is done for the caller, in order, until it is over: the commits of its runs, drafts, calls, notices.
    pub fn events(&mut self) -> &mut Subscription {
        &mut self.events
    }

    /// Waits on this thread until it is over, telling what is done meanwhile. A caller that is too slow misses some of it, and is told
    /// ([`RunEvent::Missed`]).
    pub fn wait(mut self, tell: &mut Tell<'_>) -> Result<Outcome> {
        while !self.events.is_closed() {
            self.events.recv(Duration::MAX).into_iter().for_each(&mut *tell);
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

/// Says to a caller that nothing comes any more, when it is dropped: also if what was done for it panicked.
pub(crate) struct Closing(pub(crate) Audience);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}
