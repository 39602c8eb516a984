//! What follows an attempt to ask the model that failed.

use std::time::Duration;

use selvedge_model::{Classify, ModelError};

use crate::assignment::Assignment;

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// It is asked at once, without its provider's session: the log has everything that the session knew.
    WithoutSession,
    /// It is asked again after this long.
    After(Duration),
    /// Asking again may help, but it was asked often enough.
    Exhausted,
    /// Asking again does not help.
    Never,
}

/// What follows attempt number `attempt`, counted from one, that failed with this.
pub(crate) fn again(rules: &Assignment, error: &ModelError, attempt: u32, has_session: bool) -> Again {
    match error {
        ModelError::SessionRefused { .. } if has_session => Again::WithoutSession,
        error if !is_retryable(rules, error) => Again::Never,
        _ if attempt >= rules.patience.attempts_max => Again::Exhausted,
        ModelError::Cut { .. } => Again::After(rules.patience.wait_after(attempt, None)),
        error => Again::After(rules.patience.wait_after(attempt, error.retry_after())),
    }
}

/// Whether trying again may help: the configured classes are asked first, then the provider's own word counts.
fn is_retryable(rules: &Assignment, error: &ModelError) -> bool {
    let text = error.to_string().to_lowercase();
    let class = rules.classes.iter().find(|class| class.fits(error.status(), &text));
    class.map_or(error.retryable(), |class| class.class.is_retryable())
}
