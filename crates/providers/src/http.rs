//! Models on the network: one request, one streamed response, one answer or one error.
//!
//! - [`Host`]: everything about a host is data: its address, format, key, headers, proxy, certificates and time limits.
//! - [`Connections`]: the HTTP clients, shared by all models of a process.
//! - [`Remote`]: a model of a host. [`RemoteEmbedder`]: an embedder of a host.
//!
//! Invariants:
//!
//! - "Not sent" ([`ModelError::Unreached`]), "refused" ([`ModelError::Status`] and its relatives) and "no complete answer"
//!   ([`ModelError::Cut`]) are told apart, because they cost differently.
//! - Nothing is retried here, except a request that the host refused before it did any work: once with a key that was read again after a
//!   401, and without a field that the host rejects by name.
//! - Every wait has a limit, and ends when the call is cancelled. The connection is closed then.
//! - No credential is in an error, in `Debug` output or in a recording.
//!
//! A call needs a tokio runtime with timers and I/O.
//!
//! [`ModelError::Unreached`]: selvedge_model::ModelError::Unreached
//! [`ModelError::Status`]: selvedge_model::ModelError::Status
//! [`ModelError::Cut`]: selvedge_model::ModelError::Cut

mod call;
mod connections;
mod embed;
mod exchange;
mod host;
mod key;
mod limit;
mod messages;
mod redact;
mod remote;
mod retry_after;
mod served;
mod sse;

pub use connections::Connections;
pub use embed::RemoteEmbedder;
pub use host::{Format, Host, Timeouts};
pub use key::{Key, KeyError};
pub use remote::{Probe, Remote};

pub(crate) use call::Caller;
pub(crate) use exchange::{Body, Incoming, Outgoing, Transport};
pub(crate) use host::is_credential;
pub(crate) use redact::{FilteredStream as ScrubStream, SecretFilter};
