//! `selvedge approve`, `selvedge deny` and `selvedge settle`: what somebody decides about calls.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use selvedge::items::config::Wait;
use selvedge::{Assignment, Choice, Input, Recorded};
use selvedge_model::event::ResumeMode;
use selvedge_model::{CallId, Clock, Manifest, Status, ThreadId};
use selvedge_store_local::system::SystemClock;
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::hints;
use crate::running::{Running, needs_decision};
use crate::text::{clean, one_line};
use crate::waiting::thread_of;

/// Which calls, and what happens once they are decided about.
#[derive(Debug, clap::Args)]
pub(crate) struct Calls {
    /// The calls
    #[arg(required_unless_present = "all")]
    calls: Vec<CallId>,
    /// The thread, if a call waits in more than one
    #[arg(long, value_name = "THREAD")]
    thread: Option<String>,
    /// Every call of THREAD that is pending approval
    #[arg(long, value_name = "THREAD", conflicts_with_all = ["calls", "thread"])]
    all: Option<String>,
    /// Record it and don't go on
    #[arg(long)]
    no_run: bool,
}

/// Approve tool calls that are pending approval
///
/// Recorded, signed, in the thread's log, and bound to the very action that was asked about: the tool as it is defined, its arguments and
/// the call. Once nothing of the thread is undecided it goes on at once, in the foreground, and the command ends as
/// `selvedge run` does; while something is, it ends with 7. If somebody else runs the thread, the word is left with that process.
///
/// What becomes of the call was settled when it was asked about, and `selvedge inbox` shows it: it is made as it was asked for, it is made
/// with the VALUE of `--with`, or it is not made and VALUE is its result.
///
/// JSON: {"thread_id", "call_id", "decision", "resume_mode", "arguments", "recorded", "undecided":[…]} for each call; "resume_mode" is
/// "replay_tool_call", "pass_decision_to_tool" or "use_decision_as_tool_result", or null without an approval; "arguments" are those that
/// take the place of the call's own, or null; "recorded" is "now", "before" if the very same was said before, or "left" with whoever
/// runs the thread; then, if it goes on, as `selvedge run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Approve {
    #[command(flatten)]
    of: Calls,
    /// Make the call with the arguments in FILE (JSON; `-` is stdin) instead; the model is told
    #[arg(long, value_name = "FILE")]
    edit: Option<PathBuf>,
    /// What the call is made with, or answered with, where that was asked; JSON or text
    #[arg(long, value_name = "VALUE", conflicts_with = "edit")]
    with: Option<String>,
}

/// Deny tool calls that are pending approval
///
/// Recorded, signed, in the thread's log; the model is told, with the reason. Once nothing of the thread is undecided it goes on at once.
///
/// JSON: as `selvedge approve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Deny {
    #[command(flatten)]
    of: Calls,
    /// Why; the model is told
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Settle a tool call whose outcome is unknown
///
/// `selvedge inbox` shows such calls: what was called, when it was dispatched, and what recovery found out. With --done the call is not made
/// again, and the model is given RESULT. With --not-done it is dispatched again. With --unknown it is not made again, and the model is told
/// that its outcome is unknown. The decision is recorded, signed, in the thread's log. Once nothing of the thread is undecided it goes on at
/// once. The first decision counts: the same one again changes nothing, another one is refused.
///
/// JSON: as `selvedge approve`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("verdict").required(true))]
pub(crate) struct Settle {
    /// The call
    call: CallId,
    /// The thread, if the call waits in more than one
    #[arg(long, value_name = "THREAD")]
    thread: Option<String>,
    /// It took effect; with its result, JSON or text
    #[arg(long, group = "verdict", value_name = "RESULT", num_args = 0..=1, default_missing_value = "done")]
    done: Option<String>,
    /// It did not take effect: make it again
    #[arg(long, group = "verdict")]
    not_done: bool,
    /// It can't be found out whether it took effect
    #[arg(long, group = "verdict")]
    unknown: bool,
    /// Record it and don't go on
    #[arg(long)]
    no_run: bool,
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
        return Err(Failure::usage("`--edit` is about one call, which must be named"));
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
    let of = Calls { calls: vec![args.call], thread: args.thread, all: None, no_run: args.no_run };
    decide(of, &choice, context)
}

fn value(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

/// How long somebody else may take to decide about the same thread, and how long to wait before looking again.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// The most bytes of arguments.
const ARGUMENTS_BYTES_MAX: u64 = 4 << 20;

fn arguments(file: &std::path::Path, context: &Context<'_>) -> Result<Value> {
    let bytes = match file == std::path::Path::new("-") {
        true => context.stdin(ARGUMENTS_BYTES_MAX)?.to_vec(),
        false => std::fs::read(file).map_err(|error| Failure::io("read", file, &error))?,
    };
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::usage(format!("`{}` does not hold arguments in JSON: {error}", file.display())))
}

fn decide(of: Calls, choice: &Choice, context: &Context<'_>) -> Result<()> {
    let running = Running::open(context)?;
    let decided = record(&running, &of, choice, context);
    let (thread, left) = match decided {
        Ok(decided) => decided,
        Err(failure) => {
            running.close(context);
            return Err(failure);
        }
    };
    // A call whose time is over waits for nobody: the thread goes on without it.
    let is_undecided = |manifest: &Manifest| manifest.undecided(SystemClock.now()).next().is_some();
    let waits = Some(running.store.get(&thread)?.manifest).filter(is_undecided);
    let is_each = running.workshop.config.approvals.wait == Wait::Each;
    if !left && !of.no_run && (waits.is_none() || is_each) {
        let work = running.assignment(&thread)?;
        let shown = running.show(context, work, |running, work, cancel, tell| {
            running.engine.resume(&thread, Input::nothing(), work.clone(), cancel, tell)
        });
        return match shown {
            // The word is on record, and whoever was faster goes by it.
            Err(failure) if matches!(failure.code, "lease_held" | "not_runnable") => {
                context.output.tell(format!("another process goes on with {thread}"));
                Ok(())
            }
            shown => shown,
        };
    }
    running.close(context);
    match (left, &waits) {
        (true, _) => context.output.tell(format!("queued: the process running {thread} will apply it")),
        (false, None) => context.output.tell(format!("`selvedge resume {thread}` goes on")),
        (false, Some(_)) if of.no_run => {
            context.output.tell(format!("{thread} waits for more: `selvedge inbox` shows everything that waits"));
        }
        (false, Some(manifest)) => {
            return Err(needs_decision(&thread, manifest.suspended.as_ref(), &manifest.asks));
        }
    }
    Ok(())
}

/// Records the decision for every call; gives their thread, and whether somebody else goes on with it.
fn record(running: &Running, of: &Calls, choice: &Choice, context: &Context<'_>) -> Result<(ThreadId, bool)> {
    let (thread, calls) = which(running, of)?;
    let work = running.assignment(&thread)?;
    let mut is_left = false;
    for call in &calls {
        let decided = decide_one(running, &thread, call, choice, &work)?;
        is_left |= decided.recorded == Recorded::Left;
        tell(context, &thread, call, choice, &decided)?;
    }
    Ok((thread, is_left))
}

/// Records the decision about one call. Somebody who decides about the thread at the same moment, and does not run it, is waited for:
/// whoever comes last finds nothing undecided and goes on.
pub(crate) fn decide_one(
    running: &Running,
    thread: &ThreadId,
    call: &CallId,
    choice: &Choice,
    work: &Assignment,
) -> Result<selvedge::Decided> {
    let deadline = Instant::now() + PATIENCE;
    let mut left = None;
    loop {
        let decided = match (running.engine.decide(thread, call, choice.clone(), &who(), work), left.take()) {
            (Ok(decided), _) => decided,
            // Whoever it was left with has gone by it.
            (Err(selvedge_engine::Error::NoOpenCall { .. }), Some(left)) => return Ok(left),
            // Whoever means no says so by its own word.
            (Err(error @ selvedge_engine::Error::EditRefused { .. }), _)
                if *choice == Choice::Approve(Some(Value::Bool(false))) =>
            {
                let deny = hints::about("deny", call, thread, "");
                return Err(
                    Failure::of(&error).hint(format!("`{deny}` refuses it; without `--with` it is allowed as it is"))
                );
            }
            (Err(error), _) => return Err(hints::refused(&*running.store, &error)),
        };
        let is_run = running.store.get(thread)?.manifest.status == Status::Running;
        if decided.recorded != Recorded::Left || is_run || Instant::now() > deadline {
            return Ok(decided);
        }
        left = Some(decided);
        std::thread::sleep(PAUSE);
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
        Recorded::Left => "left",
    };
    let decision = choice.as_str();
    if context.output.is_json() {
        let resume_mode = matches!(choice, Choice::Approve(_)).then_some(decided.mode);
        let (arguments, undecided) = (arguments_of(choice, decided.mode), &decided.undecided);
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
    let said = said(choice, decided.mode);
    let before = if decided.recorded == Recorded::Before { ", as was said before" } else { "" };
    context.output.text(format_args!("call {} of {thread} {said}{before}", clean(call.as_str())))
}

/// What a call is made with instead of its own arguments.
fn arguments_of(choice: &Choice, mode: ResumeMode) -> Option<&Value> {
    match choice {
        Choice::Edit(arguments) => Some(arguments),
        Choice::Approve(Some(value)) if mode == ResumeMode::PassDecisionToTool && !value.is_boolean() => Some(value),
        _ => None,
    }
}

/// What becomes of a call, in words.
fn said(choice: &Choice, mode: ResumeMode) -> String {
    if let Some(arguments) = arguments_of(choice, mode) {
        return format!("may be made with {}", one_line(&arguments.to_string(), SHOWN));
    }
    match choice {
        Choice::Approve(value) if mode == ResumeMode::UseDecisionAsToolResult => {
            let result = value.as_ref().map_or_else(|| "\"approved\"".to_owned(), ToString::to_string);
            format!("is answered with {} and not made", one_line(&result, SHOWN))
        }
        Choice::Approve(_) | Choice::Edit(_) => "may be made".to_owned(),
        Choice::Deny(_) => "will not be made".to_owned(),
        Choice::Done(_) => "was done".to_owned(),
        Choice::NotDone => "was not done".to_owned(),
        Choice::Unknown => "is unknown to everybody".to_owned(),
    }
}

/// How much of arguments and results is shown.
const SHOWN: usize = 100;

/// The thread and its calls.
fn which(running: &Running, of: &Calls) -> Result<(ThreadId, Vec<CallId>)> {
    if let Some(prefix) = &of.all {
        let thread = running.resolve(prefix)?;
        let (now, asks) = (SystemClock.now(), running.store.get(&thread)?.manifest.asks);
        let calls: Vec<CallId> = asks.iter().filter(|ask| !ask.is_over(now)).map(|ask| ask.call_id.clone()).collect();
        return match (calls.is_empty(), asks.first()) {
            (false, _) => Ok((thread, calls)),
            (true, Some(ask)) => {
                Err(Failure::of(&selvedge_engine::Error::TooLate { thread, call: ask.call_id.clone() }))
            }
            (true, None) => {
                let message = format!("no call of `{thread}` is pending approval");
                Err(Failure::new(Exit::NotFound, "no_open_call", message).hint("`selvedge inbox` shows what waits"))
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
        _ => Err(Failure::usage("the calls belong to different threads; decide about each thread's by themselves")),
    }
}

/// Who decides: whoever is logged in.
fn who() -> String {
    std::env::var("USER").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "somebody".to_owned())
}
