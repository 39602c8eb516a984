//! Anthropic's Messages API, version 2023-06-01.
//!
//! - A request has one system prompt; messages alternate between `user` and `assistant`; results of tools stand first in the user message
//!   after their calls.
//! - A thinking block is sent back with its signature, unchanged, and only to the provider that signed it. A request whose open tool turn
//!   lacks such a block is sent without thinking, and a note says so: the API would refuse it otherwise.
//! - A stream is complete at `message_stop`.

mod reader;
mod request;
mod thinking;

use selvedge_model::ToolSpec;
use selvedge_model::answer::{ModelError, Prompt};
use serde_json::Value;

use super::{Credentials, Dialect, Images, Reader, Refusal, Request, Wire, too_long};

/// The header that names the version of the API, in every request.
pub(crate) fn version() -> (&'static str, String) {
    ("anthropic-version", "2023-06-01".to_owned())
}

/// The Messages API.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anthropic;

impl Wire for Anthropic {
    fn credentials(&self) -> Credentials {
        Credentials::Header("x-api-key")
    }

    fn request(
        &self,
        model: &str,
        prompt: &Prompt<'_>,
        images: &Images,
        dialect: &Dialect,
    ) -> Result<Request, ModelError> {
        request::build(model, prompt, images, dialect)
    }

    fn reader(&self, dialect: &Dialect, tools: &[ToolSpec]) -> Box<dyn Reader> {
        Box::new(reader::Messages::new(dialect, tools))
    }

    fn refusal(&self, refusal: &Refusal<'_>) -> Option<ModelError> {
        let error = ErrorDetail::of(refusal.body)?;
        let why = error.in_words();
        if error.kind == "request_too_large" || too_long::says(&why) {
            return Some(ModelError::ContextTooLong { why });
        }
        match refusal.status {
            Some(_) => None,
            None if error.kind == "rate_limit_error" => Some(ModelError::RateLimited { why, retry_after: None }),
            None => Some(ModelError::Status { status: error.status(), why, retry_after: None }),
        }
    }

    fn message(&self, body: &str) -> Option<String> {
        ErrorDetail::of(body).map(|error| error.in_words())
    }
}

/// An error response, or the data of an `error` event.
struct ErrorDetail {
    kind: String,
    message: String,
}

impl ErrorDetail {
    /// The error in a body: the vendor's form, or one of those that gateways write.
    fn of(body: &str) -> Option<Self> {
        let body: Value = serde_json::from_str(body).ok()?;
        let error = &body["error"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if error.is_object() {
            let kind = text(&error["type"]).filter(|kind| kind != "None").unwrap_or_default();
            return Some(Self { kind, message: text(&error["message"]).unwrap_or_default() });
        }
        let message = text(error).or_else(|| text(&body["detail"]))?;
        Some(Self { kind: String::new(), message })
    }

    fn in_words(&self) -> String {
        match (self.kind.as_str(), self.message.as_str()) {
            ("", message) => message.to_owned(),
            (kind, "") => kind.to_owned(),
            (kind, message) => format!("{kind}: {message}"),
        }
    }

    /// The status that a response with this error would have.
    fn status(&self) -> u16 {
        match self.kind.as_str() {
            "invalid_request_error" => 400,
            "authentication_error" => 401,
            "billing_error" => 402,
            "permission_error" => 403,
            "not_found_error" => 404,
            "timeout_error" => 504,
            "overloaded_error" => 529,
            _ => 500,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: Option<u16>, kind: &str, message: &str) -> Option<ModelError> {
        let body = serde_json::json!({"type": "error", "error": {"type": kind, "message": message}}).to_string();
        Anthropic.refusal(&Refusal { status, body: &body })
    }

    #[test]
    fn a_prompt_that_is_too_long_is_told_from_other_refusals() {
        for message in [
            "prompt is too long: 208310 tokens > 200000 maximum",
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length",
            "litellm.ContextWindowExceededError: too many tokens",
            "request (60045 tokens) exceeds the available context size (4096 tokens), try increasing it",
        ] {
            let error = refusal(Some(400), "invalid_request_error", message);
            assert!(matches!(error, Some(ModelError::ContextTooLong { .. })), "{message}: {error:?}");
        }
        assert!(matches!(refusal(Some(413), "request_too_large", ""), Some(ModelError::ContextTooLong { .. })));
        assert_eq!(refusal(Some(400), "invalid_request_error", "messages: too few"), None);
        assert_eq!(Anthropic.refusal(&Refusal { status: Some(502), body: "<html>" }), None);
    }

    #[test]
    fn errors_of_gateways_are_read_too() {
        for body in [
            r#"{"error": {"message": "no such model", "type": "None", "param": "None", "code": "400"}}"#,
            r#"{"error": "no such model"}"#,
            r#"{"detail": "no such model"}"#,
        ] {
            assert_eq!(Anthropic.message(body).as_deref(), Some("no such model"));
        }
        for body in ["{}", "[]", "null", "no", r#"{"error": null}"#] {
            assert_eq!(Anthropic.message(body), None, "{body}");
        }
    }

    #[test]
    fn an_error_within_a_stream_has_the_status_of_its_type() {
        for (kind, status) in [("overloaded_error", 529), ("api_error", 500), ("authentication_error", 401)] {
            let error = refusal(None, kind, "x").unwrap();
            assert_eq!(error.status(), Some(status), "{kind}");
        }
        assert!(matches!(refusal(None, "rate_limit_error", "x"), Some(ModelError::RateLimited { .. })));
        assert_eq!(refusal(Some(529), "overloaded_error", "x"), None, "the status decides");
    }
}
