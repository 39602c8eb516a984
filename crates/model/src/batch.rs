//! What is committed as one: changesets for one or more threads, postings, requests. All of it or none.

use serde::{Deserialize, Serialize};

use crate::account::Posting;
use crate::changeset::Changeset;
use crate::id::{CommitKey, RequestId, ThreadId};
use crate::request::Posted;

/// What must be true of a thread for its part to be committed.
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

/// Under which right a part is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Under a lease of this epoch. A thread that is created so is born held, at this epoch, by the process that commits.
    Lease(u64),
    /// Without one: only if nobody alive holds the lease.
    Brief,
}

/// What a batch adds to one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The thread.
    pub thread: ThreadId,
    /// What must be true of it.
    pub expect: Expect,
    /// Under which right it is written.
    pub right: Right,
    /// What is added.
    pub changeset: Changeset,
    /// What is posted to the ledger and stands signed in this thread's log, whichever account it changes.
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

/// What is committed as one.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Makes the commit idempotent.
    pub key: Option<CommitKey>,
    /// What is added to which thread; no thread twice.
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
