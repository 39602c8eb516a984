//! The fold: what a thread is after its events.
//!
//! Folding in one pass equals folding in pieces: nothing here looks ahead, and nothing depends on where a read began.
//! An event that can't be applied is refused and leaves the fold as it was; the store applies every changeset to the
//! fold before it signs it, so that no log holds one.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Classify, Kind};
use crate::event::{
    Ask, CallOpened, CallOrigin, Checkpoint, Decision, Event, Fields, Process, ToolIntent, ToolOutcome,
};
use crate::gauge::Gauge;
use crate::id::{CallId, MessageId, RunId, ThreadId};
use crate::limits::{Cost, Meter};
use crate::manifest::{Manifest, Misfit};
use crate::message::{Block, Message, Role};
use crate::patch::PatchError;
use crate::run::{Run, RunRecorded};
use crate::time::Timestamp;

/// What is known of one tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// What opened it, unless a message asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<CallOrigin>,
    /// Its number among the opened calls that have no outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// What was about to be dispatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<ToolIntent>,
    /// What somebody was last asked about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Ask>,
    /// What was decided, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// What was said last to have become of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Decision>,
    /// The thread that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Spawned>,
    /// How it ended. What a call of a message answered stands in its message, and is kept there alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<ToolOutcome>,
}

/// A thread that a call started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    /// The call.
    pub call_id: CallId,
    /// The thread.
    pub thread_id: ThreadId,
    /// Whether nobody waits for it.
    #[serde(default)]
    pub detached: bool,
}

/// A thread after its events. Written without its messages, which whoever reads it back hands over by [`Thread::recall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// What is known of it without its messages.
    pub manifest: Manifest,
    /// How many changesets it has had since it was created; absent before the first checkpoint.
    pub version: Option<u64>,
    /// Its messages, each id once.
    #[serde(skip)]
    pub messages: Vec<Message>,
    /// Its state.
    pub state: Value,
    /// Its runs.
    pub runs: BTreeMap<RunId, Run>,
    /// Its tool calls.
    pub calls: BTreeMap<CallId, Call>,
    /// Calls that no message asks for and that have no outcome, by a number that rises with each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    opened: BTreeMap<u64, CallOpened>,
    /// What it has used.
    pub meter: Meter,
    /// How its provider counts.
    #[serde(default, skip_serializing_if = "Gauge::is_unset")]
    pub gauge: Gauge,
    /// What a model had said when its run was stopped, until the next run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// The process that was started to run it when it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    #[serde(skip)]
    known: HashSet<MessageId>,
    /// The calls that its messages ask for.
    #[serde(skip)]
    asked: HashSet<CallId>,
    /// Messages of the changeset that has no checkpoint yet, which will tell their run.
    #[serde(skip)]
    open_from: usize,
}

/// An event that can't be applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FoldError {
    /// The first event is not the thread's birth.
    #[error("a log begins with `thread_created`")]
    NotBorn,
    /// The event does not fit what came before.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// A run that is done stays so.
    #[error("run `{0}` is done and can't go on; start a new one")]
    RunDone(RunId),
    /// An id names one call for ever.
    #[error("there is a call `{0}` already; open a new one under an id of its own")]
    CallExists(CallId),
    /// A patch does not apply.
    #[error(transparent)]
    Patch(#[from] PatchError),
}

impl Classify for FoldError {
    fn kind(&self) -> Kind {
        match self {
            Self::NotBorn => Kind::Integrity,
            Self::Misfit(error) => error.kind(),
            Self::RunDone(_) => Kind::Denied,
            Self::CallExists(_) | Self::Patch(_) => Kind::Invalid,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NotBorn => "not_a_log",
            Self::Misfit(error) => error.code(),
            Self::RunDone(_) => "run_done",
            Self::CallExists(_) => "call_exists",
            Self::Patch(_) => "patch_refused",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Misfit(error) => error.hint(),
            _ => None,
        }
    }
}

/// The state of a thread to which nothing has happened.
pub fn empty_state() -> Value {
    Value::Object(Map::new())
}

/// Applies what an event says about the state, and nothing else of it.
pub fn apply_to_state(state: &mut Value, event: &Event) -> Result<(), PatchError> {
    match event {
        Event::Snapshot(snapshot) => *state = snapshot.state.clone(),
        Event::Patch(patch) => patch.apply_to(state)?,
        _ => {}
    }
    Ok(())
}

impl Thread {
    /// Begins a fold with a thread's first event.
    pub fn begin(thread_id: &ThreadId, first: &Event, at: Timestamp) -> Result<Self, FoldError> {
        let Event::ThreadCreated(created) = first else {
            return Err(FoldError::NotBorn);
        };
        Ok(Self {
            manifest: Manifest::born(thread_id, created, at),
            version: None,
            messages: Vec::new(),
            state: empty_state(),
            runs: BTreeMap::new(),
            calls: BTreeMap::new(),
            opened: BTreeMap::new(),
            meter: created.thread.meter.clone().unwrap_or_default(),
            gauge: Gauge::default(),
            partial: None,
            process: created.thread.process.clone(),
            known: HashSet::new(),
            asked: HashSet::new(),
            open_from: 0,
        })
    }

    /// Takes one event in, with what it carries.
    pub fn take(&mut self, event: Event, at: Timestamp) -> Result<(), FoldError> {
        match event {
            Event::Message(message) => {
                self.message(message);
                Ok(())
            }
            other => self.apply(&other, at),
        }
    }

    /// Takes one event in.
    pub fn apply(&mut self, event: &Event, at: Timestamp) -> Result<(), FoldError> {
        match event {
            Event::RunStarted(run) => {
                self.manifest.apply(event, at).map(|()| self.run(run, at))?;
                self.meter.active = Cost::default();
                self.partial = None;
            }
            Event::RunFinished(run) => {
                self.manifest.apply(event, at).map(|()| self.run(run, at))?;
                self.meter.run_ended(&run.meta.total_cost());
            }
            Event::Usage(usage) => {
                self.meter.turn(&usage.cost);
                self.gauge.turn(usage);
            }
            Event::Corrected(record) => {
                self.manifest.apply(event, at)?;
                self.meter.returned(record.returned.unwrap_or_default());
            }
            Event::ChildSpawned(fields) => {
                self.manifest.apply(event, at)?;
                // Who wrote it says more than is needed here, or less.
                if let Ok(child) = serde_json::from_value::<Spawned>(Value::Object(fields.clone())) {
                    let call = child.call_id.clone();
                    self.call(&call).child = Some(child);
                }
                self.meter.spawns = self.meter.spawns.saturating_add(1);
            }
            Event::ContextInjected(fields) => {
                self.manifest.apply(event, at)?;
                self.interrupted(fields);
            }
            Event::Message(message) => self.message(message.clone()),
            Event::Snapshot(_) | Event::Patch(_) => apply_to_state(&mut self.state, event)?,
            Event::CallOpened(opened) => self.open_call(opened)?,
            Event::ToolIntent(intent) => {
                let call = self.call(&intent.call_id);
                // What was said of an earlier dispatch does not count for this one; that it may be made does.
                call.decisions.retain(Decision::is_word);
                (call.intent, call.outcome) = (Some(intent.clone()), None);
            }
            Event::Asked(ask) => {
                self.manifest.apply(event, at)?;
                self.call(&ask.call_id).ask = Some(ask.clone());
            }
            Event::Decision(decision) => {
                self.manifest.apply(event, at)?;
                let call = self.call(&decision.call_id);
                call.decisions.push(decision.clone());
                if !decision.is_word() {
                    call.settled = Some(decision.clone());
                }
            }
            Event::ToolOutcome(outcome) => {
                self.manifest.apply(event, at)?;
                self.close_call(outcome);
            }
            Event::Checkpoint(checkpoint) => self.checkpoint(checkpoint, at),
            other => self.manifest.apply(other, at)?,
        }
        Ok(())
    }

    fn run(&mut self, run: &RunRecorded, at: Timestamp) {
        let before = self.runs.remove(&run.run_id);
        let after = Run::upsert(before, &self.manifest.thread_id, run, at);
        self.runs.insert(run.run_id.clone(), after);
    }

    fn message(&mut self, message: Message) {
        self.heard(&message);
        let is_new = message.id.as_ref().is_none_or(|id| self.known.insert(id.clone()));
        if is_new {
            self.messages.push(message);
        }
    }

    /// Takes in that somebody said something; for who keeps the messages elsewhere. What was used counts anew from what a user says
    /// to a run.
    pub fn heard(&mut self, message: &Message) {
        if message.role == Role::User && self.manifest.run_id.is_some() {
            self.meter.heard();
        }
        self.manifest.answered(message);
        self.asked.extend(asked_by(message).cloned());
    }

    fn interrupted(&mut self, fields: &Fields) {
        let partial = fields.get("partial_cognition").and_then(|partial| partial.get("text")).and_then(Value::as_str);
        self.partial = partial.map(str::to_owned).or_else(|| self.partial.take());
    }

    /// Whether a call of this id was ever asked for or opened.
    pub fn knows_call(&self, id: &CallId) -> bool {
        self.asked.contains(id) || self.calls.contains_key(id)
    }

    /// Calls that no message asks for and that have no outcome, in the order in which they were opened.
    pub fn opened(&self) -> impl Iterator<Item = &CallOpened> {
        self.opened.values()
    }

    fn open_call(&mut self, opened: &CallOpened) -> Result<(), FoldError> {
        let id = &opened.call_id;
        if self.knows_call(id) {
            return Err(FoldError::CallExists(id.clone()));
        }
        let number = self.opened.last_key_value().map_or(0, |(last, _)| last + 1);
        let call = self.call(id);
        (call.origin, call.number) = (Some(opened.origin.clone()), Some(number));
        self.opened.insert(number, opened.clone());
        Ok(())
    }

    fn close_call(&mut self, outcome: &ToolOutcome) {
        let ToolOutcome { call_id, result, error, failure, blob } = outcome;
        let (error, failure, blob) = (error.clone(), failure.clone(), *blob);
        let call = self.call(call_id);
        let result = call.origin.as_ref().and_then(|_| result.clone());
        call.outcome = Some(ToolOutcome { call_id: call_id.clone(), result, error, failure, blob });
        if let Some(number) = call.number.take() {
            self.opened.remove(&number);
        }
    }

    fn call(&mut self, id: &CallId) -> &mut Call {
        self.calls.entry(id.clone()).or_default()
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint, at: Timestamp) {
        self.committed(checkpoint.version, checkpoint.run_id.as_ref(), at);
    }

    /// Takes in that the events since the last checkpoint were committed as `version`, by `run_id`.
    pub fn committed(&mut self, version: u64, run_id: Option<&RunId>, at: Timestamp) {
        for message in &mut self.messages[self.open_from..] {
            message.run_id = message.run_id.take().or_else(|| run_id.cloned());
        }
        self.open_from = self.messages.len();
        self.version = Some(version);
        self.manifest.updated_at = at;
        if let Some(run) = run_id.and_then(|id| self.runs.get_mut(id)) {
            run.updated_at = at;
        }
    }

    /// Takes note of a message that was folded before this was written, and that somebody else keeps.
    pub fn recall(&mut self, message: &Message) {
        self.known.extend(message.id.clone());
        self.asked.extend(asked_by(message).cloned());
    }

    /// Takes the messages out, for somebody who keeps them in another order; their ids are still known.
    pub fn take_messages(&mut self) -> Vec<Message> {
        self.open_from = 0;
        std::mem::take(&mut self.messages)
    }
}

/// The calls that a message asks for.
fn asked_by(message: &Message) -> impl Iterator<Item = &CallId> {
    message.content.iter().filter_map(|block| match block {
        Block::ToolCall { id, .. } => Some(id),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
