//! A wire format: how a prompt becomes a request, and how the events of a stream become an answer.
//!
//! Formats are code, hosts are data: each format is one module below this one and knows nothing about connections, keys, timeouts or
//! retries. [`crate::http`] sends what [`Wire::request`] builds and passes every event of the response to a [`Reader`].
//!
//! Invariants:
//!
//! - A reader has an answer only after the event with which its format ends a stream, or, where hosts leave that out, after the reason
//!   for the end. A stream that ends before that was cut.
//! - The text, signatures and ids that a provider must get back are kept unchanged in the blocks of the answer.
//! - Blocks that another provider signed or created are left out of a request.

pub mod anthropic;
pub mod names;
mod openai;
pub mod openai_chat;
pub mod openai_responses;
mod too_long;

use std::collections::HashMap;

use selvedge_model::answer::{Answer, Draft, ModelError, Prompt, Usage};
use selvedge_model::message::Block;
use selvedge_model::{Digest, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How requests to a host differ from the format's defaults. Everything comes from the configuration of the host or the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dialect {
    /// The name that marks blocks of this provider, such as `anthropic`.
    pub provider: String,
    /// The most tokens of an answer if the prompt does not say; formats that require a limit have their own default.
    pub output_tokens_max: Option<u64>,
    /// The tokens that a model may think before its answer; none switches thinking off where the format has a switch.
    pub thinking_tokens: Option<u64>,
    /// How much a model should reason (`low`, `medium`, `high`), for formats that have such a setting.
    pub effort: Option<String>,
    /// Whether the host is not the format's own vendor: it gets the names of fields that every compatible host honours.
    pub compatible: bool,
    /// Whether prompts are marked for the provider's cache.
    pub cache: bool,
    /// Whether the provider may store the conversation, so that its sessions can be used.
    pub sessions: bool,
    /// Fields that are added to the body of each request, replacing those of the same name; `null` removes one. The sender applies them,
    /// not the format.
    pub extra: Map<String, Value>,
}

/// The images of a prompt, read before the request is built: their bytes by blob.
pub type Images = HashMap<Digest, Vec<u8>>;

/// A request to send.
#[derive(Clone, Debug)]
pub struct Request {
    /// The path below the host's base address, such as `messages`.
    pub path: &'static str,
    /// Headers of the format. Credentials are added by the sender.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Value,
    /// How the request differs from what is configured; recorded with the answer.
    pub notes: Vec<String>,
}

/// How a host expects its credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// `Authorization: Bearer KEY`.
    Bearer,
    /// A header of this name with the key alone.
    Header(&'static str),
}

/// A response that is not a stream: an error status, or an error event within a stream.
#[derive(Clone, Debug)]
pub struct Refusal<'a> {
    /// The HTTP status; absent for an error event within a stream.
    pub status: Option<u16>,
    /// The body or the event's data.
    pub body: &'a str,
}

/// A change to the body of every request to a host that rejects a field which the format's own vendor accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Adjustment {
    /// This field of the body is left out; `a.b` is the field `b` inside `a`.
    Remove(String),
    /// The items of this type are left out of a list.
    RemoveItems {
        /// The field with the list.
        list: String,
        /// The type of the items.
        kind: String,
    },
    /// A field is left out of every item of a list.
    RemoveInItems {
        /// The field with the list.
        list: String,
        /// The field of the items.
        field: String,
    },
    /// Arguments of earlier calls that are not a JSON object are sent inside one.
    WrapArguments,
    /// This field of the body gets another name.
    Rename {
        /// The rejected name.
        from: String,
        /// The name instead.
        to: String,
    },
}

impl Adjustment {
    /// Applies the change to a body; false if that changes nothing.
    pub fn apply(&self, body: &mut Value) -> bool {
        let Some(fields) = body.as_object_mut() else { return false };
        match self {
            Self::Remove(field) => match field.split_once('.') {
                Some((outer, inner)) => {
                    let outer = fields.get_mut(outer).and_then(Value::as_object_mut);
                    outer.is_some_and(|outer| outer.remove(inner).is_some())
                }
                None => fields.remove(field).is_some(),
            },
            Self::RemoveItems { list, kind } => {
                let Some(items) = fields.get_mut(list).and_then(Value::as_array_mut) else { return false };
                let before = items.len();
                items.retain(|item| item["type"] != kind.as_str());
                items.len() < before
            }
            Self::RemoveInItems { list, field } => {
                let items = fields.get_mut(list).and_then(Value::as_array_mut);
                let items = items.into_iter().flatten().filter_map(Value::as_object_mut);
                items.filter_map(|item| item.remove(field)).count() > 0
            }
            Self::WrapArguments => openai::wrap_arguments(fields),
            Self::Rename { from, to } => match fields.remove(from) {
                Some(value) => {
                    fields.insert(to.clone(), value);
                    true
                }
                None => false,
            },
        }
    }

    /// The change in words, for the notes of an answer.
    pub fn note(&self) -> String {
        match self {
            Self::Remove(field) => format!("the host rejects the field `{field}`: sent without it"),
            Self::RemoveItems { list, kind } => {
                format!("the host rejects the `{kind}` items of `{list}`: sent without them")
            }
            Self::RemoveInItems { list, field } => {
                format!("the host rejects the field `{field}` in `{list}`: sent without it")
            }
            Self::WrapArguments => "the host rejects arguments that are not JSON: sent inside an object".to_owned(),
            Self::Rename { from, to } => format!("the host rejects the field `{from}`: sent as `{to}`"),
        }
    }
}

/// A wire format.
pub trait Wire: Send + Sync {
    /// How the host expects its credentials.
    fn credentials(&self) -> Credentials;

    /// The request for a prompt. `images` has the bytes of every image that the prompt names.
    fn request(
        &self,
        model: &str,
        prompt: &Prompt<'_>,
        images: &Images,
        dialect: &Dialect,
    ) -> Result<Request, ModelError>;

    /// A reader for the response to a request with these tools.
    fn reader(&self, dialect: &Dialect, tools: &[ToolSpec]) -> Box<dyn Reader>;

    /// What an error response means: context too long, session refused, rate limited, and so on. `None` if the status alone decides.
    fn refusal(&self, refusal: &Refusal<'_>) -> Option<ModelError>;

    /// The provider's message in an error response, for people.
    fn message(&self, body: &str) -> Option<String>;

    /// The change to a request with which a host may accept it, if this refusal names a field that the host does not know. The request is
    /// sent again in the same attempt, and later requests to the host are changed in the same way.
    fn without(&self, refusal: &Refusal<'_>) -> Option<Adjustment> {
        let _ = refusal;
        None
    }
}

/// Reads the events of one response.
pub trait Reader: Send {
    /// Takes one event of the stream, and passes drafts on as they arrive. An error ends the response.
    fn event(&mut self, name: &str, data: &str, draft: &mut dyn FnMut(Draft)) -> Result<(), ModelError>;

    /// The content received so far.
    fn partial(&self) -> Vec<Block>;

    /// The usage reported so far; `estimated` until the provider has reported all of it.
    fn usage(&self) -> Option<Usage>;

    /// Whether the event with which the format ends a stream has arrived: nothing that follows is read.
    fn is_complete(&self) -> bool {
        false
    }

    /// The answer, if the stream has ended as its format requires; `None` if it was cut.
    fn answer(self: Box<Self>) -> Option<Answer>;
}
