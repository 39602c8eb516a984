//! The events of a stream.

use std::borrow::Cow;

use selvedge_model::answer::Usage;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// The kind of an event. It is read first: events that repeat what others said may be as large as the answer.
#[derive(Debug, Deserialize)]
pub(super) struct Kind<'a> {
    #[serde(borrow, rename = "type", default)]
    pub(super) name: Cow<'a, str>,
}

/// An event that adds to an item.
#[derive(Debug, Deserialize)]
pub(super) struct Delta {
    #[serde(default)]
    pub(super) output_index: usize,
    #[serde(default)]
    pub(super) delta: String,
}

/// An event with the arguments of a call as a whole.
#[derive(Debug, Deserialize)]
pub(super) struct Arguments {
    #[serde(default)]
    pub(super) output_index: usize,
    pub(super) arguments: Option<String>,
}

/// An event with an item: when it begins, and when it is whole.
#[derive(Debug, Deserialize)]
pub(super) struct WithItem<'a> {
    #[serde(default)]
    pub(super) output_index: usize,
    #[serde(borrow)]
    pub(super) item: &'a RawValue,
}

/// An event with a response: when it begins, and when it ends.
#[derive(Debug, Deserialize)]
pub(super) struct WithResponse<'a> {
    #[serde(borrow)]
    pub(super) response: Response<'a>,
}

/// A response. Its output repeats all items, so it is read only if it is needed.
#[derive(Debug, Deserialize)]
pub(super) struct Response<'a> {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    #[serde(default, deserialize_with = "or_none")]
    pub(super) usage: Option<Counts>,
    pub(super) error: Option<Value>,
    pub(super) incomplete_details: Option<Incomplete>,
    #[serde(borrow)]
    pub(super) output: Option<&'a RawValue>,
}

/// Why a response is incomplete.
#[derive(Debug, Deserialize)]
pub(super) struct Incomplete {
    pub(super) reason: Option<String>,
}

/// The tokens of a response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Counts {
    input_tokens: u64,
    output_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    input_tokens_details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    #[serde(deserialize_with = "or_default")]
    cached_tokens: u64,
}

impl Counts {
    /// The usage; `None` if the host counted nothing. The tokens of the reasoning are part of the output.
    pub(super) fn usage(&self) -> Option<Usage> {
        let Self { input_tokens, output_tokens, .. } = *self;
        let cache_read_tokens = self.input_tokens_details.cached_tokens.min(input_tokens);
        let usage = Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens: 0, estimated: false };
        Some(usage).filter(|_| input_tokens > 0 || output_tokens > 0)
    }
}

/// Reads `null` like an absent field.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a value of another form like an absent field.
fn or_none<'de, D: Deserializer<'de>, T: serde::de::DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value: Option<Value> = Option::deserialize(deserializer)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}
