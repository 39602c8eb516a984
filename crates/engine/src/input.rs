//! What starts a run.

use selvedge_model::limits::Limits;
use selvedge_model::{Message, NoteKey, Role};
use serde_json::Value;

use crate::held::Held;

/// Who starts the run of a thread that took over from another one.
const CONTINUATION: &str = "continuation";

/// Who starts the run of a thread that another thread started.
const SUBAGENT: &str = "subagent";
/// Who starts a run when nothing else is said.
const USER: &str = "user";

/// What starts a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// What is said; a message whose id the thread already has is the same message sent again.
    pub messages: Vec<Message>,
    /// A state that replaces the thread's.
    pub state: Option<Value>,
    /// Ceilings that are higher from now on.
    pub raise: Option<Limits>,
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

    /// Nothing new: a child goes on with what its parent asked for.
    pub(crate) fn of_parent() -> Self {
        Self { origin: SUBAGENT.to_owned(), ..Self::nothing() }
    }

    /// Nothing new: a thread goes on that took over from another one.
    pub(crate) fn continuing() -> Self {
        Self { origin: CONTINUATION.to_owned(), ..Self::nothing() }
    }

    pub(crate) fn is_continuing(&self) -> bool {
        self.origin == CONTINUATION
    }

    /// Some messages of a user.
    pub fn messages(messages: Vec<Message>) -> Self {
        Self { messages, state: None, raise: None, origin: USER.to_owned(), note: None }
    }

    /// Nothing new: what is open is finished.
    pub fn nothing() -> Self {
        Self::messages(Vec::new())
    }

    /// The same, with higher ceilings from now on.
    #[must_use]
    pub fn raising(self, raise: Limits) -> Self {
        Self { raise: Some(raise), ..self }
    }

    /// Whether it says anything; higher ceilings only let the thread go on with what it was doing.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.state.is_none()
    }
}

impl Held<'_> {
    /// Who starts a run with this input. The first run of a child goes on with what its parent asked for, in whichever process it is.
    pub(crate) fn origin(&self, input: &Input) -> String {
        let is_child = self.fold.manifest().parent_run_id.is_some();
        let is_first = is_child && input.is_empty() && input.origin == USER && self.is_unbegun();
        if is_first { SUBAGENT.to_owned() } else { input.origin.clone() }
    }
}
