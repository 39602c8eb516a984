//! The contract of a language model: a prompt in, drafts while it speaks, one answer or one error out.
//!
//! A draft is no promise: only what [`Model::answer`] gives is final, and an answer that was cut off in the middle is an error, never
//! a short answer.

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

/// What a model is asked.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Prompt<'a> {
    /// The model, by its provider's name for it.
    pub model: &'a str,
    /// The attempt that this is, where a run asks.
    pub attempt: Option<Attempt<'a>>,
    /// Where the blobs are read that the messages name: pictures, and the whole of what was shortened.
    pub blobs: &'a dyn Blobs,
    /// The rules it answers under.
    pub system: &'a str,
    /// The conversation; every tool call is followed by its result.
    pub messages: &'a [Arc<Message>],
    /// The tools it may ask for.
    pub tools: &'a [ToolSpec],
    /// How many tokens it may answer with.
    pub output_tokens_max: Option<u64>,
    /// The session of an outside engine that already knows the conversation; an optimisation that may be refused.
    pub session: Option<&'a str>,
}

impl<'a> Prompt<'a> {
    /// A conversation, without rules, tools, blobs or a run that asks.
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

/// One attempt of a run to get an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// The thread.
    pub thread: &'a ThreadId,
    /// The run.
    pub run: &'a RunId,
    /// Names this attempt and no other: a provider that is sent it twice can tell.
    pub key: &'a str,
}

impl<'a> Attempt<'a> {
    /// An attempt.
    pub fn new(thread: &'a ThreadId, run: &'a RunId, key: &'a str) -> Self {
        Self { thread, run, key }
    }
}

/// Reads the blobs that messages name.
pub trait Blobs: Send + Sync {
    /// The bytes of a blob; why not, in words.
    fn read<'a>(&'a self, blob: &'a Digest) -> BoxFuture<'a, Result<Vec<u8>, String>>;
}

/// A conversation without blobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBlobs;

impl Blobs for NoBlobs {
    fn read<'a>(&'a self, blob: &'a Digest) -> BoxFuture<'a, Result<Vec<u8>, String>> {
        Box::pin(async move { Err(format!("blob `{blob}` can't be read here")) })
    }
}

/// A piece of an answer while it is being made.
///
/// Calls are drafted under the ids that the provider gives them; an id that the thread has used before is replaced when the answer is
/// committed.
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
    /// A tool call begins.
    ToolCall {
        /// The tool.
        name: String,
        /// The call, if the provider names it.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<CallId>,
    },
    /// More of a tool call's arguments, as JSON text.
    Arguments {
        /// The call; the one that began last if the provider names none.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<CallId>,
        /// The text.
        text: String,
    },
    /// Everything drafted so far is void: the call is made again.
    Void,
}

/// What a call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens sent, those from a cache included.
    pub input_tokens: u64,
    /// Tokens received.
    pub output_tokens: u64,
    /// Of the tokens sent, those read from the provider's cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Of the tokens sent, those written to the provider's cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// Whether the provider did not count, and this was estimated.
    #[serde(default, skip_serializing_if = "crate::account::is_false")]
    pub estimated: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The model said all it had to say.
    Finished,
    /// It asks for tools.
    ToolCalls,
    /// It ran into the most tokens it may answer with.
    Length,
    /// It refuses to answer.
    Refused,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// What it says, in order.
    pub content: Vec<Block>,
    /// Why it ended.
    pub end: End,
    /// What it used, as the provider counts; nothing if it does not say.
    pub usage: Option<Usage>,
    /// The session of an outside engine that now knows the conversation.
    pub session: Option<String>,
    /// The provider's name for this answer.
    pub provider_id: Option<String>,
    /// The model that answered, by its provider's name for it; absent if it is the one that was asked for, or not said.
    pub model: Option<String>,
    /// What the provider says that it charges; absent if that follows from the tokens.
    pub charged: Option<Money>,
}

impl Answer {
    /// An answer of which nothing is known but what it says.
    pub fn new(content: Vec<Block>, end: End) -> Self {
        Self { content, end, usage: None, session: None, provider_id: None, model: None, charged: None }
    }

    /// The same, with what it used.
    #[must_use]
    pub fn using(self, usage: Usage) -> Self {
        Self { usage: Some(usage), ..self }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// It may work when it is tried again.
    #[error("the model could not be reached or failed: {why}")]
    Transient {
        /// What happened.
        why: String,
    },
    /// It was not asked at all: nothing was sent, so nothing is charged. It may work when it is tried again.
    #[error("the model could not be reached or failed: {why}")]
    Unreached {
        /// What happened.
        why: String,
    },
    /// The provider answered with a code of HTTP instead of an answer; what it is follows from the code, unless the configuration says
    /// otherwise.
    #[error("{}: HTTP {status}: {why}", phrase(*status))]
    Status {
        /// The code.
        status: u16,
        /// What it said.
        why: String,
        /// How long to wait, if it said so.
        retry_after: Option<Duration>,
    },
    /// Too much was asked of it.
    #[error("the provider asks for patience: {why}")]
    RateLimited {
        /// What it said.
        why: String,
        /// How long to wait, if it said so.
        retry_after: Option<Duration>,
    },
    /// The answer broke off. Tokens may have been used, and what was said is no answer.
    #[error("the answer was cut off: {why}")]
    Cut {
        /// What happened.
        why: String,
        /// What had been said.
        partial: Vec<Block>,
        /// What it used as far as is known.
        usage: Usage,
    },
    /// The outside engine does not know the session; nothing was asked of it.
    #[error("the session is not known any more: {why}")]
    SessionRefused {
        /// What it said.
        why: String,
    },
    /// It will not work however often it is tried.
    #[error("the model refused the request: {why}")]
    Permanent {
        /// What it said.
        why: String,
    },
    /// It was told to stop.
    #[error("the model was stopped")]
    Stopped {
        /// What had been said.
        partial: Vec<Block>,
        /// What it used as far as is known.
        usage: Usage,
    },
}

impl ModelError {
    /// The code of HTTP that came instead of an answer; 0 if nothing was sent, none where there is no such code.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Unreached { .. } => Some(0),
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// How it is recorded; nothing if it was told to stop.
    pub fn failure(&self) -> Option<Failure> {
        let (class, why) = match self {
            Self::Transient { why } | Self::Unreached { why } => (FailureClass::ModelFailed, why.clone()),
            Self::Status { status, why, .. } => {
                let class = match said(*status) {
                    Said::Patience => FailureClass::ModelRateLimited,
                    Said::Failed => FailureClass::ModelFailed,
                    Said::No => FailureClass::ModelRefused,
                };
                (class, format!("HTTP {status}: {why}"))
            }
            Self::RateLimited { why, .. } => (FailureClass::ModelRateLimited, why.clone()),
            Self::Cut { why, .. } => (FailureClass::ModelCut, why.clone()),
            Self::SessionRefused { why } => (FailureClass::ModelSessionRefused, why.clone()),
            Self::Permanent { why } => (FailureClass::ModelRefused, why.clone()),
            Self::Stopped { .. } => return None,
        };
        Some(Failure { class, why })
    }

    /// The error that was recorded so; nothing if it was none of a call.
    pub fn recorded(failure: &Failure) -> Option<Self> {
        let why = failure.why.clone();
        Some(match failure.class {
            FailureClass::ModelFailed => Self::Transient { why },
            FailureClass::ModelRateLimited => Self::RateLimited { why, retry_after: None },
            FailureClass::ModelCut => Self::Cut { why, partial: Vec::new(), usage: Usage::default() },
            FailureClass::ModelSessionRefused => Self::SessionRefused { why },
            FailureClass::ModelRefused => Self::Permanent { why },
            FailureClass::ModelDeclined | FailureClass::ModelLength | FailureClass::Engine => return None,
        })
    }

    /// How long to wait before it is tried again, if the provider said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// What a code of HTTP says.
enum Said {
    /// Wait.
    Patience,
    /// It failed there, or took too long.
    Failed,
    /// No.
    No,
}

fn said(status: u16) -> Said {
    match status {
        429 => Said::Patience,
        408 | 409 | 425 | 500.. => Said::Failed,
        _ => Said::No,
    }
}

/// How an error begins, as those without a code do that are of the same class: a record of it reads alike.
fn phrase(status: u16) -> &'static str {
    match said(status) {
        Said::Patience => "the provider asks for patience",
        Said::Failed => "the model could not be reached or failed",
        Said::No => "the model refused the request",
    }
}

impl Classify for ModelError {
    fn kind(&self) -> Kind {
        match self.code() {
            "model_refused" => Kind::Invalid,
            "model_rate_limited" => Kind::Exhausted,
            _ => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Status { status, .. } => match said(*status) {
                Said::Patience => "model_rate_limited",
                Said::Failed => "model_failed",
                Said::No => "model_refused",
            },
            Self::Transient { .. } | Self::Unreached { .. } => "model_failed",
            Self::RateLimited { .. } => "model_rate_limited",
            Self::Cut { .. } => "model_cut",
            Self::SessionRefused { .. } => "model_session_refused",
            Self::Permanent { .. } => "model_refused",
            Self::Stopped { .. } => "model_stopped",
        }
    }

    fn retryable(&self) -> bool {
        matches!(self.code(), "model_failed" | "model_rate_limited" | "model_cut")
    }
}

/// Takes the drafts of an answer.
pub type Drafts<'a> = dyn FnMut(Draft) + Send + 'a;

/// A language model.
///
/// An engine polls it on a runtime of tokio with timers. Code that blocks must not run in it: see
/// [`crate::blocking`].
pub trait Model: Send + Sync {
    /// Answers a prompt, telling drafts as they come. Ends soon after `cancel` says to stop, with what was said so far; one that does
    /// not is dropped, and its answer is lost.
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>>;

    /// How many tokens of conversation `model` can be given; absent when nobody knows.
    fn context_tokens_max(&self, model: &str) -> Option<u64>;
}
