//! Prepares the child that a node starts which runs another graph.

use std::sync::Arc;

use selvedge_engine::spawn::NewChild;
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Function, Risk, ToolKind};
use selvedge_model::{Call, DirectiveId, Output, Tool, ToolSpec};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::SPAWN_GRAPH;
use crate::project::{GraphOptions, Project};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    graph: String,
    #[serde(default)]
    inputs: Map<String, Value>,
}

/// The tool that starts a graph as a child. It needs the capability of every child.
pub(super) fn tool() -> Arc<dyn Tool> {
    let schema = json!({
        "type": "object",
        "properties": {"graph": {"type": "string"}, "inputs": {"type": "object"}},
        "required": ["graph"],
    });
    let what = "Starts a graph as a child thread, and returns its outcome.";
    let spec = selvedge_tools::built_in(SPAWN_GRAPH, what, schema, EffectClass::AtMostOnce, Risk::Write);
    let spec = ToolSpec { capability: "tool.threads.spawn".to_owned(), ..spec };
    let run = |_: &Call, _: &selvedge_model::Cancel| Ok(Output::error("a child is started by the engine"));
    Arc::new(Function::new(spec, run).of_kind(ToolKind::Child))
}

/// The child that a call starts.
pub(super) fn prepare(project: &Project, call: &Call) -> Result<NewChild, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let arguments: Arguments = serde_json::from_value(call.arguments.clone()).map_err(|error| text(&error))?;
    let graph = DirectiveId::new(&arguments.graph).map_err(|error| text(&error))?;
    let found = project.library.graph(&graph).map_err(|error| text(&error))?;
    let options = GraphOptions { inputs: arguments.inputs, ..GraphOptions::default() };
    let mut prepared = project.prepare_graph(&graph, options).map_err(|error| text(&error))?;
    if let Some(limits) = &mut prepared.thread.limits {
        // As with a directive: without a limit of its own, a share of what its parent has left.
        limits.spend = found.item.limits.spend;
    }
    Ok(NewChild { thread: prepared.thread, messages: Vec::new(), detached: false })
}
