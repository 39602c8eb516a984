//! What is told to whoever watches a run.

use selvedge_model::event::Suspended;
use selvedge_model::{CallId, Draft, Event, Reason, RunId, Status, ThreadId};
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
    /// What it returned.
    pub outputs: Option<Value>,
    /// Calls of the model in this run.
    pub turns: u64,
    /// Tokens sent in this run.
    pub input_tokens: u64,
    /// Tokens received in this run.
    pub output_tokens: u64,
}
