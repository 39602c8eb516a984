//! What keeps a log whole: its checkpoints, and what was mended, erased or signed by another key.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::id::{CommitKey, LogId, RunId, ThreadId};

/// The content of a blob was erased; the log names it still, and says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobErased {
    /// The blob.
    pub blob: Digest,
    /// Why.
    pub reason: String,
}

/// Something was found and mended before this changeset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// What was found, in a word.
    pub found: String,
    /// How many bytes it concerned.
    pub bytes: u64,
    /// The file they were moved to, beside the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<String>,
    /// The SHA-256 of those bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Digest>,
    /// The first version that is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_version: Option<u64>,
    /// The last version that is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_version: Option<u64>,
    /// Who remembered that version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Recovery {
    /// What is said to have been found when versions of a log are lost for good.
    pub const LOSS: &'static str = "loss";

    /// Whether this says that versions are lost; only such a one lets the next version be more than one further.
    pub fn is_loss(&self) -> bool {
        self.found == Self::LOSS
    }
}

/// From here on another key signs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyRotated {
    /// The key that signed so far.
    pub from: Digest,
    /// The key that signs from here on.
    pub to: Digest,
}

/// What a checkpoint says; its signature is made and checked over the line's bytes, by the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// How many changesets the thread has had since it was created.
    pub version: u64,
    /// Why the changeset was committed.
    pub reason: crate::changeset::Reason,
    /// What made the commit idempotent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<CommitKey>,
    /// The hash of the request, beside its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Digest>,
    /// The run the changeset belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The run above that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The turn of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// The lease under which it was written.
    pub epoch: u64,
    /// The log this line belongs to.
    pub log_id: LogId,
    /// The segment of that log.
    pub segment: u32,
    /// How many bytes of the segment stand before this line.
    pub byte_offset: u64,
    /// The SHA-256 of those bytes.
    pub hash: Digest,
    /// The other threads of the batch and the versions they came to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<(ThreadId, u64)>,
    /// Whether the thread had come to an end at this version.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
    /// The key that signed.
    pub signer: Digest,
    /// The signature.
    pub sig: String,
}
