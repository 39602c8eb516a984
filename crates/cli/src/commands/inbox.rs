//! `selvedge inbox`: the needs of all threads.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use selvedge::needs::{Need, needs};
use selvedge_log::Trust;
use selvedge_model::event::{ResumeMode, SuspendReason};
use selvedge_model::{CallId, ThreadId, Timestamp};
use selvedge_store::Backend;
use selvedge_store_local::Access;

use crate::context::{Context, User};
use crate::error::Result;
use crate::needs::Shown as _;
use crate::output::{BOLD, DIM, Output, WARN, paint};
use crate::text::{clean, count, local, local_minute};

/// How long to wait for a commit before checking the needs, and stdout, again.
const POLL: Duration = Duration::from_millis(500);
/// How long the process with the last decision may take to resume the thread.
const TO_RESUME: Duration = Duration::from_secs(3);

/// List everything that needs a decision, newest first
///
/// Lists calls that need approval (also while other calls of their thread run), calls whose outcome is unknown, and threads that
/// reached a limit or whose process died; each with the commands that resolve it. For a call whose outcome is unknown it shows what
/// was called, when it was dispatched, what recovery found (whether its process was killed, had died or may be alive; what its tool
/// reported), and the three ways to resolve it. A call whose decision is queued, and not yet applied by its thread, is shown as
/// answered. Arguments of up to a few pages are shown whole; with THREAD, of any length.
///
/// JSON: one object per need: {"thread_id", "title", "reason", "code", "call_id", "tool", "arguments", "why", "since", "expires_at",
/// "action_hash" (what an approval is bound to, or null), "resume_mode", "expired", "dispatched_at", "probed", "answered", "commands"}. "arguments" are always whole, and null if the need
/// is not about a call or the log can't be read. "since" is when approval was requested, or when the thread was suspended. "answered"
/// is a queued decision ("approve", "edit", "deny", "done", "not_done", "unknown"), or null. "resume_mode" is what an approval does,
/// and null for a call whose outcome is unknown: "replay_tool_call" makes the call as it is, "pass_decision_to_tool" makes it with
/// the value of `approve --with`, and "use_decision_as_tool_result" uses that value as the result without making the call. "expired"
/// means that the approval request has expired: when resumed, the thread continues without the call. "dispatched_at" and "probed" belong to
/// a call whose outcome is unknown; "probed" is null if the run itself recorded that the outcome is unknown, else what recovery found: {"call_id", "process": "ended", "gone" or
/// "alive" (absent if none is recorded), "reconciled": "unknown" (absent if its tool was not asked), "no_reconcile": true (if it has no reconcile
/// command)}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only needs of this thread: any unique prefix of its id or of its hex suffix
    thread: Option<String>,
    /// Keep showing new needs until interrupted
    #[arg(short, long)]
    follow: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = args.thread.as_ref().map(|prefix| store.resolve(prefix)).transpose()?;
    let screen =
        InboxScreen { store: &*store, trust: User::find()?.trust()?, output: context.output, whole: thread.is_some() };
    let is_meant = |need: &Need| thread.as_ref().is_none_or(|thread| need.thread_id == *thread);
    let look = || -> Result<Vec<Need>> { Ok(needs(&*store)?.into_iter().filter(is_meant).collect()) };
    // Read before the needs: a commit in between is seen now or in the next round, never missed.
    let mut position = store.position()?;
    let now = look()?;
    let mut known: HashSet<_> = now.iter().map(key).collect();
    let mut answered = HashMap::new();
    if now.is_empty() {
        context.output.tell("no pending decisions");
    }
    for need in now {
        screen.show(need)?;
    }
    while args.follow && !context.output.is_closed() {
        // A dying process commits nothing: it is only noticed by polling.
        store.wait(position, POLL)?;
        position = store.position()?;
        let now = look()?;
        // After the last decision its process resumes the thread; only threads that stay suspended are shown.
        let since = |key| {
            let since = answered.get(&key).copied().unwrap_or_else(Instant::now);
            (key, since)
        };
        let still: HashMap<_, Instant> = now.iter().filter(|need| is_answered(need)).map(key).map(since).collect();
        let waits = |need: &Need| still.get(&key(need)).is_none_or(|since| since.elapsed() >= TO_RESUME);
        let keys = now.iter().filter(|need| known.contains(&key(need)) || waits(need)).map(key).collect();
        let mut news: Vec<Need> = now.into_iter().filter(|need| !known.contains(&key(need)) && waits(need)).collect();
        // Oldest first; calls of one request stay in their order.
        news.sort_by_key(|need| need.since);
        for need in news {
            screen.show(need)?;
        }
        (known, answered) = (keys, still);
    }
    Ok(())
}

/// Whether all calls of a thread are decided, and it only has to be resumed.
fn is_answered(need: &Need) -> bool {
    need.reason == SuspendReason::Approval && need.call_id.is_none()
}

/// The identity of a need: a thread that is suspended again, a call that is requested again, and one that has expired are new needs.
fn key(need: &Need) -> (ThreadId, Option<CallId>, Timestamp, bool) {
    (need.thread_id.clone(), need.call_id.clone(), need.since, need.expired)
}

/// Shows needs.
struct InboxScreen<'a> {
    store: &'a dyn Backend,
    trust: Trust,
    output: &'a Output,
    /// Whether arguments are shown whatever their length.
    whole: bool,
}

impl InboxScreen<'_> {
    fn show(&self, mut need: Need) -> Result<()> {
        need.read_call(self.store, &self.trust);
        if self.output.is_json() { self.output.record(&need) } else { self.text(&need) }
    }

    fn text(&self, need: &Need) -> Result<()> {
        let output = self.output;
        let reason = serde_json::to_value(need.reason).unwrap_or_default();
        let arguments = need.tool.as_ref().map(|_| arguments(need, self.whole)).unwrap_or_default();
        let what = match (&need.tool, &need.call_id) {
            (Some(tool), call) => {
                // Several calls of one tool can only be told apart by their ids.
                let call = call.as_ref().filter(|_| need.is_unknown_call());
                let call = call.map(|call| format!(" ({})", clean(call.as_str()))).unwrap_or_default();
                match arguments.as_slice() {
                    [one] => format!("{}{call} {one}", paint(BOLD, clean(tool))),
                    _ => format!("{}{call}", paint(BOLD, clean(tool))),
                }
            }
            (None, Some(call)) => format!("call {}", clean(call.as_str())),
            // A code that equals the reason is redundant.
            (None, None) => clean(need.code.as_deref().filter(|code| reason != *code).unwrap_or_default()),
        };
        let reason = paint(WARN, reason.as_str().unwrap_or_default());
        let line = format!("{} {reason} {what}", paint(DIM, local_minute(need.since)));
        output.text(line.trim_end())?;
        if arguments.len() > 1 {
            for line in &arguments {
                output.text(format_args!("    {line}"))?;
            }
        }
        let title = need.title.as_deref().map(|title| format!(" {}", clean(title))).unwrap_or_default();
        output.text(format_args!("  {}{title}", need.thread_id))?;
        for detail in details(need) {
            output.text(format_args!("  {detail}"))?;
        }
        need.shown_commands().try_for_each(|command| output.text(format_args!("  {}", paint(DIM, command))))
    }
}

/// The details of a need, line by line.
fn details(need: &Need) -> Vec<String> {
    let becomes = match need.resume_mode {
        Some(ResumeMode::UseDecisionAsToolResult) => {
            Some("if approved, the call is not made: the value of `--with` is its result".to_owned())
        }
        Some(ResumeMode::PassDecisionToTool) => {
            Some("if approved, the call is made with the value of `--with`, or as it is".to_owned())
        }
        Some(ResumeMode::ReplayToolCall) | None => None,
    };
    let time = need.expires_at.map(|expires_at| {
        let word = if need.expired { "expired" } else { "expires" };
        format!("{word} {}", local(expires_at))
    });
    let answered = need.answered.map(|action| {
        let by =
            if need.commands.is_empty() { "the process running the thread will apply it" } else { "not applied yet" };
        format!("answered ({}): {by}", action.as_str())
    });
    let found_out = need.is_unknown_call().then(|| need.found_out());
    [need.why.as_deref().map(clean), found_out, becomes, time, answered].into_iter().flatten().collect()
}

/// How many characters of arguments fit after the name of their tool, and how many bytes of them are shown below it.
const INLINE: usize = 100;
const SHOWN_BYTES: usize = 8 << 10;

/// The arguments of a call, line by line. A person decides by them, so they are whole, or the command that shows the rest is named.
fn arguments(need: &Need, whole: bool) -> Vec<String> {
    let thread = &need.thread_id;
    let Some(arguments) = &need.arguments else {
        return vec![format!("(its arguments can't be read: `selvedge verify {thread}` shows why)")];
    };
    let line = clean(&arguments.to_string());
    if line.chars().count() <= INLINE {
        return vec![line];
    }
    let text = clean(&serde_json::to_string_pretty(arguments).unwrap_or_default());
    if whole || text.len() <= SHOWN_BYTES {
        return text.lines().map(str::to_owned).collect();
    }
    let cut = &text[..text.floor_char_boundary(SHOWN_BYTES)];
    let rest = count((text.len() - cut.len()) as u64, "byte");
    let more = format!("… and {rest} more: `selvedge inbox {thread}` shows all of it");
    cut.lines().map(str::to_owned).chain([more]).collect()
}
