//! The position of a replay in its recording, and what follows from it: the time, the ids, and the results of tools.
//!
//! The engine's clock shows the recorded times: a turn takes as long as it took, a run as long as it ran, so that decisions that depend on
//! running time are the same. The store's clock shows when each changeset was committed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_model::event::ToolOutcome;
use selvedge_model::{CallId, Clock, Event, Ids, Reason, RunId, Timestamp};

use super::recording::{RecordedChangeset, Recording};

/// A recording and the position in it.
pub(crate) struct ReplayCursor {
    pub(crate) recording: Arc<Recording>,
    deciders: BTreeMap<CallId, Vec<String>>,
    position: Mutex<Position>,
}

struct Position {
    /// The next changeset.
    next: usize,
    now: Timestamp,
    /// When the next model call will have been answered.
    answered: Timestamp,
    began: Timestamp,
    /// How many changesets were skipped that only reserve money: their number depends on attempts that are not on record.
    passed: u64,
    /// Whether some were just skipped.
    is_paid: bool,
    /// Whether the model was called where the record has no call.
    is_beyond: bool,
    /// Whether the lease was taken away: what the run does from here on is not in the record.
    is_lease_lost: bool,
}

/// The next record of a call, in the current run.
pub(crate) enum CallRecord<'t> {
    /// It is about to be dispatched.
    Dispatched,
    /// It ended, in this changeset.
    Ended(&'t RecordedChangeset, &'t ToolOutcome),
    /// There is none.
    Nothing,
}

impl ReplayCursor {
    pub(crate) fn new(recording: Arc<Recording>) -> Self {
        let zero = Timestamp::from_micros(0);
        let position = Position {
            next: 0,
            now: zero,
            answered: zero,
            began: zero,
            passed: 0,
            is_paid: false,
            is_beyond: false,
            is_lease_lost: false,
        };
        Self { deciders: recording.deciders(), recording, position: Mutex::new(position) }
    }

    fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next(&self) -> usize {
        self.position().next
    }

    /// The version of the recorded changeset before the next one.
    fn version_before(&self) -> Option<u64> {
        self.recording.steps.get(self.next().checked_sub(1)?).map(RecordedChangeset::version)
    }

    /// The next changeset.
    pub(crate) fn next_step(&self) -> Option<&RecordedChangeset> {
        self.recording.steps.get(self.next())
    }

    /// Sets the time to that of the next changeset; a run may begin here.
    pub(crate) fn wake(&self) {
        let mut position = self.position();
        if let Some(step) = self.recording.steps.get(position.next) {
            position.now = step.at;
            position.began = step.at;
            position.is_lease_lost = false;
        }
    }

    /// Sets the time to at least this many milliseconds after a time.
    pub(crate) fn not_before(&self, moment: Timestamp, millis: u64) {
        let mut position = self.position();
        position.now = position.now.max(later(moment, millis));
    }

    /// Moves to the changeset after the next one.
    pub(crate) fn advance(&self) {
        let mut position = self.position();
        let Some(done) = self.recording.steps.get(position.next) else { return };
        position.next += 1;
        position.now = done.at;
        let is_paying =
            |at| self.recording.steps.get(at).is_some_and(|step: &RecordedChangeset| step.reason() == Reason::Reserved);
        position.is_paid = is_paying(position.next);
        while is_paying(position.next) {
            position.next += 1;
            position.passed += 1;
        }
        let Some(next) = self.recording.steps.get(position.next) else { return };
        let asked = next.asked_ms().unwrap_or_default();
        if let Some(ran) = next.finished().and_then(|meta| meta.cost.as_ref()).map(|cost| cost.duration_ms) {
            position.now = earlier(later(position.began, ran), asked);
        }
        position.answered = later(position.now, asked);
    }

    /// Lets the time pass that the model took.
    pub(crate) fn let_answer(&self) {
        let mut position = self.position();
        position.now = position.answered;
    }

    /// How many changesets were skipped.
    pub(crate) fn passed(&self) -> u64 {
        self.position().passed
    }

    /// Whether money was reserved before the next changeset.
    pub(crate) fn is_paid(&self) -> bool {
        self.position().is_paid
    }

    /// Marks that what the run does from here on is not in the record.
    pub(crate) fn take_away(&self) {
        self.position().is_lease_lost = true;
    }

    /// Marks that the model is called where the record has no call; what the run does from here on is not in the record.
    pub(crate) fn go_beyond(&self) {
        let mut position = self.position();
        position.is_beyond = position.is_beyond || !position.is_lease_lost;
        position.is_lease_lost = true;
    }

    /// Whether the model was called where the record has no call.
    pub(crate) fn is_beyond(&self) -> bool {
        self.position().is_beyond
    }

    pub(crate) fn is_lease_lost(&self) -> bool {
        self.position().is_lease_lost
    }

    /// The approvers of a call.
    pub(crate) fn deciders(&self, call: &CallId) -> &[String] {
        self.deciders.get(call).map(Vec::as_slice).unwrap_or_default()
    }

    /// The next record of a call, in the current run.
    pub(crate) fn call_record(&self, call: &CallId) -> CallRecord<'_> {
        let next = self.next();
        let is_lease_lost = self.is_lease_lost();
        let rest = self.recording.steps.get(next..).unwrap_or_default();
        let run: Option<&RunId> = rest.first().and_then(RecordedChangeset::run);
        if is_lease_lost {
            return CallRecord::Nothing;
        }
        // The end of a run answers the open calls itself, instead of their tools.
        for step in rest.iter().take_while(|step| step.run() == run && step.finished().is_none()) {
            for event in &step.events {
                match event {
                    Event::ToolIntent(intent) if intent.call_id == *call => return CallRecord::Dispatched,
                    Event::ToolOutcome(outcome) if outcome.call_id == *call => return CallRecord::Ended(step, outcome),
                    _ => {}
                }
            }
        }
        CallRecord::Nothing
    }
}

fn later(at: Timestamp, millis: u64) -> Timestamp {
    Timestamp::from_micros(at.as_micros().saturating_add(micros(millis)))
}

fn earlier(at: Timestamp, millis: u64) -> Timestamp {
    Timestamp::from_micros(at.as_micros().saturating_sub(micros(millis)))
}

fn micros(millis: u64) -> i64 {
    i64::try_from(millis.saturating_mul(1000)).unwrap_or(i64::MAX)
}

/// The clock of the engine.
pub(crate) struct EngineClock(pub(crate) Arc<ReplayCursor>);

impl Clock for EngineClock {
    fn now(&self) -> Timestamp {
        self.0.position().now
    }
}

/// The clock of the store.
pub(crate) struct StoreClock(pub(crate) Arc<ReplayCursor>);

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.0.next_step().map_or_else(|| self.0.position().now, |step| step.at)
    }
}

/// Ids from the record; where it has none, ids from a counter.
#[derive(Clone, Default)]
pub(crate) struct RecordedIds {
    named: Arc<IdQueue>,
    /// The tape whose versions ids are derived from: changesets that only reserve money are skipped, so the replay itself has other
    /// versions.
    tape: Option<Arc<ReplayCursor>>,
}

#[derive(Default)]
struct IdQueue {
    queue: Mutex<VecDeque<Vec<u8>>>,
    count: AtomicU64,
}

impl RecordedIds {
    /// Ids that are derived from the versions of this record.
    pub(crate) fn of(tape: Arc<ReplayCursor>) -> Self {
        Self { named: Arc::default(), tape: Some(tape) }
    }

    /// Sets the next ids; each is given to the next request for an id of its length. What is not hex is left out.
    pub(crate) fn next_are<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        let bytes = |hex: &str| -> Option<Vec<u8>> {
            let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
            (0..hex.len()).step_by(2).map(byte).collect()
        };
        let mut queue = self.named.queue.lock().unwrap_or_else(PoisonError::into_inner);
        *queue = names.into_iter().filter_map(bytes).collect();
    }
}

impl Ids for RecordedIds {
    fn derived_at(&self, version: u64) -> u64 {
        self.tape.as_ref().and_then(|tape| tape.version_before()).map_or(version, |before| before.saturating_add(1))
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut queue = self.named.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = queue.iter().position(|name| name.len() == bytes.len())
            && let Some(name) = queue.remove(at)
        {
            return bytes.copy_from_slice(&name);
        }
        let count = self.named.count.fetch_add(1, Ordering::SeqCst) + 1;
        bytes.fill(0);
        for (position, byte) in bytes.iter_mut().rev().zip(count.to_le_bytes()) {
            *position = byte;
        }
    }
}
