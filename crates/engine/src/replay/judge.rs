//! Compares what is committed in a replay with the record, changeset by changeset.

use std::sync::Arc;

use selvedge_log::hash::sha256;
use selvedge_model::fold::{apply_to_state, empty_state};
use selvedge_model::{Digest, Event, Reason};
use serde_json::{Value, json};

use super::Report;
use super::compare::{Difference, differences, outline};
use super::cursor::ReplayCursor;

/// How many differences are kept; all are counted.
const KEPT_MAX: usize = 100;

/// Compares, and collects the differences.
pub(crate) struct Judge {
    tape: Arc<ReplayCursor>,
    recorded: Value,
    now: Value,
    /// Nothing up to this version is compared.
    from: Option<u64>,
    pub(crate) report: Report,
    /// Whether the two have diverged.
    pub(crate) is_over: bool,
}

impl Judge {
    pub(crate) fn new(tape: Arc<ReplayCursor>, from: Option<u64>, report: Report) -> Self {
        Self { tape, recorded: empty_state(), now: empty_state(), from, report, is_over: false }
    }

    /// Compares a commit of the replay with the next changeset.
    pub(crate) fn committed(&mut self, reason: Reason, events: &[Event]) {
        if self.is_over || self.tape.is_lease_lost() || reason == Reason::Reserved {
            return;
        }
        let tape = self.tape.clone();
        let Some(step) = tape.next_step() else { return };
        if step.reason() != reason {
            return self.over(Difference::of_step(step, Some(outline(reason, events))));
        }
        if self.from.is_some_and(|from| step.version() <= from) {
            return self.given();
        }
        let found = differences(step, events);
        // Equal changes of equal states give equal states.
        let may_differ = !found.is_empty() && self.report.state_differs_at.is_none();
        for difference in found {
            self.found(difference);
        }
        apply(&mut self.recorded, &step.events);
        apply(&mut self.now, events);
        if may_differ && self.recorded != self.now {
            self.report.state_differs_at = Some(step.version());
            let was = json!(hash(&self.recorded));
            let is = json!(hash(&self.now));
            self.found(Difference::at(step, step.line, "state", Some(was), Some(is)));
        }
        self.report.compared += 1;
        self.note_tools(&step.events, events);
        tape.advance();
    }

    /// Counts a changeset that was taken over as it is.
    pub(crate) fn given(&mut self) {
        if let Some(step) = self.tape.clone().next_step() {
            apply(&mut self.recorded, &step.events);
            apply(&mut self.now, &step.events);
            self.report.from_record += 1;
            self.tape.advance();
        }
    }

    /// The next changeset of the record did not come; `now` came instead.
    pub(crate) fn missing(&mut self, now: Option<Value>) {
        if let Some(step) = self.tape.clone().next_step().filter(|_| !self.is_over) {
            self.over(Difference::of_step(step, now));
        }
    }

    fn over(&mut self, difference: Difference) {
        self.report.ended_at = Some(difference.version);
        self.is_over = true;
        self.found(difference);
    }

    fn found(&mut self, difference: Difference) {
        self.report.count += 1;
        if self.report.differences.len() < KEPT_MAX {
            self.report.differences.push(difference);
        }
    }

    /// Collects tools that were redefined since they were called.
    fn note_tools(&mut self, recorded: &[Event], now: &[Event]) {
        let intents = |events: &[Event]| -> Vec<(String, Option<Digest>)> {
            let of = |event: &Event| match event {
                Event::ToolIntent(intent) => Some((intent.tool.clone(), intent.tool_hash)),
                _ => None,
            };
            events.iter().filter_map(of).collect()
        };
        let recorded = intents(recorded);
        let now = intents(now);
        for ((tool, was), (_, is)) in recorded.into_iter().zip(now) {
            if was != is && !self.report.redefined.contains(&tool) {
                self.report.redefined.push(tool);
            }
        }
    }

    /// The report.
    pub(crate) fn conclude(&mut self) -> Report {
        self.report.from_record += self.tape.passed();
        self.report.state_recorded = hash(&self.recorded);
        self.report.state_now = hash(&self.now);
        self.report.clone()
    }
}

fn apply(state: &mut Value, events: &[Event]) {
    for event in events {
        // The store folded the same events before it signed them.
        _ = apply_to_state(state, event);
    }
}

fn hash(state: &Value) -> Digest {
    sha256(&serde_json::to_vec(state).unwrap_or_default())
}
