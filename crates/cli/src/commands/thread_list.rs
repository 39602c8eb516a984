//! `selvedge thread list`: threads, newest first.

use selvedge_engine::thread_state::ThreadState;
use selvedge_model::limits::whole;
use selvedge_model::{AgentId, DirectiveId, Status};
use selvedge_store::{Cursor, Filter, Page, Summary};
use selvedge_store_local::Access;
use serde::Serialize;
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::Result;
use crate::output::{Output, line_width, table_fitted};
use crate::text::{local_minute, one_line};

/// List threads, newest first
///
/// JSON: {"threads":[…], "next":CURSOR or null}; each thread has at least "thread_id", "agent_id", "status", "version", "created_at"
/// and "updated_at", and "holder" if a live process holds it. The status of a thread whose process died is stalled. Pass "next" to
/// --after for the next page.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only threads of this agent
    #[arg(long)]
    agent: Option<AgentId>,
    /// Only threads of this directive
    #[arg(long)]
    directive: Option<DirectiveId>,
    /// Only threads in this status: created, running, suspended, completed, completed_with_errors, error, cancelled, killed,
    /// continued
    #[arg(long)]
    status: Option<Status>,
    /// Only children of this thread
    #[arg(long, value_name = "THREAD")]
    parent: Option<String>,
    /// Only threads with this text in their id or title
    #[arg(long)]
    text: Option<String>,
    /// The maximum number of threads
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Continue after the page that ended with CURSOR
    #[arg(long, value_name = "CURSOR", value_parser = cursor)]
    after: Option<u64>,
}

fn cursor(text: &str) -> Result<u64, String> {
    whole(text).map_err(|why| format!("{why}; use the cursor at the end of the previous page"))
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let filter = Filter {
        agent_id: args.agent,
        directive: args.directive,
        status: args.status,
        parent_id: args.parent.map(|prefix| store.resolve(&prefix)).transpose()?,
        text: args.text,
    };
    let page = store.list(&filter, args.after.map(Cursor), args.limit as usize)?;
    show(&page, context.output)?;
    if page.items.is_empty() {
        context.output.tell("no threads");
    }
    if let Some(Cursor(next)) = page.next {
        context.output.tell(format_args!("there are more: add `--after {next}`"));
    }
    Ok(())
}

#[derive(Serialize)]
struct ListedThread {
    threads: Vec<Value>,
    next: Option<Cursor>,
}

/// A thread in a list: one whose process died is stalled.
pub(crate) fn listed(summary: &Summary) -> Value {
    let mut shown = serde_json::to_value(summary).unwrap_or_default();
    shown["status"] = json!(ThreadState::from(summary));
    shown
}

/// Shows a page of threads.
pub(crate) fn show(page: &Page<Summary>, output: &Output) -> Result<()> {
    if output.is_json() {
        let threads = page.items.iter().map(listed).collect();
        return output.record(&ListedThread { threads, next: page.next });
    }
    if page.items.is_empty() {
        return Ok(());
    }
    let rows = page.items.iter().map(|summary| {
        let Summary { manifest, version, .. } = summary;
        vec![
            manifest.thread_id.to_string(),
            manifest.agent_id.to_string(),
            ThreadState::from(summary).to_string(),
            version.to_string(),
            local_minute(manifest.updated_at),
            one_line(manifest.title.as_deref().unwrap_or_default(), line_width()),
        ]
    });
    let header = ["THREAD", "AGENT", "STATUS", "VERSION", "UPDATED", "TITLE"];
    output.text(table_fitted(&header, &[3], &[3, 1, 4], rows.collect()))
}
