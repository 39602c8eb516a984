//! Calls of models and tools, and their outcomes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{is_zero, present};
use crate::digest::Digest;
use crate::id::CallId;
use crate::limits::Cost;
use crate::money::Money;

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

/// A call was opened that no message requests.
///
/// It is dispatched by its intent and closed by its outcome, like every other call. Its result is only in its outcome, never in a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallOpened {
    /// The call's id, which no earlier call of the thread had.
    pub call_id: CallId,
    /// What opened it.
    pub origin: CallOrigin,
    /// The tool.
    pub tool: String,
    /// The arguments of the call.
    pub arguments: Value,
}

/// What opened a call that no message requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallOrigin {
    /// A hook fired.
    Hook {
        /// The hook.
        hook: String,
        /// Whether the thread can't continue while the call's outcome is unknown.
        #[serde(default, skip_serializing_if = "crate::account::is_false")]
        required: bool,
    },
    /// A graph reached a node.
    Node {
        /// The graph.
        graph: String,
        /// The node.
        node: String,
    },
}

impl CallOrigin {
    /// Whether an unknown outcome suspends the thread; otherwise it is recorded as an error and the run continues.
    pub fn suspends(&self) -> bool {
        !matches!(self, Self::Hook { required: false, .. })
    }
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
    /// The key by which the tool can recognise a repetition.
    pub key: String,
    /// The hash of the tool's definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_hash: Option<Digest>,
    /// The process that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

/// A process, identified so that a reused process id is not mistaken for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// When it started, as the operating system counts.
    pub start_time: u64,
    /// The boot of the machine that `start_time` is relative to, if the system names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The machine, if the system names it: a process of another one can't be seen from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

/// A tool call ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// The call.
    pub call_id: CallId,
    /// Its result.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What kind of failure it is, if the tool gave no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ToolFailure>,
    /// The blob with the full result, if that was too long for a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
}

/// Why a call failed without an answer of its tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFailure {
    /// What kind of failure it is.
    pub class: ToolFailureClass,
    /// The details, without the phrase that the class stands for.
    pub why: String,
}

/// What kind of failure kept a call from being made or answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFailureClass {
    /// The tool could not be made ready; nothing happened.
    NotStarted,
    /// The tool panicked.
    Panicked,
    /// The thread's log could not be verified, so it may not start a child.
    ParentUnverified,
    /// The account can't cover what the child may spend.
    OverBudget,
    /// The process of a child could not be launched.
    NotLaunched,
    /// What the tool should have returned is not what was signed.
    Integrity,
}

/// The usage of one turn of the model, including failed attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnUsage {
    /// The model.
    pub model: String,
    /// What counts against limits.
    #[serde(flatten)]
    pub cost: Cost,
    /// Of the tokens sent, those read from the provider's cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Of the tokens sent, those written to the provider's cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// The size of the prompt in bytes, as the engine estimates it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prompt_bytes: u64,
    /// How many tokens the provider counted for that prompt, in the last attempt; 0 if it does not count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prompt_tokens: u64,
    /// Whether the provider did not report the answer's usage, so that its tokens are an estimate.
    #[serde(default, skip_serializing_if = "crate::account::is_false")]
    pub estimated: bool,
    /// The model that answered, by its provider's name for it, if that differs from the requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
    /// The provider's name for the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The price that the provider reports for the answer; absent if it follows from the tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged: Option<Money>,
    /// The session of the provider that knows the conversation up to and including the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// How requests of this turn differed from what was configured, such as thinking that was switched off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}
