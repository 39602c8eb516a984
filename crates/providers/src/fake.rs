//! A server on loopback that speaks the wire formats, and misbehaves as told. For tests.
//!
//! - [`Server`]: accepts requests, keeps them for inspection, and gives the [`Reply`] that is next.
//! - [`Reply`]: what is sent, byte for byte, with pauses, stalls and cuts.
//! - [`Dialogue`]: how a format writes text, thinking, tool calls, ends and errors. One implementation per format.

mod anthropic;
mod dialogue;
mod openai_chat;
mod openai_responses;
mod reply;
mod server;

pub use anthropic::AnthropicDialogue;
pub use dialogue::{Dialogue, FakeAnswer, FakeCall};
pub use openai_chat::OpenAiChatDialogue;
pub use openai_responses::OpenAiResponsesDialogue;
pub use reply::Reply;
pub use server::{Received, Server};

/// The body of an error response of OpenAI.
fn openai_error(status: u16, message: &str) -> String {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    serde_json::json!({"error": {"message": message, "type": kind, "param": null, "code": null}}).to_string()
}
