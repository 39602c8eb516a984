//! The graph that a run walks: its definition, and each node's action as a call.
//!
//! A graph's run is a thread of kind `graph`. Its fold has the node, the step, the state and the open calls; what it does next is decided in
//! `decide/graph`, over the same driver as the turns of an agent. A node's action is a call that the node opened.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use selvedge_items::Graph;
use selvedge_log::hash::sha256;
use selvedge_model::event::{CallOrigin, EffectClass, Fields, GraphBirth, GraphPosition, ThreadKind};
use selvedge_model::fold::CallState;
use selvedge_model::tool::{Function, Risk};
use selvedge_model::{Digest, Event, Output, Status, Tool, ToolSpec};
use serde_json::{Value, json};

use crate::conversation::{OpenCall, OpenCallOrigin};
use crate::error::{Error, Result};
use crate::fold::Fold;
use crate::run_config::{NeededApproval, Permission, RunConfig};

/// The tool that an approval node calls.
pub const APPROVAL: &str = "graph_approval";
/// The tool of an action that can't be called.
const UNUSABLE: &str = "graph_unusable";
/// The source of the patches that a graph makes itself.
pub(crate) const PATCH_SOURCE: &str = "graph:walker";
/// The code of a graph that waits for a suspended child.
pub(crate) const CHILD_SUSPENDED: &str = "child_suspended";

/// The graph that a run walks.
#[derive(Clone)]
pub struct GraphRules {
    /// Its name.
    pub id: String,
    /// Its definition.
    pub definition: Arc<Graph>,
    /// SHA-256 of the definition.
    pub digest: Digest,
    /// The action of each node that has one, as a call.
    pub calls: BTreeMap<String, NodeCall>,
    /// Tools that only nodes call; no capability is needed for them.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Whether a person accepted that the definition has changed since the run began.
    pub accept_changed: bool,
}

/// A node's action as a call.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeCall {
    /// The tool.
    pub tool: String,
    /// Its arguments, interpolated when the node begins.
    pub arguments: Value,
    /// The item, as a log names it.
    pub item: String,
}

impl fmt::Debug for GraphRules {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GraphRules").field("id", &self.id).field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl NodeCall {
    /// An action that can't be called: its result is this error.
    pub fn unusable(item: impl Into<String>, why: impl Into<String>) -> Self {
        Self { tool: UNUSABLE.to_owned(), arguments: json!({"why": why.into()}), item: item.into() }
    }
}

impl GraphRules {
    /// A graph with the tools that every run of one has.
    pub fn new(id: impl Into<String>, definition: Graph, digest: Digest, calls: BTreeMap<String, NodeCall>) -> Self {
        let tools = vec![approval(), unusable()];
        Self { id: id.into(), definition: Arc::new(definition), digest, calls, tools, accept_changed: false }
    }

    /// The tool that only nodes call.
    pub(crate) fn tool(&self, open: &OpenCall) -> Option<&Arc<dyn Tool>> {
        open.is_of_node().then(|| self.tools.iter().find(|tool| tool.spec().name == open.name)).flatten()
    }
}

impl OpenCall {
    /// Whether a node of a graph opened it.
    pub(crate) fn is_of_node(&self) -> bool {
        matches!(self.origin, OpenCallOrigin::Opened(CallOrigin::Node { .. }))
    }
}

/// Whether a call of a tool that only hooks or nodes call may be made: an approval needs one.
pub(crate) fn permission(open: &OpenCall) -> Permission {
    if open.name != APPROVAL || !open.is_of_node() {
        return Permission::Allowed;
    }
    let why = open.arguments.get("message").and_then(Value::as_str).map(str::to_owned);
    let seconds = open.arguments.get("expires_after_seconds").and_then(Value::as_u64);
    Permission::Ask(NeededApproval {
        why,
        expires_after: seconds.map(Duration::from_secs),
        ..NeededApproval::default()
    })
}

/// Refuses a graph's run without its graph, or with another definition than the one that is on record.
pub(crate) fn check(fold: &Fold, work: &RunConfig) -> Result<()> {
    let manifest = fold.manifest();
    let thread = manifest.thread_id.clone();
    match (manifest.kind, &work.graph, fold.thread().graph.as_deref()) {
        (ThreadKind::Agent, None, _) => Ok(()),
        (ThreadKind::Graph, Some(graph), Some(progress)) => {
            if progress.definition == graph.digest || graph.accept_changed {
                return Ok(());
            }
            let graph_id = graph.id.clone();
            Err(Error::GraphChanged { thread, graph: graph_id, was: progress.definition, is: graph.digest })
        }
        _ => {
            let why = "it is a graph's run, and its graph was not loaded";
            let hint = "`selvedge graph check` shows the graphs of the project".to_owned();
            Err(Error::NotRunnable { thread, status: manifest.status, why, hint })
        }
    }
}

/// The graph of a successor, and where it continues: at the node that is next, or at the one that did not end well.
pub(crate) fn continued(fold: &Fold) -> Option<GraphBirth> {
    let birth = fold.manifest().graph.clone()?;
    let progress = fold.thread().graph.as_deref()?;
    let node = progress.node.clone().or_else(|| progress.ended.as_ref()?.node.clone());
    let steps = if progress.current.is_some() { progress.step.saturating_sub(1) } else { progress.step };
    // The failure of the node that is run again is not counted twice.
    let again = u64::from(progress.ended.as_ref().is_some_and(|end| end.error.is_some() && progress.current.is_none()));
    let errors = progress.errors.saturating_sub(again);
    let position = node.map(|node| GraphPosition { node, steps, errors });
    Some(GraphBirth { definition: progress.definition, position, ..birth })
}

/// Refuses to resume a graph's run that has ended, if that would repeat something or nothing is left to do.
pub(crate) fn check_resumable(fold: &Fold) -> Result<()> {
    let Some(progress) = fold.thread().graph.as_deref() else { return Ok(()) };
    let manifest = fold.manifest();
    let graph = manifest.name();
    let is_complete = matches!(manifest.status, Status::Completed | Status::CompletedWithErrors);
    // What a stopped run had dispatched may have happened, and nobody can say so for the next one.
    let is_doubtful = |call: &CallState| {
        let error = call.outcome.as_ref().and_then(|outcome| outcome.error.as_deref()).unwrap_or_default();
        let is_of_node = matches!(call.origin, Some(CallOrigin::Node { .. }));
        is_of_node && call.intent.is_some() && error.starts_with("interrupted")
    };
    let why = if is_complete {
        "it has done all its steps"
    } else if progress.current.is_some() && fold.thread().calls.values().any(is_doubtful) {
        "a call of the node at which it was stopped may have been executed, and would be made again"
    } else {
        return Ok(());
    };
    let hint = format!(
        "`selvedge graph run {graph}` starts a new run; `selvedge graph show {}` shows this one",
        manifest.thread_id
    );
    Err(Error::NotRunnable { thread: manifest.thread_id.clone(), status: manifest.status, why, hint })
}

/// The event of a graph that is stopped while nothing runs.
pub(crate) fn cancelled(fold: &Fold) -> Option<Event> {
    let progress = fold.thread().graph.as_deref().filter(|progress| progress.begun && progress.ended.is_none())?;
    let fields = json!({"node": progress.node, "steps": progress.step});
    match fields {
        Value::Object(fields) => Some(Event::GraphCancelled(fields)),
        _ => Some(Event::GraphCancelled(Fields::new())),
    }
}

fn own_tool(name: &str, description: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: description.to_owned(),
        input_schema: json!({"type": "object"}),
        class: EffectClass::Pure,
        capability: String::new(),
        risk: Risk::Safe,
        hash: sha256(name.as_bytes()),
    }
}

fn approval() -> Arc<dyn Tool> {
    let spec = own_tool(APPROVAL, "Waits for a person's approval.");
    Arc::new(Function::new(spec, |_, _| Ok(Output { content: json!({"approved": true}), ..Output::default() })))
}

fn unusable() -> Arc<dyn Tool> {
    let spec = own_tool(UNUSABLE, "Says why an action can't be called.");
    Arc::new(Function::new(spec, |call, _| {
        let why = call.arguments.get("why").and_then(Value::as_str).unwrap_or_default();
        Ok(Output::error(why))
    }))
}
