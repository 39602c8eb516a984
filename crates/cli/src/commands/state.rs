//! `selvedge state`: what a thread's log folds into, now or at any version.

use std::collections::BTreeMap;

use selvedge_model::fold::Call;
use selvedge_model::{CallId, Manifest, Message, Run, Thread, ThreadId};
use selvedge_store::load::{Loaded, load};
use selvedge_store::{Error, Registry};
use selvedge_store_local::Access;
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Failure, Result};

/// Show what a thread's log folds into, now or at any version
///
/// The log is read and checked from its first byte: what is shown is exactly what was signed.
///
/// JSON, and for people the same with line breaks:
/// {"thread_id", "version", "latest_version", "manifest":{…}, "state":…, "messages":[…], "runs":[…], "calls":{…}}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
    /// As it was at this version
    #[arg(long, value_name = "VERSION")]
    at: Option<u64>,
}

#[derive(Serialize)]
struct Folded {
    thread_id: ThreadId,
    version: u64,
    latest_version: u64,
    manifest: Manifest,
    state: Value,
    messages: Vec<Message>,
    runs: Vec<Run>,
    calls: BTreeMap<CallId, Call>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread_id = store.resolve(&args.thread)?;
    let loaded = load(&store, &thread_id, store.trust(), args.at).map_err(absent_version)?;
    let folded = folded(thread_id, loaded);
    if context.output.is_json() {
        return context.output.record(&folded);
    }
    context.output.text(serde_json::to_string_pretty(&folded).unwrap_or_default())
}

/// To a reader, a version that was not reached yet is simply not there.
fn absent_version(error: Error) -> Failure {
    match error {
        Error::NoVersion { latest, .. } => Failure::from(error).detail("latest_version", latest),
        error => error.into(),
    }
}

fn folded(thread_id: ThreadId, loaded: Loaded) -> Folded {
    let Thread { manifest, version, messages, state, runs, calls, .. } = loaded.thread;
    Folded {
        thread_id,
        version: version.unwrap_or_default(),
        latest_version: loaded.head.version,
        manifest,
        state,
        messages,
        runs: runs.into_values().collect(),
        calls,
    }
}
