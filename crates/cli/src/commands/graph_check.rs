//! `selvedge graph check`: finds what is wrong with graphs.

use selvedge::items::graph::{Finding, schema};
use selvedge::items::library::Kind;
use selvedge::items::{Graph, ItemError};
use selvedge::project::Project;
use selvedge_model::DirectiveId;
use serde::Serialize;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::input::read_text;
use crate::output::{BAD, BOLD, DIM, GOOD, WARN, paint};
use crate::running::project;
use crate::text::{clean, count};

/// Check graphs
///
/// Finds unknown keys, missing and unreachable nodes, dead ends, state that is not declared or not assigned, actions that name nothing or
/// are not permitted, and permissions that match nothing; each with its line. A graph with an error does not run.
///
/// JSON: one object per graph, {"id", "file", "ok", "nodes", "findings"}; each finding has "level" (error or warning), "line", "message" and
/// "hint". With --schema: the JSON Schema of a graph.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The graph, such as `ops/nightly`, or a file that ends in .yaml; default: all graphs
    #[arg(value_name = "ID|FILE")]
    graph: Option<String>,
    /// Print the JSON Schema of a graph, for editors
    #[arg(long, conflicts_with = "graph")]
    schema: bool,
}

#[derive(Serialize)]
struct CheckedGraph<'a> {
    id: &'a str,
    file: &'a str,
    ok: bool,
    nodes: usize,
    findings: Vec<ShownFinding<'a>>,
}

#[derive(Serialize)]
struct ShownFinding<'a> {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    if args.schema {
        return if context.output.is_json() {
            context.output.record(&schema())
        } else {
            context.output.text(serde_json::to_string_pretty(&schema()).unwrap_or_default())
        };
    }
    let project = project(context)?;
    let mut bad = Vec::new();
    let mut all = 0;
    match &args.graph {
        Some(file) if file.ends_with(".yaml") => {
            let path = context.folder.join(file);
            let text = read_text(&path)?;
            all += 1;
            let parsed = Graph::parse(&text).map_err(|flaw| ItemError::Invalid { file: file.clone(), flaw });
            bad.extend(show(file, file, parsed, &project, context)?);
        }
        Some(id) => {
            all += 1;
            bad.extend(check(id, &project, context)?);
        }
        None => {
            for entry in project.library.list(Kind::Graph)?.into_iter().filter(|entry| !entry.hidden) {
                all += 1;
                entry.readable()?;
                bad.extend(check(&entry.id, &project, context)?);
            }
        }
    }
    if bad.is_empty() {
        return Ok(());
    }
    let message = match bad.as_slice() {
        [one] if all == 1 => format!("graph `{one}` can't run"),
        bad => format!("{} of {} can't run", bad.len(), count(all, "graph")),
    };
    Err(Failure::new(Exit::Usage, "item_invalid", message).hint("the errors are listed above, each with its line"))
}

/// Checks a graph by its name; returns the name if it can't run.
fn check(id: &str, project: &Project, context: &Context<'_>) -> Result<Option<String>> {
    let name = DirectiveId::new(id).map_err(ItemError::from)?;
    match project.library.inspect_graph(&name) {
        Ok(found) => {
            let file = found.sources[0].file.clone();
            let is_refused = found.clone().permitted(project.library.policy).err();
            let bad = show(id, &file, Ok(found.item), project, context)?;
            is_refused.map_or(Ok(bad), |error| Err(error.into()))
        }
        Err(error @ ItemError::Invalid { .. }) => show(id, id, Err(error), project, context),
        Err(error) => Err(error.into()),
    }
}

/// Shows what is wrong with a graph; returns its name if it can't run.
fn show(
    id: &str,
    file: &str,
    graph: Result<Graph, ItemError>,
    project: &Project,
    context: &Context<'_>,
) -> Result<Option<String>> {
    let (nodes, findings) = match graph {
        Ok(graph) => (graph.nodes.len(), project.graph_findings(&graph)?),
        Err(ItemError::Invalid { flaw, .. }) => (0, vec![Finding { is_error: true, flaw }]),
        Err(error) => return Err(error.into()),
    };
    let ok = !findings.iter().any(|finding| finding.is_error);
    if context.output.is_json() {
        let shown = findings.iter().map(|finding| ShownFinding {
            level: if finding.is_error { "error" } else { "warning" },
            line: finding.flaw.line,
            message: &finding.flaw.why,
            hint: finding.flaw.hint.as_deref(),
        });
        context.output.record(&CheckedGraph { id, file, ok, nodes, findings: shown.collect() })?;
        return Ok((!ok).then(|| id.to_owned()));
    }
    let mark = if ok { paint(GOOD, "✓") } else { paint(BAD, "✗") };
    context.output.text(format_args!(
        "{mark} {}  {} {}",
        paint(BOLD, clean(id)),
        count(nodes as u64, "node"),
        paint(DIM, clean(file))
    ))?;
    for finding in &findings {
        let level = if finding.is_error { paint(BAD, "error") } else { paint(WARN, "warning") };
        let place = finding.flaw.line.map(|line| format!("{line}: ")).unwrap_or_default();
        context.output.text(format_args!("  {place}{level}: {}", clean(&finding.flaw.why)))?;
        if let Some(hint) = &finding.flaw.hint {
            context.output.text(format_args!("    {}", paint(DIM, clean(hint))))?;
        }
    }
    Ok((!ok).then(|| id.to_owned()))
}
