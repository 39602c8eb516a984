//! Language models behind the contract of [`selvedge_model::answer`].
//!
//! In reading order:
//!
//! - [`scripted`]: a model that answers from a script. It needs no network, and the same conversation gets the same answer.

pub mod scripted;
mod yaml;

pub use scripted::{Script, ScriptError, Scripted};
