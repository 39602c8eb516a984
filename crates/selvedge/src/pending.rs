//! A call in progress.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use selvedge_model::blocking::{BoxFuture, Pool, on_thread, wait};

use crate::error::Result;

/// A call in progress.
///
/// The call has begun when it is returned. Await it on any async runtime, or block this thread with [`Pending::join`]. Dropping it does not
/// stop the call: a thread keeps running, a commit is still made. Only [`Selvedge::cancel`](crate::Selvedge::cancel) stops a thread.
///
/// No thread of the caller's runtime is ever blocked: blocking work of the store runs on Selvedge's own threads, and waiting for a run needs
/// no thread.
#[must_use = "whether it succeeded is only known when it is awaited or joined"]
pub struct Pending<T> {
    work: BoxFuture<'static, Result<T>>,
}

impl<T: Send + 'static> Pending<T> {
    /// Blocks this thread until the call is done. Don't use it inside an async function: await the call there.
    pub fn join(self) -> Result<T> {
        wait(self.work)
    }

    /// Begins work that blocks and may take long, on a thread of its own.
    pub(crate) fn long(work: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        Self { work: Box::pin(on_thread(work)) }
    }

    /// Begins work that blocks for moments, on a thread of the pool.
    pub(crate) fn short(pool: &Pool, work: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        Self { work: Box::pin(pool.run(work)) }
    }

    /// Waits for work that runs in the background.
    pub(crate) fn new(work: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self { work: Box::pin(work) }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.work.as_mut().poll(context)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pending")
    }
}
