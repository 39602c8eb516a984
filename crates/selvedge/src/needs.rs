//! Needs: what suspended and stalled threads wait for, and the commands that resolve it.
//!
//! Everything here only reads. It is what `selvedge inbox`, the server and its page show.

use std::cmp::Reverse;
use std::time::Duration;

use selvedge_engine::ledger::short_above;
use selvedge_engine::probed::{Dispatched, dispatched};
use selvedge_log::Trust;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::event::{Ask, Decision, DecisionAction, Probed, ResumeMode, SuspendReason, Suspended};
use selvedge_model::message::Block;
use selvedge_model::{CallId, Clock, Digest, Event, Manifest, Request, Status, ThreadId, Timestamp, shell};
use selvedge_store::load::each_changeset;
use selvedge_store::{Filter, Registry, Result, Store, Summary};
use selvedge_store_local::system::SystemClock;
use serde::Serialize;
use serde_json::Value;

/// How many threads are read at a time.
const PAGE: usize = 500;

/// The ways to resolve a call whose outcome is unknown.
pub const VERDICTS: [&str; 3] = [" --done", " --not-done", " --unknown"];

/// One decision or action that a thread waits for.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Need {
    /// The thread.
    pub thread_id: ThreadId,
    /// Its title.
    pub title: Option<String>,
    /// Why the thread is suspended.
    pub reason: SuspendReason,
    /// The same as a code.
    pub code: Option<String>,
    /// The call it is about.
    pub call_id: Option<CallId>,
    /// Its tool.
    pub tool: Option<String>,
    /// The arguments of the call; absent if they are too long for the approval request.
    pub arguments: Option<Value>,
    /// Why approval is needed.
    pub why: Option<String>,
    /// When approval was requested, or the thread was suspended.
    pub since: Timestamp,
    /// When the approval request expires.
    pub expires_at: Option<Timestamp>,
    /// The hash of tool, arguments and call that a decision is bound to.
    pub action_hash: Option<Digest>,
    /// What an approval does.
    pub resume_mode: Option<ResumeMode>,
    /// Whether the approval request has expired.
    pub expired: bool,
    /// When the call was dispatched, if its outcome is unknown.
    pub dispatched_at: Option<Timestamp>,
    /// What recovery found, if the outcome is unknown and a later process probed it.
    pub probed: Option<Probed>,
    /// A decision that is queued and not yet applied by the process that holds the thread.
    pub answered: Option<DecisionAction>,
    /// The commands that resolve it.
    pub commands: Vec<String>,
}

/// How long a child or a successor may take to start.
const TO_BEGIN: Duration = Duration::from_secs(10);

/// The needs of all threads, newest first.
pub fn needs(store: &dyn Store) -> Result<Vec<Need>> {
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
        Err(error) if error.kind() == Kind::Integrity => Err(error),
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
pub fn need_of(store: &dyn Store, thread: &Summary) -> Option<Need> {
    match thread.manifest.status {
        Status::Suspended => needs_of(store, &thread.manifest, SystemClock.now()).into_iter().next(),
        Status::Running => lost(thread),
        Status::Created if is_late(thread) => lost(thread),
        _ => None,
    }
}

/// The calls of a thread whose outcome is unknown, with what a person needs to resolve them.
pub fn unknown_calls(store: &dyn Store, trust: &Trust, thread: &Summary) -> Vec<Need> {
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

impl Need {
    /// Whether it is about a call whose outcome is unknown.
    pub fn is_unknown_call(&self) -> bool {
        self.call_id.is_some() && self.resume_mode.is_none()
    }

    /// Reads from the log what the manifest does not have: the arguments of the call, and for a dispatched call its tool and time. A log
    /// that can't be read does not hide the need.
    pub fn read_call(&mut self, store: &dyn Store, trust: &Trust) {
        let Some(call) = &self.call_id else { return };
        if self.is_unknown_call() {
            if let Ok(Some(Dispatched { tool, arguments, at })) = dispatched(store, trust, &self.thread_id, call) {
                (self.tool, self.arguments, self.dispatched_at) = (Some(tool), Some(arguments), Some(at));
            }
        } else if self.arguments.is_none() {
            self.arguments = arguments_of(store, trust, &self.thread_id, call).ok().flatten();
        }
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
        action_hash: None,
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
        (false, None) => ["approve", "deny"].map(|word| about(word, &call_id, id, "")).into(),
    };
    let code = thread.suspended.as_ref().map_or_else(|| Some("approval".to_owned()), |why| why.code.clone());
    Need {
        since: ask.asked_at.unwrap_or_else(|| waits_since(store, thread)),
        call_id: Some(call_id),
        tool: Some(tool),
        arguments,
        why: why_asked(ask),
        expires_at,
        action_hash: Some(ask.action_hash),
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
        let verdicts = || VERDICTS.map(|flag| about("settle", call, id, flag));
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
        let commands = match (money(store, id, why), why.reason, limit_of(why)) {
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
pub fn limit_of(why: &Suspended) -> Option<&str> {
    why.code.as_deref()?.strip_suffix("_exceeded")
}

/// How much of a limit is used, in its unit.
pub fn values(why: &Suspended) -> Option<String> {
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

/// The arguments of a call, from its thread's log.
pub fn arguments_of(store: &dyn Store, trust: &Trust, thread: &ThreadId, call: &CallId) -> Result<Option<Value>> {
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
pub fn why_asked(ask: &Ask) -> Option<String> {
    let changed = ask.redefined.then(|| format!("the tool `{}` changed after approval was requested", ask.tool));
    match (changed, &ask.why) {
        (Some(changed), Some(why)) => Some(format!("{changed}; {why}")),
        (changed, why) => changed.or_else(|| why.clone()),
    }
}

/// The command line that acts on a call: a command like `approve`, with its flags. The id of the call was chosen by a model, so it is
/// quoted for the shell.
pub fn about(word: &str, call: &CallId, thread: &ThreadId, flags: &str) -> String {
    let id = shell::word(call.as_str());
    if call.as_str().starts_with('-') {
        format!("selvedge {word} --thread {thread}{flags} -- {id}")
    } else {
        format!("selvedge {word} {id} --thread {thread}{flags}")
    }
}

/// The commands, in order, that resume a thread without money whose parent's account is exhausted too.
pub fn money(store: &dyn Store, thread: &ThreadId, why: &Suspended) -> Option<[String; 2]> {
    if why.reason != SuspendReason::Budget {
        return None;
    }
    let account = store.get(thread).ok()?.manifest.chain_root_id;
    let short = short_above(store, &account).ok()??;
    Some([raise(store, &short, "spend=…"), raise(store, thread, "spend=…")])
}

/// The command that raises a limit of a thread or of its successor. A thread that has ended, or has not begun, needs a message too.
pub fn raise(store: &dyn Store, thread: &ThreadId, more: &str) -> String {
    let end = store.chain(thread).ok().and_then(|mut chain| chain.pop());
    let message = match end.map(|end| end.manifest.status) {
        Some(status) if status.is_terminal() || status == Status::Created => "\"…\" ",
        _ => "",
    };
    format!("selvedge resume {thread} {message}--raise {more}")
}
