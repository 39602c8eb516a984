//! `selvedge state`: the state of a thread, now or at any version.

use std::collections::BTreeMap;

use selvedge::items::Config;
use selvedge::items::config::TranscriptIntegrity;
use selvedge::items::hook::Source;
use selvedge::snapshot::{Schema, from_log, newest};
use selvedge_log::recovery::Mode;
use selvedge_model::fold::CallState;
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
use crate::running::project_of;
use crate::text::{clean, clean_json, count};

/// Show the state of a thread, now or at any version
///
/// The log is read and verified from its first byte: what is shown is exactly what was signed. A log that is signed by an untrusted
/// key is refused; with `transcript_integrity: lenient` in your own coordination.yaml it is shown with a warning. Such a thread can't
/// be resumed.
///
/// With --snapshot, shows the newest valid snapshot instead, whole and unpacked, as in `state.json`. If there is none, it is built
/// from the log, with a notice.
///
/// JSON, and for people the same with line breaks: {"thread_id", "version", "latest_version", "manifest":{…}, "state":…,
/// "messages":[…], "runs":[…], "calls":{…}}. With --snapshot: {"thread_id", "directive", "version", "saved_at", "log_version",
/// "log_hash", "status", "turn_number", "cost":{…}, "limits":{…}, "messages":[…], …}; `selvedge config explain
/// state_persistence.state.schema` shows its schema.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// Show the state at this version
    #[arg(long, value_name = "VERSION", value_parser = whole, allow_negative_numbers = true)]
    at: Option<u64>,
    /// Show the newest snapshot
    #[arg(long, conflicts_with = "at")]
    snapshot: bool,
}

#[derive(Serialize)]
struct StateReport {
    thread_id: ThreadId,
    version: u64,
    latest_version: u64,
    manifest: Manifest,
    state: Value,
    messages: Vec<Message>,
    runs: Vec<Run>,
    calls: BTreeMap<CallId, CallState>,
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
                .say(format!("WARNING: not reliable, and shown only because `transcript_integrity` is lenient: {why}"));
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
        context
            .output
            .say(format!("WARNING: not verified, and shown only because `transcript_integrity` is lenient: {why}"));
    }
    let folded = folded(thread_id, loaded);
    if context.output.is_json() {
        return context.output.record(&folded);
    }
    context.output.text(clean_json(&serde_json::to_string_pretty(&folded).unwrap_or_default()))
}

/// Shows the newest valid snapshot, or one built from the log.
fn snapshot(store: &dyn Backend, thread: &ThreadId, context: &Context<'_>) -> Result<()> {
    let configuration = configuration(context)?;
    let config = &configuration.state_persistence;
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
                context
                    .output
                    .say(format_args!("the snapshot is of version {}; the log is {behind} ahead", kept.version));
            }
            body
        }
        None => {
            context.output.say("there is no valid snapshot; this one is built from the log");
            let mut body = from_log(store, thread, store.trust(), &config.schema_version, SystemClock.now())?;
            if let Some(hooks) = hooks(store, thread, configuration.clone(), context) {
                body["hooks"] = hooks;
            }
            body
        }
    };
    if context.output.is_json() {
        return context.output.record(&body);
    }
    context.output.text(clean_json(&serde_json::to_string_pretty(&body).unwrap_or_default()))
}

/// The hooks of a thread's directive, which are not in its log; `None` if the directive is missing or invalid.
fn hooks(store: &dyn Backend, thread: &ThreadId, config: Config, context: &Context<'_>) -> Option<Value> {
    let id = store.get(thread).ok()?.manifest.directive?;
    let project = project_of(config, context).ok()?;
    let directive = project.library.directive(&id).ok()?;
    let hooks = project.hooks(Some(&directive.item)).ok()?;
    let own = hooks.iter().filter(|placed| placed.source != Source::BuiltIn);
    Some(own.flat_map(|placed| placed.hook.shown()).collect())
}

/// The failure for a version that does not exist yet, with the latest one.
fn absent_version(error: Error) -> Failure {
    match error {
        Error::NoVersion { latest, .. } => Failure::from(error).detail("latest_version", latest),
        error => error.into(),
    }
}

fn folded(thread_id: ThreadId, loaded: Loaded) -> StateReport {
    let Thread { manifest, version, messages, state, runs, calls, .. } = loaded.thread;
    StateReport {
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
