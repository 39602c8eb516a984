//! `selvedge graph list`: the graphs of the project and the user.

use selvedge::items::library::Kind;
use selvedge::items::{Graph, ItemError, Layer, Resolved};
use selvedge_model::DirectiveId;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::output::{BAD, BOLD, DIM, paint};
use crate::running::project;
use crate::text::clean;

/// List graphs
///
/// Those of the project (.ai/graphs), then those of your Selvedge home.
///
/// JSON: one object per graph, {"id", "layer", "hidden", "description", "nodes", "error"}; "nodes" is how many it has, "error" why it
/// can't run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct ListedGraph {
    id: String,
    layer: Layer,
    hidden: bool,
    description: String,
    nodes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) fn run(Args {}: Args, context: &Context<'_>) -> Result<()> {
    let library = project(context)?.library;
    let entries = library.list(Kind::Graph)?;
    let found = |id: &str| -> Result<Resolved<Graph>, ItemError> { library.graph(&DirectiveId::new(id)?) };
    for entry in entries {
        let graph = entry.readable().and_then(|()| found(&entry.id));
        let (description, nodes, error) = match graph {
            Ok(graph) => (graph.item.description, graph.item.nodes.len(), None),
            Err(error) => (String::new(), 0, Some(error.to_string())),
        };
        let listed = ListedGraph { id: entry.id, layer: entry.layer, hidden: entry.hidden, description, nodes, error };
        if context.output.is_json() {
            context.output.record(&listed)?;
            continue;
        }
        let said = match &listed.error {
            Some(error) => paint(BAD, clean(error)),
            None => clean(listed.description.lines().next().unwrap_or_default()),
        };
        let hidden = if listed.hidden { paint(DIM, " (hidden by one of the project)") } else { String::new() };
        context.output.text(format_args!("{:<24} {said}{hidden}", paint(BOLD, clean(&listed.id))))?;
    }
    Ok(())
}
