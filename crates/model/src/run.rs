//! A run: one activation of a thread, and its record.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::event::InjectedPlace as Place;
use crate::id::{AgentId, RunId, ThreadId};
use crate::limits::Cost;
use crate::status::{RunStatus, Status};
use crate::time::Timestamp;

/// The failure of a run that ended in an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// Its class.
    pub class: FailureClass,
    /// The details, without the phrase that the class stands for.
    pub why: String,
}

/// The class of a failure that ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The model could not be reached or failed, after all retries.
    ModelFailed,
    /// Rate limited by the provider.
    ModelRateLimited,
    /// The answer was cut off.
    ModelAnswerCut,
    /// The provider no longer knows the session.
    ModelSessionRefused,
    /// The prompt was longer than the model's context window.
    ModelContextTooLong,
    /// The provider rejected the request.
    ModelRejected,
    /// The model declined to answer.
    ModelDeclined,
    /// The answer reached the maximum number of tokens.
    OutputLimitReached,
    /// A hook ended the run: it decided so, or it is required and failed.
    Hook,
    /// A node of a graph failed.
    Graph,
    /// Something other than the model failed: the store, the disk, this program.
    Engine,
}

impl FailureClass {
    /// Whether the model failed, rather than a hook or the engine.
    pub fn is_of_model(self) -> bool {
        !matches!(self, Self::Hook | Self::Graph | Self::Engine)
    }
}

/// The description of a run in a changeset. Present on the first changeset of a run and on its last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunMeta {
    /// The agent that runs.
    pub agent_id: AgentId,
    /// What started it: `user`, `subagent`, `internal` and so on.
    pub origin: String,
    /// Its status.
    pub status: RunStatus,
    /// Whether an engine executes the run under a lease; otherwise its writer owns it, and no engine ever ends it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// The thread that requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_thread_id: Option<ThreadId>,
    /// Why it ended, as a stable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_code: Option<String>,
    /// Why it ended, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_detail: Option<String>,
    /// The failure, if it ended in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The answer that completed it, shortened; the whole one is in the last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The request that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_mailbox_entry_id: Option<String>,
    /// Tokens sent.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens received.
    #[serde(default)]
    pub output_tokens: u64,
    /// The thread's status after this run, if it does not follow from the termination code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Status>,
    /// Usage of the run beyond tokens; for a run that was suspended, since it was resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The hash of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Digest>,
    /// The hash of its system prompt, for comparison only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Digest>,
    /// The texts that its items brought into the prompt, in the order of the prompt; only of a run that began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompt: Vec<PromptPart>,
}

/// What a text of a prompt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptSource {
    /// The identity and the instructions of the agent.
    Agent,
    /// The description of the directive.
    Directive,
    /// An entry of knowledge that the directive's context names.
    Knowledge,
    /// The task of the thread.
    Task,
    /// The embedding program.
    Program,
}

/// A text of a prompt: what it comes from, and its digest. What hooks bring is in their `context_injected`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptPart {
    /// What it comes from.
    pub source: PromptSource,
    /// The name of that item, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Where it stands: in the system prompt, or before or after the body in the first message.
    pub position: Place,
    /// SHA-256 of the text as it stands in the prompt.
    pub digest: Digest,
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
            result: None,
            source_mailbox_entry_id: None,
            input_tokens: 0,
            output_tokens: 0,
            outcome: None,
            cost: None,
            config: None,
            system: None,
            prompt: Vec::new(),
        }
    }

    /// The same run, ended with `termination_code`.
    #[must_use]
    pub fn finished(mut self, termination_code: impl Into<String>) -> Self {
        self.status = RunStatus::Done;
        self.prompt.clear();
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

    /// The same run, executed by an engine under a lease.
    #[must_use]
    pub fn under_lease(self) -> Self {
        Self { held: true, ..self }
    }

    /// The usage of the run, including tokens.
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
    /// Its parent run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// Its description.
    pub meta: RunMeta,
}

/// A run, as the index shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The run.
    pub run_id: RunId,
    /// The thread it ran on.
    pub thread_id: ThreadId,
    /// Its parent run; written once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// Its latest description.
    #[serde(flatten)]
    pub meta: RunMeta,
    /// When its first record was written.
    pub created_at: Timestamp,
    /// When its last record was written.
    pub updated_at: Timestamp,
}

impl Run {
    /// The run after the record of `at`. The fields that describe where a run came from are written once.
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
            if run.meta.prompt.is_empty() {
                run.meta.prompt = before.meta.prompt;
            }
        }
        run
    }
}
