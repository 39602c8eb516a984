//! The bytes of a thread's log: lines, running hash, checkpoints, signatures, keys, and what to make of a file.
//!
//! In reading order:
//!
//! - [`strict`], [`mod@line`]: JSON as strictly as a log needs it, and one line.
//! - [`hash`], [`keys`], [`trust`]: the running hash, who signs, whose signature counts.
//! - [`checkpoint`], [`head`], [`writer`]: the signed end of a changeset, the end of a log, the one writer.
//! - [`scan`], [`lines`]: reading forwards with every check, and backwards from the end.
//! - [`recovery`]: bytes and head in, verdict and plan out.
//! - [`document`]: signed JSON, Markdown and YAML beside the log.

pub mod checkpoint;
pub mod document;
pub mod hash;
pub mod head;
pub mod keys;
pub mod line;
pub mod lines;
pub mod recovery;
pub mod scan;
pub mod strict;
pub mod trust;
pub mod writer;

pub use head::{Head, Tail};
pub use keys::Signer;
pub use line::Line;
pub use trust::Trust;
