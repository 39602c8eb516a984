//! A run: one activation of a thread, and what is recorded of it.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::id::{AgentId, RunId, ThreadId};
use crate::limits::Cost;
use crate::status::{RunStatus, Status};
use crate::time::Timestamp;

/// What failed, when a run ended in an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// What kind of failure it is.
    pub class: FailureClass,
    /// What went wrong, without the words that the class stands for.
    pub why: String,
}

/// What kind of failure ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The model could not be reached or failed, however often it was asked.
    ModelFailed,
    /// The provider limits the rate.
    ModelRateLimited,
    /// The answer broke off.
    ModelCut,
    /// The outside engine does not know the session.
    ModelSessionRefused,
    /// The provider refused the request.
    ModelRefused,
    /// The model declined to answer.
    ModelDeclined,
    /// The answer had more tokens than it may have.
    ModelLength,
    /// Something else than the model failed: the store, the disk, this program.
    Engine,
}

impl FailureClass {
    /// Whether the model failed, and not what runs it.
    pub fn is_of_model(self) -> bool {
        self != Self::Engine
    }
}

/// What a changeset says about its run. Present on the first changeset of a run and on its last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunMeta {
    /// The agent that runs.
    pub agent_id: AgentId,
    /// Who started it: `user`, `subagent`, `internal` and so on.
    pub origin: String,
    /// Where the run stands.
    pub status: RunStatus,
    /// An engine makes the run under a lease; otherwise it is its writer's own and never settled by an engine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// The thread that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_thread_id: Option<ThreadId>,
    /// Why it ended, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_code: Option<String>,
    /// Why it ended, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_detail: Option<String>,
    /// What failed, if it ended in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The request that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_mailbox_entry_id: Option<String>,
    /// Tokens sent.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens received.
    #[serde(default)]
    pub output_tokens: u64,
    /// The thread's status after this run, when the termination code does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Status>,
    /// What the run used beyond tokens; of a run that waited, since it went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The configuration it runs under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Digest>,
    /// The system prompt it runs under, for comparing only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Digest>,
}

impl RunMeta {
    /// A run that starts now.
    pub fn started(agent_id: AgentId, origin: impl Into<String>) -> Self {
        Self {
            agent_id,
            origin: origin.into(),
            status: RunStatus::Running,
            held: false,
            parent_thread_id: None,
            termination_code: None,
            termination_detail: None,
            failure: None,
            source_mailbox_entry_id: None,
            input_tokens: 0,
            output_tokens: 0,
            outcome: None,
            cost: None,
            config: None,
            system: None,
        }
    }

    /// The same run, ended for the reason `termination_code`.
    #[must_use]
    pub fn finished(mut self, termination_code: impl Into<String>) -> Self {
        self.status = RunStatus::Done;
        self.termination_code = Some(termination_code.into());
        self
    }

    /// The thread's status after this record.
    pub fn thread_status(&self) -> Status {
        match (self.status, self.outcome, self.termination_code.as_deref()) {
            (RunStatus::Running, ..) => Status::Running,
            (RunStatus::Waiting, ..) => Status::Suspended,
            (RunStatus::Done, Some(outcome), _) => outcome,
            (RunStatus::Done, None, Some("error")) => Status::Error,
            (RunStatus::Done, None, Some("cancelled")) => Status::Cancelled,
            (RunStatus::Done, None, Some("killed")) => Status::Killed,
            (RunStatus::Done, None, _) => Status::Completed,
        }
    }

    /// The same run, made by an engine under a lease.
    #[must_use]
    pub fn under_lease(self) -> Self {
        Self { held: true, ..self }
    }

    /// What the run used, tokens included.
    pub fn total_cost(&self) -> Cost {
        let mut cost = self.cost.clone().unwrap_or_default();
        cost.input_tokens = cost.input_tokens.max(self.input_tokens);
        cost.output_tokens = cost.output_tokens.max(self.output_tokens);
        cost
    }
}

/// The payload of `run_started` and `run_finished`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecorded {
    /// The run.
    pub run_id: RunId,
    /// The run it belongs under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// What is said of it.
    pub meta: RunMeta,
}

/// One run as the index shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The run.
    pub run_id: RunId,
    /// The thread it ran on.
    pub thread_id: ThreadId,
    /// The run it belongs under; written once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The latest word on it.
    #[serde(flatten)]
    pub meta: RunMeta,
    /// When it was first heard of.
    pub created_at: Timestamp,
    /// When it was last heard of.
    pub updated_at: Timestamp,
}

impl Run {
    /// The record after `recorded` was heard at `at`. What says where a run came from is written once.
    pub fn upsert(before: Option<Self>, thread_id: &ThreadId, recorded: &RunRecorded, at: Timestamp) -> Self {
        let mut run = Self {
            run_id: recorded.run_id.clone(),
            thread_id: thread_id.clone(),
            parent_run_id: recorded.parent_run_id.clone(),
            meta: recorded.meta.clone(),
            created_at: at,
            updated_at: at,
        };
        if let Some(before) = before {
            run.created_at = before.created_at;
            run.parent_run_id = before.parent_run_id.or(run.parent_run_id);
            run.meta.parent_thread_id = before.meta.parent_thread_id.or(run.meta.parent_thread_id);
            run.meta.source_mailbox_entry_id = before.meta.source_mailbox_entry_id.or(run.meta.source_mailbox_entry_id);
            run.meta.config = before.meta.config.or(run.meta.config);
            run.meta.system = before.meta.system.or(run.meta.system);
        }
        run
    }
}
