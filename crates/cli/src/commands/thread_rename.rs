//! `selvedge thread rename`: changes the title, now or by the process that holds the thread.

use std::time::Duration;

use selvedge::Delivered;
use selvedge_model::ThreadId;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::running::plain_engine;
use crate::text::clean;

const TITLE_BYTES_MAX: usize = 1000;

/// Change the title of a thread
///
/// While another process holds the thread, the request is queued, and that process applies it.
///
/// JSON: {"thread_id", "title", "version", "queued"}; if "queued" is true, "version" is null.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// The new title
    #[arg(value_parser = check_title)]
    title: String,
    /// How long to wait for the lease of the thread before the request is queued
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    wait: u32,
}

#[derive(Serialize)]
struct Renamed<'a> {
    thread_id: &'a ThreadId,
    title: &'a str,
    version: Option<u64>,
    queued: bool,
}

/// Checks that a title can be shown on one line.
pub(crate) fn check_title(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("a title can't be empty".to_owned());
    }
    if text.len() > TITLE_BYTES_MAX {
        return Err(format!("a title can't be longer than {TITLE_BYTES_MAX} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err("a title can't have control characters".to_owned());
    }
    Ok(text.to_owned())
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let (store, engine) = plain_engine(context)?;
    let thread = store.resolve(&args.thread)?;
    let wait = Duration::from_secs(args.wait.into());
    let delivered = engine.rename(&thread, &args.title, wait)?;
    let queued = matches!(delivered, Delivered::Queued(_));
    let version = if queued { None } else { Some(store.get(&thread)?.version) };
    drop(engine);
    context.close(store);
    let renamed = Renamed { thread_id: &thread, title: &args.title, version, queued };
    if context.output.is_json() {
        return context.output.record(&renamed);
    }
    match version {
        Some(version) => context
            .output
            .text(format_args!("the title of {thread} is now \"{}\" (version {version})", clean(&args.title))),
        None => context.output.text(format_args!("queued: the process that holds {thread} will apply the title")),
    }
}
