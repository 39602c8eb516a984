//! Where a replay stands in its recording, and what follows from that: the time, the names, and what tools answered.
//!
//! The clock of the engine shows the moments that the record knows: a turn takes as long as it took, a run as long as it ran, so
//! that what counts running time decides as it did. The clock of the store shows when each changeset was committed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_model::event::ToolOutcome;
use selvedge_model::{CallId, Clock, Event, Ids, Reason, RunId, Timestamp};

use super::recording::{Recording, Step};

/// A recording and the place in it.
pub(crate) struct Tape {
    pub(crate) recording: Arc<Recording>,
    deciders: BTreeMap<CallId, Vec<String>>,
    place: Mutex<Place>,
}

struct Place {
    /// The changeset that comes next.
    next: usize,
    now: Timestamp,
    /// When the model has answered that is asked next.
    answered: Timestamp,
    began: Timestamp,
    /// How many changesets were passed over that only set money aside: how often depends on attempts that the record does not tell.
    passed: u64,
    /// Whether some were just passed over.
    is_paid: bool,
    /// Whether the model was asked where the record does not ask it.
    is_beyond: bool,
    /// Whether the run was taken away: what it does from here on is not in the record.
    is_away: bool,
}

/// What the record says next of a call, in the run that goes on.
pub(crate) enum Fate<'t> {
    /// It is about to be dispatched.
    Dispatched,
    /// It ended, in this changeset.
    Ended(&'t Step, &'t ToolOutcome),
    /// Nothing.
    Nothing,
}

impl Tape {
    pub(crate) fn new(recording: Arc<Recording>) -> Self {
        let zero = Timestamp::from_micros(0);
        let place = Place {
            next: 0,
            now: zero,
            answered: zero,
            began: zero,
            passed: 0,
            is_paid: false,
            is_beyond: false,
            is_away: false,
        };
        Self { deciders: recording.deciders(), recording, place: Mutex::new(place) }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next(&self) -> usize {
        self.place().next
    }

    /// The version that the recorded changeset before the next one came to.
    fn version_before(&self) -> Option<u64> {
        self.recording.steps.get(self.next().checked_sub(1)?).map(Step::version)
    }

    /// The changeset that comes next.
    pub(crate) fn next_step(&self) -> Option<&Step> {
        self.recording.steps.get(self.next())
    }

    /// Makes it the time of the next changeset; a run may begin here.
    pub(crate) fn wake(&self) {
        let mut place = self.place();
        if let Some(step) = self.recording.steps.get(place.next) {
            (place.now, place.began, place.is_away) = (step.at, step.at, false);
        }
    }

    /// Makes it no earlier than so many milliseconds after a moment.
    pub(crate) fn not_before(&self, moment: Timestamp, millis: u64) {
        let mut place = self.place();
        place.now = place.now.max(later(moment, millis));
    }

    /// Goes on behind the next changeset.
    pub(crate) fn advance(&self) {
        let mut place = self.place();
        let Some(done) = self.recording.steps.get(place.next) else { return };
        place.next += 1;
        place.now = done.at;
        let is_paying = |at| self.recording.steps.get(at).is_some_and(|step: &Step| step.reason() == Reason::Reserved);
        place.is_paid = is_paying(place.next);
        while is_paying(place.next) {
            place.next += 1;
            place.passed += 1;
        }
        let Some(next) = self.recording.steps.get(place.next) else { return };
        let asked = next.asked_ms().unwrap_or_default();
        if let Some(ran) = next.finished().and_then(|meta| meta.cost.as_ref()).map(|cost| cost.duration_ms) {
            place.now = earlier(later(place.began, ran), asked);
        }
        place.answered = later(place.now, asked);
    }

    /// Lets the time pass that the model took.
    pub(crate) fn let_answer(&self) {
        let mut place = self.place();
        place.now = place.answered;
    }

    /// How many changesets were passed over.
    pub(crate) fn passed(&self) -> u64 {
        self.place().passed
    }

    /// Whether money was set aside before the next changeset.
    pub(crate) fn is_paid(&self) -> bool {
        self.place().is_paid
    }

    /// Says that what the run does from here on is not in the record.
    pub(crate) fn take_away(&self) {
        self.place().is_away = true;
    }

    /// Says that the model is asked where the record does not ask it; what the run does from here on is not in the record.
    pub(crate) fn go_beyond(&self) {
        let mut place = self.place();
        (place.is_beyond, place.is_away) = (place.is_beyond || !place.is_away, true);
    }

    /// Whether the model was asked where the record does not ask it.
    pub(crate) fn is_beyond(&self) -> bool {
        self.place().is_beyond
    }

    pub(crate) fn is_away(&self) -> bool {
        self.place().is_away
    }

    /// Who decided about a call.
    pub(crate) fn deciders(&self, call: &CallId) -> &[String] {
        self.deciders.get(call).map(Vec::as_slice).unwrap_or_default()
    }

    /// What the record says next of a call, in the run that goes on.
    pub(crate) fn fate(&self, call: &CallId) -> Fate<'_> {
        let (next, is_away) = (self.next(), self.is_away());
        let rest = self.recording.steps.get(next..).unwrap_or_default();
        let run: Option<&RunId> = rest.first().and_then(Step::run);
        if is_away {
            return Fate::Nothing;
        }
        // What ends a run answers itself, in the tools' place, what is still open.
        for step in rest.iter().take_while(|step| step.run() == run && step.finished().is_none()) {
            for event in &step.events {
                match event {
                    Event::ToolIntent(intent) if intent.call_id == *call => return Fate::Dispatched,
                    Event::ToolOutcome(outcome) if outcome.call_id == *call => return Fate::Ended(step, outcome),
                    _ => {}
                }
            }
        }
        Fate::Nothing
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
pub(crate) struct EngineClock(pub(crate) Arc<Tape>);

impl Clock for EngineClock {
    fn now(&self) -> Timestamp {
        self.0.place().now
    }
}

/// The clock of the store.
pub(crate) struct StoreClock(pub(crate) Arc<Tape>);

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.0.next_step().map_or_else(|| self.0.place().now, |step| step.at)
    }
}

/// Names from the record, and where it has none such as nobody else has.
#[derive(Clone, Default)]
pub(crate) struct Names {
    named: Arc<Named>,
    /// Where the versions are looked up that names are derived from: changesets that only set money aside are passed over, so what is
    /// done again comes to other versions.
    tape: Option<Arc<Tape>>,
}

#[derive(Default)]
struct Named {
    queue: Mutex<VecDeque<Vec<u8>>>,
    count: AtomicU64,
}

impl Names {
    /// Names that are derived from the versions of this record.
    pub(crate) fn of(tape: Arc<Tape>) -> Self {
        Self { named: Arc::default(), tape: Some(tape) }
    }

    /// The next names, each for whoever asks for one of its length; what is not written in hex is left out.
    pub(crate) fn next_are<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        let bytes = |hex: &str| -> Option<Vec<u8>> {
            let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
            (0..hex.len()).step_by(2).map(byte).collect()
        };
        let mut queue = self.named.queue.lock().unwrap_or_else(PoisonError::into_inner);
        *queue = names.into_iter().filter_map(bytes).collect();
    }
}

impl Ids for Names {
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
        for (place, byte) in bytes.iter_mut().rev().zip(count.to_le_bytes()) {
            *place = byte;
        }
    }
}
