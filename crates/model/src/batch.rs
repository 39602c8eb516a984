//! What is committed as one: changesets for one or more threads, postings, notes. All of it or none.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::account::Posting;
use crate::changeset::Changeset;
use crate::id::{CommitKey, NoteKey, ThreadId};
use crate::time::Timestamp;

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
    /// Under a lease of this epoch.
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

/// A request to a thread from somebody without the lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// The thread it is for.
    pub thread: ThreadId,
    /// Its sender's name for it; posted twice it is one note.
    pub key: NoteKey,
    /// What is asked: `send`, `cancel`, `rename` and so on.
    pub kind: String,
    /// The rest of the request.
    pub body: Value,
}

/// What is committed as one.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Makes the commit idempotent.
    pub key: Option<CommitKey>,
    /// What is added to which thread; no thread twice.
    pub parts: Vec<Part>,
    /// Notes that this commit answers; each must still be pending.
    pub consumed: Vec<(ThreadId, NoteKey)>,
    /// Notes that this commit posts.
    pub posted: Vec<Note>,
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

/// What a commit answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The version each thread came to, in the order of the parts.
    pub versions: Vec<(ThreadId, u64)>,
    /// Whether this is the answer to an earlier commit of the same key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// The time that its lines bear; only told to whoever committed it.
    #[serde(skip)]
    pub at: Option<Timestamp>,
}

impl Committed {
    /// The version `thread` came to.
    pub fn version_of(&self, thread: &ThreadId) -> Option<u64> {
        self.versions.iter().find(|(id, _)| id == thread).map(|(_, version)| *version)
    }
}
