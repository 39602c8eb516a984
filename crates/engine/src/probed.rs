//! What was found out about calls that were dispatched and whose outcome is unknown.
//!
//! A process that takes over a thread ends the processes of the lost run's calls (`HeldThread::end_begun`), and asks their tools for the outcome
//! (`calls.rs`). What it found is collected here and recorded with the suspension that names the calls, so that the person who resolves one
//! can see it.
//!
//! - What an earlier process found out stays: a process that was ended then is gone now, and is still recorded as ended.
//! - A call that is dispatched again is a new one: earlier findings are not about it.

use std::collections::BTreeMap;

use selvedge_log::Trust;
use selvedge_model::event::{Probed, Process, ProcessFate, Suspended};
use selvedge_model::tool::Processes;
use selvedge_model::{CallId, Event, ThreadId, Timestamp};
use selvedge_store::Store;
use selvedge_store::load::each_changeset;
use serde::Serialize;
use serde_json::Value;

use crate::approval;
use crate::error::Result;
use crate::fold::Fold;
use crate::held::HeldThread;

/// The findings, by call.
#[derive(Debug, Default)]
pub(crate) struct Findings(BTreeMap<CallId, Probed>);

impl Findings {
    /// What is on record of a suspended thread.
    pub(crate) fn of(suspended: Option<&Suspended>) -> Self {
        let probed = suspended.into_iter().flat_map(|why| &why.probed);
        Self(probed.map(|probed| (probed.call_id.clone(), probed.clone())).collect())
    }

    /// Adds a finding about a call.
    pub(crate) fn add(&mut self, found: Probed) {
        match self.0.get_mut(&found.call_id) {
            None => drop(self.0.insert(found.call_id.clone(), found)),
            Some(before) => {
                let is_same_end =
                    before.process == Some(ProcessFate::Ended) && found.process == Some(ProcessFate::Gone);
                if !is_same_end {
                    before.process = found.process.or(before.process);
                }
                before.reconciled = found.reconciled.or(before.reconciled);
                before.no_reconcile |= found.no_reconcile;
            }
        }
    }

    /// Adds the findings to the suspensions that are about to be recorded, and drops those about calls that are dispatched.
    pub(crate) fn note(&mut self, events: &mut [Event]) {
        for event in events {
            match event {
                Event::Suspended(why) => {
                    why.probed = why.calls.iter().filter_map(|id| self.0.get(id).cloned()).collect()
                }
                Event::ToolIntent(intent) => drop(self.0.remove(&intent.call_id)),
                _ => {}
            }
        }
    }
}

impl HeldThread {
    /// Ends the processes of these calls, so that they don't run beside what is decided now. A process that can't be ended is tried again
    /// before the tools are asked.
    pub(crate) fn end_begun<'c>(&mut self, calls: impl Iterator<Item = &'c CallId>) {
        for call_id in calls {
            let intent = self.fold.call(call_id).and_then(|known| known.intent.as_ref());
            let process = intent.and_then(|intent| intent.process.as_ref());
            let process = process.map(|process| end(&*self.engine.processes, process));
            self.findings.add(Probed { call_id: call_id.clone(), process, reconciled: None, no_reconcile: false });
        }
    }
}

/// Ends a process, and returns its fate.
pub(crate) fn end(processes: &dyn Processes, process: &Process) -> ProcessFate {
    match processes.end(process) {
        Ok(true) => ProcessFate::Ended,
        Ok(false) => ProcessFate::Gone,
        Err(_) => ProcessFate::Alive,
    }
}

/// A call that was dispatched and whose outcome is unknown, as the person who resolves it sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dispatched {
    /// The tool.
    pub tool: String,
    /// Its arguments, as the approver changed them, if they were changed.
    pub arguments: Value,
    /// When its intent was recorded, right before it was dispatched.
    pub at: Timestamp,
}

/// A call of a thread that was dispatched and has no outcome, read from the verified log. None if there is no such call.
pub fn dispatched(store: &dyn Store, trust: &Trust, thread: &ThreadId, call: &CallId) -> Result<Option<Dispatched>> {
    let fold = Fold::load(store, thread, trust)?;
    let known = fold.call(call);
    let Some(intent) = known.filter(|known| known.outcome.is_none()).and_then(|known| known.intent.clone()) else {
        return Ok(None);
    };
    let Some(open) = fold.conversation.open().iter().find(|open| open.id == *call) else { return Ok(None) };
    let (arguments, _) = approval::allowed_with(open, known);
    let mut at = None;
    each_changeset(store, thread, trust, |entry| {
        let is_it = |event: &Event| matches!(event, Event::ToolIntent(intent) if intent.call_id == *call);
        // A call that was not executed is dispatched again: the last time counts.
        at = entry.lines.iter().rfind(|line| is_it(&line.event)).map(|line| line.timestamp).or(at);
    })?;
    Ok(at.map(|at| Dispatched { tool: intent.tool, arguments, at }))
}

#[cfg(test)]
mod tests {
    use selvedge_model::event::{ReconcileAnswer, SuspendReason};
    use selvedge_model::tool::ToolError;
    use serde_json::json;

    use super::*;

    fn call(id: &str) -> CallId {
        CallId::new(id).unwrap()
    }

    fn found(id: &str, process: Option<ProcessFate>, is_asked: bool) -> Probed {
        let reconciled = is_asked.then_some(ReconcileAnswer::Unknown);
        Probed { call_id: call(id), process, reconciled, no_reconcile: false }
    }

    /// What would be recorded of these calls.
    fn recorded(findings: &mut Findings, calls: &[&str]) -> Vec<Probed> {
        let calls = calls.iter().map(|id| call(id)).collect();
        let why = Suspended { calls, ..Suspended::because(SuspendReason::OutcomeUnknown, "outcome_unknown") };
        let mut events = [Event::Suspended(why)];
        findings.note(&mut events);
        let [Event::Suspended(why)] = events else { panic!("it was a suspension") };
        why.probed
    }

    #[test]
    fn a_later_finding_adds_to_an_earlier_one_and_a_new_dispatch_drops_both() {
        let before = Suspended {
            probed: vec![found("a", Some(ProcessFate::Ended), false), found("b", Some(ProcessFate::Alive), false)],
            ..Suspended::because(SuspendReason::OutcomeUnknown, "process_lost")
        };
        let mut findings = Findings::of(Some(&before));
        findings.add(found("a", Some(ProcessFate::Gone), true));
        findings.add(found("b", Some(ProcessFate::Gone), true));
        let expected = [found("a", Some(ProcessFate::Ended), true), found("b", Some(ProcessFate::Gone), true)];
        assert_eq!(
            recorded(&mut findings, &["a", "b", "c"]),
            expected,
            "nothing is recorded about a call that was not probed"
        );
        let intent = json!({"event_type": "tool_intent", "payload": {"call_id": "a", "tool": "pay", "class": "at_most_once", "key": "k"}});
        findings.note(&mut [serde_json::from_value(intent).unwrap()]);
        assert_eq!(recorded(&mut findings, &["a", "b"]), expected[1..]);
    }

    #[test]
    fn a_process_that_can_not_be_ended_may_be_alive() {
        struct Stubborn(Option<bool>);
        impl Processes for Stubborn {
            fn end(&self, _: &Process) -> std::result::Result<bool, ToolError> {
                let why = || ToolError::Lost { tool: "pay".to_owned(), why: "it does not end".to_owned() };
                self.0.ok_or_else(why)
            }
        }
        let process: Process = serde_json::from_value(json!({"pid": 1, "start_time": 1})).unwrap();
        for (ended, fate) in
            [(Some(true), ProcessFate::Ended), (Some(false), ProcessFate::Gone), (None, ProcessFate::Alive)]
        {
            assert_eq!(end(&Stubborn(ended), &process), fate);
        }
    }
}
