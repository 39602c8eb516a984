//! Graphs: state machines of actions, which a thread of kind `graph` runs step by step.
//!
//! ```yaml
//! description: Reports on every city of a list.
//! permissions: [tool.list_cities, tool.measure, tool.threads.spawn]
//! start: fetch
//! state: { cities: [] }
//! nodes:
//!   fetch:  { action: { item_type: tool, item_id: list_cities }, assign: { cities: "${result.cities}" }, next: each }
//!   each:
//!     type: foreach
//!     over: "${state.cities}"
//!     parallel: 4
//!     action: { item_type: tool, item_id: measure, params: { city: "${item}" } }
//!     collect: measured
//!     next: [{ to: done, when: { path: result.failed, op: eq, value: 0 } }, { to: trouble }]
//!   …
//! ```
//!
//! In reading order: [`Graph`] and [`Node`] are the definition; `written` reads it, in this form or in the tool form of older documents;
//! `lines` finds the line of a key; `check` finds what is wrong with it; [`schema`] is for editors.
//!
//! - A graph with an error never runs. Warnings are shown, and it runs.
//! - Only texts of the definition are templates; what a tool or a model returns is inserted, and never expanded.

mod check;
mod lines;
mod schema;
mod written;

use std::collections::BTreeMap;

use selvedge_log::document::Comment;
use selvedge_log::hash::sha256;
use selvedge_model::digest::Digest;
use selvedge_model::limits::Limits;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::capability::Permissions;
use crate::condition::Condition;
use crate::error::Flaw;
use crate::hook::{Action, Hook};
use crate::input::Input;
pub use check::state_path;
use lines::Lines;
pub use schema::schema;

/// How many steps a run may make by default.
pub const STEPS_MAX: u64 = 100;
/// After how many steps a run continues in a successor by default: so no log grows without bound.
pub const SEGMENT_STEPS: u64 = 5_000;
/// The most items of a loop that are worked on at the same time.
pub const PARALLEL_MAX: usize = 64;
/// How many items of a loop are worked on at the same time if only `parallel: true` is written.
pub const PARALLEL: usize = 8;

/// A graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graph {
    /// Its purpose.
    pub description: String,
    /// Its version, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its inputs.
    pub inputs: Vec<Input>,
    /// What its nodes may call; absent means nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// The limits of its runs.
    pub limits: Limits,
    /// The environment variables that must be set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_requires: Vec<String>,
    /// The first node.
    pub start: String,
    /// How many steps a run may make.
    pub max_steps: u64,
    /// After how many steps a run continues in a successor.
    pub segment_steps: u64,
    /// What happens when a node fails that has no error edge.
    pub on_error: OnError,
    /// The state at the beginning.
    pub state: Map<String, Value>,
    /// Its hooks.
    pub hooks: Vec<Hook>,
    /// Its nodes, in the order of the file.
    pub nodes: Vec<Node>,
    /// What is wrong with it, in the order of its lines.
    #[serde(skip)]
    pub findings: Vec<Finding>,
    /// SHA-256 of the file without its signature.
    #[serde(skip)]
    pub digest: Option<Digest>,
    /// Where each node is in `nodes`.
    #[serde(skip)]
    places: BTreeMap<String, usize>,
}

/// What happens when a node fails that has no error edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The graph fails.
    #[default]
    Fail,
    /// The error is counted, and the run follows the node's edges.
    Continue,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(flatten)]
    pub kind: NodeKind,
    /// What it changes in the state, by dotted path.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub assign: Map<String, Value>,
    /// Where it leads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Edge>,
    /// Where its failure leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_error: Option<String>,
    /// How often it is tried.
    pub retry: Retry,
    /// Its line.
    #[serde(skip)]
    pub line: Option<u64>,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NodeKind {
    /// It calls something: a tool, knowledge, a directive or another graph as a child.
    Action {
        /// What it calls.
        action: Action,
    },
    /// It only assigns and chooses an edge.
    Gate,
    /// It calls something for every item of a list.
    Foreach {
        /// The list; interpolated.
        over: Value,
        /// The name of the item in templates.
        #[serde(rename = "as")]
        item: String,
        /// What it calls.
        action: Action,
        /// How many items are worked on at the same time.
        parallel: usize,
        /// Where in the state the results go.
        #[serde(skip_serializing_if = "Option::is_none")]
        collect: Option<String>,
    },
    /// It waits for a person's approval.
    Approval {
        /// What is approved; interpolated.
        message: String,
        /// After how many seconds the request expires.
        #[serde(skip_serializing_if = "Option::is_none")]
        expires_after_seconds: Option<u64>,
    },
    /// It waits.
    Wait(Awaited),
    /// It ends the run with this output; interpolated.
    Return {
        /// The output.
        output: Value,
    },
}

/// What a node waits for; interpolated.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Awaited {
    /// A time.
    Until(Value),
    /// So many seconds.
    Seconds(Value),
    /// Threads, at most so many seconds.
    Threads {
        /// The threads.
        ids: Value,
        /// The most seconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        timeout: Option<Value>,
    },
}

/// An edge, followed if its condition holds and no earlier one does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edge {
    /// The node that it leads to.
    pub to: String,
    /// When it is followed; always, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
    /// Its line.
    #[serde(skip)]
    pub line: Option<u64>,
}

/// How often a node is tried, and how long it waits in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Retry {
    /// The most attempts.
    pub attempts: u32,
    /// The wait after the first failure, in seconds; it doubles with each further one.
    pub wait_seconds: u64,
    /// The longest wait, in seconds.
    pub wait_max_seconds: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 1, wait_seconds: 1, wait_max_seconds: 60 }
    }
}

impl Retry {
    /// The wait after the failure of attempt number `attempt`, counted from 1, in seconds.
    pub fn wait_after(&self, attempt: u32) -> u64 {
        let doubled = self.wait_seconds.saturating_mul(2_u64.saturating_pow(attempt.saturating_sub(1)));
        doubled.min(self.wait_max_seconds)
    }
}

/// Something that is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether the graph can't run because of it.
    pub is_error: bool,
    /// What is wrong, and where.
    pub flaw: Flaw,
}

impl Graph {
    /// Reads a graph in either form; a signature line is skipped. What is wrong with its nodes is in its findings.
    pub fn parse(text: &str) -> Result<Self, Flaw> {
        let content = Comment::Hash.unsigned(text);
        let first_line = if content.len() < text.len() { 2 } else { 1 };
        let lines = Lines::of(&content, first_line);
        let mut graph = written::read(&content, first_line, &lines)?;
        graph.digest = Some(sha256(content.as_bytes()));
        graph.places = graph.nodes.iter().enumerate().map(|(place, node)| (node.name.clone(), place)).collect();
        let found = check::check(&graph, &lines);
        graph.findings.extend(found);
        graph.findings.sort_by_key(|finding| finding.flaw.line);
        Ok(graph)
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(*self.places.get(name)?)
    }

    /// The errors that keep it from running.
    pub fn flaws(&self) -> impl Iterator<Item = &Flaw> {
        self.findings.iter().filter(|finding| finding.is_error).map(|finding| &finding.flaw)
    }
}

impl Node {
    /// The word for what it does.
    pub fn type_name(&self) -> &'static str {
        match self.kind {
            NodeKind::Action { .. } => "action",
            NodeKind::Gate => "gate",
            NodeKind::Foreach { .. } => "foreach",
            NodeKind::Approval { .. } => "approval",
            NodeKind::Wait(_) => "wait",
            NodeKind::Return { .. } => "return",
        }
    }

    /// What it calls.
    pub fn action(&self) -> Option<&Action> {
        match &self.kind {
            NodeKind::Action { action } | NodeKind::Foreach { action, .. } => Some(action),
            _ => None,
        }
    }

    /// The nodes that it can lead to.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.next.iter().map(|edge| edge.to.as_str()).chain(self.on_error.as_deref())
    }
}
