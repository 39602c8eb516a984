//! The errors of a store, and what a caller can do about them.

use std::io;
use std::path::PathBuf;

use selvedge_log::document::DocumentError;
use selvedge_log::line::LineError;
use selvedge_log::recovery::Finding;
use selvedge_log::scan::{Damage, Flaw};
use selvedge_model::account::{AccountId, PostingError};
use selvedge_model::changeset::InvalidChangeset;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::fold::FoldError;
use selvedge_model::{CommitKey, Digest, MessageId, OwnerId, RequestId, ThreadId, Timestamp};

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no store here.
    #[error("there is no store in `{path}`")]
    NoStore {
        /// The path.
        path: String,
    },
    /// There is no such thread.
    #[error("there is no thread `{0}`")]
    NoThread(String),
    /// More than one thread begins like this.
    #[error("`{prefix}` names more than one thread: {}", .candidates.join(", "))]
    Ambiguous {
        /// The prefix.
        prefix: String,
        /// The first few that match.
        candidates: Vec<String>,
    },
    /// The thread does not have this version.
    #[error("thread `{thread}` has no version {version}; the latest is {latest}")]
    NoVersion {
        /// The thread.
        thread: ThreadId,
        /// The requested version.
        version: u64,
        /// The current version.
        latest: u64,
    },
    /// The version was committed, and its loss was accepted since.
    #[error("version {version} of thread `{thread}` is lost")]
    VersionLost {
        /// The thread.
        thread: ThreadId,
        /// The lost version.
        version: u64,
    },
    /// There is no such blob.
    #[error("thread `{thread}` has no blob {}", .blob.short())]
    NoBlob {
        /// The thread.
        thread: ThreadId,
        /// The blob.
        blob: Digest,
    },
    /// The content of the blob was erased.
    #[error("blob {} of thread `{thread}` was erased at {at}: {reason}", .blob.short())]
    Erased {
        /// The thread.
        thread: ThreadId,
        /// The blob.
        blob: Digest,
        /// Why it was erased.
        reason: String,
        /// When the erasure was committed.
        at: Timestamp,
    },
    /// The store has an older format.
    #[error("the store has format {found}, and this program reads and writes format {current}")]
    Outdated {
        /// The format of the store.
        found: i64,
        /// The current format.
        current: i64,
    },
    /// The thread was deleted; its id is never reused.
    #[error("thread `{0}` was deleted")]
    Deleted(ThreadId),
    /// A thread of this id exists already.
    #[error("there is already a thread `{0}`")]
    Exists(ThreadId),
    /// The thread is at another version.
    #[error("thread `{thread}` is at version {actual}, not {expected}")]
    Conflict {
        /// The thread.
        thread: ThreadId,
        /// The version the caller expected.
        expected: u64,
        /// The current version.
        actual: u64,
    },
    /// The lease was taken over; changesets prepared under it can't be committed any more.
    #[error("the lease on thread `{thread}` of epoch {held} was taken over; the epoch is now {current}")]
    StaleEpoch {
        /// The thread.
        thread: ThreadId,
        /// The epoch of the caller's lease.
        held: u64,
        /// The current epoch.
        current: u64,
    },
    /// Another process holds the lease.
    #[error("thread `{thread}` is leased to {}", .holder.in_words())]
    LeaseHeld {
        /// The thread.
        thread: ThreadId,
        /// The lease holder.
        holder: OwnerId,
    },
    /// An amount is reserved by the account of a thread that is to be deleted, or for it.
    #[error("an amount is reserved for `{thread}` or by it: account `{account}` is not closed")]
    AccountInUse {
        /// The thread.
        thread: ThreadId,
        /// The account.
        account: AccountId,
    },
    /// Requests are waiting that only the lease holder can consume.
    #[error("thread `{thread}` can't be released: {count} request(s) wait for the lease holder")]
    RequestsPending {
        /// The thread.
        thread: ThreadId,
        /// How many.
        count: usize,
    },
    /// The commit key belongs to another request.
    #[error("commit key `{0}` was used before, for another request")]
    KeyReused(CommitKey),
    /// The id belongs to another request.
    #[error("request `{id}` to thread `{thread}` was posted before, with different content")]
    RequestReused {
        /// The thread.
        thread: ThreadId,
        /// The request.
        id: RequestId,
    },
    /// The request was consumed already, or never posted.
    #[error("request `{id}` to thread `{thread}` is not pending")]
    RequestGone {
        /// The thread.
        thread: ThreadId,
        /// The request.
        id: RequestId,
    },
    /// A request would be consumed without a verdict in the log.
    #[error("request `{id}` to thread `{thread}` would be consumed without a verdict in the log")]
    NoVerdict {
        /// The thread.
        thread: ThreadId,
        /// The request.
        id: RequestId,
    },
    /// A message of this id exists, with different content.
    #[error("message `{message}` of thread `{thread}` was stored before, with different content")]
    MessageChanged {
        /// The thread.
        thread: ThreadId,
        /// The message.
        message: MessageId,
    },
    /// A batch with the same thread twice, or without any.
    #[error("a batch must not be empty or name a thread twice")]
    BadBatch,
    /// The first changeset of a thread must create it, and no other may.
    #[error("a thread is created by its first changeset, and by no other")]
    BadBirth,
    /// The changeset contradicts itself.
    #[error(transparent)]
    Changeset(#[from] InvalidChangeset),
    /// The changeset does not fit the thread.
    #[error("thread `{thread}`: {source}")]
    Fold {
        /// The thread.
        thread: ThreadId,
        /// Why not.
        source: FoldError,
    },
    /// An event can't be written.
    #[error(transparent)]
    Line(#[from] LineError),
    /// A posting is refused.
    #[error(transparent)]
    Posting(#[from] PostingError),
    /// The thread has an active run.
    #[error("thread `{0}` is running")]
    Running(ThreadId),
    /// The account was changed by other commits too often.
    #[error("account `{0}` was changed by too many concurrent commits")]
    AccountBusy(AccountId),
    /// A row of the database fails its seal.
    #[error("the database row of {what} was not sealed with your key: it was changed, or another program wrote it")]
    Unsealed {
        /// The content of the row.
        what: String,
        /// The key whose seals are valid.
        ours: Digest,
    },
    /// The log was signed by another key so far.
    #[error("thread `{thread}` is signed by key {}, and this store signs with key {}", .theirs.short(), .ours.short())]
    OtherSigner {
        /// The thread.
        thread: ThreadId,
        /// The key that signed so far.
        theirs: Digest,
        /// The key of this store.
        ours: Digest,
    },
    /// A log fails verification.
    #[error("{}", describe(.thread, .finding))]
    Log {
        /// The thread.
        thread: ThreadId,
        /// What was found.
        finding: Finding,
    },
    /// Another signed or stored object fails verification.
    #[error("{what}: {why}")]
    Integrity {
        /// What.
        what: String,
        /// Why.
        why: String,
        /// The command that helps.
        hint: Option<String>,
    },
    /// An object beside the logs is signed by a key that is not trusted. Its bytes may well be unchanged.
    #[error("{what} is signed by key {}, {}", .key.short(), if *.is_revoked { "which was revoked" } else { "which is not trusted" })]
    UntrustedKey {
        /// What.
        what: String,
        /// The key.
        key: Digest,
        /// Whether it was trusted once.
        is_revoked: bool,
    },
    /// The store can't be used as it is.
    #[error("{what}: {why}")]
    Unusable {
        /// What.
        what: String,
        /// Why.
        why: String,
        /// The command that helps.
        hint: Option<String>,
    },
    /// A file could not be read or written.
    #[error("can't {what} `{}`: {source}", .path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The database failed.
    #[error("the database failed: {why}")]
    Database {
        /// The database's message.
        why: String,
        /// Whether a retry may help.
        retryable: bool,
    },
    /// The outcome of the commit is unknown.
    #[error("the outcome of the commit is unknown: {why}")]
    OutcomeUnknown {
        /// The reason.
        why: String,
    },
}

impl Error {
    /// The error for a signed document that is refused: its key is not trusted, or it fails verification, for which `hint` helps.
    pub fn of_document(what: impl Into<String>, error: &DocumentError, hint: impl FnOnce() -> String) -> Self {
        let what = what.into();
        match error {
            DocumentError::UntrustedKey { fingerprint } => {
                Self::UntrustedKey { what, key: *fingerprint, is_revoked: false }
            }
            DocumentError::RevokedKey { fingerprint } => {
                Self::UntrustedKey { what, key: *fingerprint, is_revoked: true }
            }
            error => Self::Integrity { what, why: error.to_string(), hint: Some(hint()) },
        }
    }
}

/// How to trust a key, if the user wants to.
pub fn trust_hint(key: &Digest, is_revoked: bool) -> String {
    if is_revoked {
        format!(
            "you revoked this key, and `selvedge keys list` shows when; to trust it again: `selvedge keys trust --again {}`",
            key.short()
        )
    } else {
        format!("trust key {key} only if you know whose it is: `selvedge keys trust FILE --owner NAME`")
    }
}

/// A finding as a sentence.
pub fn describe(thread: &ThreadId, finding: &Finding) -> String {
    match finding {
        Finding::Sound => format!("the log of `{thread}` ends where it should"),
        Finding::Foreign { bytes } => format!("the log of `{thread}` has {bytes} foreign byte(s) after its end"),
        Finding::DatabaseBehind { database, file } => format!(
            "the log of `{thread}` is signed up to version {file}, but the database has it only up to version {database}"
        ),
        // The bytes are as that key signed them; whether to trust it is the reader's decision.
        Finding::Damaged(Damage { flaw: Flaw::Untrusted(key), version, .. }) => {
            format!(
                "the log of `{thread}` is signed by a key that is not trusted: {}, from version {version} on",
                key.short()
            )
        }
        Finding::Damaged(Damage { flaw: Flaw::Revoked(key), version, .. }) => format!(
            "the log of `{thread}` is signed by a key that is not trusted any more: {}, from version {version} on, which was revoked",
            key.short()
        ),
        Finding::Damaged(damage) => format!("the log of `{thread}` is damaged: {damage}"),
        Finding::Truncated { have: Some(have), version, by } => {
            format!("the log of `{thread}` is cut off: it ends at version {have}, and {by} records version {version}")
        }
        Finding::Truncated { have: None, version, by } => {
            format!("the log of `{thread}` is missing: {by} records version {version}")
        }
        Finding::Unread(damage) => format!(
            "the log of `{thread}` is unchanged since it was signed, but this program does not understand line {} (version {}): {}",
            damage.line, damage.version, damage.flaw
        ),
        Finding::Unsigned => format!("the log of `{thread}` has no checkpoint"),
        Finding::Blob { blob, version, why } => {
            format!("blob {} of `{thread}`, which version {version} names, {why}", blob.short())
        }
        Finding::Database { why } => format!("the log of `{thread}` is valid, but the database {why}"),
        Finding::Contradicted { by, why } => format!("{by} of `{thread}` contradicts its log: {why}"),
    }
}

impl Classify for Error {
    fn kind(&self) -> Kind {
        match self {
            Self::NoStore { .. }
            | Self::NoVersion { .. }
            | Self::NoThread(_)
            | Self::Ambiguous { .. }
            | Self::NoBlob { .. }
            | Self::Erased { .. }
            | Self::Deleted(_) => Kind::Absent,
            Self::Exists(_) | Self::Conflict { .. } | Self::StaleEpoch { .. } => Kind::Conflict,
            Self::NoVerdict { .. } => Kind::Invalid,
            Self::KeyReused(_) | Self::RequestReused { .. } | Self::RequestGone { .. } | Self::AccountBusy(_) => {
                Kind::Conflict
            }
            Self::MessageChanged { .. } | Self::BadBatch | Self::BadBirth => Kind::Invalid,
            Self::LeaseHeld { .. } | Self::RequestsPending { .. } | Self::Running(_) | Self::AccountInUse { .. } => {
                Kind::Denied
            }
            Self::OtherSigner { .. } | Self::Unusable { .. } | Self::Outdated { .. } => Kind::Denied,
            Self::Changeset(error) => error.kind(),
            Self::Fold { source, .. } => source.kind(),
            Self::Line(error) => error.kind(),
            Self::Posting(error) => error.kind(),
            Self::Log { .. }
            | Self::VersionLost { .. }
            | Self::Integrity { .. }
            | Self::Unsealed { .. }
            | Self::UntrustedKey { .. } => Kind::Integrity,
            Self::Io { source, .. }
                if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
            {
                Kind::Denied
            }
            Self::Io { .. } | Self::Database { .. } | Self::OutcomeUnknown { .. } => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NoStore { .. } => "store_not_found",
            Self::NoThread(_) => "thread_not_found",
            Self::Ambiguous { .. } => "ambiguous",
            Self::NoVersion { .. } => "version_not_found",
            Self::VersionLost { .. } => "version_lost",
            Self::NoBlob { .. } => "blob_not_found",
            Self::Erased { .. } => "blob_erased",
            Self::Outdated { .. } => "store_outdated",
            Self::Deleted(_) => "thread_deleted",
            Self::Exists(_) => "thread_exists",
            Self::Conflict { .. } => "version_conflict",
            Self::StaleEpoch { .. } => "stale_epoch",
            Self::LeaseHeld { .. } => "lease_held",
            Self::AccountInUse { .. } => "account_in_use",
            Self::RequestsPending { .. } => "requests_pending",
            Self::KeyReused(_) => "idempotency_key_reused",
            Self::RequestReused { .. } => "request_id_reused",
            Self::RequestGone { .. } => "request_not_queued",
            Self::NoVerdict { .. } => "verdict_missing",
            Self::MessageChanged { .. } => "message_changed",
            Self::BadBatch => "invalid_batch",
            Self::BadBirth => "invalid_creation",
            Self::Changeset(error) => error.code(),
            Self::Fold { source, .. } => source.code(),
            Self::Line(error) => error.code(),
            Self::Posting(error) => error.code(),
            Self::Running(_) => "thread_running",
            Self::AccountBusy(_) => "account_busy",
            Self::OtherSigner { .. } => "wrong_signer",
            Self::Unsealed { .. } => "row_unsealed",
            Self::Log { finding, .. } => match finding {
                Finding::Sound | Finding::Foreign { .. } => "foreign_bytes",
                Finding::DatabaseBehind { .. } => "database_behind",
                Finding::Damaged(damage) => damage.code(),
                Finding::Truncated { .. } => "truncated",
                Finding::Unread(_) => "unknown_payload",
                Finding::Unsigned => "unsigned_log",
                Finding::Contradicted { .. } => "thread_file_differs",
                Finding::Database { .. } => "database_differs",
                Finding::Blob { .. } => "blob_damaged",
            },
            Self::Integrity { .. } => "integrity",
            Self::UntrustedKey { is_revoked: true, .. } => "log_revoked_key",
            Self::UntrustedKey { .. } => "untrusted_key",
            Self::Unusable { .. } => "store_unusable",
            Self::Io { .. } if self.kind() == Kind::Denied => "permission_denied",
            Self::Io { .. } => "io",
            Self::Database { .. } => "database",
            Self::OutcomeUnknown { .. } => "commit_outcome_unknown",
        }
    }

    fn retryable(&self) -> bool {
        match self {
            Self::LeaseHeld { .. } | Self::AccountBusy(_) | Self::OutcomeUnknown { .. } => true,
            Self::Database { retryable, .. } => *retryable,
            Self::Io { source, .. } => matches!(source.kind(), io::ErrorKind::Interrupted | io::ErrorKind::StorageFull),
            _ => false,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoStore { .. } => "`selvedge init` creates one",
            Self::NoThread(_) => "`selvedge thread list` lists the threads",
            Self::Ambiguous { .. } => "type more of the id",
            Self::Erased { .. } => "erased content can't be restored; an older backup may still have it",
            Self::Outdated { .. } => {
                "`selvedge reindex` rebuilds the database from the logs in the current format; the logs are not changed"
            }
            Self::NoVersion { thread, latest, .. } => {
                return Some(format!("`selvedge state {thread} --at {latest}` is the latest"));
            }
            Self::VersionLost { thread, .. } => {
                return Some(format!(
                    "`selvedge verify {thread}` says since when; to commit its content again, use another key"
                ));
            }
            Self::Exists(thread) => {
                return Some(format!(
                    "`selvedge thread show {thread}` shows the existing one; a thread keeps its id, so another thread of that id \
                    can only be imported into another store"
                ));
            }
            Self::Deleted(_) => "ids are never reused; create a thread with another id",
            Self::Conflict { thread, actual, .. } => {
                return Some(format!(
                    "check what was added (`selvedge log {thread}`), then append with `--expect {actual}`"
                ));
            }
            Self::AccountInUse { thread, .. } => {
                return Some(format!("`selvedge cancel {thread}` ends it and its children, and settles its account"));
            }
            Self::LeaseHeld { thread, .. } => {
                return Some(format!(
                    "wait until it is released (`selvedge wait {thread}`, if it runs), or end it with `selvedge cancel {thread}`"
                ));
            }
            Self::KeyReused(_) => "use a new key for a new request",
            Self::MessageChanged { .. } => "give the changed message a new id",
            Self::Running(_) => "let the run finish first",
            Self::Unsealed { .. } => {
                "if your key was rotated meanwhile, run this again with the new one; otherwise `selvedge reindex` derives every row from \
                 the logs, which are unchanged and still verify"
            }
            Self::OtherSigner { .. } => {
                "if your key was rotated meanwhile, run this again with the new one; if the thread's key is lost or not \
                yours, the thread stays readable and verifiable, and a new one can continue from it"
            }
            Self::OutcomeUnknown { .. } => "append again with the same `--key`: it is committed once",
            Self::Log { thread, finding } => {
                return Some(match finding {
                    Finding::Foreign { .. } => {
                        "the next append by the signer of the thread moves them to a quarantine file; no acknowledged data is lost".to_owned()
                    }
                    Finding::DatabaseBehind { .. } => format!(
                        "the database is older than the log: `selvedge repair {thread}` updates it, `selvedge reindex` rebuilds all of it"
                    ),
                    Finding::Truncated { have: Some(_), .. } => format!(
                        "restore the file from a copy; `selvedge repair {thread} --accept-loss` continues without the lost versions, and records that permanently"
                    ),
                    Finding::Database { .. } => {
                        "`selvedge reindex` rebuilds the database from the logs, which are not changed".to_owned()
                    }
                    Finding::Contradicted { by, .. } => format!(
                        "the log itself is valid; `selvedge repair {thread}` moves {by} aside and writes it again"
                    ),
                    Finding::Unread(_) => {
                        "a newer Selvedge, or another program, wrote it: use that one; this one appends nothing to it".to_owned()
                    }
                    Finding::Blob { .. } => "the log itself is valid; restore the file from a backup".to_owned(),
                    Finding::Damaged(Damage { flaw: Flaw::Untrusted(key), .. }) => trust_hint(key, false),
                    Finding::Damaged(Damage { flaw: Flaw::Revoked(key), .. }) => trust_hint(key, true),
                    _ => format!(
                        "`selvedge verify {thread} --explain` shows which versions are still proven; restore the file from a copy"
                    ),
                });
            }
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "free some space on the disk; no acknowledged data is lost"
                }
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    "check who owns the folder and its mode"
                }
                // How a store reports anything but a plain file.
                io::ErrorKind::InvalidInput => {
                    "a link, a pipe or a folder in place of a file is not read: move it away and restore the file from a copy"
                }
                _ => return None,
            },
            Self::UntrustedKey { key, is_revoked, .. } => return Some(trust_hint(key, *is_revoked)),
            Self::Integrity { hint, .. } | Self::Unusable { hint, .. } => return hint.clone(),
            Self::Changeset(error) => return error.hint(),
            Self::Fold { source, .. } => return source.hint(),
            Self::Line(error) => return error.hint(),
            Self::Posting(error) => return error.hint(),
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
