//! The contract of a tool: what it is, how it is started, and what can be known of a call that nobody saw end.
//!
//! A call is dispatched in two steps, so that an intent can be committed in between: [`Tool::start`] makes everything ready
//! and does nothing to the world; [`Started::dispatch`] does it. What was started and dropped never ran. After a crash
//! [`Tool::reconcile`] is asked what became of a call whose intent is on record and whose outcome is not.

mod function;

use std::future::Future;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::blocking::{BoxFuture, wait};
use crate::cancel::Cancel;
use crate::digest::Digest;
use crate::error::{Classify, Kind};
use crate::event::{EffectClass, Process, ToolFailure, ToolFailureClass};
use crate::id::{CallId, RunId, ThreadId};
use crate::patch::Patch;

pub use function::Function;

/// What a tool is, as a model is told and as is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// What a model calls it.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// How often it may run for one call.
    pub class: EffectClass,
    /// The capability that allows it, such as `tool.files.write`.
    pub capability: String,
    /// How much harm it can do.
    #[serde(default)]
    pub risk: Risk,
    /// SHA-256 of its definition, so that a changed tool is noticed.
    pub hash: Digest,
}

/// How much harm a tool can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    /// Nothing that matters.
    #[default]
    Safe,
    /// It changes what belongs to the project.
    Write,
    /// It reaches other machines or other people's things.
    External,
    /// What it does can't be undone, or it can do anything; somebody must have acknowledged that.
    Dangerous,
}

/// A command of a user, declared as a tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommandSpec {
    /// What a model calls it.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// The program and its arguments. `{input:k}` stands for the call's argument `k`; an argument with `{input:k?}` is left out if
    /// there is none. Put `--` before values that must not be taken for options.
    pub command: Vec<String>,
    /// What the program is given to read.
    pub stdin: Stdin,
    /// How long it may take.
    pub timeout_seconds: u64,
    /// How much of what it prints is kept.
    pub output_bytes_max: u64,
    /// The variables that it may see.
    pub environment: Vec<String>,
    /// Where it is started, relative to the project; absent means there.
    pub working_folder: Option<String>,
    /// How often it may run for one call.
    pub class: EffectClass,
    /// The command that knows what became of a call.
    pub reconcile: Option<Vec<String>>,
    /// The capability that allows it.
    pub capability: String,
    /// How much harm it can do.
    pub risk: Risk,
}

/// What a program is given to read.
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
    /// What it is called with.
    pub arguments: Value,
    /// What the tool is told so that it can recognise a repetition; the same whenever this call is dispatched again.
    pub key: String,
}

/// What a tool answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// The answer.
    pub content: Value,
    /// Whether the answer is an error.
    pub is_error: bool,
    /// What it changes in the thread's state.
    pub patches: Vec<Patch>,
}

impl Output {
    /// An answer in plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: Value::String(text.into()), ..Self::default() }
    }

    /// An error, in words that help a model.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }
}

/// What is known of a call that nobody saw end.
#[derive(Clone, Debug, PartialEq)]
pub enum Reconciled {
    /// It was done, with this answer.
    Done(Output),
    /// It was not done, and will not be.
    NotDone,
    /// Nobody knows; a person must say.
    Unknown,
}

/// Why a tool has no answer; what the tool itself has to say goes into an [`Output`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// It could not be made ready; nothing happened.
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
        /// What it said.
        why: String,
    },
    /// It was told to stop and did; what it had done by then, nobody knows.
    #[error("tool `{tool}` was stopped")]
    Stopped {
        /// The tool.
        tool: String,
    },
    /// It was dispatched, and what became of it can't be known.
    #[error("tool `{tool}` was dispatched and its outcome is not known: {why}")]
    Lost {
        /// The tool.
        tool: String,
        /// What went wrong.
        why: String,
    },
}

impl ToolError {
    /// How it is recorded; nothing if what became of the call is not known.
    pub fn failure(&self) -> Option<ToolFailure> {
        let (class, why) = match self {
            Self::NotStarted { why, .. } => (ToolFailureClass::NotStarted, why),
            Self::Panicked { why, .. } => (ToolFailureClass::Panicked, why),
            Self::Stopped { .. } | Self::Lost { .. } => return None,
        };
        Some(ToolFailure { class, why: why.clone() })
    }
}

impl Classify for ToolError {
    fn kind(&self) -> Kind {
        Kind::Broken
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NotStarted { .. } => "tool_not_started",
            Self::Panicked { .. } => "tool_panicked",
            Self::Stopped { .. } => "tool_stopped",
            Self::Lost { .. } => "tool_lost",
        }
    }
}

/// What a call of a tool is to the run that makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolKind {
    /// It does something, and the model hears what came of it.
    #[default]
    Work,
    /// It starts a child.
    Child,
    /// The thread is to hand itself over.
    Handoff,
    /// The run ends with outputs: `outputs` of its answer, or all of it.
    Return,
}

/// Something a model may ask for.
pub trait Tool: Send + Sync {
    /// What it is.
    fn spec(&self) -> &ToolSpec;

    /// What a call of it is to the run that makes it.
    fn kind(&self) -> ToolKind {
        ToolKind::Work
    }

    /// Makes a call ready. On return nothing has happened to the world, and nothing will unless it is dispatched.
    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError>;

    /// What became of a call that was dispatched and whose answer was lost. Asked only once the recorded process is gone.
    fn reconcile(&self, call: &Call, cancel: &Cancel) -> Reconciled;
}

/// A call that is ready.
pub trait Started: Send {
    /// The process that will do it, if it is one of its own.
    fn process(&self) -> Option<Process>;

    /// Does it: the work goes on as what this gives is carried out. It ends soon after `cancel` says to stop, with everything it had
    /// begun torn down.
    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch;
}

/// A call on its way.
pub enum Dispatch {
    /// It has ended.
    Done(Result<Output, ToolError>),
    /// It waits without a thread. One that does not end soon after a stop is dropped: when the drop returns, nothing of it goes on, and
    /// what it had done by then is not known.
    Future(BoxFuture<'static, Result<Output, ToolError>>),
    /// It blocks, and gets a thread of its own. It can't be stopped from outside, so it is waited for.
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

    /// Carries it out on this thread, if it needs no runtime: a future is polled until it ends.
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

/// Deals with processes that an earlier life of the engine left behind.
pub trait Processes: Send + Sync {
    /// Ends the group of a recorded process, if it is still that process, and returns once it is gone. `false` means that there
    /// was none.
    fn end(&self, process: &Process) -> Result<bool, ToolError>;

    /// Whether a recorded process, or one of its group, may live still. Whoever can't tell says that it may.
    fn may_live(&self, process: &Process) -> bool {
        _ = process;
        true
    }
}
