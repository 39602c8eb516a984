//! Language models behind the contract of [`selvedge_model::answer`].
//!
//! In reading order:
//!
//! - [`scripted`]: a model that answers from a script. It needs no network, and the same conversation gets the same answer.
//! - [`replay`]: a model that gives its recorded answers.
//! - [`wire`]: what a wire format is, and the formats.
//! - [`http`]: models on the network, in one of the formats.
//! - [`embed`]: embedders, which turn texts into vectors.
//! - [`recording`]: the exact bytes of network calls, and a model that answers from them, offline.

pub mod embed;
#[cfg(feature = "fake")]
pub mod fake;
pub mod http;
pub mod recording;
pub mod replay;
pub mod scripted;
pub mod wire;
mod yaml;

pub use http::{Connections, Format, Host, Key, Probe, Remote, RemoteEmbedder, Timeouts};
pub use recording::{RecordError, Recorded};
pub use replay::Replay;
pub use scripted::{Script, ScriptError, Scripted};
