//! What can stand on one line of a log.
//!
//! Every type named here is reserved: a caller hands in messages, patches, state actions and a snapshot, the engine
//! hands in the rest, and nobody hands in a checkpoint. Written as `"event_type":"…","payload":{…}`.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::account::{AccountId, Record};
use crate::digest::Digest;
use crate::id::{AgentId, CallId, CommitKey, DirectiveId, LogId, RunId, TaskId, ThreadId};
use crate::limits::{Cost, Limits, Meter};
use crate::message::Message;
use crate::money::Money;
use crate::patch::Patch;
use crate::run::RunRecorded;
use crate::status::Status;
use crate::time::Timestamp;
use crate::tool::Risk;

/// An object whose fields belong to whoever wrote it.
pub type Fields = Map<String, Value>;

/// Reads a value that is there, so that a null is told from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event_type", content = "payload", rename_all = "snake_case")]
pub enum Event {
    /// A thread's birth; the first line of every log.
    ThreadCreated(Box<ThreadCreated>),
    /// A run began.
    RunStarted(RunRecorded),
    /// A run ended or waits.
    RunFinished(RunRecorded),
    /// One message.
    Message(Message),
    /// A change of state.
    Patch(Patch),
    /// Somebody's recorded intent; for audit, never replayed.
    StateAction(Fields),
    /// The state was replaced, before the patches of the same changeset.
    Snapshot(Snapshot),
    /// A tool is about to be dispatched.
    ToolIntent(ToolIntent),
    /// A tool call came to an end.
    ToolOutcome(ToolOutcome),
    /// The run stopped and waits.
    Suspended(Suspended),
    /// Somebody decided about a call.
    Decision(Decision),
    /// A call may be made once somebody says so.
    Asked(Ask),
    /// A turn of the model used something.
    Usage(TurnUsage),
    /// An account was opened.
    AccountOpened(Record),
    /// Money was set aside.
    Reserved(Record),
    /// The reserved call was sent.
    Issued(Record),
    /// A reservation became a cost.
    Settled(Record),
    /// A reservation was given back.
    Released(Record),
    /// It became known what a settlement really was.
    Corrected(Record),
    /// An account was closed.
    AccountClosed(Record),
    /// An account was opened again.
    AccountReopened(Record),
    /// Money was set aside again for a child account that was closed.
    ReservedAgain(Record),
    /// An account may spend more.
    AccountRaised(Record),
    /// An account may spend nothing further.
    AccountStopped(Record),
    /// Title, session, outputs or status changed.
    ManifestChanged(ManifestChanged),
    /// A child thread was started.
    ChildSpawned(Fields),
    /// A child thread came to an end.
    ChildSettled(Fields),
    /// Another thread goes on.
    ThreadHandoff(Handoff),
    /// Another thread goes on because somebody resumed this one.
    ThreadResumed(Handoff),
    /// The context window is nearly full.
    ContextLimitReached(Fields),
    /// A hook ran.
    HookFired(Fields),
    /// Context was added to a prompt.
    ContextInjected(Fields),
    /// A call was not allowed.
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
    /// A graph ended well.
    GraphCompleted(Fields),
    /// A graph failed.
    GraphError(Fields),
    /// A graph was stopped.
    GraphCancelled(Fields),
    /// The content of a blob was erased.
    BlobErased(BlobErased),
    /// Something was found and mended before this changeset.
    Recovery(Recovery),
    /// From here on another key signs.
    KeyRotated(KeyRotated),
    /// The signed end of a changeset.
    Checkpoint(Box<Checkpoint>),
}

/// Where an event may stand in its changeset; the order of the variants is the order of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
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
    /// Where this event stands in its changeset.
    pub fn place(&self) -> Place {
        match self {
            Self::Recovery(_) | Self::KeyRotated(_) => Place::Lead,
            Self::ThreadCreated(_) => Place::Birth,
            Self::RunStarted(_) => Place::RunStart,
            Self::Snapshot(_) => Place::Base,
            Self::Message(_) => Place::Messages,
            Self::Patch(_) => Place::Patches,
            Self::StateAction(_) => Place::Actions,
            Self::RunFinished(_) => Place::RunEnd,
            Self::Checkpoint(_) => Place::End,
            _ => Place::Others,
        }
    }
}

impl Event {
    /// The record of a posting that this event is, with the type of the event; only the ledger writes those.
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

/// What a thread is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadKind {
    /// An agent's conversation.
    #[default]
    Agent,
    /// A state machine of actions.
    Graph,
}

/// What the creator of a thread says of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewThread {
    /// What the thread is.
    #[serde(default)]
    pub kind: ThreadKind,
    /// The one agent that owns it.
    pub agent_id: AgentId,
    /// What the agent is told to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<DirectiveId>,
    /// The thread that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<ThreadId>,
    /// The task it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The model it is meant for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What the directive was given.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub inputs: Fields,
    /// Its ceilings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// What it may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    /// The risks of its tools that somebody acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acknowledged: Vec<Risk>,
    /// The account it spends from and how much was set aside for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Hold>,
    /// The thread it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_of: Option<Predecessor>,
    /// What that thread had used, which counts on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<Meter>,
    /// The first thread of its chain, when that is not this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_root_id: Option<ThreadId>,
    /// The process that was started to run it, and that waited until this was on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

impl NewThread {
    /// A thread of `agent_id` of which nothing else is said.
    pub fn of(agent_id: AgentId) -> Self {
        Self {
            kind: ThreadKind::Agent,
            agent_id,
            directive: None,
            parent_id: None,
            task_id: None,
            title: None,
            model: None,
            inputs: Map::new(),
            limits: None,
            capabilities: None,
            acknowledged: Vec::new(),
            reservation: None,
            continuation_of: None,
            meter: None,
            chain_root_id: None,
            process: None,
        }
    }
}

/// Money set aside for a thread when it was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The account.
    pub account: AccountId,
    /// The amount.
    #[serde(rename = "amount_nanos")]
    pub amount: Money,
}

/// A thread that another one continues, pinned by hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predecessor {
    /// The thread.
    pub thread_id: ThreadId,
    /// Its version when it was left.
    pub version: u64,
    /// SHA-256 of its log up to the last checkpoint before it was left.
    pub hash: Digest,
}

/// Line 0 of every log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadCreated {
    /// The version of the log's format.
    pub format: u32,
    /// This log's random name.
    pub log_id: LogId,
    /// The segment of the log that this file is.
    pub segment: u32,
    /// What the creator said.
    #[serde(flatten)]
    pub thread: NewThread,
}

/// A replaced state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The whole state, before the patches of the same changeset.
    pub state: Value,
}

/// How often a tool may run for one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// It changes nothing.
    Pure,
    /// The same key gives the same effect.
    Idempotent,
    /// It must never run twice.
    #[default]
    AtMostOnce,
}

/// A tool is about to be dispatched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolIntent {
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub tool: String,
    /// How often it may run.
    pub class: EffectClass,
    /// What the tool is told so that it can recognise a repetition.
    pub key: String,
    /// The definition of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_hash: Option<Digest>,
    /// The process that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

/// A process, named so that a reused number is not mistaken for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, as the operating system counts.
    pub start_time: u64,
    /// The start of the machine that both are counted from, if it has a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// A tool call came to an end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// The call.
    pub call_id: CallId,
    /// What it answered.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The blob that holds the whole answer, if it was too long for a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
}

/// Why a run stopped and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuspendReason {
    /// A ceiling was reached.
    Limit,
    /// Something failed that somebody may mend.
    Error,
    /// The money is spent.
    Budget,
    /// A call waits for somebody's word.
    Approval,
    /// Nobody knows what became of a call.
    OutcomeUnknown,
}

/// The run stopped and waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspended {
    /// Why.
    pub reason: SuspendReason,
    /// The ceiling that was reached, or what caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// How far it had come.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub current: Option<Value>,
    /// How far it may come.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub maximum: Option<Value>,
    /// The calls that wait; those somebody has decided about are not among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallId>,
}

impl Suspended {
    /// A run that waits for this reason, of which nothing else is said.
    pub fn because(reason: SuspendReason, code: impl Into<String>) -> Self {
        Self { reason, code: Some(code.into()), current: None, maximum: None, calls: Vec::new() }
    }
}

/// A call that may be made once somebody says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub tool: String,
    /// What it is to be called with, unless that is long; the assistant's message has all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// The tool, arguments and call that a decision is bound to.
    pub action_hash: Digest,
    /// Why somebody is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether it was asked about before, and its tool was defined anew since: what was said of it then does not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redefined: bool,
    /// After this moment nobody's word counts any more, and the call is not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// What becomes of the call once it is allowed; what a rule says later does not count.
    #[serde(default, skip_serializing_if = "ResumeMode::is_replay")]
    pub resume_mode: ResumeMode,
}

impl Ask {
    /// Whether nobody's word counts any more.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| now >= expires_at)
    }
}

/// What becomes of a call that was approved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeMode {
    /// It is made as the model asked for it.
    #[default]
    ReplayToolCall,
    /// It is not made: the decision is its result.
    UseDecisionAsToolResult,
    /// It is made with the decision for its arguments.
    PassDecisionToTool,
}

impl ResumeMode {
    /// Whether it is made as the model asked for it, which needs no saying.
    pub fn is_replay(&self) -> bool {
        *self == Self::ReplayToolCall
    }
}

/// What one turn of the model used, failed attempts included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnUsage {
    /// The model.
    pub model: String,
    /// What counts against ceilings.
    #[serde(flatten)]
    pub cost: Cost,
    /// Of the tokens sent, those read from the provider's cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Of the tokens sent, those written to the provider's cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// Whether the provider did not say what its answer used, so that its tokens are an estimate.
    #[serde(default, skip_serializing_if = "crate::account::is_false")]
    pub estimated: bool,
}

/// Somebody decided about a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The call.
    pub call_id: CallId,
    /// What was decided: `approve`, `edit`, `deny`, `done`, `not_done`, `unknown`.
    pub action: String,
    /// Who decided.
    pub who: String,
    /// The tool, arguments and call that the decision is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_hash: Option<Digest>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What came with it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// What it was said to do with the call, if it allows it.
    #[serde(default, skip_serializing_if = "ResumeMode::is_replay")]
    pub resume_mode: ResumeMode,
}

impl Decision {
    /// The call may be made as it was asked for.
    pub const APPROVE: &'static str = "approve";
    /// The call may be made with other arguments.
    pub const EDIT: &'static str = "edit";
    /// The call must not be made.
    pub const DENY: &'static str = "deny";

    /// Whether it says that a call may or must not be made, rather than what became of one that was.
    pub fn is_word(&self) -> bool {
        matches!(self.action.as_str(), Self::APPROVE | Self::EDIT | Self::DENY)
    }
}

/// A change of what `thread.json` shows; absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ManifestChanged {
    /// A new title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// A new session of an outside engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// New outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// A new status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// New ceilings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Another thread goes on in this one's place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Handoff {
    /// The thread that goes on.
    pub new_thread_id: ThreadId,
    /// What it is told to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<DirectiveId>,
    /// How many turns it carries.
    #[serde(default)]
    pub trailing_turns: u64,
    /// Whatever else is recorded.
    #[serde(flatten)]
    pub details: Fields,
}

impl Handoff {
    /// The names that no detail may have.
    pub const FIELDS: [&str; 3] = ["new_thread_id", "directive", "trailing_turns"];
}

/// The content of a blob was erased; the log names it still, and says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobErased {
    /// The blob.
    pub blob: Digest,
    /// Why.
    pub reason: String,
}

/// Something was found and mended before this changeset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// What was found, in a word.
    pub found: String,
    /// How many bytes it concerned.
    pub bytes: u64,
    /// The file they were moved to, beside the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<String>,
    /// The SHA-256 of those bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Digest>,
    /// The first version that is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_version: Option<u64>,
    /// The last version that is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_version: Option<u64>,
    /// Who remembered that version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Recovery {
    /// What is said to have been found when versions of a log are lost for good.
    pub const LOSS: &'static str = "loss";

    /// Whether this says that versions are lost; only such a one lets the next version be more than one further.
    pub fn is_loss(&self) -> bool {
        self.found == Self::LOSS
    }
}

/// From here on another key signs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyRotated {
    /// The key that signed so far.
    pub from: Digest,
    /// The key that signs from here on.
    pub to: Digest,
}

/// What a checkpoint says; its signature is made and checked over the line's bytes, by the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// How many changesets the thread has had since it was created.
    pub version: u64,
    /// Why the changeset was committed.
    pub reason: crate::changeset::Reason,
    /// What made the commit idempotent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<CommitKey>,
    /// The hash of the request, beside its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Digest>,
    /// The run the changeset belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The run above that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The turn of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// The lease under which it was written.
    pub epoch: u64,
    /// The log this line belongs to.
    pub log_id: LogId,
    /// The segment of that log.
    pub segment: u32,
    /// How many bytes of the segment stand before this line.
    pub byte_offset: u64,
    /// The SHA-256 of those bytes.
    pub hash: Digest,
    /// The other threads of the batch and the versions they came to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<(ThreadId, u64)>,
    /// Whether the thread had come to an end at this version.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
    /// The key that signed.
    pub signer: Digest,
    /// The signature.
    pub sig: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_answered_null_has_answered() {
        let call_id = CallId::new("c").unwrap();
        let answered = ToolOutcome { call_id, result: Some(Value::Null), error: None, blob: None };
        let text = serde_json::to_string(&answered).unwrap();
        assert_eq!(serde_json::from_str::<ToolOutcome>(&text).unwrap(), answered);
        let silent = ToolOutcome { result: None, ..answered };
        assert_eq!(serde_json::from_str::<ToolOutcome>(&serde_json::to_string(&silent).unwrap()).unwrap(), silent);
    }
}
