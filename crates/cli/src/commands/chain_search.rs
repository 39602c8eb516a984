//! `selvedge chain search`: searches the messages and calls of a whole chain.

use selvedge_engine::search::{EventMatch, Query, SearchType, chain_search};
use selvedge_store_local::Access;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{BOLD, DIM, paint};
use crate::text::{count, one_line};

/// How many characters around a match are shown.
const WIDTH: usize = 100;

/// Search all threads of a chain
///
/// Searches the messages of users, models and tools, the arguments of calls, the reasons why runs ended, and the blobs with what was too
/// large for a line, in every thread of the chain, from its root to its end. Ids, hashes and event names are not searched. Case is ignored. The number after a thread is the
/// line of its log: `selvedge log THREAD` shows it. Every log is verified; if one is not what was signed, nothing is shown, and the
/// exit code is 6.
///
/// JSON: {"success", "chain_length", "chain_threads", "results":[{"thread_id", "event_type", "line_no", "snippet", "matches", "blob"}],
/// "truncated", "not_searched"}; a snippet has at most 500 characters, an event at most 5 matches; "blob" is there if the matches are in a
/// blob; "not_searched" counts blobs: {"blobs_not_text", "blobs_cut", "blobs_unreadable", "threads_unreadable"}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any thread of the chain: any unique prefix of its id or of its hex suffix
    thread: String,
    /// The text to search for
    pattern: String,
    /// Interpret the pattern as a regular expression
    #[arg(long)]
    regex: bool,
    /// Match case
    #[arg(long)]
    exact: bool,
    /// The maximum number of events
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max: u32,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = super::wait::find(&*store, &args.thread)?;
    let query = Query {
        query: args.pattern.clone(),
        search_type: if args.regex { SearchType::Regex } else { SearchType::Text },
        is_exact: args.exact,
        max_results: args.max as usize,
    };
    let found = chain_search(&*store, store.trust(), &thread, &query).map_err(|error| Failure::of(&error))?;
    if context.output.is_json() {
        return context.output.record(&found);
    }
    for found in &found.results {
        context.output.text(line(found))?;
    }
    if found.results.is_empty() {
        context.output.tell(format!("no match in {}", count(found.chain_length as u64, "thread")));
    }
    if found.truncated {
        context.output.tell(format!("there are more matches: add `--max {}`", u64::from(args.max) * 2));
    }
    if let Some(left_out) = super::search::left_out(found.not_searched) {
        context.output.tell(left_out);
    }
    Ok(())
}

fn line(found: &EventMatch) -> String {
    let place = format!("{}:{}", found.thread_id, found.line_no);
    let first = found.matches.first().map(String::as_str).unwrap_or_default();
    // The match is in the middle of a long snippet: show that part.
    let around = found.snippet.find(first).map_or(0, |at| at.saturating_sub(WIDTH / 2));
    let around = found.snippet.char_indices().map(|(at, _)| at).find(|at| *at >= around).unwrap_or_default();
    let shown = one_line(&found.snippet[around..], WIDTH);
    let blob = found.blob.map(|blob| format!(" in blob {}", blob.short())).unwrap_or_default();
    format!("{} {}{blob} {shown}", paint(DIM, place), paint(BOLD, &found.event_type))
}
