//! Ids that the engine assigns: of messages, runs and calls.
//!
//! They are derived, not random: a hash of the log, of the version of the changeset, and of the position in it. So a replay of the same log
//! makes the same ids. The kind distinguishes a run and a message of one changeset.

use std::collections::HashSet;

use selvedge_log::hash::sha256;
use selvedge_model::message::{Block, Visibility};
use selvedge_model::{CallId, Message, MessageId, Role, RunId};
use selvedge_store::Error as StoreError;

use crate::error::Result;
use crate::held::HeldThread;

/// The number of hex characters of an id.
const NAME_CHARS: usize = 32;

/// What gets an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdKind {
    Message,
    /// A message of the successor.
    Seed,
    Run,
    Call,
}

impl IdKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Seed => "seed",
            Self::Run => "run",
            Self::Call => "call",
        }
    }
}

impl HeldThread {
    /// The id of something in the next changeset.
    pub(crate) fn derive_id(&self, named: IdKind, index: usize) -> String {
        let kind = named.as_str();
        let log = &self.fold.head.log_id;
        let version = self.engine.ids.derived_at(self.fold.head.version.saturating_add(1));
        let mut name = sha256(format!("selvedge/{kind}/1\0{log}\0{version}\0{index}").as_bytes()).to_string();
        name.truncate(NAME_CHARS);
        name
    }

    /// The id of a run that begins with the next changeset.
    pub(crate) fn next_run(&self) -> Result<RunId> {
        // Thirty-two hex characters are a valid run id.
        Ok(RunId::new(self.derive_id(IdKind::Run, 0)).map_err(|_| StoreError::BadBatch)?)
    }

    /// An id for a call of the next changeset.
    pub(crate) fn next_call(&self, index: usize) -> Option<CallId> {
        CallId::new(format!("call_{}", self.derive_id(IdKind::Call, index))).ok()
    }

    /// Sets the ids of messages that the engine writes into the next changeset, and their turn.
    pub(crate) fn name_messages(&self, messages: &mut [Message], turn: Option<u64>) {
        for (index, message) in messages.iter_mut().enumerate().filter(|(_, message)| is_written_here(message)) {
            if message.id.is_none() {
                message.id = MessageId::new(self.derive_id(IdKind::Message, index)).ok();
            }
            message.step = message.step.or_else(|| turn.and_then(|turn| u32::try_from(turn).ok()));
        }
    }
}

/// Whether a message is written by the engine, and not by a user.
fn is_written_here(message: &Message) -> bool {
    matches!(message.role, Role::Assistant | Role::Tool) || message.visibility == Visibility::Internal
}

/// The content of an answer as it is recorded: every call has an id that is new in the thread. Providers reuse ids; here an id names one
/// call for ever.
pub(crate) fn with_own_ids(mut content: Vec<Block>, held: &HeldThread) -> Vec<Block> {
    let thread = held.fold.thread();
    let redactor = &held.engine.redactor;
    let mut here = HashSet::new();
    let mut made_up = 0;
    for block in &mut content {
        let Block::ToolCall { id, .. } = block else { continue };
        while thread.knows_call(id) || redactor.text(id.as_str()).is_some() || !here.insert(id.clone()) {
            // Letters, digits and an underscore make a valid id.
            let Some(fresh) = held.next_call(made_up) else { break };
            made_up += 1;
            *id = fresh;
        }
    }
    content
}
