//! Stopping work that waits: a token, a grace, a drop.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use selvedge_model::{Cancel, Stop};
use tokio::time::{sleep, timeout};

/// How long work that was told to stop may take for that.
const GRACE: Duration = Duration::from_secs(5);
/// How long work may take that is ended.
const GRACE_KILLED: Duration = Duration::from_secs(1);

/// Waits for work; nothing if it was told to stop and did not end in time. It is dropped then.
pub(crate) async fn within_grace<T>(work: impl Future<Output = T>, cancel: &Cancel) -> Option<T> {
    let mut work = pin!(work);
    let mut patience = pin!(async {
        if cancel.stopped().await < Stop::Killed
            && timeout(GRACE, cancel.stopped_beyond(Some(Stop::Cancelled))).await.is_err()
        {
            return;
        }
        sleep(GRACE_KILLED).await;
    });
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => patience.as_mut().poll(context).map(|()| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn what_ends_in_time_is_waited_for_and_what_does_not_is_dropped() {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let cancel = Cancel::new();
            assert_eq!(within_grace(sleep(Duration::from_secs(3600)), &cancel).await, Some(()), "not told to stop");
            cancel.say(Stop::Cancelled);
            assert_eq!(within_grace(sleep(Duration::from_secs(4)), &cancel).await, Some(()));
            assert_eq!(within_grace(sleep(Duration::from_secs(6)), &cancel).await, None);
            cancel.say(Stop::Killed);
            assert_eq!(within_grace(sleep(Duration::from_millis(900)), &cancel).await, Some(()));
            assert_eq!(within_grace(sleep(Duration::from_secs(2)), &cancel).await, None);
        });
    }
}
