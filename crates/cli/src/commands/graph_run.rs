//! `selvedge graph run`: creates a thread from a graph, and runs it.

use std::path::PathBuf;

use selvedge::Input;
use selvedge::project::{GraphOptions, PreparedGraph};
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, CommitKey, DirectiveId};

use super::run::{check_first, detached, pair, values};
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::running::{Recording, Running};
use crate::text::clean;

/// Run a graph
///
/// Looks for the graph in the project (.ai/graphs), then in your Selvedge home. Creates a thread of kind `graph` and runs it; every step is
/// committed with its change of state. Ctrl-C stops the run. A run that was killed, or waits for an approval, continues with `selvedge
/// resume`; all commands on threads work on it.
///
/// With --step, runs only that node, with the state in --state, and returns its result, the state after it and the next node.
///
/// JSON: as `selvedge run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The graph, such as `ops/nightly`
    graph: DirectiveId,
    /// An input of the graph; parsed as JSON if possible, else as text
    #[arg(long = "input", value_name = "NAME=VALUE", value_parser = pair)]
    inputs: Vec<(String, String)>,
    /// The agent on whose behalf it runs; default: `agent`
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// A limit of this run: spend (dollars), spawns, depth or duration (seconds)
    #[arg(long = "limit", value_name = "LIMIT=VALUE", value_parser = crate::limit::parse)]
    limits: Vec<Limits>,
    /// Run in a new process and return at once; `selvedge wait` waits for it
    #[arg(long, conflicts_with = "record")]
    detach: bool,
    /// An idempotency key: a second run with the same key creates no new thread and returns the outcome of the first
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Run only this node
    #[arg(long, value_name = "NODE")]
    step: Option<String>,
    /// Begin with the JSON object in FILE as the state
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// A title for the thread
    #[arg(long, value_name = "TITLE", value_parser = super::thread_rename::check_title)]
    title: Option<String>,
    #[command(flatten)]
    recording: Recording,
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let agent = args.agent.map(AgentId::new).transpose().map_err(|error| Failure::usage(error.to_string()))?;
    let key = args.key.map(|key| CommitKey::new(format!("graph:{key}"))).transpose();
    let key = key.map_err(|error| Failure::usage(error.to_string()))?;
    let state = args.state.as_deref().map(|file| crate::input::state(context, file)).transpose()?;
    let running = Running::open(context, &args.recording)?;
    let limits = crate::limit::all(&args.limits);
    let options = GraphOptions { inputs: values(args.inputs), agent, limits, step: args.step };
    let PreparedGraph { mut thread, run_config, notices } =
        match running.orchestrator.prepare_graph(&args.graph, options) {
            Ok(prepared) => prepared,
            Err(error) => {
                running.close(context);
                return Err(error.into());
            }
        };
    for notice in &notices {
        context.output.say(clean(notice));
    }
    thread.title = args.title;
    if let Some(key) = &key {
        check_first(&running, key, &args.graph)?;
    }
    let input = Input::nothing().with_state(state);
    if args.detach {
        // Its tools hold the engine, which holds the store that is closed.
        drop(run_config);
        return detached(running, thread, input, key.as_ref(), context);
    }
    running.show(context, run_config, |running, work, cancel, tell| {
        let (thread, is_new) = match &key {
            Some(key) => running.engine.create_once(key, thread, input)?,
            None => (running.engine.create(thread, input)?, true),
        };
        context.output.tell(format!("thread {thread}"));
        if is_new {
            running.engine.resume(&thread, Input::nothing(), work.clone(), cancel, tell)
        } else {
            running.engine.outcome_of(&thread, work.clone(), cancel, tell)
        }
    })
}
