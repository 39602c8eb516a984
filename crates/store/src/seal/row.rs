//! The rows that are derived from logs or count for themselves: what the mark of each covers, the same for every backend.
//!
//! A row is checked as it was read, before anything in it is interpreted, so its texts are plain texts here.

use selvedge_log::hash::Seals;
use selvedge_model::{Digest, LogId, OwnerId, ThreadId};

/// A row of a table, as its mark covers it.
#[derive(Clone, Copy, Debug)]
pub enum SealedRow<'a> {
    /// A message in the index of a log.
    Message {
        /// The log.
        log: &'a LogId,
        /// The id of the message.
        id: &'a str,
        /// The digest of its content.
        digest: &'a [u8],
    },
    /// A run in the index of a log.
    Run {
        /// The log.
        log: &'a LogId,
        /// The id of the run.
        id: &'a str,
        /// The id of the run that began it.
        parent: Option<&'a str>,
        /// What is known of it, as JSON.
        meta: &'a str,
        /// When it began, in microseconds.
        created_at: i64,
    },
    /// The answer to a commit under a key.
    Key {
        /// The key.
        key: &'a str,
        /// The digest of the request.
        request: &'a [u8],
        /// The answer, as JSON.
        answer: &'a str,
    },
    /// Where a request of a chain was consumed.
    Answer {
        /// The root of the chain.
        root: &'a ThreadId,
        /// The id of the request.
        request: &'a str,
        /// The thread whose log has the verdict.
        thread: &'a str,
        /// The version that has it.
        version: i64,
    },
    /// A blob that was erased.
    Erasure {
        /// The log that records it.
        log: &'a LogId,
        /// The name of the blob.
        blob: &'a [u8],
        /// Why.
        reason: &'a str,
        /// When, in microseconds.
        erased_at: i64,
    },
    /// The requests that were posted to a thread.
    Inbox {
        /// The log of the thread.
        log: &'a str,
        /// The number of the thread.
        thread: i64,
        /// Their numbers, as JSON.
        posted: &'a str,
    },
    /// The sums over all accounts and inboxes.
    Anchor {
        /// How often they changed.
        epoch: i64,
        /// The sums.
        sums: &'a [u8],
    },
    /// The last moment at which an owner was alive.
    Beat {
        /// The owner.
        owner: &'a OwnerId,
        /// The time, as it is stored.
        time: &'a str,
    },
}

impl SealedRow<'_> {
    /// The mark of the row.
    pub fn mark(&self, seals: &Seals) -> Digest {
        self.with_fields(|table, fields| super::row(seals, table, fields))
    }

    /// Whether a mark was made for this row.
    pub fn is_marked(&self, seals: &Seals, mark: &Digest) -> bool {
        self.with_fields(|table, fields| super::is_row(seals, table, fields, mark))
    }

    /// Passes the table that the mark is bound to, and the fields that it covers.
    fn with_fields<T>(&self, take: impl FnOnce(&str, &[&[u8]]) -> T) -> T {
        let text = str::as_bytes;
        match *self {
            Self::Message { log, id, digest } => take("messages", &[text(log.as_str()), text(id), digest]),
            Self::Run { log, id, parent, meta, created_at } => {
                let created_at = created_at.to_be_bytes();
                let parent = parent.unwrap_or_default();
                take("runs", &[text(log.as_str()), text(id), text(parent), text(meta), &created_at])
            }
            Self::Key { key, request, answer } => take("keys", &[text(key), request, text(answer)]),
            Self::Answer { root, request, thread, version } => {
                take("answers", &[text(root.as_str()), text(request), text(thread), &version.to_be_bytes()])
            }
            Self::Erasure { log, blob, reason, erased_at } => {
                take("erasures", &[text(log.as_str()), blob, text(reason), &erased_at.to_be_bytes()])
            }
            Self::Inbox { log, thread, posted } => take("inboxes", &[text(log), &thread.to_be_bytes(), text(posted)]),
            Self::Anchor { epoch, sums } => take("anchor", &[&epoch.to_be_bytes(), sums]),
            Self::Beat { owner, time } => take("owners", &[text(owner.as_str()), text(time)]),
        }
    }
}
