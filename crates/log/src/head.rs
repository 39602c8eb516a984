//! Where a log ends, and what is needed to go on from there.
//!
//! ```text
//! transcript.jsonl   |--- version 0 ---|--- version 1 ---| … |--- version n ---|
//!                    0                                                         bytes
//! ```
//!
//! A head is everything a stranger needs to notice that a log was cut: `sha256sum` of the first `bytes` bytes is `hash`.

use selvedge_model::{Digest, LogId};
use serde::{Deserialize, Serialize};

use crate::hash::RunningHash;

/// The end of a log after one of its checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The log.
    pub log_id: LogId,
    /// Its segment.
    pub segment: u32,
    /// The version of the checkpoint.
    pub version: u64,
    /// How many lines the segment has; the next line's number.
    pub lines: u64,
    /// How many bytes the segment has.
    pub bytes: u64,
    /// The SHA-256 of those bytes.
    pub hash: Digest,
    /// The lease under which the checkpoint was written.
    pub epoch: u64,
    /// The key that signed it.
    pub signer: Digest,
}

/// A head with the running hash behind it, ready to be written on.
#[derive(Clone, Debug)]
pub struct Tail {
    /// The log's random name.
    pub log_id: LogId,
    /// Its segment.
    pub segment: u32,
    /// Where the log ends; absent before its first checkpoint.
    pub head: Option<Head>,
    /// The hash of every byte so far.
    pub hash: RunningHash,
}

impl Tail {
    /// The tail of a log without a line.
    pub fn empty(log_id: LogId) -> Self {
        Self { log_id, segment: 0, head: None, hash: RunningHash::new() }
    }

    /// The tail behind `head`, whose bytes hashed to `hash`.
    pub fn behind(head: Head, hash: RunningHash) -> Self {
        Self { log_id: head.log_id, segment: head.segment, head: Some(head), hash }
    }
}
