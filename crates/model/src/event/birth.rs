//! How a thread comes into the world.

use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::{Fields, Process, is_zero};
use crate::account::AccountId;
use crate::digest::Digest;
use crate::id::{AgentId, DirectiveId, LogId, RunId, TaskId, ThreadId};
use crate::limits::{Limits, Meter};
use crate::money::Money;
use crate::tool::Risk;

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
    /// The run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
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
    /// How many threads of its chain come before it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub chain_position: u64,
    /// The first thread of the tree it belongs to, when that is not this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family_root_id: Option<ThreadId>,
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
            parent_run_id: None,
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
            chain_position: 0,
            family_root_id: None,
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
