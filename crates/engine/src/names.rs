//! Names of what the engine makes up itself: messages, runs and calls.
//!
//! They are derived, not random: a hash of the log, of the version that the changeset comes to, and of the place in it. So a replay of
//! the same log makes the same names. The kind keeps a run and a message of one changeset apart.

use selvedge_log::hash::sha256;
use selvedge_model::message::Visibility;
use selvedge_model::{CallId, Message, MessageId, Role, RunId};
use selvedge_store::Error as StoreError;

use crate::error::Result;
use crate::held::Held;

/// How many hex characters a name has.
const NAME_CHARS: usize = 32;

/// What is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Message,
    /// A message of the thread that goes on in this one's place.
    Seed,
    Run,
    Call,
}

impl Named {
    fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Seed => "seed",
            Self::Run => "run",
            Self::Call => "call",
        }
    }
}

impl Held {
    /// The name of something that the next changeset makes up.
    pub(crate) fn name(&self, named: Named, index: usize) -> String {
        let (kind, log) = (named.as_str(), &self.fold.head.log_id);
        let version = self.engine.ids.derived_at(self.fold.head.version.saturating_add(1));
        let mut name = sha256(format!("selvedge/{kind}/1\0{log}\0{version}\0{index}").as_bytes()).to_string();
        name.truncate(NAME_CHARS);
        name
    }

    /// The name of a run that begins with the next changeset.
    pub(crate) fn next_run(&self) -> Result<RunId> {
        // Thirty-two hex characters are a run's name.
        Ok(RunId::new(self.name(Named::Run, 0)).map_err(|_| StoreError::BadBatch)?)
    }

    /// A name for a call of the next changeset.
    pub(crate) fn next_call(&self, index: usize) -> Option<CallId> {
        CallId::new(format!("call_{}", self.name(Named::Call, index))).ok()
    }

    /// Names the messages of the next changeset that the engine writes, and says which turn they belong to.
    pub(crate) fn name_messages(&self, messages: &mut [Message], turn: Option<u64>) {
        for (index, message) in messages.iter_mut().enumerate().filter(|(_, message)| is_written_here(message)) {
            if message.id.is_none() {
                message.id = MessageId::new(self.name(Named::Message, index)).ok();
            }
            message.step = message.step.or_else(|| turn.and_then(|turn| u32::try_from(turn).ok()));
        }
    }
}

/// Whether the engine writes such a message, and not who speaks to it.
fn is_written_here(message: &Message) -> bool {
    matches!(message.role, Role::Assistant | Role::Tool) || message.visibility == Visibility::Internal
}
