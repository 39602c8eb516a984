//! A server on loopback that speaks the wire formats, and misbehaves as told. For tests.
//!
//! - [`Server`]: accepts requests, keeps them for inspection, and gives the [`Reply`] that is next.
//! - [`Reply`]: what is sent, byte for byte, with pauses, stalls and cuts.
//! - [`Dialogue`]: how a format writes text, thinking, tool calls, ends and errors. One implementation per format.

mod anthropic;
mod dialogue;
mod reply;
mod server;

pub use anthropic::AnthropicDialogue;
pub use dialogue::{Dialogue, Said, SaidCall};
pub use reply::Reply;
pub use server::{Received, Server};
