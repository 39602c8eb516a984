//! What starts a run.

use selvedge_model::{Message, NoteKey, Role};
use serde_json::Value;

/// What starts a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// What is said; a message whose id the thread already has is the same message sent again.
    pub messages: Vec<Message>,
    /// A state that replaces the thread's.
    pub state: Option<Value>,
    /// Who starts it: `user`, `subagent`, `internal` and so on.
    pub origin: String,
    /// The note that asked for it, answered by the commit that starts the run.
    pub note: Option<NoteKey>,
}

impl Input {
    /// One message of a user.
    pub fn text(text: impl Into<String>) -> Self {
        Self::messages(vec![Message::text(Role::User, text)])
    }

    /// Some messages of a user.
    pub fn messages(messages: Vec<Message>) -> Self {
        Self { messages, state: None, origin: "user".to_owned(), note: None }
    }

    /// Nothing new: what is open is finished.
    pub fn nothing() -> Self {
        Self::messages(Vec::new())
    }

    /// Whether it brings anything.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.state.is_none()
    }
}
