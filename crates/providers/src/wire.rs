//! A wire format: how a prompt becomes a request, and how the events of a stream become an answer.
//!
//! Formats are code, hosts are data: each format is one module below this one and knows nothing about connections, keys, timeouts or
//! retries. [`crate::http`] sends what [`Wire::request`] builds and passes every event of the response to a [`Reader`].
//!
//! Invariants:
//!
//! - A reader has an answer only after the event with which its format ends a stream. A stream that ends before that was cut.
//! - The text, signatures and ids that a provider must get back are kept unchanged in the blocks of the answer.
//! - Blocks that another provider signed or created are left out of a request.

use std::collections::HashMap;

use selvedge_model::answer::{Answer, Draft, ModelError, Prompt, Usage};
use selvedge_model::message::Block;
use selvedge_model::{Digest, ToolSpec};
use serde_json::Value;

/// How requests to a host differ from the format's defaults. Everything comes from the configuration of the host or the model.
#[derive(Clone, Debug, Default)]
pub struct Dialect {
    /// The name that marks blocks of this provider, such as `anthropic`.
    pub provider: String,
    /// The most tokens of an answer if the prompt does not say; formats that require a limit have their own default.
    pub output_tokens_max: Option<u64>,
    /// The tokens that a model may think before its answer; none switches thinking off where the format has a switch.
    pub thinking_tokens: Option<u64>,
    /// How much a model should reason (`low`, `medium`, `high`), for formats that have such a setting.
    pub effort: Option<String>,
    /// Whether prompts are marked for the provider's cache.
    pub cache: bool,
    /// Whether the provider may store the conversation, so that its sessions can be used.
    pub sessions: bool,
    /// Fields that are added to the body of each request, replacing those of the same name; `null` removes one.
    pub extra: serde_json::Map<String, Value>,
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
}

/// Reads the events of one response.
pub trait Reader: Send {
    /// Takes one event of the stream, and passes drafts on as they arrive. An error ends the response.
    fn event(&mut self, name: &str, data: &str, draft: &mut dyn FnMut(Draft)) -> Result<(), ModelError>;

    /// The content received so far.
    fn partial(&self) -> Vec<Block>;

    /// The usage reported so far; `estimated` until the provider has reported all of it.
    fn usage(&self) -> Option<Usage>;

    /// The answer, if the stream has ended as its format requires; `None` if it was cut.
    fn answer(self: Box<Self>) -> Option<Answer>;
}
