//! What is told to whoever watches a run.

use selvedge_model::{CallId, Draft, Event, Reason, Status, ThreadId};
use serde_json::Value;

/// One thing that is told while a run goes on.
#[derive(Clone, Debug)]
pub enum Told<'a> {
    /// Signed and durable: the events of one changeset, with the number of the first one's line.
    Committed {
        /// The thread.
        thread: &'a ThreadId,
        /// The version it came to.
        version: u64,
        /// Why it was committed.
        reason: Reason,
        /// The number of the first event's line.
        seq: u64,
        /// The events.
        events: &'a [Event],
    },
    /// A piece of an answer that nobody has committed yet, and perhaps nobody will.
    Draft(&'a Draft),
    /// A call is being dispatched; what becomes of it is told once it is committed.
    Calling {
        /// The call.
        call: &'a CallId,
        /// The tool.
        tool: &'a str,
        /// What it is called with.
        arguments: &'a Value,
    },
    /// A model's call failed and is made again.
    Retrying {
        /// What happened.
        why: &'a str,
    },
    /// A snapshot could not be saved, or not be used. The run goes on: the log says the same.
    Snapshot {
        /// What happened.
        why: &'a str,
    },
    /// A request was dropped: it was not sealed with the key, or can't be served. It changed nothing.
    Dropped {
        /// What happened.
        why: &'a str,
    },
    /// Something could not be committed. Nothing of it is in the log.
    StateError {
        /// What happened.
        why: &'a str,
    },
}

/// What became of asking a thread to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Where it stood when that was known.
    pub status: Status,
    /// The process that ran it, if it was another one than this.
    pub pid: Option<u32>,
}
