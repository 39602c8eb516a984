//! What calls of models and tools are, and what they come to.

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

/// A call was opened that no message asks for.
///
/// Dispatched by its intent and closed by its outcome, like every other call. Its result is in its outcome alone, never in a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallOpened {
    /// The call; an id that no call of the thread had before.
    pub call_id: CallId,
    /// What opened it.
    pub origin: CallOrigin,
    /// The tool.
    pub tool: String,
    /// What it is called with.
    pub arguments: Value,
}

/// What opened a call that no message asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallOrigin {
    /// A hook fired.
    Hook {
        /// The hook.
        hook: String,
        /// Whether the thread can't go on without knowing what became of the call.
        #[serde(default, skip_serializing_if = "crate::account::is_false")]
        required: bool,
    },
    /// A graph came to a node.
    Node {
        /// The graph.
        graph: String,
        /// The node.
        node: String,
    },
}

impl CallOrigin {
    /// Whether an unknown outcome suspends the thread; else it is recorded as an error, and the run goes on.
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
    /// What kind of failure it is, if the tool did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ToolFailure>,
    /// The blob that holds the whole answer, if it was too long for a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
}

/// Why a call failed that its tool did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFailure {
    /// What kind of failure it is.
    pub class: ToolFailureClass,
    /// What went wrong, without the words that the class stands for.
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
    /// What is signed about the thread is not what its log says, so it starts no child.
    ParentUnverified,
    /// The account does not hold what a child may spend.
    OverBudget,
    /// The process of a child could not be started.
    NotLaunched,
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
    /// The size of the prompt in bytes, as the engine estimates it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prompt_bytes: u64,
    /// How many tokens the provider counted for that prompt, in the last attempt; nothing if it does not count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prompt_tokens: u64,
    /// Whether the provider did not say what its answer used, so that its tokens are an estimate.
    #[serde(default, skip_serializing_if = "crate::account::is_false")]
    pub estimated: bool,
    /// The model that answered, as its provider names it, where that is another name than the one that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
    /// The provider's name for the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// What the provider says that it charges for the answer; absent if that follows from the tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged: Option<Money>,
}
