//! `selvedge inbox`: what waits for somebody, over all threads.

use std::collections::HashSet;
use std::time::Duration;

use selvedge_model::event::ResumeMode;
use selvedge_model::{CallId, ThreadId, Timestamp};
use selvedge_store::Feed;
use selvedge_store_local::Access;

use crate::context::Context;
use crate::error::Result;
use crate::output::{BOLD, DIM, WARN, paint};
use crate::text::{clean, local, local_minute, one_line};
use crate::waiting::{Need, needs};

/// How long to wait for news before looking again, and whether anybody still listens.
const LISTEN: Duration = Duration::from_millis(500);

/// Show what waits for somebody, the newest first
///
/// Calls that need somebody's word (also while the other calls of their thread run), calls of which nobody knows what became, threads that reached a limit or whose process died; each
/// with the command that answers it.
///
/// JSON: one object per need: {"thread_id", "title", "reason", "code", "call_id", "tool", "arguments", "why", "since", "expires_at",
/// "resume_mode", "expired", "commands"}. "arguments" is null if they are long: `selvedge log` has them. "resume_mode" is what becomes of a call once it
/// is allowed: "replay_tool_call" makes it as it was asked for, "pass_decision_to_tool" with what `approve --with` gives, and
/// "use_decision_as_tool_result" does not make it and takes that for its result. "expired" says that the time to decide is over: the
/// thread goes on without the call.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Go on with what comes, until interrupted
    #[arg(short, long)]
    follow: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    // Asked before looking: what comes in between is seen now or looked for again, never missed.
    let mut position = store.position()?;
    let now = needs(&store)?;
    let mut known: HashSet<_> = now.iter().map(key).collect();
    now.iter().try_for_each(|need| show(need, context))?;
    if now.is_empty() {
        context.output.tell("nothing waits for anybody");
    }
    while args.follow && !context.output.is_closed() {
        // A process that dies says nothing: who wants to hear of it looks again now and then.
        store.wait(position, LISTEN)?;
        position = store.position()?;
        let now = needs(&store)?;
        now.iter().rev().filter(|need| !known.contains(&key(need))).try_for_each(|need| show(need, context))?;
        known = now.iter().map(key).collect();
    }
    Ok(())
}

/// What tells one need from another; a thread that waits again waits anew, and a call that has expired is news.
fn key(need: &Need) -> (ThreadId, Option<CallId>, Option<Timestamp>, bool) {
    (need.thread_id.clone(), need.call_id.clone(), need.call_id.is_none().then_some(need.since), need.expired)
}

fn show(need: &Need, context: &Context<'_>) -> Result<()> {
    let output = context.output;
    if output.is_json() {
        return output.record(need);
    }
    let reason = serde_json::to_value(need.reason).unwrap_or_default();
    let what = match (&need.tool, &need.call_id) {
        (Some(tool), _) => format!("{} {}", paint(BOLD, clean(tool)), arguments(need)),
        (None, Some(call)) => format!("call {}", clean(call.as_str())),
        // The code of some is their reason, and is not said twice.
        (None, None) => clean(need.code.as_deref().filter(|code| reason != *code).unwrap_or_default()),
    };
    let reason = paint(WARN, reason.as_str().unwrap_or_default());
    let line = format!("{} {reason} {what}", paint(DIM, local_minute(need.since)));
    output.text(line.trim_end())?;
    let title = need.title.as_deref().map(|title| format!(" {}", clean(title))).unwrap_or_default();
    output.text(format_args!("  {}{title}", need.thread_id))?;
    if let Some(why) = &need.why {
        output.text(format_args!("  {}", clean(why)))?;
    }
    let becomes = match need.resume_mode {
        Some(ResumeMode::UseDecisionAsToolResult) => "if allowed, it is not made: what `--with` gives is its result",
        Some(ResumeMode::PassDecisionToTool) => "if allowed, it is made with what `--with` gives, or else as it is",
        Some(ResumeMode::ReplayToolCall) | None => "",
    };
    if !becomes.is_empty() {
        output.text(format_args!("  {becomes}"))?;
    }
    if let Some(expires_at) = need.expires_at {
        let word = if need.expired { "expired" } else { "until" };
        output.text(format_args!("  {word} {}", local(expires_at)))?;
    }
    need.commands.iter().try_for_each(|command| output.text(format_args!("  {}", paint(DIM, command))))
}

fn arguments(need: &Need) -> String {
    need.arguments.as_ref().map_or_else(
        || format!("(`selvedge log {}` has its arguments)", need.thread_id),
        |arguments| one_line(&arguments.to_string(), 100),
    )
}
