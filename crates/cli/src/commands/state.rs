//! `selvedge state`: what a thread's log folds into, now or at any version.

use std::collections::BTreeMap;

use selvedge::items::config::TranscriptIntegrity;
use selvedge::snapshot::{Schema, from_log, newest};
use selvedge_log::recovery::Mode;
use selvedge_model::fold::Call;
use selvedge_model::limits::whole;
use selvedge_model::{CallId, Clock, Manifest, Message, Run, Thread, ThreadId};
use selvedge_store::load::{Loaded, load_as};
use selvedge_store::{Backend, Error};
use selvedge_store_local::Access;
use selvedge_store_local::system::SystemClock;
use serde::Serialize;
use serde_json::Value;

use crate::config::configuration;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::text::{clean, clean_json, count};

/// Show what a thread's log folds into, now or at any version
///
/// The log is read and checked from its first byte: what is shown is exactly what was signed. A log that is signed by a key that does not
/// count is refused; with `transcript_integrity: lenient` in your own coordination.yaml it is shown, and that is said loudly. Nobody goes on with it.
///
/// With --snapshot, the newest good snapshot is shown instead, whole and unpacked, as `state.json` has it. If none is kept, or none is good, it
/// is made from the log, and that is said.
///
/// JSON, and for people the same with line breaks:
/// {"thread_id", "version", "latest_version", "manifest":{…}, "state":…, "messages":[…], "runs":[…], "calls":{…}}
/// With --snapshot: {"thread_id", "directive", "version", "saved_at", "log_version", "log_hash", "status", "turn_number", "cost":{…},
/// "limits":{…}, "messages":[…], …}; `selvedge config explain state_persistence.state.schema` has its schema.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
    /// As it was at this version
    #[arg(long, value_name = "VERSION", value_parser = whole, allow_negative_numbers = true)]
    at: Option<u64>,
    /// The newest snapshot
    #[arg(long, conflicts_with = "at")]
    snapshot: bool,
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
    if args.snapshot {
        return snapshot(&*store, &store.resolve(&args.thread)?, context);
    }
    let mode = match configuration(context)?.coordination.transcript_integrity {
        TranscriptIntegrity::Strict => Mode::Strict,
        TranscriptIntegrity::Lenient => Mode::Lenient,
    };
    match show(args, &*store, mode, context) {
        Err(failure) if failure.code == "row_unsealed" && mode == Mode::Lenient => {
            let why = failure.message;
            context
                .output
                .say(format!("NOT to be relied on, and shown because `transcript_integrity` is lenient: {why}"));
            show(args, &*context.open_unchecked()?, mode, context)
        }
        shown => shown,
    }
}

fn show(args: &Args, store: &dyn Backend, mode: Mode, context: &Context<'_>) -> Result<()> {
    let thread_id = store.resolve(&args.thread)?;
    let (loaded, finding) = load_as(store, &thread_id, store.trust(), args.at, mode).map_err(absent_version)?;
    if let Some(finding) = finding {
        let why = Error::Log { thread: thread_id.clone(), finding };
        context.output.say(format!("NOT to be relied on, and shown because `transcript_integrity` is lenient: {why}"));
    }
    let folded = folded(thread_id, loaded);
    if context.output.is_json() {
        return context.output.record(&folded);
    }
    context.output.text(clean_json(&serde_json::to_string_pretty(&folded).unwrap_or_default()))
}

/// Shows the newest good snapshot, or what one would say now.
fn snapshot(store: &dyn Backend, thread: &ThreadId, context: &Context<'_>) -> Result<()> {
    let config = configuration(context)?.state_persistence;
    let schema = Schema::new(&config.state).map_err(|error| Failure::of(&error))?;
    let archive = config.retention.on_completion.archive_folder().unwrap_or("archive");
    let found = newest(store, &schema, archive, thread)?;
    for (kept, why) in &found.bad {
        context.output.say(format_args!("`{}` is not used: {}", kept.name, clean(why)));
    }
    let latest = store.head(thread)?.version;
    let body = match found.good {
        Some((kept, body)) => {
            if kept.version < latest {
                let behind = count(latest - kept.version, "version");
                context.output.say(format_args!("it is of version {}; the log is {behind} further", kept.version));
            }
            body
        }
        None => {
            context.output.say("no good snapshot is kept; this one is made from the log");
            from_log(store, thread, store.trust(), &config.schema_version, SystemClock.now())?
        }
    };
    if context.output.is_json() {
        return context.output.record(&body);
    }
    context.output.text(clean_json(&serde_json::to_string_pretty(&body).unwrap_or_default()))
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
