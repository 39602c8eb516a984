//! `selvedge graph show`: a graph, or a run of one, with the status of its nodes.

use std::path::PathBuf;
use std::time::Duration;

use selvedge::graph_view::{GraphRun, NodeRecord, condition, svg};
use selvedge::items::graph::Node;
use selvedge::items::{Graph, ItemError};
use selvedge_model::{DirectiveId, ThreadId};
use selvedge_store::{Backend, Store};
use selvedge_store_local::Access;
use serde_json::json;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{BOLD, DIM, paint};
use crate::running::project;
use crate::text::clean;

/// How long to wait for a commit before looking again.
const POLL: Duration = Duration::from_secs(2);
/// How many commits are looked at together.
const FEED_PAGE: usize = 1000;

/// Show a graph, or a run of one
///
/// A table of the nodes with their edges; for a run also each node's status (✅ completed, 🔄 running, ⏳ pending, ❌ error), its duration and
/// its last error. Any thread of a run's chain can be named.
///
/// JSON: for a graph {"graph", "nodes"}; for a run {"graph_id", "run_id", "thread_id", "status", "node", "step", "errors", "state", "nodes",
/// "history", …}. With --follow, one object per commit.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A graph, such as `ops/nightly`, or a run: any unique prefix of its thread's id or of its hex suffix
    #[arg(value_name = "GRAPH|RUN")]
    what: String,
    /// Draw it into FILE, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Show the run again after each commit, until it ends
    #[arg(long, conflicts_with = "svg")]
    follow: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let library = project(context)?.library;
    let definition = |id: &str| -> Result<Graph, ItemError> { Ok(library.inspect_graph(&DirectiveId::new(id)?)?.item) };
    match definition(&args.what) {
        Ok(graph) => return show(args, context, Some(&graph), None),
        Err(ItemError::NotFound { .. } | ItemError::Name(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let store = context.open(Access::ReadOnly)?;
    let thread = match store.resolve(&args.what) {
        Ok(thread) => thread,
        // Neither: the graph is what was most likely meant.
        Err(error) => return Err(definition(&args.what).err().map_or_else(|| error.into(), Failure::from)),
    };
    let mut position = store.position()?;
    loop {
        let run = read(&*store, &thread)?;
        let graph = definition(&run.graph_id).ok();
        let is_over = run.status.is_terminal();
        show(args, context, graph.as_ref(), Some(&run))?;
        if !args.follow || is_over || context.output.is_closed() {
            return Ok(());
        }
        loop {
            let news = store.after(position, FEED_PAGE)?;
            position = news.last().map_or(position, |last| last.position);
            let chain = store.chain(&thread)?;
            let is_of_run = |at: &ThreadId| chain.iter().any(|link| link.manifest.thread_id == *at);
            if news.iter().any(|commit| is_of_run(&commit.thread)) {
                break;
            }
            store.wait(position, POLL)?;
        }
    }
}

fn read(store: &dyn Backend, thread: &ThreadId) -> Result<GraphRun> {
    let run = GraphRun::read(store as &dyn Store, store.trust(), thread)?;
    run.ok_or_else(|| {
        Failure::usage(format!("`{thread}` is not the run of a graph")).hint(format!("`selvedge thread show {thread}`"))
    })
}

fn show(args: &Args, context: &Context<'_>, graph: Option<&Graph>, run: Option<&GraphRun>) -> Result<()> {
    if let Some(file) = &args.svg {
        let Some(graph) = graph else {
            return Err(Failure::usage("the definition of the graph is missing, so it can't be drawn"));
        };
        crate::new_file::write(&context.folder.join(file), svg::draw(graph, run).as_bytes(), 0o666)?;
        return context.output.text(file.display());
    }
    if context.output.is_json() {
        return match (graph, run) {
            (_, Some(run)) => context.output.record(run),
            (graph, None) => {
                context.output.record(&json!({"graph": args.what, "nodes": graph.map(|graph| &graph.nodes)}))
            }
        };
    }
    if let Some(run) = run {
        let at = run.node.as_ref().map(|node| format!(", at `{}`", clean(node))).unwrap_or_default();
        let why = run.why.as_ref().map(|why| format!(": {}", clean(why))).unwrap_or_default();
        context.output.text(format_args!(
            "{} of {}  {}, step {}{at}{why}",
            paint(BOLD, &run.thread_id),
            clean(&run.graph_id),
            run.status,
            run.step
        ))?;
    }
    let Some(graph) = graph else {
        for (name, node) in run.iter().flat_map(|run| &run.nodes) {
            context.output.text(format_args!("  {} {}", node.status.sign(), clean(name)))?;
        }
        return Ok(());
    };
    let width = graph.nodes.iter().map(|node| node.name.chars().count()).max().unwrap_or(0);
    let none = NodeRecord::default();
    for node in &graph.nodes {
        let record = run.map(|run| run.nodes.get(&node.name).unwrap_or(&none));
        let sign = record.map(|record| format!("{} ", record.status.sign())).unwrap_or_default();
        let said = record.map(said).unwrap_or_default();
        let name = paint(BOLD, format_args!("{:<width$}", clean(&node.name)));
        context.output.text(format_args!("  {sign}{name}  {:<8} {}{said}", node.type_name(), clean(&does(node))))?;
        for edge in &node.next {
            let when = condition(edge);
            let when = if when.is_empty() { String::new() } else { format!(" if {when}") };
            context.output.text(format_args!("      {}", paint(DIM, clean(&format!("→ {}{when}", edge.to)))))?;
        }
        if let Some(to) = &node.on_error {
            context.output.text(format_args!("      {}", paint(DIM, clean(&format!("→ {to} on error")))))?;
        }
    }
    Ok(())
}

/// What a node calls.
fn does(node: &Node) -> String {
    node.action().map(|action| format!("{} {}", action.item_type, action.item_id)).unwrap_or_default()
}

fn said(record: &NodeRecord) -> String {
    let seconds = record.seconds.map(|seconds| format!("  {seconds:.1} s")).unwrap_or_default();
    let times = if record.times > 1 { format!("  {} times", record.times) } else { String::new() };
    let details = record.details.as_ref().map(|details| format!("  {}", clean(details))).unwrap_or_default();
    format!("{seconds}{times}{details}")
}
