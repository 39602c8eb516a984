//! `selvedge thread find`: threads of all agents by a part of their id or title.

use selvedge_store::Filter;
use selvedge_store_local::Access;

use crate::commands::thread_list;
use crate::context::Context;
use crate::error::Result;

/// Find threads of all agents by a part of their id or title
///
/// JSON: as `thread list`. No match is not an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A part of the id or the title
    text: String,
    /// The maximum number of threads
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let filter = Filter { text: Some(args.text), ..Filter::default() };
    let page = store.list(&filter, None, args.limit as usize)?;
    thread_list::show(&page, context.output)?;
    match (page.items.is_empty(), page.next) {
        (true, _) => context.output.tell("no match"),
        (false, Some(_)) => context.output.tell("there are more matches: raise `--limit`, or use a longer text"),
        (false, None) => {}
    }
    Ok(())
}
