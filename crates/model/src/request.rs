//! What is asked of a thread, by a person, a program or another thread.
//!
//! A request that can't be served at once waits in the thread's inbox until the holder of the lease consumes it. Consuming one leaves its
//! id and its verdict in the log ([`Answered`]), so that its sender can wait for it, and so that a request that is sent again is answered
//! from the record and not served a second time.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::Decision;
use crate::id::{RequestId, ThreadId};
use crate::limits::Limits;
use crate::message::{Message, Role};
use crate::status::Status;
use crate::time::Timestamp;

/// What is asked of a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Request {
    /// Start a run with this input, after the runs that were asked for before.
    Send(Input),
    /// Go on with a thread that is suspended, was lost or has ended. Never left in an inbox: refused while the thread is held.
    Resume(Input),
    /// Record whether a call may be made.
    Decide(Decision),
    /// Record what became of a call whose outcome is unknown.
    Settle(Decision),
    /// Raise limits.
    Raise {
        /// The limits that are higher from now on.
        limits: Limits,
    },
    /// Give the thread another title.
    Rename {
        /// The title.
        title: String,
    },
    /// Stop when nothing is lost by it.
    Cancel,
    /// Stop now.
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

/// What starts a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// What is said; a message whose id the thread already has is the same message sent again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// A state that replaces the thread's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
    /// Limits that are higher from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raise: Option<Limits>,
    /// Where the run comes from.
    #[serde(default)]
    pub origin: Origin,
}

/// Where a run comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Origin {
    /// A person or a program sent something.
    #[default]
    User,
    /// A thread started this one as its child.
    Subagent,
    /// The thread took over from another one of its chain.
    Continuation,
    /// The run was recorded for a thread whose own process did not live to begin it.
    Recovery,
    /// Something else, named by its sender.
    Other(String),
}

impl Origin {
    /// The word for it, as recorded.
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
    /// What it returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
}

/// A request as it waits in an inbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Posted {
    /// The thread it is for.
    pub thread: ThreadId,
    /// Its sender's name for it; posted twice it is one request.
    pub id: RequestId,
    /// When it was posted, by the sender's clock.
    pub at: Timestamp,
    /// What is asked.
    pub request: Request,
}

/// The payload of `request_answered`: a request was consumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// The request.
    pub request_id: RequestId,
    /// What kind it was.
    pub kind: RequestKind,
    /// What became of it.
    pub verdict: Verdict,
    /// Why it was not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was done, with the changeset that says so.
    Applied,
    /// It changes nothing: what it asks for is the case already.
    Unchanged,
    /// It can't be done.
    Refused,
    /// It was not sealed with a key that may sign for the thread, and was dropped.
    Unsealed,
}

impl Request {
    /// What kind it is.
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
    /// The word for it, as stored and shown.
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

    /// Whether a lease can't be released while such a request waits: only a run consumes it.
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

    /// Some messages of a user.
    pub fn messages(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }

    /// Nothing new: what is open is finished.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Nothing new: a thread goes on that took over from another one.
    pub fn continuing() -> Self {
        Self { origin: Origin::Continuation, ..Self::default() }
    }

    /// The same, with higher limits from now on.
    #[must_use]
    pub fn raising(self, raise: Limits) -> Self {
        Self { raise: Some(raise), ..self }
    }

    /// Whether it says nothing; higher limits only let the thread go on with what it was doing.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.state.is_none()
    }

    /// Whether a thread goes on that took over from another one.
    pub fn is_continuing(&self) -> bool {
        self.origin == Origin::Continuation
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
