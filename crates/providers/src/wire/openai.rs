//! What the two formats of OpenAI share: error reports, fields that a host refuses, and the text forms of calls and results.

mod arguments;
mod content;
mod error;
mod field;
#[cfg(test)]
pub(super) mod testing;

pub(super) use arguments::{are_arguments_refused, argument_text, arguments_of, wrap_arguments};
pub(super) use content::{call_id, data_url, parameters, result_text};
pub(super) use error::HostError;
pub(super) use field::refused_field;

use selvedge_model::answer::{ModelError, Prompt};
use serde_json::Value;

use super::{Dialect, Request};

/// The most tokens of an answer, if the prompt or the configuration limits them.
pub(super) fn output_tokens_max(prompt: &Prompt<'_>, dialect: &Dialect) -> Option<u64> {
    prompt.output_tokens_max.or(dialect.output_tokens_max)
}

/// A request of either format.
pub(super) fn request(path: &'static str, body: Value) -> Request {
    Request { path, headers: Vec::new(), body, notes: Vec::new() }
}

/// The message of an error response.
pub(super) fn message(body: &str) -> Option<String> {
    HostError::parse(body).map(|error| error.message)
}

/// What a refusal means that both formats have.
pub(super) fn meaning(refusal: &super::Refusal<'_>) -> Option<ModelError> {
    let error = HostError::parse(refusal.body)?;
    if refusal.status.is_none() { Some(error.in_stream()) } else { error.meaning() }
}
