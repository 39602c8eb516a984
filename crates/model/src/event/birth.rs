//! The creation of a thread.

use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::{Fields, Process, is_zero};
use crate::account::AccountId;
use crate::digest::Digest;
use crate::id::{AgentId, DirectiveId, LogId, RunId, TaskId, ThreadId};
use crate::limits::{Limits, UsageMeter};
use crate::money::Money;
use crate::tool::Risk;

/// What kind of thread it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadKind {
    /// An agent's conversation.
    #[default]
    Agent,
    /// A graph: a state machine of actions.
    Graph,
}

/// The graph that a thread of kind `graph` runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphBirth {
    /// The graph's name.
    pub id: DirectiveId,
    /// SHA-256 of its definition: a run continues only with the same one, unless a person accepts the change.
    pub definition: Digest,
    /// Where it begins, if not at the graph's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<GraphPosition>,
    /// Whether it ends after its first step.
    #[serde(default, skip_serializing_if = "crate::account::is_false")]
    pub single: bool,
}

/// Where a graph continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphPosition {
    /// The next node.
    pub node: String,
    /// How many steps came before it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub steps: u64,
    /// How many errors were recorded in them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errors: u64,
}

/// The properties of a new thread, given by its creator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewThread {
    /// What kind of thread it is.
    #[serde(default)]
    pub kind: ThreadKind,
    /// The one agent that owns it.
    pub agent_id: AgentId,
    /// The agent's directive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<DirectiveId>,
    /// The graph that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphBirth>,
    /// The thread that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<ThreadId>,
    /// The run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The task it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// Its title for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The model it should use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The inputs of the directive.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub inputs: Fields,
    /// Its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The capabilities it is granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    /// The risks of its tools that were acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acknowledged: Vec<Risk>,
    /// The account it spends from and the amount reserved for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Hold>,
    /// The thread it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_of: Option<Predecessor>,
    /// The usage of that thread, which continues to count here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<UsageMeter>,
    /// The first thread of its chain, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_root_id: Option<ThreadId>,
    /// How many threads of its chain come before it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub chain_position: u64,
    /// The first thread of its family (the tree of threads it belongs to), if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family_root_id: Option<ThreadId>,
    /// The process that was started to run it and that waits until this event is committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

impl NewThread {
    /// The name that its id begins with: that of its graph, its directive or its agent.
    pub fn name(&self) -> &str {
        let graph = self.graph.as_ref().map(|graph| graph.id.as_str());
        graph.or(self.directive.as_ref().map(DirectiveId::as_str)).unwrap_or(self.agent_id.as_str())
    }

    /// A thread of `agent_id` with no other properties.
    pub fn of(agent_id: AgentId) -> Self {
        Self {
            kind: ThreadKind::Agent,
            agent_id,
            directive: None,
            graph: None,
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

/// Money reserved for a thread at its creation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The account.
    pub account: AccountId,
    /// The amount.
    #[serde(rename = "amount_nanos")]
    pub amount: Money,
}

/// The predecessor of a thread, pinned by hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predecessor {
    /// The thread.
    pub thread_id: ThreadId,
    /// Its version at the handoff.
    pub version: u64,
    /// SHA-256 of its log up to the last checkpoint before the handoff.
    pub hash: Digest,
}

/// Line 0 of every log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadCreated {
    /// The version of the log's format.
    pub format: u32,
    /// The log's random id.
    pub log_id: LogId,
    /// The number of this segment of the log.
    pub segment: u32,
    /// The properties given by the creator.
    #[serde(flatten)]
    pub thread: NewThread,
}
