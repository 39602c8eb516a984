//! Requests to a thread, from a person, a program or another thread.
//!
//! A request that can't be handled at once waits in the thread's inbox until the lease holder consumes it. Consuming it records its id and
//! its verdict in the log ([`Answered`]), so that its sender can wait for it, and so that a request that is sent again is answered
//! from the record and not handled twice.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::Decision;
use crate::id::{RequestId, ThreadId};
use crate::limits::Limits;
use crate::message::{Message, Role};
use crate::status::Status;
use crate::time::Timestamp;

/// A request to a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Request {
    /// Start a run with this input, after the runs that were requested before.
    Send(Input),
    /// Resume a thread that is suspended, was lost or has ended. Never queued in an inbox: refused while the thread is leased.
    Resume(Input),
    /// Approve or deny a call.
    Decide(Decision),
    /// Resolve a call whose outcome is unknown.
    Settle(Decision),
    /// Raise limits.
    Raise {
        /// The new limits; absent ones stay.
        limits: Limits,
    },
    /// Change the thread's title.
    Rename {
        /// The title.
        title: String,
    },
    /// Stop at the next point where no work is lost.
    Cancel,
    /// Stop at once.
    Kill,
    /// A child of the thread has ended.
    ChildSettled(ChildEnd),
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// [`Request::Send`].
    Send,
    /// [`Request::Resume`].
    Resume,
    /// [`Request::Decide`].
    Decide,
    /// [`Request::Settle`].
    Settle,
    /// [`Request::Raise`].
    Raise,
    /// [`Request::Rename`].
    Rename,
    /// [`Request::Cancel`].
    Cancel,
    /// [`Request::Kill`].
    Kill,
    /// [`Request::ChildSettled`].
    ChildSettled,
}

/// The input of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// The messages; one with an id that the thread already has is a repetition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// A state that replaces the thread's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
    /// Limits to raise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raise: Option<Limits>,
    /// What started the run.
    #[serde(default)]
    pub origin: Origin,
}

/// What started a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Origin {
    /// A person or a program sent input.
    #[default]
    User,
    /// A thread started this one as its child.
    Subagent,
    /// The thread is the successor of another one in its chain.
    Continuation,
    /// The run was recorded for a thread whose process died before it could start it.
    Recovery,
    /// Another source, named by the sender.
    Other(String),
}

impl Origin {
    /// Its name, as recorded.
    pub fn as_str(&self) -> &str {
        match self {
            Self::User => "user",
            Self::Subagent => "subagent",
            Self::Continuation => "continuation",
            Self::Recovery => "recovery",
            Self::Other(name) => name,
        }
    }
}

impl From<String> for Origin {
    fn from(name: String) -> Self {
        match name.as_str() {
            "user" => Self::User,
            "subagent" => Self::Subagent,
            "continuation" => Self::Continuation,
            "recovery" => Self::Recovery,
            _ => Self::Other(name),
        }
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.as_str().to_owned()
    }
}

/// How a child of a thread ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildEnd {
    /// The first thread of the child's chain.
    pub thread_id: ThreadId,
    /// The last one.
    pub end_thread_id: ThreadId,
    /// How it ended.
    pub status: Status,
    /// Its outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
}

/// A request as it waits in an inbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Posted {
    /// The thread it is for.
    pub thread: ThreadId,
    /// The sender's id for it; a request that is posted twice under one id is handled once.
    pub id: RequestId,
    /// When it was posted, by the sender's clock.
    pub at: Timestamp,
    /// The request.
    pub request: Request,
}

/// The payload of `request_answered`: a request was consumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// The request.
    pub request_id: RequestId,
    /// Its kind.
    pub kind: RequestKind,
    /// The verdict.
    pub verdict: Verdict,
    /// Why it was not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was applied, in the changeset with the verdict.
    Applied,
    /// It had no effect: the requested state already held.
    Unchanged,
    /// It can't be applied.
    Refused,
    /// It was not sealed with a key that may sign for the thread, and was dropped.
    Unsealed,
}

impl Request {
    /// Its kind.
    pub fn kind(&self) -> RequestKind {
        match self {
            Self::Send(_) => RequestKind::Send,
            Self::Resume(_) => RequestKind::Resume,
            Self::Decide(_) => RequestKind::Decide,
            Self::Settle(_) => RequestKind::Settle,
            Self::Raise { .. } => RequestKind::Raise,
            Self::Rename { .. } => RequestKind::Rename,
            Self::Cancel => RequestKind::Cancel,
            Self::Kill => RequestKind::Kill,
            Self::ChildSettled(_) => RequestKind::ChildSettled,
        }
    }
}

impl RequestKind {
    /// Whether it may wait in the inbox of a thread that is held; else it is refused.
    pub fn may_wait(self) -> bool {
        self != Self::Resume
    }

    /// Its name, as stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Resume => "resume",
            Self::Decide => "decide",
            Self::Settle => "settle",
            Self::Raise => "raise",
            Self::Rename => "rename",
            Self::Cancel => "cancel",
            Self::Kill => "kill",
            Self::ChildSettled => "child_settled",
        }
    }

    /// Whether the lease must not be released while such a request waits: only a run consumes it.
    pub fn holds_lease(self) -> bool {
        self == Self::Send
    }
}

impl std::fmt::Display for RequestKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl Answered {
    /// A request that was applied.
    pub fn applied(posted: &Posted) -> Self {
        Self::new(posted, Verdict::Applied, None)
    }

    /// A request with this verdict.
    pub fn new(posted: &Posted, verdict: Verdict, why: Option<String>) -> Self {
        Self { request_id: posted.id.clone(), kind: posted.request.kind(), verdict, why }
    }
}

impl Input {
    /// One message of a user.
    pub fn text(text: impl Into<String>) -> Self {
        Self::messages(vec![Message::text(Role::User, text)])
    }

    /// Several messages of a user.
    pub fn messages(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }

    /// No new input: the run finishes what is open.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// No new input: the run of a successor.
    pub fn continuing() -> Self {
        Self { origin: Origin::Continuation, ..Self::default() }
    }

    /// The same input, with a state that replaces the thread's.
    #[must_use]
    pub fn with_state(self, state: Option<Value>) -> Self {
        Self { state, ..self }
    }

    /// The same input, with limits to raise.
    #[must_use]
    pub fn raising(self, raise: Limits) -> Self {
        Self { raise: Some(raise), ..self }
    }

    /// Whether it has no messages and no state; raised limits alone only let the thread continue its work.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.state.is_none()
    }

    /// Whether it is the first input of a successor.
    pub fn is_continuing(&self) -> bool {
        self.origin == Origin::Continuation
    }
}

impl From<Vec<Message>> for Input {
    fn from(messages: Vec<Message>) -> Self {
        Self::messages(messages)
    }
}

impl From<&str> for Input {
    /// One message of a user.
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Input {
    /// One message of a user.
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_kind_is_written_with_its_name_and_read_back() {
        let decision = json!({"call_id": "c", "action": "approve", "who": "ann", "result": null});
        let requests = [
            json!({"kind": "send", "messages": [{"role": "user", "content": "hi"}], "origin": "user"}),
            json!({"kind": "resume", "origin": "cron"}),
            {
                let mut value = decision.clone();
                value["kind"] = json!("decide");
                value
            },
            {
                let mut value = decision;
                value["kind"] = json!("settle");
                value
            },
            json!({"kind": "raise", "limits": {"turns": 9}}),
            json!({"kind": "rename", "title": "Tea"}),
            json!({"kind": "cancel"}),
            json!({"kind": "kill"}),
            json!({"kind": "child_settled", "thread_id": "a", "end_thread_id": "b", "status": "completed"}),
        ];
        for written in requests {
            let request: Request = serde_json::from_value(written.clone()).unwrap();
            assert_eq!(request.kind().as_str(), written["kind"]);
            assert_eq!(serde_json::to_value(&request).unwrap(), written);
        }
        assert!(serde_json::from_value::<Request>(json!({"kind": "dance"})).is_err());
    }
}
