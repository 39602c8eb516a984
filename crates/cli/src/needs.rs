//! Needs: what suspended and stalled threads wait for, and which thread a call belongs to.

use std::cmp::Reverse;
use std::time::Duration;

use selvedge_engine::probed::{Dispatched, dispatched};
use selvedge_log::Trust;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::event::{
    Ask, Decision, DecisionAction, Probed, ProcessFate, ReconcileAnswer, ResumeMode, SuspendReason, Suspended,
};
use selvedge_model::message::Block;
use selvedge_model::{CallId, Clock, Event, Manifest, Request, Status, ThreadId, Timestamp};
use selvedge_store::load::each_changeset;
use selvedge_store::{Filter, Registry, Store, Summary};
use selvedge_store_local::system::SystemClock;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Exit, Failure, Result};
use crate::hints;
use crate::text::{clean, local, one_line};

/// How many threads are read at a time.
const PAGE: usize = 500;

/// One decision or action that a thread waits for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Need {
    pub(crate) thread_id: ThreadId,
    pub(crate) title: Option<String>,
    /// Why the thread is suspended.
    pub(crate) reason: SuspendReason,
    pub(crate) code: Option<String>,
    /// The call it is about.
    pub(crate) call_id: Option<CallId>,
    pub(crate) tool: Option<String>,
    /// The arguments of the call; absent if they are too long for the approval request.
    pub(crate) arguments: Option<Value>,
    /// Why approval is needed.
    pub(crate) why: Option<String>,
    /// When approval was requested, or the thread was suspended.
    pub(crate) since: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    /// What an approval does.
    pub(crate) resume_mode: Option<ResumeMode>,
    /// Whether the approval request has expired.
    pub(crate) expired: bool,
    /// When the call was dispatched, if its outcome is unknown.
    pub(crate) dispatched_at: Option<Timestamp>,
    /// What recovery found, if the outcome is unknown and a later process probed it.
    pub(crate) probed: Option<Probed>,
    /// A decision that is queued and not yet applied by the process that holds the thread.
    pub(crate) answered: Option<DecisionAction>,
    /// The commands that resolve it.
    pub(crate) commands: Vec<String>,
}

/// How long a child or a successor may take to start.
const TO_BEGIN: Duration = Duration::from_secs(10);

/// The needs of all threads, newest first.
pub(crate) fn needs(store: &dyn Store) -> Result<Vec<Need>> {
    let now = SystemClock.now();
    let waiting = of_status(store, Status::Suspended)?;
    let running: Vec<Summary> = of_status(store, Status::Running)?.into_iter().chain(late(store)?).collect();
    for thread in waiting.iter().chain(&running) {
        refuse_older(store, thread)?;
    }
    let mut needs: Vec<Need> = waiting.iter().flat_map(|thread| needs_of(store, &thread.manifest, now)).collect();
    for thread in running {
        // Its other calls are running.
        let open = thread.manifest.asks.iter().filter(|ask| !ask.is_over(now));
        needs.extend(open.map(|ask| asked(store, &thread.manifest, ask, now)));
        needs.extend(lost(&thread));
    }
    // Calls of one request stay in their order.
    needs.sort_by_key(|need| Reverse(need.since));
    Ok(needs)
}

/// Refuses a thread whose row is older than its log: a person would decide about what it waited for before.
fn refuse_older(store: &dyn Store, thread: &Summary) -> Result<()> {
    match store.get(&thread.manifest.thread_id) {
        Err(error) if error.kind() == Kind::Integrity => Err(error.into()),
        _ => Ok(()),
    }
}

fn of_status(store: &(impl Registry + ?Sized), status: Status) -> Result<Vec<Summary>> {
    let waiting = Filter { status: Some(status), ..Filter::default() };
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(&waiting, cursor, PAGE)?;
        found.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}

/// The first need of a thread.
pub(crate) fn need_of(store: &dyn Store, thread: &Summary) -> Option<Need> {
    match thread.manifest.status {
        Status::Suspended => needs_of(store, &thread.manifest, SystemClock.now()).into_iter().next(),
        Status::Running => lost(thread),
        Status::Created if is_late(thread) => lost(thread),
        _ => None,
    }
}

/// The calls of a thread whose outcome is unknown, with what a person needs to resolve them.
pub(crate) fn unknown_calls(store: &dyn Store, trust: &Trust, thread: &Summary) -> Vec<Need> {
    if thread.manifest.status != Status::Suspended {
        return Vec::new();
    }
    let mut needs = needs_of(store, &thread.manifest, SystemClock.now());
    needs.retain(Need::is_unknown_call);
    for need in &mut needs {
        need.read_call(store, trust);
    }
    needs
}

/// How many characters of arguments are shown in overviews.
const ARGUMENTS_SHOWN: usize = 80;

impl Need {
    /// Whether it is about a call whose outcome is unknown.
    pub(crate) fn is_unknown_call(&self) -> bool {
        self.call_id.is_some() && self.resume_mode.is_none()
    }

    /// Reads from the log what the manifest does not have: the arguments of the call, and for a dispatched call its tool and time. A log
    /// that can't be read does not hide the need.
    pub(crate) fn read_call(&mut self, store: &dyn Store, trust: &Trust) {
        let Some(call) = &self.call_id else { return };
        if self.is_unknown_call() {
            if let Ok(Some(Dispatched { tool, arguments, at })) = dispatched(store, trust, &self.thread_id, call) {
                (self.tool, self.arguments, self.dispatched_at) = (Some(tool), Some(arguments), Some(at));
            }
        } else if self.arguments.is_none() {
            self.arguments = arguments_of(store, trust, &self.thread_id, call).ok().flatten();
        }
    }

    /// What is known of a call whose outcome is unknown, on one line: when it was dispatched, and what recovery found.
    pub(crate) fn found_out(&self) -> String {
        let when = self.dispatched_at.map(|at| format!("dispatched {}", local(at)));
        let process = self.probed.as_ref().map(|probed| match probed.process {
            Some(ProcessFate::Ended) => "its process was still alive, and recovery killed it",
            Some(ProcessFate::Gone) => "its process had died when recovery checked",
            Some(ProcessFate::Alive) => "its process could not be killed and may still be alive",
            None => "no process is recorded for it",
        });
        let asked = match &self.probed {
            Some(Probed { reconciled: Some(ReconcileAnswer::Unknown), .. }) => "its tool could not report the outcome",
            Some(Probed { no_reconcile: true, .. }) => "its tool has no reconcile command, so it could not be asked",
            Some(Probed { process: Some(ProcessFate::Alive), .. }) => "its tool was not asked",
            Some(_) => "its tool has not been asked yet: `selvedge resume` asks it",
            None => "its own run recorded the unknown outcome: the tool failed after it was dispatched",
        };
        when.into_iter().chain(process.map(str::to_owned)).chain([asked.to_owned()]).collect::<Vec<_>>().join("; ")
    }

    /// The commands as shown to people: with the optional result after `--done`.
    pub(crate) fn shown_commands(&self) -> impl Iterator<Item = String> {
        let is_unknown = self.is_unknown_call();
        self.commands.iter().map(move |command| {
            if is_unknown { command.replace(" --done", " --done [RESULT]") } else { command.clone() }
        })
    }

    /// A call whose outcome is unknown, line by line: what was called, what is known, and the ways to resolve it.
    pub(crate) fn unknown_call(&self) -> Vec<String> {
        let call = self.call_id.as_ref().map(|call| clean(call.as_str())).unwrap_or_default();
        let what = match (&self.tool, &self.arguments) {
            (Some(tool), Some(arguments)) => {
                format!("{} {}", clean(tool), one_line(&arguments.to_string(), ARGUMENTS_SHOWN))
            }
            _ => format!("its log can't be read; `selvedge verify {}` shows why", self.thread_id),
        };
        let mut lines = vec![format!("unknown outcome of call {call}: {what}"), format!("  {}", self.found_out())];
        lines.extend(self.shown_commands().map(|command| format!("  {command}")));
        lines
    }

    /// A call whose outcome is unknown, as JSON.
    pub(crate) fn unknown_call_json(&self) -> Value {
        let Self { thread_id, call_id, tool, arguments, dispatched_at, probed, commands, .. } = self;
        json!({
            "thread_id": thread_id,
            "call_id": call_id,
            "tool": tool,
            "arguments": arguments,
            "dispatched_at": dispatched_at,
            "probed": probed,
            "commands": commands,
        })
    }

    /// Why a thread that money is reserved for is not running, and the commands that help.
    pub(crate) fn sentence(&self) -> String {
        let reason = serde_json::to_value(self.reason).unwrap_or_default();
        let why = clean(self.code.as_deref().or(reason.as_str()).unwrap_or_default());
        let thread = &self.thread_id;
        if self.is_unknown_call() {
            return format!(
                "suspended ({why}): resolve the call as shown below, or `selvedge cancel {thread}` ends it and frees its money"
            );
        }
        let go_on = self.commands.first().map_or_else(String::new, |command| format!("`{command}` continues it, "));
        format!("suspended ({why}): {go_on}`selvedge cancel {thread}` ends it and frees its money")
    }
}

/// Children and successors that should have started long ago.
fn late(store: &dyn Store) -> Result<Vec<Summary>> {
    Ok(of_status(store, Status::Created)?.into_iter().filter(is_late).collect())
}

fn is_late(thread: &Summary) -> bool {
    let thread = &thread.manifest;
    let since = SystemClock.now().as_micros().saturating_sub(TO_BEGIN.as_micros() as i64);
    let is_awaited = thread.parent_id.is_some() || thread.continuation_of.is_some();
    is_awaited && thread.created_at.as_micros() < since
}

/// The need of a thread that should run, if no live process runs it.
fn lost(thread: &Summary) -> Option<Need> {
    let manifest = &thread.manifest;
    let why = match manifest.status {
        Status::Created if thread.holder.is_none() => "no process has started it",
        Status::Running if thread.is_stalled() => "the process that ran it died",
        _ => return None,
    };
    let commands = vec![format!("selvedge resume {}", manifest.thread_id)];
    let need = need(manifest, SuspendReason::Error, Some("process_lost".to_owned()), commands);
    Some(Need { why: Some(why.to_owned()), ..need })
}

/// A need without details.
fn need(thread: &Manifest, reason: SuspendReason, code: Option<String>, commands: Vec<String>) -> Need {
    Need {
        thread_id: thread.thread_id.clone(),
        title: thread.title.clone(),
        reason,
        code,
        call_id: None,
        tool: None,
        arguments: None,
        why: None,
        since: thread.updated_at,
        expires_at: None,
        resume_mode: None,
        expired: false,
        dispatched_at: None,
        probed: None,
        answered: None,
        commands,
    }
}

/// When a thread was suspended: at the end of its last run. A later decision about one of its calls does not change that.
fn waits_since(store: &dyn Store, thread: &Manifest) -> Timestamp {
    let last = store.runs(&thread.thread_id).ok().and_then(|mut runs| runs.pop());
    last.map_or(thread.updated_at, |run| run.updated_at)
}

/// A queued decision about a call that the process holding the thread has not recorded yet.
fn left(store: &dyn Store, thread: &ThreadId, fits: impl Fn(&Decision) -> bool) -> Option<DecisionAction> {
    // Shown only: the process that records it, and has the key, checks its seal.
    let waiting = store.pending(thread).unwrap_or_default();
    let mut decisions = waiting.into_iter().filter_map(|waiting| match waiting.posted.request {
        Request::Decide(decision) | Request::Settle(decision) => Some(decision),
        _ => None,
    });
    decisions.find(fits).map(|decision| decision.action)
}

/// The need of a call that is pending approval.
fn asked(store: &dyn Store, thread: &Manifest, ask: &Ask, now: Timestamp) -> Need {
    let Ask { call_id, tool, arguments, expires_at, resume_mode, .. } = ask.clone();
    let id = &thread.thread_id;
    let expired = ask.is_over(now);
    let is_about = |left: &Decision| left.call_id == call_id && left.action_hash == Some(ask.action_hash);
    let answered = left(store, id, is_about).filter(|_| !expired);
    let commands = match (expired, &answered) {
        // The request has expired: the thread continues without the call.
        (true, _) => vec![format!("selvedge resume {id}")],
        (false, Some(_)) => after(store, id),
        (false, None) => ["approve", "deny"].map(|word| hints::about(word, &call_id, id, "")).into(),
    };
    let code = thread.suspended.as_ref().map_or_else(|| Some("approval".to_owned()), |why| why.code.clone());
    Need {
        since: ask.asked_at.unwrap_or_else(|| waits_since(store, thread)),
        call_id: Some(call_id),
        tool: Some(tool),
        arguments,
        why: why_asked(ask),
        expires_at,
        resume_mode: Some(resume_mode),
        expired,
        answered,
        ..need(thread, SuspendReason::Approval, code, commands)
    }
}

/// The commands for a call whose decision is queued: none if a process holds its thread and will apply it.
fn after(store: &dyn Store, thread: &ThreadId) -> Vec<String> {
    match store.get(thread) {
        Ok(found) if found.holder.is_some() => Vec::new(),
        _ => vec![format!("selvedge resume {thread}")],
    }
}

fn needs_of(store: &dyn Store, thread: &Manifest, now: Timestamp) -> Vec<Need> {
    let id = &thread.thread_id;
    let Some(why) = &thread.suspended else { return Vec::new() };
    let since = waits_since(store, thread);
    let of = |why: &Suspended, commands| Need { since, ..need(thread, why.reason, why.code.clone(), commands) };
    let asks = thread.asks.iter().map(|ask| asked(store, thread, ask, now));
    let is_asked = |call: &&CallId| thread.asks.iter().any(|ask| ask.call_id == **call);
    let unknown = why.calls.iter().filter(|call| !is_asked(call)).map(|call| {
        let answered = left(store, id, |left| left.call_id == *call && !left.is_word());
        let verdicts = || hints::VERDICTS.map(|flag| hints::about("settle", call, id, flag));
        let probed = why.probed.iter().find(|probed| probed.call_id == *call).cloned();
        // A tool that was not asked yet may know the outcome.
        let is_unasked = |probed: &&Probed| probed.reconciled.is_none() && !probed.no_reconcile;
        let ask = probed.as_ref().filter(is_unasked).map(|_| format!("selvedge resume {id}"));
        let commands = match answered {
            Some(_) => after(store, id),
            None => ask.into_iter().chain(verdicts()).collect(),
        };
        Need { call_id: Some(call.clone()), answered, probed, ..of(why, commands) }
    });
    let mut needs: Vec<Need> = asks.chain(unknown).collect();
    // Pending approvals are not the reason if the suspension names no call.
    if why.calls.is_empty() {
        let commands = match (hints::money(store, id, why), why.reason, limit_of(why)) {
            (Some(in_order), ..) => in_order.into(),
            (None, SuspendReason::Limit | SuspendReason::Budget, Some(limit)) => {
                vec![format!("selvedge resume {id} --raise {limit}=…")]
            }
            _ => vec![format!("selvedge resume {id}")],
        };
        needs.push(Need { why: values(why), ..of(why, commands) });
    }
    needs
}

/// The limit that a thread has reached, by its name for `--raise`.
pub(crate) fn limit_of(why: &Suspended) -> Option<&str> {
    why.code.as_deref()?.strip_suffix("_exceeded")
}

/// How much of a limit is used, in its unit.
pub(crate) fn values(why: &Suspended) -> Option<String> {
    let current = why.current.as_ref()?;
    let maximum = why.maximum.as_ref()?;
    Some(match limit_of(why) {
        Some("spend") => format!("${} of ${}", dollars(current), dollars(maximum)),
        Some("duration") => format!("{current} of {maximum} s"),
        _ => format!("{current} of {maximum}"),
    })
}

/// An amount of money in decimal.
fn dollars(amount: &serde_json::Value) -> String {
    selvedge_model::money::decimal::deserialize(amount).map_or_else(|_| amount.to_string(), |money| money.to_string())
}

/// The one thread in which a call waits for a decision.
pub(crate) fn thread_of(store: &dyn Registry, call: &CallId) -> Result<ThreadId> {
    let waits = |thread: &Summary| {
        let thread = &thread.manifest;
        let is_asked = thread.asks.iter().any(|ask| ask.call_id == *call);
        is_asked || thread.suspended.as_ref().is_some_and(|why| why.calls.contains(call))
    };
    let threads = of_status(store, Status::Suspended)?.into_iter().chain(of_status(store, Status::Running)?);
    let found: Vec<ThreadId> = threads.filter(waits).map(|thread| thread.manifest.thread_id).collect();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => {
            let message = format!("no thread waits for a decision about call `{call}`");
            let failure = Failure::new(Exit::NotFound, "call_not_open", message);
            Err(failure
                .hint("`selvedge inbox` lists pending decisions; name the thread of a decided call with `--thread`"))
        }
        several => {
            let names: Vec<String> = several.iter().take(5).map(ToString::to_string).collect();
            let message = format!("call `{call}` waits in more than one thread: {}", names.join(", "));
            let failure = Failure::new(Exit::NotFound, "ambiguous", message).detail("candidates", names);
            Err(failure.hint("name the thread with `--thread`"))
        }
    }
}

/// The arguments of a call, from its thread's log.
pub(crate) fn arguments_of(
    store: &dyn Store,
    trust: &Trust,
    thread: &ThreadId,
    call: &CallId,
) -> Result<Option<Value>> {
    let mut found = None;
    each_changeset(store, thread, trust, |entry| {
        for line in entry.lines {
            let Event::Message(message) = line.event else { continue };
            for block in message.content {
                match block {
                    // A model may reuse the id of a call: the last one is open.
                    Block::ToolCall { id, arguments, .. } if id == *call => found = Some(arguments),
                    _ => {}
                }
            }
        }
    })?;
    Ok(found)
}

/// Why approval of a call is needed.
pub(crate) fn why_asked(ask: &Ask) -> Option<String> {
    let changed = ask.redefined.then(|| format!("the tool `{}` changed after approval was requested", ask.tool));
    match (changed, &ask.why) {
        (Some(changed), Some(why)) => Some(format!("{changed}; {why}")),
        (changed, why) => changed.or_else(|| why.clone()),
    }
}
