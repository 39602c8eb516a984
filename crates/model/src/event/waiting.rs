//! What a thread waits for, and what people say about it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::present;
use crate::digest::Digest;
use crate::id::CallId;
use crate::time::Timestamp;

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
    /// When it was asked; what older versions wrote does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
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
