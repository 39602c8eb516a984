//! The contract of a language model: a prompt in, drafts while it generates, one answer or one error out.
//!
//! A draft is provisional: only the result of [`Model::answer`] is final, and an answer that was cut off is an error, never a short
//! answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::blocking::BoxFuture;
use crate::cancel::Cancel;
use crate::digest::Digest;
use crate::error::{Classify, Kind};
use crate::id::{CallId, RunId, ThreadId};
use crate::message::{Block, Message};
use crate::money::Money;
use crate::run::{Failure, FailureClass};
use crate::tool::ToolSpec;

/// A request to a model.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Prompt<'a> {
    /// The model, by its provider's name for it.
    pub model: &'a str,
    /// The run's attempt that sends it, if a run does.
    pub attempt: Option<Attempt<'a>>,
    /// Reads the blobs that the messages name: images, and the full content of shortened blocks.
    pub blobs: &'a dyn Blobs,
    /// The system prompt.
    pub system: &'a str,
    /// The conversation; every tool call is followed by its result.
    pub messages: &'a [Arc<Message>],
    /// The tools it may call.
    pub tools: &'a [ToolSpec],
    /// The maximum number of tokens of the answer.
    pub output_tokens_max: Option<u64>,
    /// A session of the provider that already knows the start of the conversation; an optimisation that the provider may refuse.
    pub session: Option<Session<'a>>,
}

impl<'a> Prompt<'a> {
    /// A prompt of a conversation alone: no system prompt, tools, blobs or run.
    pub fn new(model: &'a str, messages: &'a [Arc<Message>]) -> Self {
        Self {
            model,
            attempt: None,
            blobs: &NoBlobs,
            system: "",
            messages,
            tools: &[],
            output_tokens_max: None,
            session: None,
        }
    }
}

impl fmt::Debug for Prompt<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Prompt");
        shown.field("model", &self.model).field("attempt", &self.attempt).field("messages", &self.messages.len());
        shown.finish_non_exhaustive()
    }
}

/// A session of a provider, which stores a conversation of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session<'a> {
    /// The provider's id of it.
    pub id: &'a str,
    /// How many messages of the prompt, from the first, it knows. Only the others are sent.
    pub covers: usize,
}

/// One attempt of a run to get an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// The thread.
    pub thread: &'a ThreadId,
    /// The run.
    pub run: &'a RunId,
    /// Unique to this attempt, so that a provider can detect a request that is sent twice.
    pub key: &'a str,
}

impl<'a> Attempt<'a> {
    /// An attempt of `run` in `thread`, identified by `key`.
    pub fn new(thread: &'a ThreadId, run: &'a RunId, key: &'a str) -> Self {
        Self { thread, run, key }
    }
}

/// Reads the blobs that messages name.
pub trait Blobs: Send + Sync {
    /// The bytes of a blob, or why it can't be read.
    fn read<'a>(&'a self, blob: &'a Digest) -> BoxFuture<'a, Result<Vec<u8>, String>>;
}

/// Has no blobs: every read fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBlobs;

impl Blobs for NoBlobs {
    fn read<'a>(&'a self, blob: &'a Digest) -> BoxFuture<'a, Result<Vec<u8>, String>> {
        Box::pin(async move { Err(format!("blob `{blob}` can't be read here")) })
    }
}

/// A piece of an answer while it is being generated.
///
/// Calls are drafted under the provider's ids; an id that the thread has used before is replaced when the answer is committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "draft", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Draft {
    /// More text.
    Text {
        /// The text.
        text: String,
    },
    /// More of a thought.
    Thinking {
        /// The thought.
        text: String,
    },
    /// The start of a tool call.
    ToolCall {
        /// The tool.
        name: String,
        /// The call's id, if the provider gives one.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<CallId>,
    },
    /// More of a tool call's arguments, as JSON text.
    Arguments {
        /// The call; absent if the provider gives no id, and then it is the one that started last.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<CallId>,
        /// The text.
        text: String,
    },
    /// Everything drafted so far is void: the request is sent again.
    Void,
}

/// The tokens that a call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens sent, including those from a cache.
    pub input_tokens: u64,
    /// Tokens received.
    pub output_tokens: u64,
    /// Of the tokens sent, those read from the provider's cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Of the tokens sent, those written to the provider's cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// Whether the provider reported no count, and this is an estimate.
    #[serde(default, skip_serializing_if = "crate::account::is_false")]
    pub estimated: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The model finished its answer.
    Finished,
    /// It calls tools.
    ToolCalls,
    /// It reached the maximum number of tokens.
    Length,
    /// It declined to answer.
    Refused,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// Its blocks, in order.
    pub content: Vec<Block>,
    /// Why it ended.
    pub end: End,
    /// The tokens it used, as the provider counts; `None` if the provider does not report them.
    pub usage: Option<Usage>,
    /// The session of the provider, which now knows the conversation.
    pub session: Option<String>,
    /// The provider's name for this answer.
    pub provider_id: Option<String>,
    /// The model that answered, by its provider's name for it; absent if it is the requested one or not reported.
    pub model: Option<String>,
    /// The price that the provider reports; absent if it follows from the tokens.
    pub charged: Option<Money>,
    /// How the request differed from what was configured, such as thinking that was switched off for it. Recorded with the usage.
    pub notes: Vec<String>,
}

impl Answer {
    /// An answer of which only the content is known.
    pub fn new(content: Vec<Block>, end: End) -> Self {
        let notes = Vec::new();
        Self { content, end, usage: None, session: None, provider_id: None, model: None, charged: None, notes }
    }

    /// The same answer with its usage.
    #[must_use]
    pub fn using(self, usage: Usage) -> Self {
        Self { usage: Some(usage), ..self }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A failure that a retry may resolve.
    #[error("the model could not be reached or failed: {why}")]
    Transient {
        /// What happened.
        why: String,
    },
    /// The request was not sent, so nothing is charged. A retry may succeed.
    #[error("the model could not be reached or failed: {why}")]
    Unreached {
        /// What happened.
        why: String,
    },
    /// The provider responded with an HTTP error status. Its class follows from the status, unless the configuration maps it otherwise.
    #[error("{}: HTTP {status}: {why}", phrase(*status))]
    Status {
        /// The HTTP status.
        status: u16,
        /// The provider's message.
        why: String,
        /// How long to wait before a retry, if the provider says so.
        retry_after: Option<Duration>,
    },
    /// The provider's rate limit was reached.
    #[error("rate limited by the provider: {why}")]
    RateLimited {
        /// The provider's message.
        why: String,
        /// How long to wait before a retry, if the provider says so.
        retry_after: Option<Duration>,
    },
    /// The answer was cut off. Tokens may have been used, and the partial content is not an answer.
    #[error("the answer was cut off: {why}")]
    Cut {
        /// What happened.
        why: String,
        /// The content received so far.
        partial: Vec<Block>,
        /// The tokens used, as far as is known; `estimated` if the provider did not report all of them. `None` if nothing is known.
        usage: Option<Usage>,
    },
    /// The provider no longer knows the session; nothing was sent to the model.
    #[error("the session is no longer known: {why}")]
    SessionRefused {
        /// The engine's message.
        why: String,
    },
    /// The prompt is longer than the model's context window; nothing is charged.
    #[error("the prompt is longer than the model's context window: {why}")]
    ContextTooLong {
        /// The provider's message.
        why: String,
    },
    /// A failure that no retry resolves.
    #[error("the request was rejected: {why}")]
    Permanent {
        /// The provider's message.
        why: String,
    },
    /// The call was cancelled.
    #[error("the model was stopped")]
    Stopped {
        /// The content received so far.
        partial: Vec<Block>,
        /// The tokens used, as far as is known; `estimated` if the provider did not report all of them. `None` if nothing is known.
        usage: Option<Usage>,
    },
}

impl ModelError {
    /// The HTTP status: 0 if nothing was sent, `None` if the error has no status.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Unreached { .. } => Some(0),
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The failure to record; `None` if the call was cancelled.
    pub fn failure(&self) -> Option<Failure> {
        let (class, why) = match self {
            Self::Transient { why } | Self::Unreached { why } => (FailureClass::ModelFailed, why.clone()),
            Self::Status { status, why, .. } => {
                let class = match status_class(*status) {
                    StatusClass::RateLimited => FailureClass::ModelRateLimited,
                    StatusClass::Failed => FailureClass::ModelFailed,
                    StatusClass::Refused => FailureClass::ModelRejected,
                };
                (class, format!("HTTP {status}: {why}"))
            }
            Self::RateLimited { why, .. } => (FailureClass::ModelRateLimited, why.clone()),
            Self::Cut { why, .. } => (FailureClass::ModelAnswerCut, why.clone()),
            Self::SessionRefused { why } => (FailureClass::ModelSessionRefused, why.clone()),
            Self::ContextTooLong { why } => (FailureClass::ModelContextTooLong, why.clone()),
            Self::Permanent { why } => (FailureClass::ModelRejected, why.clone()),
            Self::Stopped { .. } => return None,
        };
        Some(Failure { class, why })
    }

    /// The error behind a recorded failure; `None` if the failure is not one of a model call.
    pub fn recorded(failure: &Failure) -> Option<Self> {
        let why = failure.why.clone();
        Some(match failure.class {
            FailureClass::ModelFailed => Self::Transient { why },
            FailureClass::ModelRateLimited => Self::RateLimited { why, retry_after: None },
            FailureClass::ModelAnswerCut => Self::Cut { why, partial: Vec::new(), usage: None },
            FailureClass::ModelSessionRefused => Self::SessionRefused { why },
            FailureClass::ModelContextTooLong => Self::ContextTooLong { why },
            FailureClass::ModelRejected => Self::Permanent { why },
            FailureClass::ModelDeclined
            | FailureClass::OutputLimitReached
            | FailureClass::Hook
            | FailureClass::Graph
            | FailureClass::Engine => {
                return None;
            }
        })
    }

    /// How long to wait before a retry, if the provider says so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// What an HTTP status means for a call.
enum StatusClass {
    /// Wait, then retry.
    RateLimited,
    /// The provider failed or timed out.
    Failed,
    /// The request itself was refused.
    Refused,
}

fn status_class(status: u16) -> StatusClass {
    match status {
        429 => StatusClass::RateLimited,
        408 | 409 | 425 | 500.. => StatusClass::Failed,
        _ => StatusClass::Refused,
    }
}

/// How the message of an error with a status begins: the same words as for errors of its class without one.
fn phrase(status: u16) -> &'static str {
    match status_class(status) {
        StatusClass::RateLimited => "rate limited by the provider",
        StatusClass::Failed => "the model could not be reached or failed",
        StatusClass::Refused => "the request was rejected",
    }
}

impl Classify for ModelError {
    fn kind(&self) -> Kind {
        match self.code() {
            "model_rejected" | "model_context_too_long" => Kind::Invalid,
            "model_rate_limited" => Kind::Exhausted,
            _ => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Status { status, .. } => match status_class(*status) {
                StatusClass::RateLimited => "model_rate_limited",
                StatusClass::Failed => "model_failed",
                StatusClass::Refused => "model_rejected",
            },
            Self::Transient { .. } | Self::Unreached { .. } => "model_failed",
            Self::RateLimited { .. } => "model_rate_limited",
            Self::Cut { .. } => "model_answer_cut",
            Self::SessionRefused { .. } => "model_session_refused",
            Self::ContextTooLong { .. } => "model_context_too_long",
            Self::Permanent { .. } => "model_rejected",
            Self::Stopped { .. } => "model_stopped",
        }
    }

    fn retryable(&self) -> bool {
        matches!(self.code(), "model_failed" | "model_rate_limited" | "model_answer_cut")
    }
}

/// Receives the drafts of an answer.
pub type Drafts<'a> = dyn FnMut(Draft) + Send + 'a;

/// A language model.
///
/// An engine polls it on a tokio runtime with timers. Code that blocks must not run in it: see
/// [`crate::blocking`].
pub trait Model: Send + Sync {
    /// Answers a prompt, and passes drafts to `draft` as they arrive. Ends soon after `cancel` is triggered, with the content so far. A
    /// call that does not end in time is dropped, and its answer is lost.
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>>;

    /// The size of `model`'s context window in tokens; `None` if unknown.
    fn context_tokens_max(&self, model: &str) -> Option<u64>;
}
