//! Events that any number of subscribers can watch.
//!
//! In reading order: [`RunEvent`] is what is published, `publisher` makes it of what runs and commits do, `bus` hands it to the
//! subscriptions that want it, `backlog` bounds what waits for one of them, [`Subscription`] is where it is read.
//!
//! Invariants:
//!
//! - The events are those of this engine, in this process: every run, for any caller, and every commit of a thread that it holds. Commits of
//!   other processes, and commits that a program makes to the store directly, are in the store's feed only.
//! - `Committed` is published after the commit returned, once per changeset, in the order of a thread's lines. (If a caller runs a new thread
//!   in the instant between its creation and the publishing of that, its first run may be published first; `first_line` shows it.)
//! - Drafts are published without secrets, before the commit of the answer that they belong to.
//! - The caller of an operation gets its events as well, in the same form and within the same bounds ([`crate::Submitted`]).
//! - Publishing never blocks and never fails. A subscriber that is too slow loses drafts first, then everything in its queue, and gets one
//!   `Missed` instead. Without a subscriber, publishing is one atomic load.

mod backlog;
mod bus;
mod publisher;
mod subscription;

use std::collections::BTreeMap;
use std::sync::Arc;

use selvedge_model::{CallId, Draft, Event, Reason, RunId, Status, ThreadId};
use serde_json::Value;

pub use backlog::{QUEUE_BYTES_MAX, QUEUE_DRAFT_BYTES_MAX, QUEUE_EVENTS_MAX};
pub(crate) use bus::Bus;
pub(crate) use publisher::{CommittedLines, CreatedThread, FirstChangeset, Publication};
pub(crate) use subscription::CallerEvents;
pub use subscription::Subscription;

/// The most threads that a `Missed` lists with their first missed line.
pub const MISSED_THREADS_MAX: usize = 1024;

/// What a subscription watches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Watched {
    /// One thread, and the threads of its chain that follow it.
    Thread(ThreadId),
    /// Every thread.
    All,
}

/// One event of a run or a thread.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunEvent {
    /// A changeset was committed: signed and durable. Its events are the lines from `first_line` on; the line after them is the
    /// checkpoint, and the next changeset of the thread begins after that.
    Committed {
        /// The thread.
        thread: ThreadId,
        /// The run that it belongs to, if any.
        run: Option<RunId>,
        /// The version of the thread after it.
        version: u64,
        /// Why it was committed.
        reason: Reason,
        /// The number of the first event's line.
        first_line: u64,
        /// The events, without the checkpoint.
        events: Arc<[Event]>,
    },
    /// A piece of an answer that is not committed yet, and may never be.
    Draft {
        /// The thread.
        thread: ThreadId,
        /// The run.
        run: RunId,
        /// Which attempt at the answer it is a piece of, from 1; a higher attempt voids the drafts of a lower one.
        attempt: u32,
        /// The piece.
        draft: Draft,
    },
    /// A tool call is dispatched. Its outcome is in a later commit.
    Calling {
        /// The thread.
        thread: ThreadId,
        /// The run.
        run: RunId,
        /// The call.
        call: CallId,
        /// The tool.
        tool: String,
        /// Its arguments.
        arguments: Arc<Value>,
    },
    /// A model call failed and is retried.
    Retrying {
        /// The thread.
        thread: ThreadId,
        /// The run.
        run: RunId,
        /// The error.
        why: String,
    },
    /// Something that a person should know and that does not end the run.
    Notice {
        /// The thread.
        thread: ThreadId,
        /// What it is about.
        kind: NoticeKind,
        /// What happened.
        why: String,
    },
    /// A run ended or is suspended; published once, after the commit that says so.
    Ended {
        /// The thread.
        thread: ThreadId,
        /// The run.
        run: RunId,
        /// The status of the thread after it.
        status: Status,
        /// Why it ended, as a code.
        code: String,
    },
    /// Events that this subscriber was too slow for. It comes no later than the first of them would have. Drafts before it are incomplete;
    /// missed commits are in the store from their first line on. Lines that were read there may be delivered once more.
    Missed {
        /// How many drafts.
        drafts: u64,
        /// How many commits.
        commits: u64,
        /// How many other events.
        others: u64,
        /// The first missed line of each thread with missed commits.
        first_lines: BTreeMap<ThreadId, u64>,
        /// Whether there are missed commits of more threads than are listed ([`MISSED_THREADS_MAX`]); the store's feed names them.
        has_unlisted: bool,
    },
}

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoticeKind {
    /// A snapshot could not be saved or used. The log has everything that it would have had.
    Snapshot,
    /// A request was refused or dropped.
    Dropped,
    /// Something could not be committed. Nothing of it is in the log.
    StateError,
}

impl NoticeKind {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Dropped => "dropped",
            Self::StateError => "state_error",
        }
    }
}

impl RunEvent {
    /// The thread; none for `Missed`.
    pub fn thread(&self) -> Option<&ThreadId> {
        match self {
            Self::Committed { thread, .. }
            | Self::Draft { thread, .. }
            | Self::Calling { thread, .. }
            | Self::Retrying { thread, .. }
            | Self::Notice { thread, .. }
            | Self::Ended { thread, .. } => Some(thread),
            Self::Missed { .. } => None,
        }
    }
}
