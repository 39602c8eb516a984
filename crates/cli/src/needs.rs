//! Needs as text: what suspended and stalled threads wait for, and which thread a call belongs to.

use selvedge::needs::Need;
use selvedge_model::event::{Probed, ProcessFate, ReconcileAnswer};
use selvedge_model::{CallId, Status, ThreadId};
use selvedge_store::{Filter, Registry, Summary};
use serde_json::{Value, json};

use crate::error::{Exit, Failure, Result};
use crate::text::{clean, local, one_line};

/// How many threads are read at a time.
const PAGE: usize = 500;
/// How many characters of arguments are shown in overviews.
const ARGUMENTS_SHOWN: usize = 80;

/// A need as people read it.
pub(crate) trait Shown {
    /// What is known of a call whose outcome is unknown, on one line: when it was dispatched, and what recovery found.
    fn found_out(&self) -> String;
    /// The commands as shown to people: with the optional result after `--done`.
    fn shown_commands(&self) -> impl Iterator<Item = String>;
    /// A call whose outcome is unknown, line by line: what was called, what is known, and the ways to resolve it.
    fn unknown_call(&self) -> Vec<String>;
    /// A call whose outcome is unknown, as JSON.
    fn unknown_call_json(&self) -> Value;
    /// Why a thread that money is reserved for is not running, and the commands that help.
    fn sentence(&self) -> String;
}

impl Shown for Need {
    fn found_out(&self) -> String {
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

    fn shown_commands(&self) -> impl Iterator<Item = String> {
        let is_unknown = self.is_unknown_call();
        self.commands.iter().map(move |command| {
            if is_unknown { command.replace(" --done", " --done [RESULT]") } else { command.clone() }
        })
    }

    fn unknown_call(&self) -> Vec<String> {
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

    fn unknown_call_json(&self) -> Value {
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

    fn sentence(&self) -> String {
        let reason = serde_json::to_value(self.reason).unwrap_or_default();
        let why = clean(self.code.as_deref().or(reason.as_str()).unwrap_or_default());
        let thread = &self.thread_id;
        if self.is_unknown_call() {
            return format!(
                "suspended ({why}): resolve the call as shown below, or `selvedge cancel {thread}` ends it and frees its money"
            );
        }
        let continues = self.commands.first().map_or_else(String::new, |command| format!("`{command}` continues it, "));
        format!("suspended ({why}): {continues}`selvedge cancel {thread}` ends it and frees its money")
    }
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
