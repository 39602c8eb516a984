//! `selvedge approve`, `selvedge deny` and `selvedge settle`: decisions about calls.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use selvedge::items::config::Wait;
use selvedge::{Choice, Input, Recorded, RunConfig};
use selvedge_model::event::ResumeMode;
use selvedge_model::{CallId, Clock, Manifest, Status, ThreadId};
use selvedge_store::Position;
use selvedge_store_local::system::SystemClock;
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::hints;
use crate::needs::thread_of;
use crate::running::{Recording, Running, needs_decision};
use crate::text::{clean, one_line};

/// The calls of a decision, and whether the thread is resumed.
#[derive(Debug, clap::Args)]
pub(crate) struct Calls {
    /// The ids of the calls
    #[arg(required_unless_present = "all")]
    calls: Vec<CallId>,
    /// The thread, if several threads have a call of this id
    #[arg(long, value_name = "THREAD")]
    thread: Option<String>,
    /// Every call of THREAD that is pending approval
    #[arg(long, value_name = "THREAD", conflicts_with_all = ["calls", "thread"])]
    all: Option<String>,
    /// Record the decision without resuming the thread
    #[arg(long)]
    no_run: bool,
    #[command(flatten)]
    recording: Recording,
}

/// Approve tool calls that are pending approval
///
/// The approval is signed into the thread's log and bound to the exact action: the call, its arguments and the definition of the
/// tool. When no decision of the thread is pending any more, the thread is resumed in the foreground, and the command ends as
/// `selvedge run` does; while one is pending, it ends with 7. If another process runs the thread, the approval is queued for that
/// process.
///
/// `selvedge inbox` shows what an approval does. It depends on the rule: the call is made as it is, or it is made with the VALUE of
/// `--with`, or it is not made and VALUE is its result.
///
/// JSON: {"thread_id", "call_id", "decision", "resume_mode", "arguments", "recorded", "undecided":[…]} for each call; "resume_mode"
/// is "replay_tool_call", "pass_decision_to_tool" or "use_decision_as_tool_result", or null if the decision is not an approval;
/// "arguments" replace those of the call, or are null; "recorded" is "now", "before" if the same decision was already recorded, or
/// "queued" if it waits for the process that runs the thread. If the thread is resumed, more objects follow, as of `selvedge run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Approve {
    #[command(flatten)]
    of: Calls,
    /// Make the call with the arguments in FILE instead (JSON; `-` is stdin); the model is told
    #[arg(long, value_name = "FILE")]
    edit: Option<PathBuf>,
    /// The value for calls whose rule uses one, as argument or as result; JSON or text
    #[arg(long, value_name = "VALUE", conflicts_with = "edit")]
    with: Option<String>,
}

/// Deny tool calls that are pending approval
///
/// The denial is signed into the thread's log; the model is told, with the reason. When no decision of the thread is pending any
/// more, the thread is resumed.
///
/// JSON: as `selvedge approve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Deny {
    #[command(flatten)]
    of: Calls,
    /// The reason; the model is told
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Resolve a tool call whose outcome is unknown
///
/// `selvedge inbox` shows such calls: what was called, when it was dispatched, and what recovery found. With --done, the call is not
/// repeated, and the model gets RESULT. With --not-done, it is dispatched again. With --unknown, it is not repeated, and the model is
/// told that its outcome is unknown. The decision is signed into the thread's log. When no decision of the thread is pending any
/// more, the thread is resumed. The first decision counts: the same one again changes nothing, a different one is refused.
///
/// JSON: as `selvedge approve`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("verdict").required(true))]
pub(crate) struct Settle {
    /// The id of the call
    call: CallId,
    /// The thread, if several threads have a call of this id
    #[arg(long, value_name = "THREAD")]
    thread: Option<String>,
    /// It took effect, with this result (JSON or text)
    #[arg(long, group = "verdict", value_name = "RESULT", num_args = 0..=1, default_missing_value = "done")]
    done: Option<String>,
    /// It did not take effect: dispatch it again
    #[arg(long, group = "verdict")]
    not_done: bool,
    /// It can't be found out whether it took effect
    #[arg(long, group = "verdict")]
    unknown: bool,
    /// Record the decision without resuming the thread
    #[arg(long)]
    no_run: bool,
    #[command(flatten)]
    recording: Recording,
}

#[derive(Serialize)]
struct Decided<'a> {
    thread_id: &'a ThreadId,
    call_id: &'a CallId,
    decision: &'a str,
    resume_mode: Option<ResumeMode>,
    arguments: Option<&'a Value>,
    recorded: &'a str,
    undecided: &'a [CallId],
}

pub(crate) fn approve(args: Approve, context: &Context<'_>) -> Result<()> {
    if args.edit.is_some() && args.of.calls.len() != 1 {
        return Err(Failure::usage("`--edit` needs exactly one call"));
    }
    let choice = match (args.edit, args.with) {
        (Some(file), _) => Choice::Edit(arguments(&file, context)?),
        (None, with) => Choice::Approve(with.map(value)),
    };
    decide(args.of, &choice, context)
}

pub(crate) fn deny(args: Deny, context: &Context<'_>) -> Result<()> {
    decide(args.of, &Choice::Deny(args.reason), context)
}

pub(crate) fn settle(args: Settle, context: &Context<'_>) -> Result<()> {
    let choice = match (args.done, args.not_done) {
        (Some(text), _) => Choice::Done(value(text)),
        (None, true) => Choice::NotDone,
        (None, false) => Choice::Unknown,
    };
    let of = Calls {
        calls: vec![args.call],
        thread: args.thread,
        all: None,
        no_run: args.no_run,
        recording: args.recording,
    };
    decide(of, &choice, context)
}

fn value(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

/// How long to wait for another process that decides about the same thread.
const DECIDER_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of arguments.
const ARGUMENTS_BYTES_MAX: u64 = 4 << 20;

fn arguments(file: &std::path::Path, context: &Context<'_>) -> Result<Value> {
    let bytes = if file == std::path::Path::new("-") {
        context.stdin(ARGUMENTS_BYTES_MAX)?.to_vec()
    } else {
        std::fs::read(file).map_err(|error| Failure::io("read", file, &error))?
    };
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::usage(format!("`{}` is not valid JSON: {error}", file.display())))
}

fn decide(of: Calls, choice: &Choice, context: &Context<'_>) -> Result<()> {
    let running = Running::open(context, &of.recording)?;
    let decided = record(&running, &of, choice, context);
    let (thread, is_queued) = match decided {
        Ok(decided) => decided,
        Err(failure) => {
            running.close(context);
            return Err(failure);
        }
    };
    // An expired call is not pending: the thread continues without it.
    let is_undecided = |manifest: &Manifest| manifest.undecided(SystemClock.now()).next().is_some();
    let waits = Some(running.store.get(&thread)?.manifest).filter(is_undecided);
    let is_each = running.project.config.approvals.wait == Wait::Each;
    if !is_queued && !of.no_run && (waits.is_none() || is_each) {
        let work = running.run_config(&thread)?;
        let shown = running.show(context, work, |running, work, cancel, tell| {
            running.engine.resume(&thread, Input::nothing(), work.clone(), cancel, tell)
        });
        return match shown {
            // The decision is recorded, and the process that resumed the thread first applies it.
            Err(failure) if matches!(failure.code, "lease_held" | "not_runnable") => {
                context.output.tell(format!("another process is running {thread}"));
                Ok(())
            }
            shown => shown,
        };
    }
    running.close(context);
    match (is_queued, &waits) {
        (true, _) => context.output.tell(format!("queued: the process running {thread} will apply it")),
        (false, None) => context.output.tell(format!("`selvedge resume {thread}` continues")),
        (false, Some(_)) if of.no_run => {
            context.output.tell(format!("{thread} waits for more decisions: `selvedge inbox` lists them"));
        }
        (false, Some(manifest)) => {
            return Err(needs_decision(&thread, manifest.suspended.as_ref(), &manifest.asks));
        }
    }
    Ok(())
}

/// Records the decision for every call; returns their thread, and whether it is queued for another process.
fn record(running: &Running, of: &Calls, choice: &Choice, context: &Context<'_>) -> Result<(ThreadId, bool)> {
    let (thread, calls) = which(running, of)?;
    let work = running.run_config(&thread)?;
    let mut is_queued = false;
    for call in &calls {
        let decided = decide_one(running, &thread, call, choice, &work)?;
        is_queued |= decided.recorded == Recorded::Queued;
        tell(context, &thread, call, choice, &decided)?;
    }
    Ok((thread, is_queued))
}

/// Records the decision about one call. If another process holds the thread only to decide about it, waits for that process: the last
/// one to decide finds nothing pending and resumes the thread.
pub(crate) fn decide_one(
    running: &Running,
    thread: &ThreadId,
    call: &CallId,
    choice: &Choice,
    work: &RunConfig,
) -> Result<selvedge::Decided> {
    let deadline = Instant::now() + DECIDER_TIMEOUT;
    let mut queued = None;
    loop {
        // Before the decision, so that nothing the other process does is missed: it releases the thread, or begins to run it.
        let seen =
            Position { commits: running.store.position()?, requests: u64::MAX, leases: running.store.leases_freed() };
        let decided = match (running.engine.decide(thread, call, choice.clone(), &who(), work), queued.take()) {
            (Ok(decided), _) => decided,
            // The process it was queued for has applied it.
            (Err(selvedge_engine::Error::NoOpenCall { .. }), Some(decided)) => return Ok(decided),
            // The value `false` must not be read as a denial: there is a command for that.
            (Err(error @ selvedge_engine::Error::EditRefused { .. }), _)
                if *choice == Choice::Approve(Some(Value::Bool(false))) =>
            {
                let deny = hints::about("deny", call, thread, "");
                return Err(
                    Failure::of(&error).hint(format!("`{deny}` denies it; without `--with` it is approved as it is"))
                );
            }
            (Err(error), _) => return Err(hints::refused(&*running.store, &error)),
        };
        let is_run = running.store.get(thread)?.manifest.status == Status::Running;
        if decided.recorded != Recorded::Queued || is_run || Instant::now() > deadline {
            return Ok(decided);
        }
        queued = Some(decided);
        running.store.watch(seen, deadline.saturating_duration_since(Instant::now()))?;
    }
}

pub(crate) fn tell(
    context: &Context<'_>,
    thread: &ThreadId,
    call: &CallId,
    choice: &Choice,
    decided: &selvedge::Decided,
) -> Result<()> {
    let recorded = match decided.recorded {
        Recorded::Now => "now",
        Recorded::Before => "before",
        Recorded::Queued => "queued",
    };
    let decision = choice.action().as_str();
    if context.output.is_json() {
        let resume_mode = matches!(choice, Choice::Approve(_)).then_some(decided.mode);
        let arguments = arguments_of(choice, decided.mode);
        let undecided = &decided.undecided;
        let thread_id = thread;
        return context.output.record(&Decided {
            thread_id,
            call_id: call,
            decision,
            resume_mode,
            arguments,
            recorded,
            undecided,
        });
    }
    let effect = effect(choice, decided.mode);
    let before = if decided.recorded == Recorded::Before { " (already recorded)" } else { "" };
    context.output.text(format_args!("call {} of {thread} {effect}{before}", clean(call.as_str())))
}

/// The arguments that replace those of the call.
fn arguments_of(choice: &Choice, mode: ResumeMode) -> Option<&Value> {
    match choice {
        Choice::Edit(arguments) => Some(arguments),
        Choice::Approve(Some(value)) if mode == ResumeMode::PassDecisionToTool && !value.is_boolean() => Some(value),
        _ => None,
    }
}

/// What the decision means for the call.
fn effect(choice: &Choice, mode: ResumeMode) -> String {
    if let Some(arguments) = arguments_of(choice, mode) {
        return format!("is approved with the arguments {}", one_line(&arguments.to_string(), SHOWN));
    }
    match choice {
        Choice::Approve(value) if mode == ResumeMode::UseDecisionAsToolResult => {
            let result = value.as_ref().map_or_else(|| "\"approved\"".to_owned(), ToString::to_string);
            format!("is not made; its result is {}", one_line(&result, SHOWN))
        }
        Choice::Approve(_) | Choice::Edit(_) => "is approved".to_owned(),
        Choice::Deny(_) => "is denied".to_owned(),
        Choice::Done(_) => "is resolved: it took effect".to_owned(),
        Choice::NotDone => "is resolved: it did not take effect".to_owned(),
        Choice::Unknown => "is resolved: its outcome stays unknown".to_owned(),
    }
}

/// How much of arguments and results is shown.
const SHOWN: usize = 100;

/// The thread and its calls.
fn which(running: &Running, of: &Calls) -> Result<(ThreadId, Vec<CallId>)> {
    if let Some(prefix) = &of.all {
        let thread = running.resolve(prefix)?;
        let now = SystemClock.now();
        let asks = running.store.get(&thread)?.manifest.asks;
        let calls: Vec<CallId> = asks.iter().filter(|ask| !ask.is_over(now)).map(|ask| ask.call_id.clone()).collect();
        return match (calls.is_empty(), asks.first()) {
            (false, _) => Ok((thread, calls)),
            (true, Some(ask)) => {
                Err(Failure::of(&selvedge_engine::Error::TooLate { thread, call: ask.call_id.clone() }))
            }
            (true, None) => {
                let message = format!("no call of `{thread}` is pending approval");
                Err(Failure::new(Exit::NotFound, "call_not_open", message)
                    .hint("`selvedge inbox` lists pending decisions"))
            }
        };
    }
    let mut threads: Vec<ThreadId> = match &of.thread {
        Some(prefix) => vec![running.resolve(prefix)?],
        None => of.calls.iter().map(|call| thread_of(&*running.store, call)).collect::<Result<_>>()?,
    };
    threads.dedup();
    match threads.as_slice() {
        [thread] => Ok((thread.clone(), of.calls.clone())),
        _ => Err(Failure::usage("the calls belong to different threads; decide about one thread at a time")),
    }
}

/// The person who decides: the logged-in user.
fn who() -> String {
    std::env::var("USER").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "an unnamed user".to_owned())
}
