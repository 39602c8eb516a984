//! The bytes of a thread's log: lines, running hash, checkpoints, signatures, keys and recovery.
//!
//! In reading order:
//!
//! - [`strict`], [`mod@line`]: strict JSON, and one line. `fast_line`: the fast path of decoding a line.
//! - [`hash`], [`keys`], [`trust`], [`keychain`]: the running hash, signing keys, trusted keys, key rotation.
//! - [`checkpoint`], [`head`], [`writer`]: the signed end of a changeset, the end of a log, the only writer.
//! - [`scan`], [`lines`]: reading forwards with full verification, and backwards from the end.
//! - [`recovery`]: bytes and head in, finding and plan out.
//! - [`document`]: signed JSON, Markdown, YAML and scripts beside the log.

pub mod checkpoint;
pub mod document;
mod fast_line;
pub mod hash;
pub mod head;
pub mod keychain;
pub mod keys;
pub mod line;
pub mod lines;
pub mod recovery;
pub mod scan;
pub mod strict;
pub mod trust;
pub mod writer;

pub use head::{Head, Tail};
pub use keychain::KeyChain;
pub use keys::Signer;
pub use line::Line;
pub use trust::Trust;
