//! The end of a log, and what is needed to append to it.
//!
//! ```text
//! transcript.jsonl   |--- version 0 ---|--- version 1 ---| … |--- version n ---|
//!                    0                                                         bytes
//! ```
//!
//! A head is all that an outsider needs to detect that a log was truncated: `sha256sum` of the first `bytes` bytes is `hash`.

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
    /// The number of lines in the segment, which is the next line's number.
    pub lines: u64,
    /// The number of bytes in the segment.
    pub bytes: u64,
    /// The SHA-256 of those bytes.
    pub hash: Digest,
    /// The epoch of the lease under which the checkpoint was written.
    pub epoch: u64,
    /// The key that signed it.
    pub signer: Digest,
}

/// A head with its running hash, ready to be appended to.
#[derive(Clone, Debug)]
pub struct Tail {
    /// The log's random id.
    pub log_id: LogId,
    /// Its segment.
    pub segment: u32,
    /// The end of the log; absent before its first checkpoint.
    pub head: Option<Head>,
    /// The hash of every byte so far.
    pub hash: RunningHash,
}

impl Tail {
    /// The tail of a log without lines.
    pub fn empty(log_id: LogId) -> Self {
        Self { log_id, segment: 0, head: None, hash: RunningHash::new() }
    }

    /// The tail after `head`, whose bytes have the hash `hash`.
    pub fn behind(head: Head, hash: RunningHash) -> Self {
        Self { log_id: head.log_id, segment: head.segment, head: Some(head), hash }
    }
}
