//! Suspended runs and approvals.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::present;
use crate::digest::Digest;
use crate::id::CallId;
use crate::time::Timestamp;

/// Why a run was suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuspendReason {
    /// A limit was reached.
    Limit,
    /// A failure that a person may be able to fix.
    Error,
    /// The budget is used up.
    Budget,
    /// A call waits for an approval.
    Approval,
    /// The outcome of a call is unknown.
    OutcomeUnknown,
}

/// The run was suspended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspended {
    /// Why.
    pub reason: SuspendReason,
    /// The limit that was reached, or the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The current value.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub current: Option<Value>,
    /// The limit.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub maximum: Option<Value>,
    /// The waiting calls; those that were already decided are not included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallId>,
    /// What was found out about the calls whose outcome is unknown. A call that no later process has probed has no entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probed: Vec<Probed>,
}

/// What a process that took over found out about a call that was dispatched and has no recorded outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// The call.
    pub call_id: CallId,
    /// The fate of the process that its intent names; absent if it names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessFate>,
    /// What its tool answered when asked for the call's outcome; absent if it was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconciled: Option<ReconcileAnswer>,
    /// Whether its tool has no way to report outcomes, so that there was nothing to ask.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_reconcile: bool,
}

/// The fate of a process that an earlier run left running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessFate {
    /// It was alive, and was terminated.
    Ended,
    /// It had already ended.
    Gone,
    /// It could not be terminated, and may still be alive.
    Alive,
}

/// What a tool reports about the outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReconcileAnswer {
    /// It does not know.
    Unknown,
}

impl Suspended {
    /// The code of a run whose process died.
    pub const PROCESS_LOST: &'static str = "process_lost";

    /// Whether the process of its run died.
    pub fn is_process_lost(&self) -> bool {
        self.code.as_deref() == Some(Self::PROCESS_LOST)
    }

    /// A suspension with this reason and code, and no other details.
    pub fn because(reason: SuspendReason, code: impl Into<String>) -> Self {
        Self { reason, code: Some(code.into()), current: None, maximum: None, calls: Vec::new(), probed: Vec::new() }
    }
}

/// A request for the approval of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub tool: String,
    /// The arguments of the call, unless they are long; the assistant's message has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// The hash of tool, arguments and call that a decision is bound to.
    pub action_hash: Digest,
    /// Why an approval is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether an earlier request for the call's approval was replaced because its tool was redefined; its decision does not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redefined: bool,
    /// When it was requested; absent in what older versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
    /// When the request expires: later decisions are ignored and the call is not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// What happens with the call once it is approved; later changes of the rule do not affect it.
    #[serde(default, skip_serializing_if = "ResumeMode::is_replay")]
    pub resume_mode: ResumeMode,
}

impl Ask {
    /// Whether the request has expired.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| now >= expires_at)
    }
}

/// What happens with a call once it is approved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeMode {
    /// It is made as the model requested it.
    #[default]
    ReplayToolCall,
    /// It is not made: the decision is its result.
    UseDecisionAsToolResult,
    /// It is made with the decision as its arguments.
    PassDecisionToTool,
}

impl ResumeMode {
    /// Whether it is the default, which is not written.
    pub fn is_replay(&self) -> bool {
        *self == Self::ReplayToolCall
    }
}
