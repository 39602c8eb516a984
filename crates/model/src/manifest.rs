//! What is known of a thread without its messages: the part of the fold that `thread.json` and the registry show.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::account::Record;
use crate::error::{Classify, Kind};
use crate::event::{Ask, Event, Fields, Handoff, ManifestChanged, Suspended, ThreadCreated, ThreadKind, is_zero};
use crate::id::{AgentId, CallId, DirectiveId, RunId, TaskId, ThreadId};
use crate::limits::{Corrections, Cost, Limits};
use crate::message::{Block, Message};
use crate::run::RunRecorded;
use crate::status::{InvalidTransition, Status};
use crate::time::Timestamp;
use crate::tool::Risk;

/// What is known of a thread without its messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The thread.
    pub thread_id: ThreadId,
    /// What it is.
    pub kind: ThreadKind,
    /// The one agent that owns it.
    pub agent_id: AgentId,
    /// What the agent is told to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<DirectiveId>,
    /// Where it stands.
    pub status: Status,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The task it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The session of an outside engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The model it is meant for.
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
    /// The first thread of the tree it belongs to; absent if that is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family_root_id: Option<ThreadId>,
    /// What the directive was given.
    #[serde(default, skip_serializing_if = "Fields::is_empty")]
    pub inputs: Fields,
    /// Its ceilings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// What it may call; an empty list means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    /// The risks of its tools that somebody acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acknowledged: Vec<Risk>,
    /// What its runs used, the active one up to its last turn; after what was corrected since.
    pub cost: Cost,
    /// Of that, what the turns of the active run used.
    #[serde(default, skip_serializing_if = "Cost::is_nothing")]
    pub run_cost: Cost,
    /// What it returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// The active run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Whether an engine makes the active run, under a lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub run_held: bool,
    /// Why it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Suspended>,
    /// What somebody is asked about its open calls, and has not said yet; it may run meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<Ask>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its last changeset was written.
    pub updated_at: Timestamp,
    /// When it came to an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
}

/// An event that does not fit what came before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The table of statuses does not have this change.
    #[error(transparent)]
    Transition(#[from] InvalidTransition),
    /// A run can't start while another is active.
    #[error("run `{new}` can't start: run `{active}` is still active")]
    RunActive {
        /// The run that is active.
        active: RunId,
        /// The run that was to start.
        new: RunId,
    },
    /// A log has one birth, and it comes first.
    #[error("a thread is created once, in its first event")]
    SecondBirth,
}

impl Classify for Misfit {
    fn kind(&self) -> Kind {
        Kind::Denied
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Transition(error) => error.code(),
            Self::RunActive { .. } => "run_active",
            Self::SecondBirth => "second_birth",
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
            run_id: None,
            run_held: false,
            suspended: None,
            asks: Vec::new(),
            created_at: at,
            updated_at: at,
            completed_at: None,
        }
    }

    /// The first thread of the tree it belongs to.
    pub fn family_root(&self) -> &ThreadId {
        self.family_root_id.as_ref().unwrap_or(&self.thread_id)
    }

    /// Whether it is running by a run that no engine makes: that run is its writer's own, and only its writer goes on with it or ends it.
    pub fn is_run_outside(&self) -> bool {
        self.status == Status::Running && !self.run_held
    }

    /// Takes one event in. A misfit leaves the manifest as it was.
    pub fn apply(&mut self, event: &Event, at: Timestamp) -> Result<(), Misfit> {
        match event {
            Event::ThreadCreated(_) => return Err(Misfit::SecondBirth),
            Event::RunStarted(run) => self.run_started(run)?,
            Event::RunFinished(run) => self.run_finished(run, at)?,
            Event::Suspended(suspended) => {
                self.enter(Status::Suspended, at)?;
                self.suspended = Some(suspended.clone());
            }
            // Whoever decides about a call makes one less that waits.
            Event::Decision(decision) => self.forget(&decision.call_id),
            // So does whoever answers one in its tool's place.
            Event::Message(message) => self.answered(message),
            // A call that no message asks for is answered by none.
            Event::ToolOutcome(outcome) => self.forget(&outcome.call_id),
            Event::Asked(ask) => {
                self.asks.retain(|before| before.call_id != ask.call_id);
                self.asks.push(ask.clone());
            }
            Event::ManifestChanged(change) => self.changed(change, at)?,
            Event::ThreadHandoff(handoff) | Event::ThreadResumed(handoff) => self.handed_off(handoff, at)?,
            Event::Corrected(record) => self.corrected(record),
            Event::Usage(used) if self.run_id.is_some() => {
                self.cost.add(&used.cost);
                self.run_cost.add(&used.cost);
            }
            _ => {}
        }
        self.updated_at = at;
        Ok(())
    }

    /// Whether a change from `before` to `self` is one that `thread.json` must show at once.
    pub fn shows_change_since(&self, before: &Self) -> bool {
        (self.status, &self.title, &self.outputs, &self.session_id, &self.limits)
            != (before.status, &before.title, &before.outputs, &before.session_id, &before.limits)
            || self.suspended != before.suspended
            || self.continuation_thread_id != before.continuation_thread_id
            // While a run is active every turn adds to it: the file shows it when something else changes.
            || (self.cost != before.cost && self.run_id.is_none())
            || (self.run_id != before.run_id && self.run_id.is_none())
    }

    fn run_started(&mut self, run: &RunRecorded) -> Result<(), Misfit> {
        match &self.run_id {
            Some(active) if *active != run.run_id => {
                return Err(Misfit::RunActive { active: active.clone(), new: run.run_id.clone() });
            }
            _ => {}
        }
        self.status = self.status.become_(Status::Running)?;
        self.run_id = Some(run.run_id.clone());
        self.run_held = run.meta.held;
        self.run_cost = Cost::default();
        self.suspended = None;
        self.completed_at = None;
        Ok(())
    }

    fn run_finished(&mut self, run: &RunRecorded, at: Timestamp) -> Result<(), Misfit> {
        if let Some(active) = self.run_id.as_ref().filter(|active| **active != run.run_id) {
            return Err(Misfit::RunActive { active: active.clone(), new: run.run_id.clone() });
        }
        // A handoff of the same changeset has settled the thread already.
        if self.status != Status::Continued {
            // A run told of only at its end was running until now.
            let from = if self.run_id.is_none() { self.status.become_(Status::Running)? } else { self.status };
            let to = run.meta.thread_status();
            from.become_(to)?;
            self.status = from;
            self.enter(to, at)?;
        }
        // What its turns used is part of what the run used.
        self.cost.remove(&std::mem::take(&mut self.run_cost));
        self.cost.add(&run.meta.total_cost());
        self.run_id = None;
        self.run_held = false;
        Ok(())
    }

    /// Takes in that calls were answered: they wait for nobody any more.
    pub(crate) fn answered(&mut self, message: &Message) {
        for block in &message.content {
            if let Block::ToolResult { call_id, .. } = block {
                self.forget(call_id);
            }
        }
    }

    /// Takes a call out of those that wait.
    fn forget(&mut self, call: &CallId) {
        self.suspended.iter_mut().for_each(|why| why.calls.retain(|waits| waits != call));
        self.asks.retain(|ask| ask.call_id != *call);
    }

    /// The calls that somebody can decide about at a moment: those that are asked about and whose time is not over, and those of which
    /// nobody knows what became.
    pub fn undecided(&self, now: Timestamp) -> impl Iterator<Item = &CallId> {
        let is_asked = |call: &&CallId| self.asks.iter().any(|ask| ask.call_id == **call);
        let unknown = self.suspended.iter().flat_map(|why| &why.calls).filter(move |call| !is_asked(call));
        let asked = self.asks.iter().filter(move |ask| !ask.is_over(now)).map(|ask| &ask.call_id);
        asked.chain(unknown)
    }

    fn changed(&mut self, change: &ManifestChanged, at: Timestamp) -> Result<(), Misfit> {
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
        // A null can't be told from an absent field once it is written.
        self.outputs = change.outputs.clone().filter(|outputs| !outputs.is_null()).or(self.outputs.take());
        self.limits = change.limits.clone().or(self.limits.take());
        Ok(())
    }

    fn handed_off(&mut self, handoff: &Handoff, at: Timestamp) -> Result<(), Misfit> {
        self.enter(Status::Continued, at)?;
        self.continuation_thread_id = Some(handoff.new_thread_id.clone());
        Ok(())
    }

    fn corrected(&mut self, record: &Record) {
        let (to, returned) = (record.amount.unwrap_or_default(), record.returned.unwrap_or_default());
        // What the active run used is counted anew when it ends, so a correction is of what was used before.
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
