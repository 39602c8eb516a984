//! Committing with a deadline: while another process holds the lease, or the database is busy, the same batch is retried.

use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::Batch;
use selvedge_model::error::Classify;
use selvedge_store::{Commit, Committed, Error};

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Commits a batch, and retries at most this long while another process is in the way.
pub(crate) fn commit_within(store: &dyn Commit, batch: &Batch, wait: Duration) -> Result<Committed, Error> {
    let deadline = Instant::now().checked_add(wait);
    let mut pause = PAUSE_MIN;
    loop {
        let error = match store.commit(batch.clone()) {
            Ok(committed) => return Ok(committed),
            Err(error) => error,
        };
        let left = deadline.map_or(PAUSE_MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() || !may_try_again(&error, batch) {
            return Err(error);
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Whether a retry is safe and may help. A commit with an unknown outcome is only retried if it has an idempotency key.
fn may_try_again(error: &Error, batch: &Batch) -> bool {
    match error {
        Error::OutcomeUnknown { .. } => batch.key.is_some(),
        Error::Io { .. } => false,
        other => other.retryable(),
    }
}
