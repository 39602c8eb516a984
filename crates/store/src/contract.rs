//! What a store of threads must do, in small contracts.
//!
//! Every call blocks until it is done: a program with an async runtime moves it off its threads in one place, and a store
//! is as simple to use from a command line. All contracts are object-safe; [`Store`] is all of them together.

use std::io::BufRead;
use std::ops::Range;
use std::time::Duration;

use selvedge_log::{Head, Line};
use selvedge_model::account::replay::Buried;
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::{
    AgentId, Batch, CommitKey, Digest, DirectiveId, Event, Manifest, OwnerId, Posted, RequestId, Run, Status, ThreadId,
    Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// The only way to write something durable.
pub trait Commit: Send + Sync {
    /// Commits a batch: all of it or none.
    ///
    /// On `Ok` every signed line is durable and visible in the transcripts. On an error nothing of the batch is visible,
    /// now or later, except after [`crate::Error::OutcomeUnknown`], which [`Commit::outcome`] resolves.
    fn commit(&self, batch: Batch) -> Result<Committed>;

    /// What became of the commit of this key.
    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>>;

    /// Stores bytes beside a thread's log, durable on return, and gives the name by which a later commit refers to them; the commit
    /// that creates the thread may be that one. For a thread that was deleted it is refused.
    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest>;

    /// Deletes a thread for good; refused while it runs, while somebody holds it, and while money is held by its chain's account or for it.
    /// What remains is a signed tombstone.
    fn delete(&self, thread: &ThreadId) -> Result<Tombstone>;
}

/// What a commit answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Committed {
    /// The version each thread came to, in the order of the parts.
    pub versions: Vec<(ThreadId, u64)>,
    /// Whether this is the answer to an earlier commit of the same key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// The time that its lines bear; only told to the process that committed it.
    #[serde(skip)]
    pub at: Option<Timestamp>,
    /// What was written, in the order of the parts; only told to the process that committed it.
    #[serde(skip)]
    pub parts: Vec<CommittedPart>,
}

/// What a commit wrote to one log.
#[derive(Clone, Debug, PartialEq)]
pub struct CommittedPart {
    /// The thread.
    pub thread: ThreadId,
    /// Where its log ends now.
    pub head: Head,
    /// The number of the first event's line.
    pub first_line: u64,
    /// The events as they stand in the log, without the checkpoint: what the store led them with and what the ledger recorded included.
    pub events: Vec<Event>,
}

impl Committed {
    /// The version `thread` came to.
    pub fn version_of(&self, thread: &ThreadId) -> Option<u64> {
        self.versions.iter().find(|(id, _)| id == thread).map(|(_, version)| *version)
    }

    /// What was written to the log of `thread`.
    pub fn part_of(&self, thread: &ThreadId) -> Option<&CommittedPart> {
        self.parts.iter().find(|part| part.thread == *thread)
    }
}

/// Reading what was committed.
pub trait Logs: Send + Sync {
    /// Where a thread's log ends.
    fn head(&self, thread: &ThreadId) -> Result<Head>;

    /// Lines from number `from` on, at most `limit`; unchecked, for showing.
    fn read(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>>;

    /// The exact committed bytes of a log, and the head they end at.
    fn transcript(&self, thread: &ThreadId) -> Result<(Head, Box<dyn BufRead + Send>)>;

    /// The bytes of a blob, checked against its name.
    fn blob(&self, thread: &ThreadId, blob: &Digest) -> Result<Vec<u8>>;
}

/// The right to write a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// The thread.
    pub thread: ThreadId,
    /// Who holds it.
    pub owner: OwnerId,
    /// Rises whenever the lease changes hands by force or death; a commit under an older one is refused.
    pub epoch: u64,
    /// The dead owner that it was taken over from.
    #[serde(skip)]
    pub taken_from: Option<OwnerId>,
}

/// How to ask for a lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acquire {
    /// How long to wait for whoever holds it.
    pub wait: Duration,
    /// Take it even from somebody alive.
    pub take_over: bool,
}

/// Who may write a thread.
pub trait Leases: Send + Sync {
    /// Takes the lease; those who wait in one process are served in order.
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease>;

    /// Checks that the lease still stands.
    fn renew(&self, lease: &Lease) -> Result<()>;

    /// The owner that this handle holds leases as.
    fn owner(&self) -> &OwnerId;

    /// Records that this owner was alive at a moment, in place of the beat before. It survives the process; a power cut may lose it.
    fn beat(&self, at: Timestamp) -> Result<()>;

    /// When an owner, dead or alive, recorded last that it was alive; absent if that is not known any more.
    fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>>;

    /// Gives the lease back; refused while a request waits that only a run of its holder can consume.
    fn release(&self, lease: &Lease) -> Result<()>;

    /// Gives the lease back whatever waits, as when its holder dies: who waits takes the thread up.
    fn abandon(&self, lease: &Lease) -> Result<()>;

    /// Who holds the lease of a thread and lives.
    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>>;

    /// Threads whose holder is dead.
    fn expired(&self) -> Result<Vec<Lease>>;
}

/// Where a request was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The thread whose inbox it waits in, at the end of the chain; or the thread that consumed it before.
    pub thread: ThreadId,
    /// The version whose changeset consumed a request of this id before: then nothing was left.
    pub answered: Option<u64>,
}

/// A request that waits, and whether its seal holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The request.
    pub posted: Posted,
    /// Whether it was sealed with a key that may sign for the thread; one that was not must change nothing.
    pub is_sealed: bool,
}

/// That a request was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its place in the order of all requests of the store.
    pub number: u64,
    /// The thread it waits for, or waited for.
    pub thread: ThreadId,
}

/// Requests to threads. They are consumed by a batch ([`Batch::consumed`]), and move with their chain: the batch that continues a thread
/// moves what waits for it to the successor, and a request to a continued thread is left with the end of its chain, in one transaction.
pub trait Inbox: Send + Sync {
    /// Leaves a request, sealed, durable on return. Left again it is one request; one whose id was consumed before in the chain is not
    /// left again.
    fn post(&self, posted: Posted) -> Result<Left>;

    /// The requests that wait for a thread, in the order they came.
    fn pending(&self, thread: &ThreadId) -> Result<Vec<Waiting>>;

    /// Where in the chain of a thread a request of this id was consumed: the thread, and the version of the changeset.
    fn answered(&self, thread: &ThreadId, id: &RequestId) -> Result<Option<(ThreadId, u64)>>;

    /// The number of the newest request that was ever posted.
    fn newest(&self) -> Result<u64>;

    /// Requests posted behind number `after`, as far as they still wait, in order, at most `limit`.
    fn arrivals(&self, after: u64, limit: usize) -> Result<Vec<Arrival>>;
}

/// A thread as the registry shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What is known of it.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// How many changesets it has had since it was created.
    pub version: u64,
    /// The owner of its lease, if that lives. What is known of the thread is not older than the death of an owner that does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<OwnerId>,
}

impl Summary {
    /// Whether an engine's run is active that no live process makes: the next process that takes the lease settles it.
    pub fn is_stalled(&self) -> bool {
        self.manifest.status == Status::Running && !self.manifest.is_run_outside() && self.holder.is_none()
    }
}

/// Which threads to list; an absent field asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this agent.
    pub agent_id: Option<AgentId>,
    /// Of this directive.
    pub directive: Option<DirectiveId>,
    /// In this status.
    pub status: Option<Status>,
    /// Started by this thread.
    pub parent_id: Option<ThreadId>,
    /// Whose id or title has this text.
    pub text: Option<String>,
}

/// Where the next page begins. Threads created later never move what a cursor points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub u64);

/// Some of a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
}

/// What remains of a deleted thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tombstone {
    /// What it was.
    pub manifest: Manifest,
    /// Where its log ended.
    pub head: Head,
    /// When it was deleted.
    pub deleted_at: Timestamp,
    /// The postings that its log had; nobody said so when older ones were written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postings: Option<Vec<Buried>>,
}

/// Finding threads.
pub trait Registry: Send + Sync {
    /// One thread.
    fn get(&self, thread: &ThreadId) -> Result<Summary>;

    /// Threads, the newest first.
    fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>>;

    /// The chain a thread belongs to, from its root to its end. Cycles and missing links end it.
    fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>>;

    /// The threads that a thread started, oldest first.
    fn children(&self, thread: &ThreadId) -> Result<Vec<Summary>>;

    /// The runs of a thread, oldest first.
    fn runs(&self, thread: &ThreadId) -> Result<Vec<Run>>;

    /// The one thread whose id, or the hex at its end, begins with `prefix`.
    fn resolve(&self, prefix: &str) -> Result<ThreadId>;

    /// What remains of a deleted thread.
    fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>>;
}

/// One commit as followers hear of it: what it added to one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Commitment {
    /// Its place in the order of all commits of the store.
    pub position: u64,
    /// The thread.
    pub thread: ThreadId,
    /// The version it came to.
    pub version: u64,
    /// The number of its first line, as [`Logs::read`] takes it.
    pub first_line: u64,
    /// How many lines it has, with its checkpoint. Never 0, except for a commit of an older format whose log can't be read any more.
    pub lines: u64,
}

impl Commitment {
    /// A commit that wrote the lines of these numbers.
    pub fn new(position: u64, thread: ThreadId, version: u64, lines: Range<u64>) -> Self {
        let first_line = lines.start;
        let lines = lines.end.saturating_sub(lines.start);
        Self { position, thread, version, first_line, lines }
    }
}

/// How far a follower has read a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The place of the newest commit that was seen.
    pub commits: u64,
    /// The number of the newest request that was seen.
    pub requests: u64,
}

/// Following what is committed and what is asked.
pub trait Feed: Send + Sync {
    /// The place of the newest commit.
    fn position(&self) -> Result<u64>;

    /// Commits behind `position`, in order, at most `limit`. The lines of one thread's commits join without a gap.
    fn after(&self, position: u64, limit: usize) -> Result<Vec<Commitment>>;

    /// Waits for a hint that there may be a commit or a request behind what was seen, at most this long. Call [`Feed::after`] and
    /// [`Inbox::arrivals`] again either way: a hint may be late or for nothing, and then no wake-up is lost.
    fn watch(&self, seen: Position, timeout: Duration) -> Result<()>;

    /// Waits for a hint that there may be a commit behind `position`, as [`Feed::watch`] does.
    fn wait(&self, position: u64, timeout: Duration) -> Result<()> {
        self.watch(Position { commits: position, requests: u64::MAX }, timeout)
    }
}

/// Reading budgets; writing one is a posting in a batch.
pub trait Ledger: Send + Sync {
    /// One account.
    fn account(&self, id: &AccountId) -> Result<Option<Account>>;

    /// An account and all below it, parents first.
    fn tree(&self, id: &AccountId) -> Result<Vec<Account>>;

    /// The reservations of an account that are open, and those that were settled without anybody knowing what was spent; in the order
    /// of their names.
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>>;
}

/// Everything a store does.
pub trait Store: Commit + Logs + Leases + Inbox + Registry + Feed + Ledger {}

impl<T: Commit + Logs + Leases + Inbox + Registry + Feed + Ledger> Store for T {}
