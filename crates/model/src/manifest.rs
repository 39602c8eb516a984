//! What is known of a thread apart from its messages: the part of the fold that `thread.json` and the registry show.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::account::Record;
use crate::error::{Classify, Kind};
use crate::event::{
    Ask, Event, Fields, GraphBirth, Handoff, LostVersions, ManifestChanged, Recovery, Suspended, ThreadCreated,
    ThreadKind, is_zero,
};
use crate::id::{AgentId, CallId, DirectiveId, RunId, TaskId, ThreadId};
use crate::limits::{Corrections, Cost, Limits};
use crate::message::{Block, Message};
use crate::run::RunRecorded;
use crate::status::{InvalidTransition, Status};
use crate::time::Timestamp;
use crate::tool::Risk;

/// What is known of a thread apart from its messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The thread.
    pub thread_id: ThreadId,
    /// What kind of thread it is.
    pub kind: ThreadKind,
    /// The one agent that owns it.
    pub agent_id: AgentId,
    /// The agent's directive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<DirectiveId>,
    /// The graph that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphBirth>,
    /// Its status.
    pub status: Status,
    /// Its title for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The task it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The session of a provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The model it should use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The thread that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<ThreadId>,
    /// The run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The thread it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_of: Option<ThreadId>,
    /// The thread that continues it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_thread_id: Option<ThreadId>,
    /// The first thread of its chain.
    pub chain_root_id: ThreadId,
    /// How many threads of its chain come before it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub chain_position: u64,
    /// The first thread of its family (the tree of threads it belongs to); absent if that is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family_root_id: Option<ThreadId>,
    /// The inputs of the directive.
    #[serde(default, skip_serializing_if = "Fields::is_empty")]
    pub inputs: Fields,
    /// Its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The capabilities it is granted; an empty list grants nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    /// The risks of its tools that were acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acknowledged: Vec<Risk>,
    /// The usage of its runs, including the active one up to its last turn; corrections are applied.
    pub cost: Cost,
    /// The part of it that the turns of the active run used.
    #[serde(default, skip_serializing_if = "Cost::is_nothing")]
    pub run_cost: Cost,
    /// Its outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// The answer that completed its last run, shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The active run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Whether an engine executes the active run, under a lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub run_held: bool,
    /// Why it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Suspended>,
    /// The pending approval requests of its calls; it may run meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<Ask>,
    /// The lost versions of its log, and since when they are lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostVersions>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its last changeset was written.
    pub updated_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
}

/// An event that contradicts what came before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// The status can't change like this.
    #[error(transparent)]
    Transition(#[from] InvalidTransition),
    /// A run can't start while another is active.
    #[error("run `{new}` can't start: run `{active}` is still active")]
    RunActive {
        /// The active run.
        active: RunId,
        /// The run that should start.
        new: RunId,
    },
    /// A thread is created once, by the first event of its log.
    #[error("a thread is created once, in its first event")]
    SecondBirth,
}

impl Classify for Contradiction {
    fn kind(&self) -> Kind {
        Kind::Denied
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Transition(error) => error.code(),
            Self::RunActive { .. } => "run_active",
            Self::SecondBirth => "already_created",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Transition(error) => error.hint(),
            Self::RunActive { active, .. } => Some(format!("finish run `{active}` first")),
            Self::SecondBirth => None,
        }
    }
}

impl Manifest {
    /// The manifest of a thread that was just created.
    pub fn born(thread_id: &ThreadId, created: &ThreadCreated, at: Timestamp) -> Self {
        let thread = created.thread.clone();
        Self {
            thread_id: thread_id.clone(),
            kind: thread.kind,
            agent_id: thread.agent_id,
            directive: thread.directive,
            graph: thread.graph,
            status: Status::Created,
            title: thread.title,
            task_id: thread.task_id,
            session_id: None,
            model: thread.model,
            parent_id: thread.parent_id,
            parent_run_id: thread.parent_run_id,
            continuation_of: thread.continuation_of.map(|predecessor| predecessor.thread_id),
            continuation_thread_id: None,
            chain_root_id: thread.chain_root_id.unwrap_or_else(|| thread_id.clone()),
            chain_position: thread.chain_position,
            family_root_id: thread.family_root_id.filter(|root| root != thread_id),
            inputs: thread.inputs,
            limits: thread.limits,
            capabilities: thread.capabilities,
            acknowledged: thread.acknowledged,
            cost: Cost::default(),
            run_cost: Cost::default(),
            outputs: None,
            result: None,
            run_id: None,
            run_held: false,
            suspended: None,
            asks: Vec::new(),
            lost: Vec::new(),
            created_at: at,
            updated_at: at,
            completed_at: None,
        }
    }

    /// The first thread of its family.
    pub fn family_root(&self) -> &ThreadId {
        self.family_root_id.as_ref().unwrap_or(&self.thread_id)
    }

    /// The name that its id and its pages begin with: that of its graph, its directive or its agent.
    pub fn name(&self) -> &str {
        let graph = self.graph.as_ref().map(|graph| graph.id.as_str());
        graph.or(self.directive.as_ref().map(DirectiveId::as_str)).unwrap_or(self.agent_id.as_str())
    }

    /// Whether its active run is executed by no engine: an external writer owns the run, and only that writer continues or ends it.
    pub fn is_run_outside(&self) -> bool {
        self.status == Status::Running && !self.run_held
    }

    /// Applies one event. An event that is refused leaves the manifest unchanged.
    pub fn apply(&mut self, event: &Event, at: Timestamp) -> Result<(), Contradiction> {
        match event {
            Event::ThreadCreated(_) => return Err(Contradiction::SecondBirth),
            Event::RunStarted(run) => self.run_started(run)?,
            Event::RunFinished(run) => self.run_finished(run, at)?,
            Event::Suspended(suspended) => {
                self.enter(Status::Suspended, at)?;
                self.suspended = Some(suspended.clone());
            }
            // A call that was decided no longer waits.
            Event::Decision(decision) => self.forget(&decision.call_id),
            // Neither does one whose result was submitted in its tool's place.
            Event::Message(message) => self.answered(message),
            // The result of a call that no message requests is in no message.
            Event::ToolOutcome(outcome) => self.forget(&outcome.call_id),
            Event::Asked(ask) => {
                self.asks.retain(|before| before.call_id != ask.call_id);
                self.asks.push(ask.clone());
            }
            Event::ManifestChanged(change) => self.changed(change, at)?,
            Event::ThreadHandoff(handoff) | Event::ThreadResumed(handoff) => self.handed_off(handoff, at)?,
            Event::Corrected(record) => self.corrected(record),
            Event::Recovery(found) => self.recovered(found, at),
            Event::Usage(used) if self.run_id.is_some() => {
                self.cost.add(&used.cost);
                self.run_cost.add(&used.cost);
            }
            _ => {}
        }
        self.updated_at = at;
        Ok(())
    }

    /// Whether `thread.json` must show the change from `before` to `self` at once.
    pub fn shows_change_since(&self, before: &Self) -> bool {
        (self.status, &self.title, &self.outputs, &self.session_id, &self.limits)
            != (before.status, &before.title, &before.outputs, &before.session_id, &before.limits)
            || self.suspended != before.suspended
            || self.lost != before.lost
            || self.continuation_thread_id != before.continuation_thread_id
            // An active run adds to the cost with every turn: the file shows that when something else changes.
            || (self.cost != before.cost && self.run_id.is_none())
            || (self.run_id != before.run_id && self.run_id.is_none())
    }

    fn run_started(&mut self, run: &RunRecorded) -> Result<(), Contradiction> {
        match &self.run_id {
            Some(active) if *active != run.run_id => {
                return Err(Contradiction::RunActive { active: active.clone(), new: run.run_id.clone() });
            }
            _ => {}
        }
        self.status = self.status.become_(Status::Running)?;
        self.run_id = Some(run.run_id.clone());
        self.run_held = run.meta.held;
        self.run_cost = Cost::default();
        self.result = None;
        self.suspended = None;
        self.completed_at = None;
        Ok(())
    }

    fn run_finished(&mut self, run: &RunRecorded, at: Timestamp) -> Result<(), Contradiction> {
        if let Some(active) = self.run_id.as_ref().filter(|active| **active != run.run_id) {
            return Err(Contradiction::RunActive { active: active.clone(), new: run.run_id.clone() });
        }
        // A handoff in the same changeset has ended the thread already.
        if self.status != Status::Continued {
            // A run that is recorded only at its end was running until now.
            let from = if self.run_id.is_none() { self.status.become_(Status::Running)? } else { self.status };
            let to = run.meta.thread_status();
            from.become_(to)?;
            self.status = from;
            self.enter(to, at)?;
        }
        // The run's total includes what its turns have reported.
        self.cost.remove(&std::mem::take(&mut self.run_cost));
        self.cost.add(&run.meta.total_cost());
        self.result.clone_from(&run.meta.result);
        self.run_id = None;
        self.run_held = false;
        Ok(())
    }

    /// Records that calls were answered: they no longer wait.
    pub(crate) fn answered(&mut self, message: &Message) {
        for block in &message.content {
            if let Block::ToolResult { call_id, .. } = block {
                self.forget(call_id);
            }
        }
    }

    /// Removes a call from those that wait.
    fn forget(&mut self, call: &CallId) {
        if let Some(suspended) = &mut self.suspended {
            suspended.calls.retain(|waiting| waiting != call);
        }
        self.asks.retain(|ask| ask.call_id != *call);
    }

    /// The calls that a person can decide about at a moment: those with a pending approval request that has not expired, and those whose
    /// outcome is unknown.
    pub fn undecided(&self, now: Timestamp) -> impl Iterator<Item = &CallId> {
        let is_asked = |call: &&CallId| self.asks.iter().any(|ask| ask.call_id == **call);
        let unknown = self.suspended.iter().flat_map(|why| &why.calls).filter(move |call| !is_asked(call));
        let asked = self.asks.iter().filter(move |ask| !ask.is_over(now)).map(|ask| &ask.call_id);
        asked.chain(unknown)
    }

    fn changed(&mut self, change: &ManifestChanged, at: Timestamp) -> Result<(), Contradiction> {
        if let Some(status) = change.status {
            self.enter(status, at)?;
            if status.is_terminal() {
                self.run_id = None;
                self.run_held = false;
                self.run_cost = Cost::default();
            }
        }
        self.title = change.title.clone().or(self.title.take());
        self.session_id = change.session_id.clone().or(self.session_id.take());
        // Once written, null can't be distinguished from an absent field.
        self.outputs = change.outputs.clone().filter(|outputs| !outputs.is_null()).or(self.outputs.take());
        self.limits = change.limits.clone().or(self.limits.take());
        Ok(())
    }

    fn recovered(&mut self, found: &Recovery, at: Timestamp) {
        let Some(lost) = found.lost(at) else { return };
        self.lost.push(lost);
        // A person stopped the thread in the lost versions: the loss must not let it run again.
        if let Some(status) = found.status.filter(|status| matches!(status, Status::Killed | Status::Cancelled)) {
            self.status = status;
            self.completed_at = Some(at);
            self.run_id = None;
            self.run_held = false;
            self.run_cost = Cost::default();
            self.suspended = None;
            self.asks.clear();
        }
    }

    fn handed_off(&mut self, handoff: &Handoff, at: Timestamp) -> Result<(), Contradiction> {
        self.enter(Status::Continued, at)?;
        self.continuation_thread_id = Some(handoff.new_thread_id.clone());
        Ok(())
    }

    fn corrected(&mut self, record: &Record) {
        let to = record.amount.unwrap_or_default();
        let returned = record.returned.unwrap_or_default();
        // The active run's usage is counted anew when it ends, so a correction concerns earlier usage only.
        self.cost.remove(&self.run_cost);
        self.cost.correct(Corrections { from: to.saturating_add(returned), to });
        self.cost.add(&self.run_cost);
    }

    fn enter(&mut self, next: Status, at: Timestamp) -> Result<(), InvalidTransition> {
        self.status = self.status.become_(next)?;
        self.completed_at = next.is_terminal().then_some(at);
        if next != Status::Suspended {
            self.suspended = None;
        }
        Ok(())
    }
}
