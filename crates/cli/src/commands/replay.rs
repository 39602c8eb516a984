//! `selvedge replay`: a recorded thread again, offline, compared step by step.

mod ordered;
mod prompt;

use std::sync::Arc;

use selvedge::model::limits::Limits;
use selvedge::model::{Event, Manifest};
use selvedge::orchestrator::{Launcher, Orchestrator};
use selvedge::providers::Replay;
use selvedge::providers::replay::Recorded;
use selvedge::replay::{Difference, How, Recording, Report, Step, replay};
use selvedge::workshop::Workshop;
use selvedge::{Assignment, Engine};
use selvedge_model::ThreadId;
use selvedge_store::load::load;
use selvedge_store_local::Access;
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, BOLD, DIM, GOOD, paint};
use crate::running;
use crate::text::{clean, count, one_line};

/// Run a recorded thread again, offline, and compare step by step
///
/// The model answers what it answered, the tools answer what they answered, and so do the calls that started children. What the engine
/// decides is decided anew, with the tools, the approval rules, the hooks and the program of today: which calls are made, asked about or
/// denied, where a run stops and why, what is committed and what it folds into. Nothing is asked of the network, no tool is called, nothing
/// is started, and the thread is not touched. The log is verified first.
///
/// What people said, what was imported or appended, and how the thread was born is the record's: also what it may call, the risks
/// that were acknowledged and its limits, because a thread keeps those whatever its directive says later. Where the directive of today
/// would give a new thread others, or is gone, that is said; --as-ordered-now replays with what it would give, and --limit with other
/// limits. A limit that was given beside the directive is not part of it: give it again with --limit.
///
/// Prompts are not in a log, so a changed prompt does not count as a difference; what can be known of it is said: a first message that
/// would be another one today, and tools that are offered otherwise than `capabilities.md` has it.
///
/// With --from, nothing up to that version is compared. If the run that goes on there takes another way before it, that run is taken over to
/// its end, which is said, and the runs behind it are compared. If nothing is left to compare, nothing but that is said: an error with exit
/// code 2.
///
/// JSON: {"thread_id", "version", "identical", "compared", "given", "differences":[{"version", "line", "reason", "what", "recorded",
/// "now"}], "differences_count", "ended_at", "state_differs_at", "state_recorded", "state_now", "redefined":[…], "prompt":[{"what", "recorded",
/// "now"}]}. "identical" means that nothing of what was compared differs: look at "compared", it may be 0. "ended_at" is the version from
/// which on nothing could be compared. "prompt" is what is told or given otherwise today: "first message", "directive", "capabilities",
/// "acknowledged", "limits" or a tool. Exits with 1 if something came out otherwise.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
    /// Compare only what follows this version; a run that goes on there is done again from its beginning
    #[arg(long, value_name = "VERSION")]
    from: Option<u64>,
    /// As if the thread had been given this limit: turns, tokens, spend (dollars), spawns, depth or duration (seconds)
    #[arg(long = "limit", value_name = "LIMIT=VALUE", value_parser = crate::limit::parse)]
    limits: Vec<Limits>,
    /// As if the thread were ordered now: with the capabilities, acknowledged risks and limits that its directive gives today
    #[arg(long)]
    as_ordered_now: bool,
}

/// Something that the model would be told, or the thread be given, otherwise today.
#[derive(Debug, Serialize)]
struct Told {
    what: String,
    recorded: Value,
    now: Value,
}

#[derive(Serialize)]
struct Record<'a> {
    identical: bool,
    #[serde(flatten)]
    report: &'a Report,
    prompt: &'a [Told],
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    super::verify::insist(&thread, &*store)?;
    let workshop = Arc::new(running::workshop(context)?);
    let redactor = running::redactor(&workshop);
    let engine = Engine::new(running::options(&store, store.trust().clone()));
    let mut recording = Recording::read(&*store, &thread, store.trust())?;
    // The thread as it was born: what was raised since is raised again where it was.
    let mut born = load(&*store, &thread, store.trust(), Some(0))?.thread.manifest;
    let today = ordered::today(&*store, &workshop, &born);
    let work = assignment(&engine, &workshop, &born)?;
    let told = prompt::differences(&*store, today.as_ref(), &born, &work, &redactor, &recording);
    if args.as_ordered_now {
        ordered::instead(today, &mut born, &mut recording)?;
    }
    born.limits = with_limits(born.limits, &mut recording, &args.limits);
    let work = assignment(&engine, &workshop, &born)?;
    let last_run = last_run(&recording);
    let again = |from| {
        let (model, scopes) = (Arc::new(recorded(&recording)), workshop.config.scopes.clone());
        let how = How { work: work.clone(), model, scopes, redactor: redactor.clone(), from };
        replay(recording.clone(), how).map_err(|error| Failure::of(&error))
    };
    let mut report = again(args.from)?;
    let other_way = report.ended_at.filter(|ended| args.from.is_some_and(|from| *ended <= from));
    if let Some(version) = other_way {
        let end = end_of_run(&recording, version);
        report = again(Some(end))?;
        context.output.say(format_args!(
            "the run takes another way at version {version} already: it is taken over up to its end, version {end}"
        ));
    }
    // Of nothing it can't be said that it is the same.
    if let (Some(from), 0) = (args.from, report.compared + report.count) {
        return Err(nothing_left(&thread, from, last_run));
    }
    match context.output.is_json() {
        true => context.output.record(&Record { identical: report.is_identical(), report: &report, prompt: &told })?,
        false => show(&report, &told, context)?,
    }
    outcome(&report, last_run)
}

/// Why nothing was compared, and from where on something can be.
fn nothing_left(thread: &ThreadId, from: u64, last_run: Option<u64>) -> Failure {
    let message = format!("nothing of `{thread}` could be compared behind version {from}");
    let hint = match last_run.and_then(|begins| begins.checked_sub(1)) {
        Some(last) if last < from => {
            format!(
                "its last run begins behind version {last}: `selvedge replay {thread} --from {last}`, or any version before, compares it"
            )
        }
        _ => format!("no run of an engine follows; `selvedge log {thread}` shows what is recorded"),
    };
    Failure::new(Exit::Usage, "nothing_to_compare", message).hint(hint)
}

/// The last version of the run that a version belongs to.
fn end_of_run(recording: &Recording, version: u64) -> u64 {
    let run = recording.steps.iter().find(|step| step.version() == version).and_then(Step::run);
    let of_run = recording.steps.iter().filter(|step| run.is_some() && step.run() == run).map(Step::version);
    of_run.max().unwrap_or(version)
}

/// Other ceilings than those that the thread was born with.
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

/// What a run of the thread would be done with today, as whoever runs it is equipped; but nobody is launched. Its model need not be
/// there: it is not asked.
fn assignment(engine: &Engine, workshop: &Arc<Workshop>, born: &Manifest) -> Result<Assignment> {
    let launcher: Launcher = Arc::new(|_| Err("a replay starts nothing".to_owned()));
    let orchestrator = Orchestrator::new(engine.clone(), workshop.clone(), launcher, Arc::new(|_| Ok(())));
    match orchestrator.assignment(born) {
        Err(error) if error.is_about_model() => {
            let mut work = orchestrator.assignment(&Manifest { model: None, ..born.clone() })?;
            work.model_name = born.model.clone().unwrap_or(work.model_name);
            work.price = workshop.config.models.price(&work.model_name);
            Ok(work)
        }
        work => Ok(work?),
    }
}

/// The version at which the last run began.
fn last_run(recording: &Recording) -> Option<u64> {
    let begins = |step: &&Step| step.events.iter().any(|event| matches!(event, Event::RunStarted(_)));
    recording.steps.iter().rfind(begins).map(Step::version)
}

fn recorded(recording: &Recording) -> Replay {
    Replay::new(recording.steps.iter().map(|step| Recorded { reason: step.reason(), events: &step.events }))
}

fn show(report: &Report, told: &[Told], context: &Context<'_>) -> Result<()> {
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
        output.text(paint(
            DIM,
            format_args!("from version {version} on it took another way; nothing behind it was compared"),
        ))?;
    }
    for Told { what, recorded, now } in told {
        output.say(format!("{what}: recorded {}, today {}", shown(Some(recorded)), shown(Some(now))));
    }
    for tool in &report.redefined {
        output.say(format!("`{}` is defined otherwise than when it was called", clean(tool)));
    }
    output.text(closing(report))
}

fn closing(report: &Report) -> String {
    let (compared, given) = (count(report.compared, "changeset"), count(report.given, "changeset"));
    let (thread, state) = (&report.thread_id, report.state_now.short());
    match (report.is_identical(), report.compared) {
        (true, 0) => format!("nothing in {thread} was decided by an engine: {given} taken over"),
        (true, _) => {
            let word = paint(GOOD, "identical:");
            format!("{word} {compared} of {thread} decided as recorded, state {state}; {given} taken over")
        }
        (false, _) => format!("{} {compared} of {thread} compared; {given} taken over", paint(BAD, "diverged:")),
    }
}

/// How much of a value is shown.
const WIDTH: usize = 160;

fn shown(value: Option<&Value>) -> String {
    match value {
        None => paint(DIM, "nothing"),
        Some(value) => gist(value).unwrap_or_else(|| one_line(&value.to_string(), WIDTH)),
    }
}

/// A whole changeset in short: why it was committed, and each event with the word that tells most.
fn gist(value: &Value) -> Option<String> {
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
    let (thread, version): (&ThreadId, u64) = (&report.thread_id, first.version);
    let message = format!("`{thread}` came out otherwise at version {version}: {}", count(report.count, "difference"));
    // Up to there it can't be told what would have come of it.
    let from = report.ended_at.unwrap_or(version);
    let hint = match last_run {
        Some(last) if last > from => format!(
            "`selvedge replay {thread} --from {from}` takes over what is recorded and compares the runs that follow"
        ),
        _ => format!("no run follows that could be compared; `selvedge log {thread}` shows what is recorded"),
    };
    Err(Failure::new(Exit::Failed, "replay_diverged", message).hint(hint).detail("version", version))
}
