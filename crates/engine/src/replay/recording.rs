//! A log as the list of its changesets, read whole and verified.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_log::Trust;
use selvedge_log::scan::ScannedChangeset;
use selvedge_model::event::{Checkpoint, LineOrder, Suspended};
use selvedge_model::{CallId, Changeset, Event, LogId, Reason, RunId, RunMeta, ThreadId, Timestamp};
use selvedge_store::load::each_changeset;
use selvedge_store::{Logs, Result};

/// The changesets of a log, in order.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The thread.
    pub thread: ThreadId,
    /// Its changesets, from its creation on.
    pub steps: Vec<RecordedChangeset>,
}

/// One changeset of a log.
#[derive(Clone, Debug)]
pub struct RecordedChangeset {
    /// The number of the first event's line, from 1, as an editor counts.
    pub line: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// Its events, without those that the store put first and without the checkpoint.
    pub events: Vec<Event>,
    /// Its signed checkpoint.
    pub checkpoint: Box<Checkpoint>,
}

impl Recording {
    /// Reads the log of a thread, every hash and the last signature checked.
    pub fn read(logs: &dyn Logs, thread: &ThreadId, trust: &Trust) -> Result<Self> {
        let mut steps = Vec::new();
        each_changeset(logs, thread, trust, |entry| steps.extend(RecordedChangeset::of(entry)))?;
        Ok(Self { thread: thread.clone(), steps })
    }

    /// The id of the log.
    pub(crate) fn log_id(&self) -> Option<&LogId> {
        self.steps.first().map(|step| &step.checkpoint.log_id)
    }

    /// Runs that this engine did not make: they were recorded by another program, or imported. There is nothing to decide about them.
    pub(crate) fn foreign_runs(&self) -> BTreeSet<RunId> {
        let mut foreign = BTreeSet::new();
        let mut begun = BTreeSet::new();
        for step in &self.steps {
            let Some(run) = step.run() else { continue };
            let is_first = begun.insert(run.clone());
            let has_usage = step.events.iter().any(|event| matches!(event, Event::Usage(_)));
            let is_ours = match step.reason() {
                Reason::AssistantTurnCommitted => has_usage && !is_first,
                Reason::UserMessage => is_first && step.begins_run(),
                Reason::RunFinished => is_first || step.finished().is_some_and(|meta| meta.cost.is_some()),
                _ => !is_first,
            };
            if !is_ours {
                foreign.insert(run.clone());
            }
        }
        foreign
    }

    /// The version before the run that is active at this one, or the version itself if there is none. A run that was lost there is not active.
    pub(crate) fn before_run(&self, version: u64) -> u64 {
        let goes_on = |step: &&RecordedChangeset| !step.begins_run() && !step.is_lost();
        let next = self.steps.iter().find(|step| step.version() > version).filter(goes_on);
        let Some(run) = next.and_then(RecordedChangeset::run) else { return version };
        let begin = self.steps.iter().find(|step| step.begins_run() && step.run() == Some(run));
        begin.and_then(|step| step.version().checked_sub(1)).map_or(version, |before| before.min(version))
    }

    /// The approvers of each call.
    pub(crate) fn deciders(&self) -> BTreeMap<CallId, Vec<String>> {
        let mut deciders: BTreeMap<CallId, Vec<String>> = BTreeMap::new();
        for event in self.steps.iter().flat_map(|step| &step.events) {
            if let Event::Decision(decision) = event {
                deciders.entry(decision.call_id.clone()).or_default().push(decision.who.clone());
            }
        }
        deciders
    }
}

impl RecordedChangeset {
    fn of(entry: ScannedChangeset) -> Option<Self> {
        let mut lines = entry.lines;
        let last = lines.pop()?;
        let Event::Checkpoint(checkpoint) = last.event else { return None };
        lines.retain(|line| line.event.place() != LineOrder::Lead);
        let line = lines.first().map_or(last.seq, |line| line.seq) + 1;
        Some(Self { line, at: last.timestamp, events: lines.into_iter().map(|line| line.event).collect(), checkpoint })
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.checkpoint.version
    }

    /// Its reason.
    pub fn reason(&self) -> Reason {
        self.checkpoint.reason
    }

    /// The run it belongs to.
    pub fn run(&self) -> Option<&RunId> {
        self.checkpoint.run_id.as_ref()
    }

    /// The calls that end here.
    pub(crate) fn outcomes(&self) -> Vec<CallId> {
        let call = |event: &Event| match event {
            Event::ToolOutcome(outcome) => Some(outcome.call_id.clone()),
            _ => None,
        };
        self.events.iter().filter_map(call).collect()
    }

    /// Whether a run begins here.
    pub(crate) fn begins_run(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::RunStarted(_)))
    }

    /// The record of the run that ends here, if one does.
    pub(crate) fn finished(&self) -> Option<&RunMeta> {
        self.events.iter().find_map(|event| match event {
            Event::RunFinished(run) => Some(&run.meta),
            _ => None,
        })
    }

    /// Why the run that ends here ended, as a code.
    pub(crate) fn code(&self) -> Option<&str> {
        self.finished()?.termination_code.as_deref()
    }

    /// Whether it settles a run whose process was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.code() == Some(Suspended::PROCESS_LOST)
    }

    /// How long the model call in it took, if there was one.
    pub(crate) fn asked_ms(&self) -> Option<u64> {
        self.events.iter().find_map(|event| match event {
            Event::Usage(used) => Some(used.cost.duration_ms),
            _ => None,
        })
    }

    /// The changeset, without the ledger's records.
    pub(crate) fn changeset(&self) -> Option<Changeset> {
        let events = self.events.iter().filter(|event| !event.is_record_of_a_posting()).cloned();
        Changeset::from_events(events.chain([Event::Checkpoint(self.checkpoint.clone())])).ok()
    }
}
