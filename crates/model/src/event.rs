//! The events of a log, one per line.
//!
//! Every type named here is reserved. A caller submits messages, patches, state actions and a snapshot; the engine submits the rest,
//! except checkpoints, which only the log writes. Written as `"event_type":"…","payload":{…}`.

mod birth;
mod calls;
mod decision;
mod injected;
mod integrity;
mod waiting;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::account::Record;
use crate::id::{DirectiveId, ThreadId};
use crate::limits::Limits;
use crate::message::Message;
use crate::patch::Patch;
use crate::request::Answered;
use crate::run::RunRecorded;
use crate::status::Status;

pub use birth::{GraphBirth, GraphPosition, Hold, NewThread, Predecessor, ThreadCreated, ThreadKind};
pub use calls::{
    CallOpened, CallOrigin, EffectClass, Process, ToolFailure, ToolFailureClass, ToolIntent, ToolOutcome, TurnUsage,
};
pub use decision::{Decision, DecisionAction};
pub use injected::{Injected, Place as InjectedPlace};
pub use integrity::{BlobErased, Checkpoint, KeyRotated, LostVersions, Recovery};
pub use waiting::{Ask, Probed, ProcessFate, ReconcileAnswer, ResumeMode, SuspendReason, Suspended};

/// An object whose fields are defined by its writer.
pub type Fields = Map<String, Value>;

/// Reads a value that is present, so that null is distinguished from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Whether a number can be omitted.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it by reference")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event_type", content = "payload", rename_all = "snake_case")]
pub enum Event {
    /// The thread was created; the first line of every log.
    ThreadCreated(Box<ThreadCreated>),
    /// A run began.
    RunStarted(RunRecorded),
    /// A run ended or was suspended.
    RunFinished(RunRecorded),
    /// One message.
    Message(Message),
    /// A change of state.
    Patch(Patch),
    /// A recorded intent, for audit; never replayed.
    StateAction(Fields),
    /// The state was replaced, before the patches of the same changeset.
    Snapshot(Snapshot),
    /// A call was opened that no message requests.
    CallOpened(CallOpened),
    /// A tool is about to be dispatched.
    ToolIntent(ToolIntent),
    /// A tool call ended.
    ToolOutcome(ToolOutcome),
    /// The run was suspended.
    Suspended(Suspended),
    /// A person decided about a call.
    Decision(Decision),
    /// A call needs an approval.
    Asked(Ask),
    /// The usage of one turn of the model.
    Usage(TurnUsage),
    /// An account was opened.
    AccountOpened(Record),
    /// Money was reserved.
    Reserved(Record),
    /// The reserved call was sent.
    Issued(Record),
    /// A reservation was settled at its cost.
    Settled(Record),
    /// A reservation was released.
    Released(Record),
    /// A settlement of unknown cost was corrected.
    Corrected(Record),
    /// An account was closed.
    AccountClosed(Record),
    /// An account was reopened.
    AccountReopened(Record),
    /// Money was reserved again for a child account that was closed.
    ReservedAgain(Record),
    /// The limit of an account was raised.
    AccountRaised(Record),
    /// An account may reserve no more money.
    AccountStopped(Record),
    /// A request was consumed.
    RequestAnswered(Answered),
    /// Title, session, outputs or status changed.
    ManifestChanged(ManifestChanged),
    /// A child thread was started.
    ChildSpawned(Fields),
    /// A child thread ended.
    ChildSettled(Fields),
    /// The thread was handed off to a successor.
    ThreadHandoff(Handoff),
    /// The thread was handed off to a successor by a resume.
    ThreadResumed(Handoff),
    /// The context window is nearly full.
    ContextLimitReached(Fields),
    /// A hook ran.
    HookFired(Fields),
    /// Context was added to a prompt.
    ContextInjected(Fields),
    /// A call was denied by the thread's capabilities.
    CapabilityDenied(Fields),
    /// A command ran in a sandbox.
    Sandboxed(Fields),
    /// A graph began.
    GraphStarted(Fields),
    /// A node of a graph began.
    StepStarted(Fields),
    /// A node of a graph ended.
    StepCompleted(Fields),
    /// A loop of a graph ended.
    ForeachCompleted(Fields),
    /// A graph ended successfully.
    GraphCompleted(Fields),
    /// A graph failed.
    GraphError(Fields),
    /// A graph was cancelled.
    GraphCancelled(Fields),
    /// The content of a blob was erased.
    BlobErased(BlobErased),
    /// Damage was found and repaired before this changeset.
    Recovery(Recovery),
    /// The signing key changes here.
    KeyRotated(KeyRotated),
    /// The signed end of a changeset.
    Checkpoint(Box<Checkpoint>),
}

/// The position of an event in its changeset; the order of the variants is the order of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineOrder {
    /// `recovery` and `key_rotated`.
    Lead,
    /// `thread_created`.
    Birth,
    /// `run_started`.
    RunStart,
    /// `snapshot`.
    Base,
    /// Messages.
    Messages,
    /// Patches.
    Patches,
    /// State actions.
    Actions,
    /// Everything else.
    Others,
    /// `run_finished`.
    RunEnd,
    /// `checkpoint`.
    End,
}

impl Event {
    /// The position of this event in its changeset.
    pub fn place(&self) -> LineOrder {
        match self {
            Self::Recovery(_) | Self::KeyRotated(_) => LineOrder::Lead,
            Self::ThreadCreated(_) => LineOrder::Birth,
            Self::RunStarted(_) => LineOrder::RunStart,
            Self::Snapshot(_) => LineOrder::Base,
            Self::Message(_) => LineOrder::Messages,
            Self::Patch(_) => LineOrder::Patches,
            Self::StateAction(_) => LineOrder::Actions,
            Self::RunFinished(_) => LineOrder::RunEnd,
            Self::Checkpoint(_) => LineOrder::End,
            _ => LineOrder::Others,
        }
    }
}

impl Event {
    /// The posting's record in this event, with the event's type; only the ledger writes such events.
    pub fn posting(&self) -> Option<(&'static str, &Record)> {
        Some(match self {
            Self::AccountOpened(record) => ("account_opened", record),
            Self::Reserved(record) => ("reserved", record),
            Self::Issued(record) => ("issued", record),
            Self::Settled(record) => ("settled", record),
            Self::Released(record) => ("released", record),
            Self::Corrected(record) => ("corrected", record),
            Self::AccountClosed(record) => ("account_closed", record),
            Self::AccountReopened(record) => ("account_reopened", record),
            Self::ReservedAgain(record) => ("reserved_again", record),
            Self::AccountRaised(record) => ("account_raised", record),
            Self::AccountStopped(record) => ("account_stopped", record),
            _ => return None,
        })
    }

    /// Whether this event records a posting.
    pub fn is_record_of_a_posting(&self) -> bool {
        self.posting().is_some()
    }
}

/// A replaced state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The whole state, before the patches of the same changeset.
    pub state: Value,
}

/// A change of what `thread.json` shows; absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ManifestChanged {
    /// A new title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The usage of the call of the system for a title, also if it gave none; absent if a person or a program gave the title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title_usage: Option<Box<TurnUsage>>,
    /// A new session of a provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// New outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// A new status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// New limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Why a thread was handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoffReason {
    /// The context window of its model is full.
    ContextFull,
    /// Its graph made as many steps as one log has.
    SegmentFull,
    /// Its agent requested it.
    Requested,
}

/// The handoff of a thread to its successor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Handoff {
    /// The successor.
    pub new_thread_id: ThreadId,
    /// Why, if the thread itself initiated the handoff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<HandoffReason>,
    /// The successor's directive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<DirectiveId>,
    /// How many turns are carried over to the successor.
    #[serde(default)]
    pub trailing_turns: u64,
    /// Other recorded details.
    #[serde(flatten)]
    pub details: Fields,
}

impl Handoff {
    /// The reserved names, which no detail may have.
    pub const FIELDS: [&str; 4] = ["new_thread_id", "reason", "directive", "trailing_turns"];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::CallId;

    #[test]
    fn a_result_of_null_is_distinguished_from_no_result() {
        let call_id = CallId::new("c").unwrap();
        let answered = ToolOutcome { call_id, result: Some(Value::Null), error: None, failure: None, blob: None };
        let text = serde_json::to_string(&answered).unwrap();
        assert_eq!(serde_json::from_str::<ToolOutcome>(&text).unwrap(), answered);
        let silent = ToolOutcome { result: None, ..answered };
        assert_eq!(serde_json::from_str::<ToolOutcome>(&serde_json::to_string(&silent).unwrap()).unwrap(), silent);
    }
}
