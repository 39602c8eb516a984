//! Language models behind the contract of [`selvedge_model::answer`].
//!
//! In reading order:
//!
//! - [`scripted`]: a model that answers from a script. It needs no network, and the same conversation gets the same answer.
//! - [`replay`]: a model that gives its recorded answers.
//! - [`wire`]: what a wire format is.

pub mod replay;
pub mod scripted;
pub mod wire;
mod yaml;

pub use replay::Replay;
pub use scripted::{Script, ScriptError, Scripted};
