//! Calls that need an approval, asked about in place.
//!
//! - The action is shown whole: a person decides about what is on the screen.
//! - What was typed before the question is no answer to it.
//! - The decision is bound to the action that was shown: if another one took its place meanwhile, nothing is decided.

use selvedge::needs::{arguments_of, why_asked};
use selvedge::{Choice, Outcome, RunConfig};
use selvedge_model::event::{Ask, ResumeMode};
use selvedge_model::{Clock, Status, ThreadId};
use selvedge_store_local::system::SystemClock;
use serde_json::{Value, json};

use super::interrupts::Interrupts;
use super::lines::{Lines, Typed};
use crate::commands::decide;
use crate::context::Context;
use crate::error::Result;
use crate::hints;
use crate::output::{BOLD, DIM, WARN, paint};
use crate::running::Running;
use crate::text::{clean, clean_json, count};

/// The most bytes of arguments that are shown; longer ones are not decided about here.
const SHOWN_BYTES_MAX: usize = 32 << 10;
/// How many characters of arguments stand on the line of their tool.
const BESIDE: usize = 60;

/// What came of asking.
pub(super) enum AskResult {
    /// Everything is decided, or has expired.
    Decided,
    /// Something is not.
    Undecided,
    /// The person leaves.
    Left,
}

/// What a line says about a call.
#[derive(Debug, PartialEq, Eq)]
enum ApprovalReply {
    Yes,
    No(Option<String>),
    Unclear,
}

/// Whether a thread waits for approvals.
pub(super) fn is_pending(outcome: &Outcome) -> bool {
    let now = SystemClock.now();
    outcome.status.status() == Some(Status::Suspended) && outcome.asks.iter().any(|ask| !ask.is_over(now))
}

/// Asks about each call that needs an approval, and records what is decided.
pub(super) fn ask(
    running: &Running,
    context: &Context<'_>,
    interrupts: &Interrupts,
    lines: &mut Lines,
    thread: &ThreadId,
    asks: &[Ask],
    work: &RunConfig,
) -> Result<AskResult> {
    for ask in asks {
        let Some(arguments) = shown(running, context, thread, ask)? else { return Ok(AskResult::Undecided) };
        lines.forget_typed_ahead();
        let choice = loop {
            match lines.line(&question(), interrupts)? {
                Typed::Text(line) => match answer(&line) {
                    ApprovalReply::Yes => break Choice::Approve(None),
                    ApprovalReply::No(reason) => break Choice::Deny(reason),
                    ApprovalReply::Unclear if lines.is_terminal() => context.output.tell("Please answer y or n."),
                    ApprovalReply::Unclear => return Ok(AskResult::Undecided),
                },
                Typed::End if lines.is_terminal() => return Ok(AskResult::Left),
                Typed::End => return Ok(AskResult::Undecided),
                Typed::Interrupted => {
                    context
                        .output
                        .tell("\nNot decided. /resume asks again; a message instead means that the call is not made.");
                    return Ok(AskResult::Undecided);
                }
            }
        };
        if !is_still_asked(running, thread, ask, &arguments)? {
            context.output.say("that call is not the one that was shown any more: nothing was decided");
            return Ok(AskResult::Undecided);
        }
        let decided = decide::decide_one(running, thread, &ask.call_id, &choice, work)?;
        if context.output.is_json() {
            decide::tell(context, thread, &ask.call_id, &choice, &decided)?;
        }
    }
    Ok(AskResult::Decided)
}

fn question() -> String {
    format!("{} ", paint(WARN, "approve? y, n, or n and a reason ›"))
}

/// Shows an action; gives its arguments, or nothing if it can't be shown whole.
fn shown(running: &Running, context: &Context<'_>, thread: &ThreadId, ask: &Ask) -> Result<Option<Value>> {
    let arguments = match &ask.arguments {
        Some(arguments) => Some(arguments.clone()),
        None => arguments_of(&*running.store, running.engine.trust(), thread, &ask.call_id)?,
    };
    let Some(arguments) = arguments else { return Ok(None) };
    let output = context.output;
    let why = why_asked(ask);
    if output.is_json() {
        output.record(&json!({
            "type": "asking", "thread_id": thread, "call_id": ask.call_id, "tool": ask.tool,
            "arguments": arguments, "why": why,
        }))?;
        return Ok(Some(arguments));
    }
    let tool = paint(BOLD, clean(&ask.tool));
    let line = clean_json(&arguments.to_string());
    if line.chars().count() <= BESIDE {
        output.text(format_args!("{} {tool} {line} needs approval", paint(WARN, "?")))?;
    } else {
        let text = clean_json(&serde_json::to_string_pretty(&arguments).unwrap_or_default());
        if text.len() > SHOWN_BYTES_MAX {
            let bytes = count(text.len() as u64, "byte");
            output
                .tell(format!("{tool} with {bytes} of arguments needs approval, which is too long to be shown here."));
            let approve = hints::about("approve", &ask.call_id, thread, "");
            output.tell(format!("`selvedge inbox {thread}` shows it, `{approve}` allows it; then /resume continues."));
            return Ok(None);
        }
        output.text(format_args!("{} {tool} needs approval", paint(WARN, "?")))?;
        for line in text.lines() {
            output.text(format_args!("  {line}"))?;
        }
    }
    let becomes = match ask.resume_mode {
        ResumeMode::ReplayToolCall => None,
        ResumeMode::PassDecisionToTool => Some("`selvedge approve --with VALUE` makes it with other arguments"),
        ResumeMode::UseDecisionAsToolResult => {
            Some("if approved, it is not made: its result is \"approved\", or VALUE of `selvedge approve --with VALUE`")
        }
    };
    for note in why.as_deref().map(clean).into_iter().chain(becomes.map(str::to_owned)) {
        output.text(format_args!("  {}", paint(DIM, note)))?;
    }
    Ok(Some(arguments))
}

/// Whether the action that was shown is the one that is asked about now.
fn is_still_asked(running: &Running, thread: &ThreadId, shown: &Ask, arguments: &Value) -> Result<bool> {
    let now = running.store.get(thread)?.manifest.asks;
    let Some(same) = now.into_iter().find(|ask| ask.call_id == shown.call_id) else {
        // It was decided elsewhere; the engine says so.
        return Ok(true);
    };
    let is_same_action = same.action_hash == shown.action_hash && same.resume_mode == shown.resume_mode;
    Ok(is_same_action && same.arguments.is_none_or(|same| same == *arguments))
}

fn answer(line: &str) -> ApprovalReply {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let reason = Some(rest.trim().to_owned()).filter(|reason| !reason.is_empty());
    match (word.trim_end_matches([',', ':', '.']).to_lowercase().as_str(), reason) {
        ("y" | "yes", None) => ApprovalReply::Yes,
        ("n" | "no", reason) => ApprovalReply::No(reason),
        _ => ApprovalReply::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_yes_approves() {
        for line in ["y", "yes", " Y ", "YES."] {
            assert_eq!(answer(line), ApprovalReply::Yes, "{line}");
        }
        assert_eq!(answer("n"), ApprovalReply::No(None));
        assert_eq!(answer("no, too much"), ApprovalReply::No(Some("too much".to_owned())));
        for line in ["", "yeah", "yes but only 10", "maybe", "hello there", "ny"] {
            assert_eq!(answer(line), ApprovalReply::Unclear, "{line}");
        }
    }
}
