//! What keeps a run from being made. What a model or a tool has to say is no error of the engine.

use selvedge_model::account::PostingError;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::id::ReservationId;
use selvedge_model::{CallId, Digest, Money, Reason, Status, ThreadId, Timestamp};

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
    /// A thread went on in others, and they don't lead to one that goes on.
    #[error("`{thread}` can't be gone on with, because the links of its chain are damaged: {why}")]
    ChainDamaged {
        /// The last thread that could be reached.
        thread: ThreadId,
        /// What is wrong with its link.
        why: String,
    },
    /// There is no such call that somebody could decide about.
    #[error("no call `{call}` of thread `{thread}` waits for such a decision")]
    NoOpenCall {
        /// The thread.
        thread: ThreadId,
        /// The call.
        call: CallId,
    },
    /// Somebody said something else before.
    #[error("it was already said that call `{call}` of thread `{thread}` {said}")]
    AlreadyDecided {
        /// The thread.
        thread: ThreadId,
        /// The call.
        call: CallId,
        /// What was said.
        said: String,
    },
    /// What a call really cost was said before.
    #[error(
        "the call of reservation `{reservation}` was corrected already: to ${amount}, at {at} in the log of `{thread}`, signed by \
         `{}`, by this evidence: {evidence}", .signer.short()
    )]
    AlreadyCorrected {
        /// What was reserved for the call.
        reservation: ReservationId,
        /// The thread whose log says so.
        thread: ThreadId,
        /// What it cost, as was said.
        amount: Money,
        /// How that was known.
        evidence: String,
        /// When it was said.
        at: Timestamp,
        /// Whose key signed it.
        signer: Digest,
    },
    /// The time in which somebody could decide is over.
    #[error("the time in which call `{call}` of thread `{thread}` could be decided about is over")]
    TooLate {
        /// The thread.
        thread: ThreadId,
        /// The call.
        call: CallId,
    },
    /// Arguments that a call can't be made with.
    #[error("call `{call}` can't be made with these arguments: {why}")]
    EditRefused {
        /// The call.
        call: CallId,
        /// Why not.
        why: String,
    },
    /// A value for a call that is made as it was asked for.
    #[error(
        "call `{call}` of thread `{thread}` is made as it was asked for once it is allowed: a value would be used for nothing"
    )]
    ValueUnused {
        /// The thread.
        thread: ThreadId,
        /// The call.
        call: CallId,
    },
    /// A raise that would lower a ceiling.
    #[error("`{limit}` of thread `{thread}` would be lower than it is")]
    NotRaised {
        /// The thread.
        thread: ThreadId,
        /// The ceiling.
        limit: &'static str,
    },
    /// A raise of a child above what its parent may.
    #[error("`{limit}` of thread `{thread}` would be higher than its parent `{parent}` allows")]
    AboveParent {
        /// The thread.
        thread: ThreadId,
        /// The ceiling.
        limit: &'static str,
        /// Whoever started it, or goes on in its place.
        parent: ThreadId,
        /// What that one's would have to be.
        needs: u64,
    },
    /// A model without a price under a ceiling of money.
    #[error("nobody knows what the model `{model}` costs, and thread `{thread}` has a ceiling of money")]
    NoPrice {
        /// The thread.
        thread: ThreadId,
        /// The model.
        model: String,
    },
    /// The process that was to run a new thread could not be started.
    #[error("`{thread}` could not be started in a process of its own: {why}")]
    NotStarted {
        /// The thread.
        thread: ThreadId,
        /// Why not.
        why: String,
        /// Whether the thread was created.
        is_there: bool,
    },
    /// No run can go on: the threads that runs need could not be started.
    #[error("runs can't go on: no thread could be started: {why}")]
    NoRuntime {
        /// What went wrong.
        why: String,
    },
    /// Whoever waited for a message to be heard stopped waiting; the message stays, and is heard.
    #[error("whoever runs thread `{thread}` has {} the message", if *.is_heard { "heard" } else { "not yet heard" })]
    NotHeardYet {
        /// The thread.
        thread: ThreadId,
        /// Whether it was heard, and only its answer is still to come.
        is_heard: bool,
    },
}

impl Error {
    /// The same error; if the ledger refused the first changeset of a run, the run was refused for want of money and not broken.
    pub(crate) fn unfunded(self) -> Self {
        match self {
            Self::Commit { source: source @ selvedge_store::Error::Posting(_), .. } => Self::Store(source),
            other => other,
        }
    }
}

impl Classify for Error {
    fn kind(&self) -> Kind {
        match self {
            Self::Store(source) => source.kind(),
            // Whatever kept it from being committed: the run is not what it should be.
            Self::Commit { source, .. } if source.kind() == Kind::Integrity => Kind::Integrity,
            Self::ChainDamaged { .. } => Kind::Integrity,
            Self::Commit { .. } | Self::NotStarted { .. } | Self::NoRuntime { .. } => Kind::Broken,
            Self::NotRunnable { .. }
            | Self::NotHeardYet { .. }
            | Self::TooLate { .. }
            | Self::NoPrice { .. }
            | Self::AboveParent { .. } => Kind::Denied,
            Self::NotRaised { .. } | Self::EditRefused { .. } | Self::ValueUnused { .. } => Kind::Invalid,
            Self::AlreadyDecided { .. } | Self::AlreadyCorrected { .. } => Kind::Conflict,
            Self::NoOpenCall { .. } => Kind::Absent,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Store(source) => source.code(),
            Self::Commit { .. } => "state_error",
            Self::NotRunnable { .. } => "not_runnable",
            Self::ChainDamaged { .. } => "chain_damaged",
            Self::NoOpenCall { .. } => "no_open_call",
            Self::AlreadyDecided { .. } => "already_decided",
            Self::AlreadyCorrected { .. } => "already_corrected",
            Self::NotHeardYet { .. } => "not_heard_yet",
            Self::TooLate { .. } => "too_late",
            Self::NotRaised { .. } => "not_raised",
            Self::AboveParent { .. } => "above_parent",
            Self::EditRefused { .. } => "edit_refused",
            Self::ValueUnused { .. } => "value_unused",
            Self::NoPrice { .. } => "no_price",
            Self::NotStarted { .. } => "not_started",
            Self::NoRuntime { .. } => "no_runtime",
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
            Self::Store(selvedge_store::Error::Posting(PostingError::Insufficient { account, .. })) => Some(format!(
                "ask for less, or give the account it comes from more first: `selvedge resume {account} --raise spend=…`; \
                 `selvedge thread show {account}` shows what it holds"
            )),
            Self::Store(source) => source.hint(),
            Self::Commit { source, .. } => source.hint(),
            Self::NotRunnable { hint, .. } => Some(hint.clone()),
            Self::ChainDamaged { .. } => Some(
                "`selvedge doctor` says what is damaged; if it is not a log, `selvedge reindex` builds the links anew from the logs"
                    .to_owned(),
            ),
            Self::NoOpenCall { thread, .. } => Some(format!(
                "`selvedge inbox {thread}` shows what it waits for, `selvedge log {thread}` what became of its calls"
            )),
            Self::AlreadyDecided { thread, .. } => {
                Some(format!("what was said counts; `selvedge resume {thread}` goes on with it"))
            }
            Self::AlreadyCorrected { thread, .. } => {
                Some(format!("what was said stays; `selvedge budget {thread}` shows what the account has spent"))
            }
            Self::TooLate { thread, .. } => {
                Some(format!("`selvedge resume {thread}` goes on without it; the model may ask again"))
            }
            Self::EditRefused { .. } => {
                Some("mend the arguments; `selvedge inbox` shows the call as it was asked for".to_owned())
            }
            Self::ValueUnused { .. } => {
                Some("without `--with` it is allowed as it is, `--edit FILE` allows it with other arguments".to_owned())
            }
            Self::NotRaised { thread, .. } => {
                Some(format!("`selvedge thread show {thread}` shows its limits; a raise sets a higher one"))
            }
            Self::AboveParent { limit, parent, needs, .. } => {
                Some(format!("raise that of its parent first: `selvedge resume {parent} --raise {limit}={needs}`"))
            }
            Self::NoPrice { model, .. } => Some(format!(
                "give `{model}` a price in `config/agent/models.yaml` (`selvedge config explain models.known`)"
            )),
            Self::NotStarted { thread, is_there: true, .. } => Some(format!("`selvedge resume {thread}` runs it here")),
            Self::NotStarted { .. } => Some("nothing was created; without `--detach` it runs here".to_owned()),
            Self::NoRuntime { .. } => Some("end other programs, or raise how many threads you may have (`ulimit -u`)".to_owned()),
            Self::NotHeardYet { thread, is_heard: true } => {
                Some(format!("what comes of it is shown by `selvedge wait {thread}`; `selvedge cancel {thread}` stops it"))
            }
            Self::NotHeardYet { thread, .. } => {
                Some(format!("it is heard once that run ends; `selvedge log {thread}` shows what became of it"))
            }
        }
    }
}
