//! `selvedge knowledge search`: searches entries of knowledge.

use selvedge::knowledge::{FOUND_MAX, search_knowledge};
use selvedge::store::search::Query;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::items::knowledge_line;
use crate::output::{BOLD, DIM, paint};
use crate::running::project;
use crate::text::{clean, count};

/// Search the knowledge of the project and of your own folder
///
/// The query is as in `selvedge search`: words that must all be there, "a phrase", OR, NOT, parentheses, begin*. Title and name count
/// most, then description and tags, folder and text. Each result says whether it is signed and intact, unsigned or damaged, and whether an
/// entry of the same id in the project shadows it.
///
/// JSON: {"results", "more", "searched"}; each result has "id", "layer", "shadowed", "condition" (signed_and_intact, unsigned, untrusted or
/// damaged), "digest", "file", "metadata", "flaws", "score" and "snippet".
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to search for
    query: String,
    /// The maximum number of results
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=FOUND_MAX as u64))]
    limit: u64,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = project(context)?;
    let query = Query::parse(&args.query, &|_| None).map_err(|error| Failure::of(&error))?;
    let limit = usize::try_from(args.limit).unwrap_or(FOUND_MAX);
    let found = search_knowledge(&project.library, &query, limit, &|_| true)?;
    if context.output.is_json() {
        return context.output.record(&found);
    }
    if found.results.is_empty() {
        context.output.tell(format!("nothing found in {}", count(found.searched as u64, "file")));
    }
    for one in &found.results {
        context.output.text(knowledge_line(&one.entry))?;
        let title = one.entry.metadata.title.as_deref().unwrap_or_default();
        if !title.is_empty() {
            context.output.text(format_args!("  {}", paint(BOLD, clean(title))))?;
        }
        context.output.text(format_args!("  {}", paint(DIM, clean(&one.snippet))))?;
    }
    if found.more > 0 {
        context.output.tell(format!("{} more; `--limit` shows more", found.more));
    }
    Ok(())
}
