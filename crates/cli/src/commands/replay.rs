//! `selvedge replay`: replays a recorded thread offline, and compares every step.

mod current_directive;
mod prompt;

use std::sync::Arc;

use selvedge::model::limits::Limits;
use selvedge::model::{Event, Manifest};
use selvedge::orchestrator::{Launcher, Orchestrator};
use selvedge::project::Project;
use selvedge::providers::Replay;
use selvedge::providers::replay::RecordedEvents;
use selvedge::replay::{Difference, RecordedChangeset, Recording, ReplayOptions, Report, replay};
use selvedge::{Engine, RunConfig};
use selvedge_model::ThreadId;
use selvedge_store::Backend;
use selvedge_store::load::load;
use selvedge_store_local::Access;
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, BOLD, DIM, GOOD, paint};
use crate::running;
use crate::text::{clean, count, one_line};

/// Replay a recorded thread offline, and compare every step
///
/// The model and the tools give the recorded answers, and so do the calls that started children. What the engine decides is decided
/// again, with today's tools, approval rules, hooks and program: which calls are made, need approval or are denied, when a run stops
/// and why, what is committed and the resulting state. Nothing is sent over the network, no tool is called, nothing is started, and
/// the thread is not changed. The log is verified first.
///
/// Taken from the record: messages of users, imported and appended changesets, and how the thread was created, with its capabilities,
/// acknowledged risks and limits, because a thread keeps those even if its directive changes. If today's directive would give a new
/// thread others, or no longer exists, a notice says so; --current-directive replays with today's, and --limit with other limits. A
/// limit that was given on the command line is not part of the directive: give it again with --limit.
///
/// Prompts are not recorded, so a changed prompt is not a difference. Notices report what is known: a first message that would differ
/// today, what in the system prompt changed since the last run (agent, directive, task, each entry of knowledge, by their digests), entries of
/// knowledge that hooks brought and that changed since, and tools whose definitions differ from `capabilities.md`.
///
/// With --from, nothing up to that version is compared. If the run that is active there diverges earlier, the rest of that run is
/// taken from the record, with a notice, and the later runs are compared. If nothing is left to compare, that is an error with exit
/// code 2.
///
/// JSON: {"thread_id", "version", "identical", "compared", "from_record", "differences":[{"version", "line", "reason", "what", "recorded",
/// "now"}], "differences_count", "ended_at", "state_differs_at", "state_recorded", "state_now", "redefined":[…], "prompt":[{"what",
/// "recorded", "now"}]}. "identical" means that no difference was found: check "compared", which may be 0. "from_record" is how many
/// changesets were taken from the record. "ended_at" is the version after which nothing could be compared. "prompt" lists what
/// differs today outside of the record: "first message", a part of the system prompt, "directive", "capabilities", "acknowledged",
/// "limits", an entry of knowledge that a hook brought, or a tool. Exits with 1 if there is a difference.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// Compare only what follows this version; a run that is active there is replayed from its beginning
    #[arg(long, value_name = "VERSION")]
    from: Option<u64>,
    /// Replay with this limit: turns, tokens, spend (dollars), spawns, depth or duration (seconds)
    #[arg(long = "limit", value_name = "LIMIT=VALUE", value_parser = crate::limit::parse)]
    limits: Vec<Limits>,
    /// Replay with the capabilities, acknowledged risks and limits that the thread's directive gives today
    #[arg(long)]
    current_directive: bool,
}

/// A part of the prompt, or of what the thread was given, that differs today.
#[derive(Debug, Serialize)]
struct PromptChange {
    what: String,
    recorded: Value,
    now: Value,
}

#[derive(Serialize)]
struct ReplayReport<'a> {
    identical: bool,
    #[serde(flatten)]
    report: &'a Report,
    prompt: &'a [PromptChange],
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    super::verify::insist(&thread, &*store)?;
    let project = Arc::new(running::project(context)?);
    let redactor = running::redactor(&project);
    let engine = Engine::new(running::options(&store, store.trust().clone()));
    let mut recording = Recording::read(&*store, &thread, store.trust())?;
    // The thread as it was created: later raises of limits are replayed.
    let mut born = load(&*store, &thread, store.trust(), Some(0))?.thread.manifest;
    let today = current_directive::today(&*store, &project, &born);
    let work = run_config(&engine, &project, &store, &born)?;
    let changes = prompt::differences(&*store, &project.library, today.as_ref(), &born, &work, &redactor, &recording);
    if args.current_directive {
        current_directive::instead(today, &mut born, &mut recording)?;
    }
    born.limits = with_limits(born.limits, &mut recording, &args.limits);
    let work = run_config(&engine, &project, &store, &born)?;
    let last_run = last_run(&recording);
    let again = |from| {
        let model = Arc::new(recorded(&recording));
        let scopes = project.config.scopes.clone();
        let how = ReplayOptions { work: work.clone(), model, scopes, redactor: redactor.clone(), from };
        replay(recording.clone(), how).map_err(|error| Failure::of(&error))
    };
    let mut report = again(args.from)?;
    let other_way = report.ended_at.filter(|ended| args.from.is_some_and(|from| *ended <= from));
    if let Some(version) = other_way {
        let end = end_of_run(&recording, version);
        report = again(Some(end))?;
        context.output.say(format_args!(
            "the run diverges at version {version} already: it is taken from the record up to its end, version {end}"
        ));
    }
    // Nothing was compared, so "identical" would be wrong.
    if let (Some(from), 0) = (args.from, report.compared + report.count) {
        return Err(nothing_left(&thread, from, last_run));
    }
    if context.output.is_json() {
        context.output.record(&ReplayReport { identical: report.is_identical(), report: &report, prompt: &changes })?
    } else {
        show(&report, &changes, context)?
    }
    outcome(&report, last_run)
}

/// The failure if nothing was compared, with the last usable version.
fn nothing_left(thread: &ThreadId, from: u64, last_run: Option<u64>) -> Failure {
    let message = format!("nothing of `{thread}` can be compared after version {from}");
    let hint = match last_run.and_then(|begins| begins.checked_sub(1)) {
        Some(last) if last < from => {
            format!(
                "its last run begins after version {last}: use `selvedge replay {thread} --from {last}`, or an earlier version"
            )
        }
        _ => format!("no run follows; `selvedge log {thread}` shows what is recorded"),
    };
    Failure::new(Exit::Usage, "nothing_to_compare", message).hint(hint)
}

/// The last version of the run that a version belongs to.
fn end_of_run(recording: &Recording, version: u64) -> u64 {
    let run = recording.steps.iter().find(|step| step.version() == version).and_then(RecordedChangeset::run);
    let of_run =
        recording.steps.iter().filter(|step| run.is_some() && step.run() == run).map(RecordedChangeset::version);
    of_run.max().unwrap_or(version)
}

/// The limits that the thread was created with, replaced by those of `--limit`.
fn with_limits(born: Option<Limits>, recording: &mut Recording, wanted: &[Limits]) -> Option<Limits> {
    if wanted.is_empty() {
        return born;
    }
    let limits = crate::limit::all(wanted).over(&born.unwrap_or_default());
    if let Some(Event::ThreadCreated(created)) = recording.steps.first_mut().and_then(|step| step.events.first_mut()) {
        created.thread.limits = Some(limits.clone());
    }
    Some(limits)
}

/// The run configuration of a run of the thread today, with a launcher that starts nothing. Its model need not exist: it is not called.
fn run_config(engine: &Engine, project: &Arc<Project>, store: &Arc<dyn Backend>, born: &Manifest) -> Result<RunConfig> {
    let launcher: Launcher = Arc::new(|_| Err("a replay starts nothing".to_owned()));
    let orchestrator = Orchestrator::new(
        engine.clone(),
        project.clone(),
        launcher,
        Arc::new(|_| Ok(())),
        store.clone(),
        store.clone(),
    );
    match orchestrator.run_config(born) {
        Err(error) if error.is_about_model() => {
            let mut work = orchestrator.run_config(&Manifest { model: None, ..born.clone() })?;
            work.model_name = born.model.clone().unwrap_or(work.model_name);
            work.price = project.config.models.price(&work.model_name);
            Ok(work)
        }
        work => Ok(work?),
    }
}

/// The version at which the last run began.
fn last_run(recording: &Recording) -> Option<u64> {
    let begins = |step: &&RecordedChangeset| step.events.iter().any(|event| matches!(event, Event::RunStarted(_)));
    recording.steps.iter().rfind(begins).map(RecordedChangeset::version)
}

fn recorded(recording: &Recording) -> Replay {
    Replay::new(recording.steps.iter().map(|step| RecordedEvents { reason: step.reason(), events: &step.events }))
}

fn show(report: &Report, changes: &[PromptChange], context: &Context<'_>) -> Result<()> {
    let output = context.output;
    let mut version = None;
    for difference in &report.differences {
        if version.replace(difference.version) != Some(difference.version) {
            let Difference { version, line, reason, .. } = difference;
            let place = format!("version {version}, line {line}, {}", reason.as_str());
            output.text(paint(BOLD, place))?;
        }
        output.text(format_args!("  {}", clean(&difference.what)))?;
        output.text(format_args!("    {} {}", paint(GOOD, "recorded"), shown(difference.recorded.as_ref())))?;
        output.text(format_args!("    {}      {}", paint(BAD, "now"), shown(difference.now.as_ref())))?;
    }
    let more = report.count.saturating_sub(report.differences.len() as u64);
    if more > 0 {
        output.text(paint(DIM, format_args!("and {}", count(more, "further difference"))))?;
    }
    if let Some(version) = report.ended_at {
        output.text(paint(DIM, format_args!("it diverges at version {version}; nothing after that was compared")))?;
    }
    for PromptChange { what, recorded, now } in changes {
        output.say(format!("{what}: recorded {}, today {}", shown(Some(recorded)), shown(Some(now))));
    }
    for tool in &report.redefined {
        output.say(format!("the definition of `{}` changed since it was called", clean(tool)));
    }
    output.text(closing(report))
}

fn closing(report: &Report) -> String {
    let compared = count(report.compared, "changeset");
    let given = count(report.from_record, "changeset");
    let thread = &report.thread_id;
    let state = report.state_now.short();
    match (report.is_identical(), report.compared) {
        (true, 0) => format!("no changeset of {thread} was decided by the engine: {given} taken from the record"),
        (true, _) => {
            let word = paint(GOOD, "identical:");
            format!("{word} {compared} of {thread} decided as recorded, state {state}; {given} taken from the record")
        }
        (false, _) => {
            format!("{} {compared} of {thread} compared; {given} taken from the record", paint(BAD, "diverged:"))
        }
    }
}

/// How much of a value is shown.
const WIDTH: usize = 160;

fn shown(value: Option<&Value>) -> String {
    match value {
        None => paint(DIM, "nothing"),
        Some(value) => short_text(value).unwrap_or_else(|| one_line(&value.to_string(), WIDTH)),
    }
}

/// The summary of a changeset: its reason, and each event with its most informative field.
fn short_text(value: &Value) -> Option<String> {
    let reason = value.get("reason")?.as_str()?;
    let events = value.get("events")?.as_array()?.iter().filter_map(Value::as_object).flatten();
    let event = |(kind, payload): (&String, &Value)| {
        let words = ["/code", "/meta/termination_code", "/tool", "/call_id", "/action", "/role"];
        let word = words.into_iter().find_map(|place| payload.pointer(place)?.as_str());
        word.map_or_else(|| kind.clone(), |word| format!("{kind} {word}"))
    };
    let events: Vec<String> = events.map(event).collect();
    Some(one_line(&format!("{reason}: {}", events.join(", ")), WIDTH))
}

fn outcome(report: &Report, last_run: Option<u64>) -> Result<()> {
    let Some(first) = report.differences.first() else { return Ok(()) };
    let thread = &report.thread_id;
    let version = first.version;
    let message = format!("`{thread}` diverged at version {version}: {}", count(report.count, "difference"));
    // The rest of a run that diverged can't be compared.
    let from = report.ended_at.unwrap_or(version);
    let hint = match last_run {
        Some(last) if last > from => format!("`selvedge replay {thread} --from {from}` compares the runs that follow"),
        _ => format!("no later run can be compared; `selvedge log {thread}` shows what is recorded"),
    };
    Err(Failure::new(Exit::Failed, "replay_diverged", message).hint(hint).detail("version", version))
}
