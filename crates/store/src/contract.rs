//! The store contracts: the traits that a store of threads implements.
//!
//! Every call blocks until it is done: a program with an async runtime moves it off its threads in one place, and a command line uses it
//! directly. All contracts are object-safe; [`Store`] is all of them together.

use std::io::BufRead;
use std::ops::Range;
use std::time::Duration;

use selvedge_log::{Head, Line};
use selvedge_model::account::replay::DeletedPostings;
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

    /// The result of the commit with this key, if it happened.
    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>>;

    /// Stores bytes beside a thread's log, durable on return, and returns the name by which a later commit refers to them; that may be the
    /// commit that creates the thread. Refused for a deleted thread.
    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest>;

    /// Deletes a thread for good; refused while it runs, while its lease is held, and while amounts are reserved by its chain's account or
    /// for it. A signed tombstone remains.
    fn delete(&self, thread: &ThreadId) -> Result<Tombstone>;
}

/// The result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Committed {
    /// The new version of each thread, in the order of the parts.
    pub versions: Vec<(ThreadId, u64)>,
    /// Whether this is the answer to an earlier commit of the same key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// The time of its lines; only known to the process that committed it.
    #[serde(skip)]
    pub at: Option<Timestamp>,
    /// What was written, in the order of the parts; only known to the process that committed it.
    #[serde(skip)]
    pub parts: Vec<CommittedPart>,
}

/// What a commit wrote to one log.
#[derive(Clone, Debug, PartialEq)]
pub struct CommittedPart {
    /// The thread.
    pub thread: ThreadId,
    /// The new head of its log.
    pub head: Head,
    /// The number of the first event's line.
    pub first_line: u64,
    /// The events in the log, without the checkpoint; including those that the store led them with and those of the ledger.
    pub events: Vec<Event>,
}

impl Committed {
    /// The new version of `thread`.
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
    /// The head of a thread's log.
    fn head(&self, thread: &ThreadId) -> Result<Head>;

    /// Lines from number `from` on, at most `limit`; unverified, for display.
    fn read(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>>;

    /// The exact committed bytes of a log, and their head.
    fn transcript(&self, thread: &ThreadId) -> Result<(Head, Box<dyn BufRead + Send>)>;

    /// The bytes of a blob, verified against its name.
    fn blob(&self, thread: &ThreadId, blob: &Digest) -> Result<Vec<u8>>;
}

/// The right to write to a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// The thread.
    pub thread: ThreadId,
    /// The lease holder.
    pub owner: OwnerId,
    /// Incremented whenever the lease is acquired; a commit under an older epoch is refused.
    pub epoch: u64,
    /// The dead holder that it was taken over from.
    #[serde(skip)]
    pub taken_from: Option<OwnerId>,
}

/// The options for acquiring a lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acquire {
    /// How long to wait for the current holder.
    pub wait: Duration,
    /// Take it even from a live holder.
    pub take_over: bool,
}

/// Leases: the right to write to a thread.
pub trait Leases: Send + Sync {
    /// Acquires the lease; waiters within one process are served in order.
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease>;

    /// Checks that the lease is still held.
    fn renew(&self, lease: &Lease) -> Result<()>;

    /// The owner id that this handle holds leases as.
    fn owner(&self) -> &OwnerId;

    /// Records that this owner was alive at a time, replacing the previous heartbeat. It survives the process; a power failure may lose it.
    fn beat(&self, at: Timestamp) -> Result<()>;

    /// The last heartbeat of an owner, dead or alive; absent if it is not known any more.
    fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>>;

    /// Releases the lease; refused while a request waits that only a run of its holder can consume.
    fn release(&self, lease: &Lease) -> Result<()>;

    /// Releases the lease even if requests wait, as when its holder dies: the senders acquire it.
    fn abandon(&self, lease: &Lease) -> Result<()>;

    /// The holder of a thread's lease, if it is alive.
    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>>;

    /// The leases of dead holders.
    fn expired(&self) -> Result<Vec<Lease>>;
}

/// Where a request was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The thread whose inbox it waits in, at the end of the chain; or the thread that consumed it before.
    pub thread: ThreadId,
    /// The version whose changeset consumed a request of this id before: then nothing was delivered.
    pub answered: Option<u64>,
}

/// A waiting request, and whether its seal is valid.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedRequest {
    /// The request.
    pub posted: Posted,
    /// Whether it was sealed with a key that may sign for the thread; one that was not must have no effect.
    pub is_sealed: bool,
}

/// A notice that a request was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedNotice {
    /// Its number in the order of all requests of the store.
    pub number: u64,
    /// The thread it waits for, or waited for.
    pub thread: ThreadId,
}

/// Requests to threads. They are consumed by a batch ([`Batch::consumed`]), and move with their chain: the batch that continues a thread
/// moves its waiting requests to the successor, and a request to a continued thread is delivered to the end of its chain, in one
/// transaction.
pub trait Inbox: Send + Sync {
    /// Posts a request, sealed, durable on return. Posted again it is the same request; one whose id was consumed before in the chain is
    /// not delivered again.
    fn post(&self, posted: Posted) -> Result<Delivery>;

    /// The waiting requests of a thread, in the order of posting.
    fn pending(&self, thread: &ThreadId) -> Result<Vec<QueuedRequest>>;

    /// The thread and version at which a request of this id was consumed in the chain of a thread.
    fn answered(&self, thread: &ThreadId, id: &RequestId) -> Result<Option<(ThreadId, u64)>>;

    /// The number of the newest request that was ever posted.
    fn newest(&self) -> Result<u64>;

    /// Requests posted after number `after` that still wait, in order, at most `limit`.
    fn arrivals(&self, after: u64, limit: usize) -> Result<Vec<PostedNotice>>;
}

/// A thread in the registry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Its manifest.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// Its number of changesets since it was created.
    pub version: u64,
    /// The holder of its lease, if it is alive. The manifest is never older than the death of a dead holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<OwnerId>,
}

impl Summary {
    /// Whether a run is active that no live process executes: the next process that acquires the lease settles it.
    pub fn is_stalled(&self) -> bool {
        self.manifest.status == Status::Running && !self.manifest.is_run_outside() && self.holder.is_none()
    }
}

/// Which threads to list; an absent field matches all.
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

/// Where the next page begins. Threads created later never move it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub u64);

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
}

/// The record of a deleted thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Its last manifest.
    pub manifest: Manifest,
    /// Its last head.
    pub head: Head,
    /// When it was deleted.
    pub deleted_at: Timestamp,
    /// The postings of its log; absent if the log could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postings: Option<Vec<DeletedPostings>>,
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

    /// The one thread whose id, or whose trailing hex, begins with `prefix`; or the one that it names by its age, see [`crate::newest`].
    fn resolve(&self, prefix: &str) -> Result<ThreadId>;

    /// The tombstone of a deleted thread.
    fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>>;
}

/// One commit in the feed: what it added to one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FeedEntry {
    /// Its position in the order of all commits of the store.
    pub position: u64,
    /// The thread.
    pub thread: ThreadId,
    /// The version it committed.
    pub version: u64,
    /// The number of its first line, as [`Logs::read`] takes it.
    pub first_line: u64,
    /// Its number of lines, with its checkpoint. 0 only if the counts are missing and the log can't be read.
    pub lines: u64,
}

impl FeedEntry {
    /// A commit that wrote the lines of these numbers.
    pub fn new(position: u64, thread: ThreadId, version: u64, lines: Range<u64>) -> Self {
        let first_line = lines.start;
        let lines = lines.end.saturating_sub(lines.start);
        Self { position, thread, version, first_line, lines }
    }
}

/// How far a follower has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The position of the newest commit that was seen.
    pub commits: u64,
    /// The number of the newest request that was seen.
    pub requests: u64,
    /// How often leases were freed, as far as was seen: see [`Feed::leases_freed`].
    pub leases: u64,
}

/// Following commits and requests.
pub trait Feed: Send + Sync {
    /// The position of the newest commit.
    fn position(&self) -> Result<u64>;

    /// Commits after `position`, in order, at most `limit`. The lines of one thread's commits are consecutive.
    fn after(&self, position: u64, limit: usize) -> Result<Vec<FeedEntry>>;

    /// A number of this handle that rises after a lease may have become free: it was released, or its owner died, in this process or
    /// another one. It may rise without a cause. A caller reads it, finds a lease held, and watches for a greater number: no end is missed.
    fn leases_freed(&self) -> u64;

    /// Waits for a hint that there may be a commit, a request or a freed lease after `seen`, at most this long; `u64::MAX` excludes one of
    /// them. Call [`Feed::after`] and [`Inbox::arrivals`], or check the lease, again either way: a hint may be late or wrong, and then no
    /// wake-up is lost.
    fn watch(&self, seen: Position, timeout: Duration) -> Result<()>;

    /// Waits for a hint that a lease became free, as [`Feed::watch`] does.
    fn wait_for_lease(&self, freed: u64, timeout: Duration) -> Result<()> {
        self.watch(Position { commits: u64::MAX, requests: u64::MAX, leases: freed }, timeout)
    }

    /// Waits for a hint that there may be a commit after `position`, as [`Feed::watch`] does.
    fn wait(&self, position: u64, timeout: Duration) -> Result<()> {
        self.watch(Position { commits: position, requests: u64::MAX, leases: u64::MAX }, timeout)
    }
}

/// Reading budgets; writing one is a posting in a batch.
pub trait Ledger: Send + Sync {
    /// One account.
    fn account(&self, id: &AccountId) -> Result<Option<Account>>;

    /// An account and all below it, parents first.
    fn tree(&self, id: &AccountId) -> Result<Vec<Account>>;

    /// The reservations of an account that are open, and those that were settled with an unknown amount; in the order of their names.
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>>;
}

/// Everything a store does.
pub trait Store: Commit + Logs + Leases + Inbox + Registry + Feed + Ledger {}

impl<T: Commit + Logs + Leases + Inbox + Registry + Feed + Ledger> Store for T {}
