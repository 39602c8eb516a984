//! What is told to whoever watches a run.

use selvedge_model::event::{Ask, Suspended};
use selvedge_model::limits::Cost;
use selvedge_model::{CallId, DirectiveId, Draft, Event, Reason, RunId, Status, ThreadId};
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
    /// A note that nobody vouches for was dropped; it changed nothing.
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

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The thread; another one than was asked for if that one is continued.
    pub thread: ThreadId,
    /// The run; absent if there was nothing to do.
    pub run: Option<RunId>,
    /// Where the thread stands now.
    pub status: Status,
    /// The last words of the model in this run.
    pub text: Option<String>,
    /// Why it ended, in a word.
    pub code: String,
    /// Why it ended, in a sentence.
    pub detail: Option<String>,
    /// Why it waits.
    pub suspended: Option<Suspended>,
    /// What somebody is asked about its calls.
    pub asks: Vec<Ask>,
    /// What it returned.
    pub outputs: Option<Value>,
    /// What this run used.
    pub cost: Cost,
    /// What was resumed, if a thread that had come to an end goes on in a successor.
    pub resumed: Option<Resumed>,
}

/// What became of asking a thread to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Where it stood when that was known.
    pub status: Status,
    /// The process that ran it, if it was another one than this.
    pub pid: Option<u32>,
}

/// A thread that had come to an end and goes on in a successor.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Resumed {
    /// The thread that was resumed.
    pub old_thread_id: ThreadId,
    /// The thread that goes on.
    pub new_thread_id: ThreadId,
    /// The thread that was asked for, if that one was an earlier link of the chain.
    pub original_thread_id: Option<ThreadId>,
    /// The end of its chain, which was resumed.
    pub resolved_thread_id: ThreadId,
    /// What it is told to do.
    pub directive: Option<DirectiveId>,
    /// How many answers of the model it takes along.
    pub reconstructed_turns: u64,
}
