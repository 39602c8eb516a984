//! `selvedge chain`: the threads of one execution, from its root to its end.

use selvedge_engine::chain::{Chain, Link, get_chain};
use selvedge_store_local::Access;

use crate::commands::chain_search;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{Output, table};
use crate::text::spent;

/// Show the chain of a thread, or search it
///
/// A chain is one execution across several threads: each was handed off to the next, or resumed after its end. It is the same for
/// each of its threads. A deleted thread is shown as `deleted`.
///
/// JSON: {"success", "chain_length", "chain":[{…, "agent_id", "continued":{"how": "handoff" or "resume", "reason": "context_full",
/// "requested" or null, "new_thread_id", "trailing_turns", "details"} or null}]}, root first; each as the last object of `selvedge
/// run`, without "result", and with "cost" of that thread alone. "cost" is {"turns", "input_tokens", "output_tokens", "spend",
/// "duration_ms"}, with "spend_unknown" (the part of "spend" that was charged for lost calls) and "corrected":{"from", "to"}
/// (`selvedge budget --correct` lowered the cost of lost calls of earlier threads from "from" to "to", and the chain's cost by the
/// difference).
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    #[arg(required = true)]
    thread: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Search(chain_search::Args),
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    if let Some(Command::Search(args)) = &args.command {
        return chain_search::run(args, context);
    }
    let store = context.open(Access::ReadOnly)?;
    let thread = super::wait::find(&*store, args.thread.as_deref().unwrap_or_default())?;
    let chain = get_chain(&*store, &thread).map_err(|error| Failure::of(&error))?;
    if context.output.is_json() { context.output.record(&chain) } else { show(&chain, context.output) }
}

fn show(chain: &Chain, output: &Output) -> Result<()> {
    let rows = chain.chain.iter().map(|link| {
        vec![
            link.outcome.thread_id.to_string(),
            link.outcome.status.to_string(),
            link.outcome.directive.as_ref().map(ToString::to_string).unwrap_or_default(),
            link.outcome.cost.turns.to_string(),
            spent(&link.outcome.cost),
            how(link),
        ]
    });
    output.text(table(&["THREAD", "STATUS", "DIRECTIVE", "TURNS", "SPENT", "CONTINUED BY"], &[3, 4], rows))
}

fn how(link: &Link) -> String {
    link.continued.as_ref().map_or_else(String::new, |how| {
        let turns = if how.trailing_turns == 1 { "turn" } else { "turns" };
        format!("{}, {} {turns} carried over", how.how, how.trailing_turns)
    })
}
