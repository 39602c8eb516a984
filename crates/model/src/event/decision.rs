//! Decisions about calls.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ResumeMode, present};
use crate::digest::Digest;
use crate::id::CallId;

/// A person's decision about a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The call.
    pub call_id: CallId,
    /// What was decided.
    pub action: DecisionAction,
    /// Who decided.
    pub who: String,
    /// The tool, arguments and call that the decision is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_hash: Option<Digest>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The value that came with it: other arguments, or a result.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// What happens with the call, if it is approved.
    #[serde(default, skip_serializing_if = "ResumeMode::is_replay")]
    pub resume_mode: ResumeMode,
}

impl Decision {
    /// Whether it approves or denies a call, rather than resolving the outcome of one that was made.
    pub fn is_word(&self) -> bool {
        match self.action {
            DecisionAction::Approve | DecisionAction::Edit | DecisionAction::Deny => true,
            DecisionAction::Done | DecisionAction::NotDone | DecisionAction::Unknown => false,
        }
    }
}

/// What was decided about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionAction {
    /// It may be made as requested.
    Approve,
    /// It may be made with other arguments.
    Edit,
    /// It must not be made.
    Deny,
    /// It was executed.
    Done,
    /// It was not executed.
    NotDone,
    /// Whether it was executed can't be known.
    Unknown,
}

impl DecisionAction {
    /// Its name, as recorded.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Edit => "edit",
            Self::Deny => "deny",
            Self::Done => "done",
            Self::NotDone => "not_done",
            Self::Unknown => "unknown",
        }
    }
}
