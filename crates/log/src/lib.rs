//! The bytes of a thread's log: lines, running hash, checkpoints, signatures, keys, and what to make of a file.
//!
//! In reading order:
//!
//! - [`strict`], [`mod@line`]: JSON as strictly as a log needs it, and one line. `direct`: a line read without a detour.
//! - [`hash`], [`keys`], [`trust`], [`keychain`]: the running hash, who signs, whose signature counts, who took over from whom.
//! - [`checkpoint`], [`head`], [`writer`]: the signed end of a changeset, the end of a log, the one writer.
//! - [`scan`], [`lines`]: reading forwards with every check, and backwards from the end.
//! - [`recovery`]: bytes and head in, verdict and plan out.
//! - [`document`]: signed JSON, Markdown, YAML and scripts beside the log. [`rye`]: the older form of the same.
//! - [`nova`]: the older form of a thread, `manifest + events` in JSON lines, read with its damage and written again.

mod direct;

pub mod checkpoint;
pub mod document;
pub mod hash;
pub mod head;
pub mod keychain;
pub mod keys;
pub mod line;
pub mod lines;
pub mod nova;
pub mod recovery;
pub mod rye;
pub mod scan;
pub mod strict;
pub mod trust;
pub mod writer;

pub use head::{Head, Tail};
pub use keychain::KeyChain;
pub use keys::Signer;
pub use line::Line;
pub use trust::Trust;
