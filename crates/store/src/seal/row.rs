//! The rows that are derived from logs or count for themselves: what the mark of each covers, the same for every backend.
//!
//! A row is checked as it was read, before anything in it is interpreted, so its texts are plain texts here.

use selvedge_log::hash::{Binding, Seals};
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
        let (table, content) = self.content();
        seals.mark(&binding(table), &content)
    }

    /// Whether a mark was made for this row.
    pub fn is_marked(&self, seals: &Seals, mark: &Digest) -> bool {
        let (table, content) = self.content();
        seals.is_marked(&binding(table), &content, mark)
    }

    /// The table that the mark is bound to, and the bytes that it covers.
    fn content(&self) -> (&'static str, Vec<u8>) {
        let text = str::as_bytes;
        match *self {
            Self::Message { log, id, digest } => ("messages", fields(&[text(log.as_str()), text(id), digest])),
            Self::Run { log, id, parent, meta, created_at } => {
                let created_at = created_at.to_be_bytes();
                let parent = parent.unwrap_or_default();
                ("runs", fields(&[text(log.as_str()), text(id), text(parent), text(meta), &created_at]))
            }
            Self::Key { key, request, answer } => ("keys", fields(&[text(key), request, text(answer)])),
            Self::Answer { root, request, thread, version } => {
                let version = version.to_be_bytes();
                ("answers", fields(&[text(root.as_str()), text(request), text(thread), &version]))
            }
            Self::Erasure { log, blob, reason, erased_at } => {
                let erased_at = erased_at.to_be_bytes();
                ("erasures", fields(&[text(log.as_str()), blob, text(reason), &erased_at]))
            }
            Self::Inbox { log, thread, posted } => {
                ("inboxes", fields(&[text(log), &thread.to_be_bytes(), text(posted)]))
            }
            Self::Anchor { epoch, sums } => ("anchor", fields(&[&epoch.to_be_bytes(), sums])),
            Self::Beat { owner, time } => ("owners", fields(&[text(owner.as_str()), text(time)])),
        }
    }
}

fn binding(table: &str) -> Binding<'_> {
    Binding { log_id: table, segment: 0, version: 0, offset: 0 }
}

fn fields(fields: &[&[u8]]) -> Vec<u8> {
    let mut content = b"row\0".to_vec();
    for field in fields {
        super::put_field(&mut content, field);
    }
    content
}
