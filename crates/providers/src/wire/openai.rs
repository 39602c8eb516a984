//! What the two formats of OpenAI share: error reports, fields that a host refuses, and the text forms of calls and results.

mod content;
mod error;
mod field;

pub(super) use content::{argument_text, arguments_of, call_id, data_url, parameters, result_text};
pub(super) use error::HostError;
pub(super) use field::refused_field;

use selvedge_model::answer::{ModelError, Prompt};

use super::Dialect;

/// The most tokens of an answer, if the prompt or the configuration limits them.
pub(super) fn output_tokens_max(prompt: &Prompt<'_>, dialect: &Dialect) -> Option<u64> {
    prompt.output_tokens_max.or(dialect.output_tokens_max)
}

/// What a refusal means that both formats have.
pub(super) fn meaning(refusal: &super::Refusal<'_>) -> Option<ModelError> {
    let error = HostError::parse(refusal.body)?;
    if refusal.status.is_none() { Some(error.in_stream()) } else { error.meaning() }
}
