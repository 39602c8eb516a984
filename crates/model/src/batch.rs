//! A batch is committed atomically: changesets for one or more threads, postings and requests, all or none.

use serde::{Deserialize, Serialize};

use crate::account::Posting;
use crate::changeset::Changeset;
use crate::id::{CommitKey, RequestId, ThreadId};
use crate::request::Posted;

/// The precondition on a thread for its part to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// It does not exist and never has.
    Absent,
    /// It is at this version.
    Exact(u64),
    /// It exists.
    Any,
}

/// The right under which a part is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Under a lease of this epoch. A thread that is created so starts with that lease, held by the committing process.
    Lease(u64),
    /// Without a lease: only if no live process holds one.
    Brief,
}

/// What a batch appends to one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The thread.
    pub thread: ThreadId,
    /// The precondition on it.
    pub expect: Expect,
    /// The right under which it is written.
    pub right: Right,
    /// What is appended.
    pub changeset: Changeset,
    /// What is posted to the ledger and recorded in this thread's log, whichever accounts it changes.
    pub postings: Vec<Posting>,
}

impl Part {
    /// A part without postings, written without a lease.
    pub fn new(thread: ThreadId, expect: Expect, changeset: Changeset) -> Self {
        Self { thread, expect, right: Right::Brief, changeset, postings: Vec::new() }
    }

    /// The same part, written under a lease of `epoch`.
    #[must_use]
    pub fn under(mut self, epoch: u64) -> Self {
        self.right = Right::Lease(epoch);
        self
    }
}

/// Everything that one commit writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Makes the commit idempotent, if present.
    pub key: Option<CommitKey>,
    /// What is appended to which thread; each thread at most once.
    pub parts: Vec<Part>,
    /// Requests that this commit consumes; each must still be pending.
    pub consumed: Vec<(ThreadId, RequestId)>,
    /// Requests that this commit posts.
    pub posted: Vec<Posted>,
}

impl Batch {
    /// A batch of one part.
    pub fn of(part: Part) -> Self {
        Self { key: None, parts: vec![part], consumed: Vec::new(), posted: Vec::new() }
    }

    /// The same batch under a key.
    #[must_use]
    pub fn with_key(mut self, key: CommitKey) -> Self {
        self.key = Some(key);
        self
    }
}
