//! The chat completions of OpenAI, and of the many hosts that are compatible with them.
//!
//! In reading order: `request` writes a prompt, `chunk` is one event of a stream, `calls` assembles tool calls from their pieces,
//! `reader` assembles the answer, and `opaque` is what a host wants back with it.
//!
//! Compatible hosts know a part of the format: a host that refuses `stream_options` gets none, and one that refuses
//! `max_completion_tokens` gets `max_tokens`. The end of a stream is `[DONE]`. A host that closes the stream without it has ended its
//! answer if it gave a reason for the end before; otherwise the answer was cut.

mod calls;
mod chunk;
mod opaque;
mod reader;
mod request;

use selvedge_model::ToolSpec;
use selvedge_model::answer::{ModelError, Prompt};

use super::names::Names;
use super::{Adjustment, Credentials, Dialect, Images, Reader, Refusal, Request, Wire, openai};

/// The chat completions of OpenAI.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiChat;

impl Wire for OpenAiChat {
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
        Ok(openai::request("chat/completions", request::body(model, prompt, images, dialect)?))
    }

    fn reader(&self, dialect: &Dialect, tools: &[ToolSpec]) -> Box<dyn Reader> {
        Box::new(reader::ChatReader::new(Names::of(tools), &dialect.provider, !tools.is_empty()))
    }

    fn refusal(&self, refusal: &Refusal<'_>) -> Option<ModelError> {
        openai::meaning(refusal)
    }

    fn message(&self, body: &str) -> Option<String> {
        openai::message(body)
    }

    fn without(&self, refusal: &Refusal<'_>) -> Option<Adjustment> {
        let rename = |from: &str, to: &str| Adjustment::Rename { from: from.to_owned(), to: to.to_owned() };
        let [content, reasoning] = opaque::REASONING;
        let fields = ["stream_options", request::LIMIT, request::OLD_LIMIT, opaque::DETAILS, content, reasoning];
        let Some(field) = openai::refused_field(&fields, refusal) else {
            return openai::are_arguments_refused(refusal).then_some(Adjustment::WrapArguments);
        };
        match field {
            request::LIMIT => Some(rename(request::LIMIT, request::OLD_LIMIT)),
            request::OLD_LIMIT => Some(rename(request::OLD_LIMIT, request::LIMIT)),
            "stream_options" => Some(Adjustment::Remove("stream_options".to_owned())),
            field => Some(Adjustment::RemoveInItems { list: "messages".to_owned(), field: field.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests;
