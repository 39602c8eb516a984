//! The fold: derives a thread from its events.
//!
//! Folding in one pass equals folding in pieces: the fold never looks ahead, and does not depend on where a read began. An event that
//! can't be applied is refused and leaves the fold unchanged. The store applies every changeset to the fold before it signs it, so that no
//! log contains such an event.

mod graph;

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Classify, Kind};
use crate::event::{
    Ask, CallOpened, CallOrigin, Checkpoint, Decision, Event, Fields, Injected, Process, ToolIntent, ToolOutcome,
};
use crate::id::{CallId, MessageId, RunId, ThreadId};
use crate::limits::{Cost, UsageMeter};
use crate::manifest::{Contradiction, Manifest};
use crate::message::{Block, Message, Role};
use crate::patch::PatchError;
use crate::run::{Run, RunRecorded};
use crate::time::Timestamp;
use crate::token_estimate::TokenEstimate;

pub use graph::{GraphEnd, GraphProgress, GraphStep};

/// What the id of every call of a graph's node begins with.
pub const NODE_CALL_PREFIX: &str = "node.";

/// The state of one tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallState {
    /// What opened it; absent if a message requests it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<CallOrigin>,
    /// Its number among the opened calls without an outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The intent of its last dispatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<ToolIntent>,
    /// The last request for its approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Ask>,
    /// The decisions about it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// The last decision that resolved its outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Decision>,
    /// The thread that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Spawned>,
    /// Its outcome. The result of a call that a message requests is kept only in the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<ToolOutcome>,
    /// Whether versions of the log were lost after it was requested: its intent may be among them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
}

impl CallState {
    /// Whether it was dispatched, as far as is known.
    pub fn may_have_run(&self) -> bool {
        self.intent.is_some() || self.uncertain
    }
}

/// A thread that a call started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    /// The call.
    pub call_id: CallId,
    /// The thread.
    pub thread_id: ThreadId,
    /// Whether the parent does not wait for it.
    #[serde(default)]
    pub detached: bool,
}

/// A session of a provider that knows a thread's conversation up to its last answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownSession {
    /// The provider's id of it.
    pub id: String,
    /// The model that has it.
    pub model: String,
}

/// A thread after its events. Serialised without its messages: after reading it back, pass each of them to [`Thread::recall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// What is known of it apart from its messages.
    pub manifest: Manifest,
    /// The number of changesets since it was created; absent before the first checkpoint.
    pub version: Option<u64>,
    /// Its messages, each id once.
    #[serde(skip)]
    pub messages: Vec<Message>,
    /// Its state.
    pub state: Value,
    /// Its runs.
    pub runs: BTreeMap<RunId, Run>,
    /// Its tool calls.
    pub calls: BTreeMap<CallId, CallState>,
    /// Calls that no message requests and that have no outcome, by a rising number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    opened: BTreeMap<u64, CallOpened>,
    /// What it has used.
    pub meter: UsageMeter,
    /// How its provider counts tokens.
    #[serde(default, skip_serializing_if = "TokenEstimate::is_unset")]
    pub gauge: TokenEstimate,
    /// The provider's session that knows the conversation up to the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<KnownSession>,
    /// The context that hooks brought into its prompts, in the order of the log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub injected: Vec<Injected>,
    /// The partial answer of the model when its run was stopped, until the next run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// The process that was started to run it at its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// The progress of its graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<Box<GraphProgress>>,
    #[serde(skip)]
    known: HashSet<MessageId>,
    /// The calls that its messages request.
    #[serde(skip)]
    asked: HashSet<CallId>,
    /// Index of the first message of the changeset that has no checkpoint yet; the checkpoint names the run of those messages.
    #[serde(skip)]
    open_from: usize,
}

/// An event that can't be applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FoldError {
    /// The first event is not the thread's creation.
    #[error("a log begins with `thread_created`")]
    NotBorn,
    /// The event contradicts what came before.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
    /// A run that has ended can't continue.
    #[error("run `{0}` has ended and can't continue; start a new one")]
    RunDone(RunId),
    /// The id of a call is never reused.
    #[error("call `{0}` exists already; open a new one under its own id")]
    CallExists(CallId),
    /// A patch does not apply.
    #[error(transparent)]
    Patch(#[from] PatchError),
}

impl Classify for FoldError {
    fn kind(&self) -> Kind {
        match self {
            Self::NotBorn => Kind::Integrity,
            Self::Contradiction(error) => error.kind(),
            Self::RunDone(_) => Kind::Denied,
            Self::CallExists(_) | Self::Patch(_) => Kind::Invalid,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NotBorn => "not_a_log",
            Self::Contradiction(error) => error.code(),
            Self::RunDone(_) => "run_ended",
            Self::CallExists(_) => "call_exists",
            Self::Patch(_) => "patch_refused",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Contradiction(error) => error.hint(),
            _ => None,
        }
    }
}

/// The state of a new thread.
pub fn empty_state() -> Value {
    Value::Object(Map::new())
}

/// Applies an event to the state alone.
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
            gauge: TokenEstimate::default(),
            session: None,
            injected: Vec::new(),
            partial: None,
            process: created.thread.process.clone(),
            graph: created.thread.graph.as_ref().map(|graph| Box::new(GraphProgress::born(graph, at))),
            known: HashSet::new(),
            asked: HashSet::new(),
            open_from: 0,
        })
    }

    /// Applies one event, and takes over its content without a copy.
    pub fn take(&mut self, event: Event, at: Timestamp) -> Result<(), FoldError> {
        match event {
            Event::Message(message) => {
                self.message(message);
                Ok(())
            }
            other => self.apply(&other, at),
        }
    }

    /// Applies one event.
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
                self.manifest.apply(event, at)?;
                self.meter.turn(&usage.cost);
                self.gauge.turn(usage);
                let session = usage.session.clone().map(|id| KnownSession { id, model: usage.model.clone() });
                self.session = session.or(self.session.take());
            }
            Event::Corrected(record) => {
                self.manifest.apply(event, at)?;
                self.meter.returned(record.returned.unwrap_or_default());
            }
            Event::ChildSpawned(fields) => {
                self.manifest.apply(event, at)?;
                // The writer may have recorded more fields than these, or fewer.
                if let Ok(child) = serde_json::from_value::<Spawned>(Value::Object(fields.clone())) {
                    let call = child.call_id.clone();
                    self.call(&call).child = Some(child);
                }
                self.meter.spawns = self.meter.spawns.saturating_add(1);
            }
            Event::ContextInjected(fields) => {
                self.manifest.apply(event, at)?;
                self.interrupted(fields);
                if let Some(injected) = Injected::of(fields) {
                    // A session does not know what is inserted into the conversation that it covers.
                    self.session = None;
                    self.injected.push(injected);
                }
            }
            Event::Message(message) => self.message(message.clone()),
            Event::Snapshot(_) | Event::Patch(_) => apply_to_state(&mut self.state, event)?,
            Event::CallOpened(opened) => self.open_call(opened)?,
            Event::ToolIntent(intent) => {
                let call = self.call(&intent.call_id);
                // Decisions about the outcome of an earlier dispatch don't apply to this one; approvals do.
                call.decisions.retain(Decision::is_word);
                call.intent = Some(intent.clone());
                call.outcome = None;
                call.uncertain = false;
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
            Event::Recovery(recovery) => {
                self.manifest.apply(event, at)?;
                if recovery.is_loss() {
                    self.doubt_open_calls();
                }
            }
            Event::GraphStarted(_)
            | Event::StepStarted(_)
            | Event::StepCompleted(_)
            | Event::GraphCompleted(_)
            | Event::GraphError(_)
            | Event::GraphCancelled(_) => {
                self.manifest.apply(event, at)?;
                self.graph_event(event, at);
            }
            Event::Checkpoint(checkpoint) => self.checkpoint(checkpoint, at),
            other => self.manifest.apply(other, at)?,
        }
        Ok(())
    }

    fn graph_event(&mut self, event: &Event, at: Timestamp) {
        let Some(graph) = &mut self.graph else { return };
        match event {
            Event::GraphStarted(fields) => graph.started(fields, at),
            Event::StepStarted(fields) => graph.step_started(fields, at),
            Event::StepCompleted(fields) => {
                graph.step_completed(fields);
                self.forget_calls_of_nodes();
            }
            Event::GraphCompleted(fields) => graph.ended(fields, "completed"),
            Event::GraphError(fields) => graph.ended(fields, "error"),
            Event::GraphCancelled(fields) => graph.ended(fields, "cancelled"),
            _ => {}
        }
    }

    /// A step that ended is never looked at again, and no later step has calls of the same ids.
    fn forget_calls_of_nodes(&mut self) {
        let Ok(first) = CallId::new(NODE_CALL_PREFIX) else { return };
        let of_nodes = self.calls.range(first..).take_while(|(id, _)| id.as_str().starts_with(NODE_CALL_PREFIX));
        let ids: Vec<CallId> = of_nodes.map(|(id, _)| id.clone()).collect();
        for id in ids {
            self.calls.remove(&id);
        }
    }

    /// After a loss of versions: a call without an outcome may have been dispatched in them, whatever the rest of the log says.
    fn doubt_open_calls(&mut self) {
        let open: Vec<CallId> = self.asked.iter().chain(self.calls.keys()).cloned().collect();
        for id in open {
            let call = self.call(&id);
            call.uncertain = call.outcome.is_none() && call.intent.is_none();
        }
    }

    fn run(&mut self, run: &RunRecorded, at: Timestamp) {
        let before = self.runs.remove(&run.run_id);
        let after = Run::upsert(before, &self.manifest.thread_id, run, at);
        self.runs.insert(run.run_id.clone(), after);
    }

    fn message(&mut self, message: Message) {
        self.observe_message(&message);
        let is_new = message.id.as_ref().is_none_or(|id| self.known.insert(id.clone()));
        if is_new {
            self.messages.push(message);
        }
    }

    /// Applies everything about a message except storing it, for a caller that keeps the messages elsewhere. A user's message to a run
    /// resets the usage that counts against limits.
    pub fn observe_message(&mut self, message: &Message) {
        if message.role == Role::User && self.manifest.run_id.is_some() {
            self.meter.user_message();
        }
        self.manifest.answered(message);
        // A session is known again from the usage of the answer, which follows its message.
        if message.role == Role::Assistant && message.marker.is_none() {
            self.session = None;
        }
        self.asked.extend(requested_by(message).cloned());
    }

    fn interrupted(&mut self, fields: &Fields) {
        // With an attempt, another one followed it.
        let partial = fields.get("partial_cognition").filter(|partial| partial.get("attempt").is_none());
        let partial = partial.and_then(|partial| partial.get("text")).and_then(Value::as_str);
        self.partial = partial.map(str::to_owned).or_else(|| self.partial.take());
    }

    /// Whether a call with this id was ever requested or opened.
    pub fn knows_call(&self, id: &CallId) -> bool {
        self.asked.contains(id) || self.calls.contains_key(id)
    }

    /// Calls that no message requests and that have no outcome, in the order in which they were opened.
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
        call.origin = Some(opened.origin.clone());
        call.number = Some(number);
        self.opened.insert(number, opened.clone());
        if let (Some(graph), CallOrigin::Node { .. }) = (&mut self.graph, &opened.origin) {
            graph.call_opened();
        }
        Ok(())
    }

    fn close_call(&mut self, outcome: &ToolOutcome) {
        let call = self.call(&outcome.call_id);
        let is_opened = call.origin.is_some();
        call.outcome = Some(ToolOutcome {
            call_id: outcome.call_id.clone(),
            result: outcome.result.clone().filter(|_| is_opened),
            error: outcome.error.clone(),
            failure: outcome.failure.clone(),
            blob: outcome.blob,
        });
        let is_of_node = matches!(call.origin, Some(CallOrigin::Node { .. }));
        if let Some(number) = call.number.take() {
            self.opened.remove(&number);
            if let (Some(graph), true) = (&mut self.graph, is_of_node) {
                graph.call_closed();
            }
        }
    }

    fn call(&mut self, id: &CallId) -> &mut CallState {
        self.calls.entry(id.clone()).or_default()
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint, at: Timestamp) {
        self.committed(checkpoint.version, checkpoint.run_id.as_ref(), at);
    }

    /// Records that the events since the last checkpoint were committed as `version`, by `run_id`.
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

    /// Restores what the fold knows of a message after it was read back; the caller keeps the message.
    pub fn recall(&mut self, message: &Message) {
        self.known.extend(message.id.clone());
        self.asked.extend(requested_by(message).cloned());
    }

    /// Takes the messages out, for a caller that keeps them elsewhere; their ids are still known.
    pub fn take_messages(&mut self) -> Vec<Message> {
        self.open_from = 0;
        std::mem::take(&mut self.messages)
    }
}

/// The calls that a message requests.
fn requested_by(message: &Message) -> impl Iterator<Item = &CallId> {
    message.content.iter().filter_map(|block| match block {
        Block::ToolCall { id, .. } => Some(id),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
