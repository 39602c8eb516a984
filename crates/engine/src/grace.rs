//! Stops pending work: signal it, wait for a grace period, drop it. A run whose time is over is signalled by a timer.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use selvedge_model::{Cancel, Stop};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// The grace period of work that was cancelled.
const GRACE: Duration = Duration::from_secs(5);
/// The grace period of work that was killed.
const GRACE_KILLED: Duration = Duration::from_secs(1);

/// Waits for work; returns none if it was signalled to stop and did not end within the grace period. It is dropped then.
pub(crate) async fn within_grace<T>(work: impl Future<Output = T>, cancel: &Cancel) -> Option<T> {
    let mut work = pin!(work);
    let mut grace = pin!(async {
        if cancel.stopped().await < Stop::Killed
            && timeout(GRACE, cancel.stopped_beyond(Some(Stop::Cancelled))).await.is_err()
        {
            return;
        }
        sleep(GRACE_KILLED).await;
    });
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => grace.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Stops a run when its time is over; not any more once this is dropped.
pub(crate) struct TimeLimit(AbortHandle);

impl TimeLimit {
    /// Must be called in a task.
    pub(crate) fn new(left: Duration, cancel: &Cancel) -> Self {
        let cancel = cancel.clone();
        let stop = async move {
            sleep(left).await;
            cancel.say(Stop::OutOfTime);
        };
        Self(tokio::spawn(stop).abort_handle())
    }
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn work_that_ends_in_time_is_waited_for_and_other_work_is_dropped() {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let cancel = Cancel::new();
            assert_eq!(
                within_grace(sleep(Duration::from_secs(3600)), &cancel).await,
                Some(()),
                "no stop was signalled"
            );
            cancel.say(Stop::Cancelled);
            assert_eq!(within_grace(sleep(Duration::from_secs(4)), &cancel).await, Some(()));
            assert_eq!(within_grace(sleep(Duration::from_secs(6)), &cancel).await, None);
            cancel.say(Stop::Killed);
            assert_eq!(within_grace(sleep(Duration::from_millis(900)), &cancel).await, Some(()));
            assert_eq!(within_grace(sleep(Duration::from_secs(2)), &cancel).await, None);
        });
    }
}
