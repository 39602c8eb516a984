//! What can go wrong in a store, and what a caller can do about it.

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

/// The result of asking a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no store here.
    #[error("there is no store in `{path}`")]
    NoStore {
        /// Where it was looked for.
        path: String,
    },
    /// There is no such thread.
    #[error("there is no thread `{0}`")]
    NoThread(String),
    /// More than one thread begins like this.
    #[error("`{prefix}` names more than one thread: {}", .candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// The first few that begin like it.
        candidates: Vec<String>,
    },
    /// The thread has not come to this version.
    #[error("thread `{thread}` has no version {version}; the latest is {latest}")]
    NoVersion {
        /// The thread.
        thread: ThreadId,
        /// The version that was asked for.
        version: u64,
        /// The version it is at.
        latest: u64,
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
        /// When that was committed.
        at: Timestamp,
    },
    /// The store has an older format.
    #[error("the store has format {found}, and this program reads and writes format {current}")]
    Outdated {
        /// The format of the store.
        found: i64,
        /// The format that is written.
        current: i64,
    },
    /// The thread was deleted; its id is never used again.
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
        /// The version it is at.
        actual: u64,
    },
    /// The lease was taken over; what was written under it can't be committed any more.
    #[error("the lease on thread `{thread}` of epoch {held} was taken over; the epoch is now {current}")]
    StaleEpoch {
        /// The thread.
        thread: ThreadId,
        /// The epoch of the caller's lease.
        held: u64,
        /// The epoch now.
        current: u64,
    },
    /// Somebody else holds the lease.
    #[error("thread `{thread}` is held by {}", .holder.in_words())]
    LeaseHeld {
        /// The thread.
        thread: ThreadId,
        /// Who holds it.
        holder: OwnerId,
    },
    /// Money is held by the account of a thread that is to be deleted, or for it.
    #[error("money is held for `{thread}` or by it: account `{account}` is not closed")]
    AccountInUse {
        /// The thread.
        thread: ThreadId,
        /// The account.
        account: AccountId,
    },
    /// Requests are waiting that only the holder can answer.
    #[error("thread `{thread}` can't be released: {count} request(s) wait for its holder")]
    RequestsPending {
        /// The thread.
        thread: ThreadId,
        /// How many.
        count: usize,
    },
    /// The key belongs to another request.
    #[error("key `{0}` was used before, for another request")]
    KeyReused(CommitKey),
    /// The id belongs to another request.
    #[error("request `{id}` to thread `{thread}` was posted before, with another content")]
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
    /// A request is consumed without a word about it in the log.
    #[error("request `{id}` to thread `{thread}` would be consumed without a verdict in the log")]
    NoVerdict {
        /// The thread.
        thread: ThreadId,
        /// The request.
        id: RequestId,
    },
    /// A message of this id is there, with another content.
    #[error("message `{message}` of thread `{thread}` was stored before, with another content")]
    MessageChanged {
        /// The thread.
        thread: ThreadId,
        /// The message.
        message: MessageId,
    },
    /// The same thread twice, or none at all.
    #[error("a batch needs at least one part and no thread twice")]
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
    /// The account changed under the caller's hands too often.
    #[error("account `{0}` is too busy")]
    AccountBusy(AccountId),
    /// A row of the database was not sealed by the holder of the key.
    #[error(
        "what the database has of {what} was not sealed with your key: it was changed, or another program wrote it"
    )]
    Unsealed {
        /// What the row is about.
        what: String,
        /// The key whose seals count.
        ours: Digest,
    },
    /// Another key signed this log so far.
    #[error("thread `{thread}` is signed by key {}, and this store signs with key {}", .theirs.short(), .ours.short())]
    OtherSigner {
        /// The thread.
        thread: ThreadId,
        /// The key that signed so far.
        theirs: Digest,
        /// The key of this store.
        ours: Digest,
    },
    /// A log is not what it should be.
    #[error("{}", describe(.thread, .finding))]
    Log {
        /// The thread.
        thread: ThreadId,
        /// What was found.
        finding: Finding,
    },
    /// Something else that is signed or stored is not what it should be.
    #[error("{what}: {why}")]
    Integrity {
        /// What.
        what: String,
        /// Why.
        why: String,
        /// The command that helps.
        hint: Option<String>,
    },
    /// Something beside the logs is signed by a key whose word does not count here. The bytes may well be as they were.
    #[error("{what} is signed by key {}, {}", .key.short(), if *.is_revoked { "which was revoked" } else { "which is not trusted" })]
    Unbelieved {
        /// What.
        what: String,
        /// The key.
        key: Digest,
        /// Whether it counted once.
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
        /// What was to be done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The database failed.
    #[error("the database failed: {why}")]
    Database {
        /// What it said.
        why: String,
        /// Whether trying again may help.
        retryable: bool,
    },
    /// Nobody can say whether the commit happened.
    #[error("it is not known whether the commit happened: {why}")]
    OutcomeUnknown {
        /// Why not.
        why: String,
    },
}

impl Error {
    /// What a signed document that is refused means: its key does not count, or it is not what was signed, for which `hint` helps.
    pub fn of_document(what: impl Into<String>, error: &DocumentError, hint: impl FnOnce() -> String) -> Self {
        let what = what.into();
        match error {
            DocumentError::UntrustedKey { fingerprint } => {
                Self::Unbelieved { what, key: *fingerprint, is_revoked: false }
            }
            DocumentError::RevokedKey { fingerprint } => Self::Unbelieved { what, key: *fingerprint, is_revoked: true },
            error => Self::Integrity { what, why: error.to_string(), hint: Some(hint()) },
        }
    }
}

/// How a key comes to count, if it should.
pub fn believe(key: &Digest, is_revoked: bool) -> String {
    match is_revoked {
        true => format!(
            "you revoked this key, and `selvedge keys list` says when; if it should count again: `selvedge keys trust --again {}`",
            key.short()
        ),
        false => format!("trust key {key} only if you know whose it is: `selvedge keys trust FILE --owner NAME`"),
    }
}

/// A finding in words, for people.
pub fn describe(thread: &ThreadId, finding: &Finding) -> String {
    match finding {
        Finding::Sound => format!("the log of `{thread}` ends where it should"),
        Finding::Foreign { bytes } => format!("the log of `{thread}` has {bytes} foreign byte(s) behind its end"),
        Finding::DatabaseBehind { database, file } => format!(
            "the log of `{thread}` is signed up to version {file}, but the database knows it only up to version {database}"
        ),
        // The bytes are as that key signed them; whether that counts is decided by whoever reads them.
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
            format!("the log of `{thread}` is cut off: it ends at version {have}, and {by} remembers version {version}")
        }
        Finding::Truncated { have: None, version, by } => {
            format!("the log of `{thread}` is gone: {by} remembers version {version}")
        }
        Finding::Unread(damage) => format!(
            "the log of `{thread}` is as it was signed, but this program does not understand line {} (version {}): {}",
            damage.line, damage.version, damage.flaw
        ),
        Finding::Unsigned => format!("the log of `{thread}` has no checkpoint at all"),
        Finding::Blob { blob, version, why } => {
            format!("blob {} of `{thread}`, which version {version} names, {why}", blob.short())
        }
        Finding::Database { why } => format!("the log of `{thread}` holds, but the database {why}"),
        Finding::Contradicted { by, why } => format!("{by} of `{thread}` does not agree with its log: {why}"),
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
            Self::Log { .. } | Self::Integrity { .. } | Self::Unsealed { .. } | Self::Unbelieved { .. } => {
                Kind::Integrity
            }
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
            Self::KeyReused(_) => "key_reused",
            Self::RequestReused { .. } => "request_reused",
            Self::RequestGone { .. } => "request_gone",
            Self::NoVerdict { .. } => "no_verdict",
            Self::MessageChanged { .. } => "message_changed",
            Self::BadBatch => "bad_batch",
            Self::BadBirth => "bad_birth",
            Self::Changeset(error) => error.code(),
            Self::Fold { source, .. } => source.code(),
            Self::Line(error) => error.code(),
            Self::Posting(error) => error.code(),
            Self::Running(_) => "thread_running",
            Self::AccountBusy(_) => "account_busy",
            Self::OtherSigner { .. } => "other_signer",
            Self::Unsealed { .. } => "row_unsealed",
            Self::Log { finding, .. } => match finding {
                Finding::Sound | Finding::Foreign { .. } => "foreign_bytes",
                Finding::DatabaseBehind { .. } => "database_behind",
                Finding::Damaged(damage) => damage.code(),
                Finding::Truncated { .. } => "truncated",
                Finding::Unread(_) => "unknown_payload",
                Finding::Unsigned => "unsigned_log",
                Finding::Contradicted { .. } => "contradicted",
                Finding::Database { .. } => "database_differs",
                Finding::Blob { .. } => "blob_damaged",
            },
            Self::Integrity { .. } => "integrity",
            Self::Unbelieved { is_revoked: true, .. } => "revoked_key",
            Self::Unbelieved { .. } => "untrusted_key",
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
            Self::NoStore { .. } => "`selvedge init` makes one",
            Self::NoThread(_) => "`selvedge thread list` shows what is there",
            Self::Ambiguous { .. } => "type more of the id",
            Self::Erased { .. } => "what was erased is gone; a backup from before may still have it",
            Self::Outdated { .. } => {
                "`selvedge reindex` rebuilds the database from the logs in today's format; the logs are not touched"
            }
            Self::NoVersion { thread, latest, .. } => {
                return Some(format!("`selvedge state {thread} --at {latest}` is the latest"));
            }
            Self::Exists(thread) => {
                return Some(format!(
                    "`selvedge thread show {thread}` shows the one that is here; a thread keeps its id, so another one of that id \
                     can only be taken into another store"
                ));
            }
            Self::Deleted(_) => "ids are never used again; create a thread under another one",
            Self::Conflict { thread, actual, .. } => {
                return Some(format!(
                    "look at what was added (`selvedge log {thread}`), then append with `--expect {actual}`"
                ));
            }
            Self::AccountInUse { thread, .. } => {
                return Some(format!(
                    "`selvedge cancel {thread}` ends it and what it started, and settles its account"
                ));
            }
            Self::LeaseHeld { thread, .. } => {
                return Some(format!(
                    "wait until it is free (`selvedge wait {thread}`, if it runs), or ask for an end of it with `selvedge cancel {thread}`"
                ));
            }
            Self::KeyReused(_) => "use a new key for a new request",
            Self::MessageChanged { .. } => "give the changed message an id of its own",
            Self::Running(_) => "let the run finish first",
            Self::Unsealed { .. } => {
                "if your key was rotated meanwhile, run this again with the new one; otherwise `selvedge reindex` derives every row from \
                 the logs, which are untouched and still verify"
            }
            Self::OtherSigner { .. } => {
                "if your key was rotated meanwhile, run this again with the new one; if the thread's key is lost or not \
                 yours, the thread stays readable and verifiable, and a new one can go on from it"
            }
            Self::OutcomeUnknown { .. } => "append again with the same `--key`: it is committed once",
            Self::Log { thread, finding } => {
                return Some(match finding {
                    Finding::Foreign { .. } => {
                        "the next append with the key that signs it moves them to a quarantine file; nothing acknowledged is lost".to_owned()
                    }
                    Finding::DatabaseBehind { .. } => format!(
                        "the database is older than the log: `selvedge repair {thread}` lets it follow, `selvedge reindex` rebuilds all of it"
                    ),
                    Finding::Truncated { have: Some(_), .. } => format!(
                        "put the file back from a copy; `selvedge repair {thread} --accept-loss` goes on without what is lost, and says so for ever"
                    ),
                    Finding::Database { .. } => {
                        "`selvedge reindex` builds the database anew from the logs, which are not touched".to_owned()
                    }
                    Finding::Contradicted { by, .. } => format!(
                        "the log holds by itself; `selvedge repair {thread}` keeps {by} aside and writes it anew"
                    ),
                    Finding::Unread(_) => {
                        "a newer Selvedge, or another program, wrote it: use that one; nothing is added to it here".to_owned()
                    }
                    Finding::Blob { .. } => "the log itself holds; put the file back from a backup".to_owned(),
                    Finding::Damaged(Damage { flaw: Flaw::Untrusted(key), .. }) => believe(key, false),
                    Finding::Damaged(Damage { flaw: Flaw::Revoked(key), .. }) => believe(key, true),
                    _ => format!(
                        "`selvedge verify {thread} --explain` shows what is still proven; put the file back from a copy"
                    ),
                });
            }
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "make room on the disk; nothing acknowledged is lost"
                }
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    "check who owns the folder and its mode"
                }
                // How a store names what is no plain file.
                io::ErrorKind::InvalidInput => {
                    "a link, a pipe or a folder in a file's place is not read: move it away and put the file back from a copy"
                }
                _ => return None,
            },
            Self::Unbelieved { key, is_revoked, .. } => return Some(believe(key, *is_revoked)),
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
