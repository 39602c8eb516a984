//! The contract of a tool: its definition, how a call is dispatched, and how an unknown outcome is reconciled.
//!
//! A call is dispatched in two steps, so that an intent can be committed in between: [`Tool::start`] prepares everything without any
//! outside effect; [`Started::dispatch`] executes it. A call that was started and dropped never ran. After a crash,
//! [`Tool::reconcile`] is asked for the outcome of a call that has a recorded intent and no recorded outcome.

mod function;
mod mcp;
mod sandbox;

use std::future::Future;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::blocking::{BoxFuture, wait};
use crate::cancel::Cancel;
use crate::digest::Digest;
use crate::error::{Classify, Kind};
use crate::event::{EffectClass, Fields, Process, ToolFailure, ToolFailureClass};
use crate::id::{CallId, RunId, ThreadId};
use crate::patch::Patch;
use crate::path::Path;

pub use function::Function;
pub use mcp::{McpLaunch, McpServerSpec, McpToken, McpToolDefinition};
pub use sandbox::{ReachedLevel, SandboxLevel, SandboxReached, SandboxSpec};

/// The definition of a tool, as it is sent to the model and recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// Its name, by which a model calls it.
    pub name: String,
    /// Its purpose.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// How often it may run for one call.
    pub class: EffectClass,
    /// The capability that allows it, such as `tool.file.write`.
    pub capability: String,
    /// How much harm it can do.
    #[serde(default)]
    pub risk: Risk,
    /// SHA-256 of its definition, so that a change is noticed.
    pub hash: Digest,
}

/// How much harm a tool can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    /// No harm.
    #[default]
    Safe,
    /// It changes the project.
    Write,
    /// It reaches other machines or things outside the project.
    External,
    /// Its effect can't be undone, or it can do anything; a person must have acknowledged that.
    Dangerous,
}

/// A user's command, declared as a tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommandSpec {
    /// Its name, by which a model calls it.
    pub name: String,
    /// Its purpose.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// The program and its arguments. `{input:k}` stands for the call's argument `k`; an argument with `{input:k?}` is omitted if the
    /// call has no `k`. Put `--` before values that must not be taken for options.
    pub command: Vec<String>,
    /// The program's standard input.
    pub stdin: Stdin,
    /// The timeout of a call.
    pub timeout_seconds: u64,
    /// How much of its output is kept.
    pub output_bytes_max: u64,
    /// The environment variables it may see.
    pub environment: Vec<String>,
    /// Its working folder, relative to the project; absent means the project itself.
    pub working_folder: Option<String>,
    /// How often it may run for one call.
    pub class: EffectClass,
    /// The command that reports the outcome of an earlier call.
    pub reconcile: Option<Vec<String>>,
    /// The capability that allows it.
    pub capability: String,
    /// How much harm it can do.
    pub risk: Risk,
    /// The paths of the thread's state that it may change; its stdout is an output object then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<Path>,
    /// What its process may reach; absent means everything that the user may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSpec>,
}

/// The standard input of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing.
    #[default]
    None,
    /// The call's arguments as one line of JSON.
    Json,
}

/// One call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The thread that calls.
    pub thread: ThreadId,
    /// The run that calls.
    pub run: RunId,
    /// The call.
    pub id: CallId,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Value,
    /// The key by which the tool can recognise a repetition; the same whenever this call is dispatched again.
    pub key: String,
}

/// The result of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// The result itself.
    pub content: Value,
    /// Whether the result is an error.
    pub is_error: bool,
    /// The changes to the thread's state.
    pub patches: Vec<Patch>,
    /// Recorded intents that changed the state, for audit; never replayed.
    pub state_actions: Vec<Fields>,
}

impl Output {
    /// A result in plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: Value::String(text.into()), ..Self::default() }
    }

    /// An error, in words that help a model.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }
}

/// What a tool reports about a call whose outcome is unknown.
#[derive(Clone, Debug, PartialEq)]
pub enum Reconciled {
    /// It was done, with this result.
    Done(Output),
    /// It was not done, and will not be.
    NotDone,
    /// The tool can't tell; a person must resolve it.
    Unknown,
    /// The tool has no way to find out, so there is nothing to ask; a person must resolve it.
    Unsupported,
}

/// Why a tool has no result; an error of the tool itself is an [`Output`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// It could not be prepared; nothing happened.
    #[error("tool `{tool}` could not be started: {why}")]
    NotStarted {
        /// The tool.
        tool: String,
        /// What went wrong.
        why: String,
    },
    /// It panicked before it was dispatched, or is one that may run again.
    #[error("tool `{tool}` panicked: {why}")]
    Panicked {
        /// The tool.
        tool: String,
        /// The message of the panic.
        why: String,
    },
    /// What it should have returned is not what was signed.
    #[error("{why}")]
    Integrity {
        /// The tool.
        tool: String,
        /// What is wrong.
        why: String,
    },
    /// It was cancelled and stopped; what it had done by then is unknown.
    #[error("tool `{tool}` was stopped")]
    Stopped {
        /// The tool.
        tool: String,
    },
    /// It was dispatched, and its outcome can't be determined.
    #[error("tool `{tool}` was dispatched and its outcome is unknown: {why}")]
    Lost {
        /// The tool.
        tool: String,
        /// What went wrong.
        why: String,
    },
}

impl ToolError {
    /// The failure to record; `None` if the call's outcome is unknown.
    pub fn failure(&self) -> Option<ToolFailure> {
        let (class, why) = match self {
            Self::NotStarted { why, .. } => (ToolFailureClass::NotStarted, why),
            Self::Panicked { why, .. } => (ToolFailureClass::Panicked, why),
            Self::Integrity { why, .. } => (ToolFailureClass::Integrity, why),
            Self::Stopped { .. } | Self::Lost { .. } => return None,
        };
        Some(ToolFailure { class, why: why.clone() })
    }
}

impl Classify for ToolError {
    fn kind(&self) -> Kind {
        match self {
            Self::Integrity { .. } => Kind::Integrity,
            _ => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NotStarted { .. } => "tool_not_started",
            Self::Panicked { .. } => "tool_panicked",
            Self::Integrity { .. } => "tool_integrity",
            Self::Stopped { .. } => "tool_stopped",
            Self::Lost { .. } => "tool_lost",
        }
    }
}

/// What a call of a tool means to its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolKind {
    /// It does some work, and the model gets the result.
    #[default]
    Work,
    /// It starts a child.
    Child,
    /// The thread is handed off to a successor.
    Handoff,
    /// The run ends with outputs: the field `outputs` of the result, or the whole result.
    Return,
}

/// A tool that a model may call.
pub trait Tool: Send + Sync {
    /// Its definition.
    fn spec(&self) -> &ToolSpec;

    /// The sandbox that its definition declares, and how much of it this machine enforces; none if it declares none.
    fn sandbox(&self) -> Option<SandboxReached> {
        None
    }

    /// What a call of it means to its run.
    fn kind(&self) -> ToolKind {
        ToolKind::Work
    }

    /// Prepares a call. On return nothing has happened outside, and nothing will unless the call is dispatched.
    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError>;

    /// The outcome of a call that was dispatched and whose result was lost. Called only after the recorded process has ended.
    fn reconcile(&self, call: &Call, cancel: &Cancel) -> Reconciled;
}

/// A call that is prepared.
pub trait Started: Send {
    /// The process that will execute it, if it has its own.
    fn process(&self) -> Option<Process>;

    /// How much of the tool's sandbox is enforced; none if it declares none.
    fn sandbox(&self) -> Option<SandboxReached> {
        None
    }

    /// Executes the call: the work proceeds as the returned value is driven. It ends soon after `cancel` is triggered, with everything it
    /// had started torn down.
    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch;
}

/// The execution of a call.
pub enum Dispatch {
    /// It has ended.
    Done(Result<Output, ToolError>),
    /// It waits without a thread. A future that does not end soon after a cancellation is dropped: when the drop returns, nothing of it
    /// runs any more, and what it had done by then is unknown.
    Future(BoxFuture<'static, Result<Output, ToolError>>),
    /// It blocks, and runs on a thread of its own. It can't be stopped from outside, so the engine waits for it.
    Blocking(Box<dyn FnOnce() -> Result<Output, ToolError> + Send>),
}

impl Dispatch {
    /// Work that waits without a thread.
    pub fn future(work: impl Future<Output = Result<Output, ToolError>> + Send + 'static) -> Self {
        Self::Future(Box::pin(work))
    }

    /// Work that blocks.
    pub fn blocking(work: impl FnOnce() -> Result<Output, ToolError> + Send + 'static) -> Self {
        Self::Blocking(Box::new(work))
    }

    /// Executes it on this thread, if it needs no runtime: a future is polled until it is ready.
    pub fn wait(self) -> Result<Output, ToolError> {
        match self {
            Self::Done(done) => done,
            Self::Future(work) => wait(work),
            Self::Blocking(work) => work(),
        }
    }
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Done(_) => "Done",
            Self::Future(_) => "Future",
            Self::Blocking(_) => "Blocking",
        })
    }
}

/// Manages processes that an earlier process of the engine left running.
pub trait Processes: Send + Sync {
    /// Terminates the group of a recorded process, if it is still that process, and returns once it has ended. Returns `false` if there
    /// was none.
    fn end(&self, process: &Process) -> Result<bool, ToolError>;

    /// Whether a recorded process, or one of its group, may still be alive. An implementation that can't tell returns `true`.
    fn may_live(&self, process: &Process) -> bool {
        _ = process;
        true
    }
}
