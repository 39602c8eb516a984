//! What keeps a run from being made. What a model or a tool has to say is no error of the engine.

use selvedge_model::error::{Classify, Kind};
use selvedge_model::{CallId, Reason, Status, ThreadId};

/// The result of asking the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store could not be read, or the thread could not be taken.
    #[error(transparent)]
    Store(#[from] selvedge_store::Error),
    /// A changeset could not be committed; nothing of it is in the log.
    #[error("the changeset `{}` could not be committed: {source}", .reason.as_str())]
    Commit {
        /// Why it was to be committed.
        reason: Reason,
        /// What went wrong.
        source: selvedge_store::Error,
    },
    /// The thread's status does not allow it.
    #[error("thread `{thread}` is {status}: {why}")]
    NotRunnable {
        /// The thread.
        thread: ThreadId,
        /// Where it stands.
        status: Status,
        /// Why not.
        why: &'static str,
        /// What to do instead.
        hint: String,
    },
    /// There is no such call that somebody could decide about.
    #[error("thread `{thread}` has no call `{call}` whose outcome is open")]
    NoOpenCall {
        /// The thread.
        thread: ThreadId,
        /// The call.
        call: CallId,
    },
}

impl Classify for Error {
    fn kind(&self) -> Kind {
        match self {
            Self::Store(source) => source.kind(),
            // Whatever kept it from being committed: the run is not what it should be.
            Self::Commit { .. } => Kind::Broken,
            Self::NotRunnable { .. } => Kind::Denied,
            Self::NoOpenCall { .. } => Kind::Absent,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Store(source) => source.code(),
            Self::Commit { .. } => "state_error",
            Self::NotRunnable { .. } => "not_runnable",
            Self::NoOpenCall { .. } => "no_open_call",
        }
    }

    fn retryable(&self) -> bool {
        match self {
            Self::Store(source) | Self::Commit { source, .. } => source.retryable(),
            _ => false,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Store(source) => source.hint(),
            Self::Commit { source, .. } => source.hint(),
            Self::NotRunnable { hint, .. } => Some(hint.clone()),
            Self::NoOpenCall { thread, .. } => Some(format!("`selvedge log {thread}` shows its calls")),
        }
    }
}
