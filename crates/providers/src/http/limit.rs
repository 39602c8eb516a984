//! A wait that ends with its work, at its limit or when it is cancelled.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use selvedge_model::Cancel;
use tokio::time::{Instant, sleep_until};

/// Why a wait ended before its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEnd {
    /// It was cancelled.
    Cancelled,
    /// Its limit has passed.
    Late,
}

/// Waits for `work` until `limit`, or until `cancel` is triggered. The work is dropped then.
pub(super) async fn until<T>(limit: Instant, cancel: &Cancel, work: impl Future<Output = T>) -> Result<T, WaitEnd> {
    let mut work = pin!(work);
    let mut stopped = pin!(cancel.stopped());
    let mut late = pin!(sleep_until(limit));
    poll_fn(|context| {
        if stopped.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(WaitEnd::Cancelled));
        }
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        late.as_mut().poll(context).map(|()| Err(WaitEnd::Late))
    })
    .await
}
