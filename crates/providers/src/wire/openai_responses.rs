//! The responses of OpenAI: a conversation of items, which the host may store.
//!
//! In reading order: `request` writes a prompt, `event` is one event of a stream, `item` is one item of an answer, `reader` assembles the
//! answer.
//!
//! - Without sessions nothing is stored: reasoning comes encrypted, is kept whole as opaque data and sent back unchanged in its place.
//! - With sessions the host stores the conversation. A request continues the response that the session names and contains only the
//!   messages after it, and the instructions, which the host does not take over.
//! - The end of a stream is `response.completed`, `response.incomplete` or `response.failed`. Without one of them it was cut.

mod event;
mod item;
mod reader;
mod request;

use selvedge_model::ToolSpec;
use selvedge_model::answer::{ModelError, Prompt};

use super::names::Names;
use super::{Adjustment, Credentials, Dialect, Images, Reader, Refusal, Request, Wire, openai};

/// The responses of OpenAI.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiResponses;

impl Wire for OpenAiResponses {
    fn credentials(&self) -> Credentials {
        Credentials::Bearer
    }

    fn request(
        &self,
        model: &str,
        prompt: &Prompt<'_>,
        images: &Images,
        dialect: &Dialect,
    ) -> Result<Request, ModelError> {
        Ok(openai::request("responses", request::body(model, prompt, images, dialect)?))
    }

    fn reader(&self, dialect: &Dialect, tools: &[ToolSpec]) -> Box<dyn Reader> {
        Box::new(reader::ResponseReader::new(Names::of(tools), dialect))
    }

    fn refusal(&self, refusal: &Refusal<'_>) -> Option<ModelError> {
        let error = openai::HostError::parse(refusal.body)?;
        if matches!(refusal.status, Some(400 | 404)) && error.is_session_refused() {
            return Some(ModelError::SessionRefused { why: error.message });
        }
        openai::meaning(refusal)
    }

    fn message(&self, body: &str) -> Option<String> {
        openai::message(body)
    }

    fn without(&self, refusal: &Refusal<'_>) -> Option<Adjustment> {
        let error =
            openai::HostError::parse(refusal.body).filter(|_| matches!(refusal.status, Some(400 | 422 | 500)))?;
        if error.mentions(&["encrypted content is not supported"]) {
            return Some(Adjustment::Remove("include".to_owned()));
        }
        // Reasoning of another organisation or a retired key can't be decrypted. Without it the model can still answer.
        if error.mentions(&["invalid_encrypted_content", "encrypted content could not be"]) {
            return Some(Adjustment::RemoveItems { list: "input".to_owned(), kind: "reasoning".to_owned() });
        }
        if error.place_of("reasoning.summary").is_some() || error.mentions(&["to generate reasoning summaries"]) {
            return Some(Adjustment::Remove("reasoning.summary".to_owned()));
        }
        openai::are_arguments_refused(refusal).then_some(Adjustment::WrapArguments)
    }
}

#[cfg(test)]
mod tests;
