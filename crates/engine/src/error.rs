//! Why an operation of the engine failed. A failure of a model or a tool is a result, not an error of the engine.

use selvedge_model::account::PostingError;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::id::ReservationId;
use selvedge_model::{CallId, Digest, Money, Reason, Status, ThreadId, Timestamp};

/// The result of an operation of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store could not be read, or the lease could not be acquired.
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
    #[error("thread `{thread}` {}: {why}", status.in_words())]
    NotRunnable {
        /// The thread.
        thread: ThreadId,
        /// Its status.
        status: Status,
        /// Why not.
        why: &'static str,
        /// What to do instead.
        hint: String,
    },
    /// A thread was continued, and its chain does not lead to a thread that can be resumed.
    #[error("`{thread}` can't be continued, because the links of its chain are damaged: {why}")]
    ChainDamaged {
        /// The last thread that could be reached.
        thread: ThreadId,
        /// What is wrong with its link.
        why: String,
    },
    /// No such call needs a decision.
    #[error("no call `{call}` of thread `{thread}` waits for such a decision")]
    NoOpenCall {
        /// The thread.
        thread: ThreadId,
        /// The call.
        call: CallId,
    },
    /// Another decision was recorded before.
    #[error("it was already decided that call `{call}` of thread `{thread}` {said}")]
    AlreadyDecided {
        /// The thread.
        thread: ThreadId,
        /// The call.
        call: CallId,
        /// The earlier decision.
        said: String,
    },
    /// The cost of a call was corrected before.
    #[error(
        "the cost of the call with reservation `{reservation}` was already corrected: to ${amount}, at {at} in the log of `{thread}`, \
         signed by `{}`, with this evidence: {evidence}", .signer.short()
    )]
    AlreadyCorrected {
        /// The reservation of the call.
        reservation: ReservationId,
        /// The thread whose log has the correction.
        thread: ThreadId,
        /// The corrected cost.
        amount: Money,
        /// The evidence that was given.
        evidence: String,
        /// When it was corrected.
        at: Timestamp,
        /// The key that signed it.
        signer: Digest,
    },
    /// The approval request has expired.
    #[error("the approval request for call `{call}` of thread `{thread}` has expired")]
    TooLate {
        /// The thread.
        thread: ThreadId,
        /// The call.
        call: CallId,
    },
    /// The tool does not accept these arguments.
    #[error("call `{call}` can't be made with these arguments: {why}")]
    EditRefused {
        /// The call.
        call: CallId,
        /// Why not.
        why: String,
    },
    /// A value was given for a call that does not use one.
    #[error(
        "call `{call}` of thread `{thread}` is made with its own arguments once it is approved: the value would not be used"
    )]
    ValueUnused {
        /// The thread.
        thread: ThreadId,
        /// The call.
        call: CallId,
    },
    /// A raise that would lower a limit.
    #[error("`{limit}` of thread `{thread}` would be lower than it is")]
    NotRaised {
        /// The thread.
        thread: ThreadId,
        /// The limit.
        limit: &'static str,
    },
    /// A raise of a child above its parent's limit.
    #[error("`{limit}` of thread `{thread}` would be higher than its parent `{parent}` allows")]
    AboveParent {
        /// The thread.
        thread: ThreadId,
        /// The limit.
        limit: &'static str,
        /// The end of its parent's chain.
        parent: ThreadId,
        /// What the parent's limit would have to be.
        needs: u64,
    },
    /// A model without a price under a money limit.
    #[error("the price of model `{model}` is unknown, and the thread has a spending limit")]
    NoPrice {
        /// The model.
        model: String,
    },
    /// A graph that is not the one that the run began with.
    #[error("graph `{graph}` of run `{thread}` has changed: the run began with definition {}, and it is {} now", .was.short(), .is.short())]
    GraphChanged {
        /// The run.
        thread: ThreadId,
        /// The graph.
        graph: String,
        /// The digest that is on record.
        was: Digest,
        /// The digest of today's definition.
        is: Digest,
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
    /// Nothing can run: the threads that runs need could not be started.
    #[error("nothing can run: no worker thread could be started: {why}")]
    NoRuntime {
        /// What went wrong.
        why: String,
    },
    /// The sender stopped waiting for its message to be served; the message stays in the inbox, and will be served.
    #[error("the process that runs thread `{thread}` has {} the message", if *.is_heard { "taken" } else { "not taken" })]
    NotHeardYet {
        /// The thread.
        thread: ThreadId,
        /// Whether it was taken from the inbox, and only its answer is still to come.
        is_heard: bool,
    },
}

impl Error {
    /// The same error; if the ledger refused the first changeset of a run, that is a refusal for lack of money and not a broken run.
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
            // Any other reason means that the run could not be recorded.
            Self::Commit { source, .. } if source.kind() == Kind::Integrity => Kind::Integrity,
            Self::ChainDamaged { .. } => Kind::Integrity,
            Self::Commit { .. } | Self::NotStarted { .. } | Self::NoRuntime { .. } => Kind::Broken,
            Self::NotRunnable { .. }
            | Self::NotHeardYet { .. }
            | Self::TooLate { .. }
            | Self::NoPrice { .. }
            | Self::GraphChanged { .. }
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
            Self::NoOpenCall { .. } => "call_not_open",
            Self::AlreadyDecided { .. } => "already_decided",
            Self::AlreadyCorrected { .. } => "already_corrected",
            Self::NotHeardYet { .. } => "message_queued",
            Self::TooLate { .. } => "decision_too_late",
            Self::NotRaised { .. } => "limit_not_raised",
            Self::AboveParent { .. } => "limit_above_parent",
            Self::EditRefused { .. } => "edit_refused",
            Self::ValueUnused { .. } => "decision_value_unused",
            Self::NoPrice { .. } => "price_unknown",
            Self::GraphChanged { .. } => "graph_changed",
            Self::NotStarted { .. } => "process_not_started",
            Self::NoRuntime { .. } => "workers_not_started",
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
                "request less, or raise the account that the money comes from: `selvedge resume {account} --raise spend=…`; \
                 `selvedge thread show {account}` shows what it holds"
            )),
            Self::Store(source) => source.hint(),
            Self::Commit { source, .. } => source.hint(),
            Self::NotRunnable { hint, .. } => Some(hint.clone()),
            Self::ChainDamaged { .. } => Some(
                "`selvedge doctor` shows what is damaged; if it is not a log, `selvedge reindex` rebuilds the links from the logs"
                    .to_owned(),
            ),
            Self::NoOpenCall { thread, .. } => Some(format!(
                "`selvedge inbox {thread}` shows what it waits for, `selvedge log {thread}` the outcome of its calls"
            )),
            Self::AlreadyDecided { thread, .. } => {
                Some(format!("the first decision counts; `selvedge resume {thread}` continues with it"))
            }
            Self::AlreadyCorrected { thread, .. } => {
                Some(format!("the first correction counts; `selvedge budget {thread}` shows what the account has spent"))
            }
            Self::TooLate { thread, .. } => {
                Some(format!("`selvedge resume {thread}` continues without it; the model may ask again"))
            }
            Self::EditRefused { .. } => {
                Some("correct the arguments; `selvedge inbox` shows the call as it was requested".to_owned())
            }
            Self::ValueUnused { .. } => {
                Some("without `--with` it is approved as it is; `--edit FILE` approves it with other arguments".to_owned())
            }
            Self::NotRaised { thread, .. } => {
                Some(format!("`selvedge thread show {thread}` shows its limits; a raise sets a higher one"))
            }
            Self::AboveParent { limit, parent, needs, .. } => {
                Some(format!("raise that of its parent first: `selvedge resume {parent} --raise {limit}={needs}`"))
            }
            Self::NoPrice { model, .. } => Some(format!(
                "add its price in dollars per million tokens to `.ai/config/agent/models.yaml`: `known: [{{id: \"{model}\", input: DOLLARS, \
                 output: DOLLARS}}]`; 0 for a model that costs nothing"
            )),
            Self::GraphChanged { thread, .. } => Some(format!(
                "restore the definition, or read what changed and continue with `selvedge resume {thread} --accept-changed`"
            )),
            Self::NotStarted { thread, is_there: true, .. } => Some(format!("`selvedge resume {thread}` runs it here")),
            Self::NotStarted { .. } => Some("nothing was created; without `--detach` it runs here".to_owned()),
            Self::NoRuntime { .. } => Some("end other programs, or raise your limit of threads (`ulimit -u`)".to_owned()),
            Self::NotHeardYet { thread, is_heard: true } => {
                Some(format!("`selvedge wait {thread}` shows its outcome; `selvedge cancel {thread}` stops it"))
            }
            Self::NotHeardYet { thread, .. } => {
                Some(format!("it is served when that run ends; `selvedge log {thread}` shows its outcome"))
            }
        }
    }
}
