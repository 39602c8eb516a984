//! Context that a hook brought into a prompt.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Fields;
use crate::digest::Digest;
use crate::id::CallId;

/// Where context stands in the prompts of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// At the end of the system prompt.
    System,
    /// Before the content of a user's message.
    Before,
    /// After it.
    After,
}

/// Context that a hook brought into a prompt: the payload of a `context_injected`.
///
/// From its event on, every prompt of the thread has exactly this text at this place, whatever becomes of its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Injected {
    /// The call whose result it is.
    pub call_id: CallId,
    /// The hook.
    pub hook: String,
    /// The event at which the hook fired.
    pub event: String,
    /// The item it comes from, such as `knowledge docs/api`.
    pub source: String,
    /// SHA-256 of the source's file, or of the text if it comes from no file.
    pub digest: Digest,
    /// Where it stands.
    pub position: Place,
    /// The message of a user that it stands beside: the how many-th of the thread, from 1.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub message: u64,
    /// The place of its hook in the order of the run's hooks: context of one event stands in this order.
    pub order: u64,
    /// The text, as it stands in the prompt.
    pub text: String,
}

impl Injected {
    /// The payload.
    pub fn to_fields(&self) -> Fields {
        match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            _ => Fields::new(),
        }
    }

    /// Reads a payload; none if it is that of another kind of context.
    pub fn of(fields: &Fields) -> Option<Self> {
        fields.get("hook")?;
        serde_json::from_value(Value::Object(fields.clone())).ok()
    }
}
