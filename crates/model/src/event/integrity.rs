//! The integrity of a log: checkpoints, recovery, erased blobs and key rotation.

use serde::{Deserialize, Serialize};

use crate::account::replay::DeletedPostings;
use crate::digest::Digest;
use crate::id::{CommitKey, LogId, RunId, ThreadId};
use crate::status::Status;
use crate::time::Timestamp;

/// The content of a blob was erased; the log still names the blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobErased {
    /// The blob.
    pub blob: Digest,
    /// Why.
    pub reason: String,
}

/// Damage was found and repaired before this changeset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// What was found, as a single word.
    pub found: String,
    /// How many bytes were affected.
    pub bytes: u64,
    /// The file they were moved to, beside the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<String>,
    /// The SHA-256 of those bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Digest>,
    /// The first lost version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_version: Option<u64>,
    /// The last lost version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_version: Option<u64>,
    /// Which witness knew that version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The final status in the lost versions, if a person had stopped the thread: it stays stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Versions of accounts that include the lost postings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub postings: Vec<DeletedPostings>,
}

/// Versions of a log that are permanently lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostVersions {
    /// The first version.
    pub from_version: u64,
    /// The last version.
    pub to_version: u64,
    /// When the loss was recorded, as the log claims.
    pub since: Timestamp,
    /// Which witness knew the last version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl LostVersions {
    /// Whether a version is lost.
    pub fn contains(&self, version: u64) -> bool {
        (self.from_version..=self.to_version).contains(&version)
    }

    /// A description of the range.
    pub fn in_words(&self) -> String {
        if self.from_version == self.to_version {
            format!("version {}", self.from_version)
        } else {
            format!("versions {} to {}", self.from_version, self.to_version)
        }
    }
}

impl Recovery {
    /// The value of `found` when versions of a log are permanently lost.
    pub const LOSS: &'static str = "loss";

    /// Whether this records lost versions; only then may the next version be more than one higher.
    pub fn is_loss(&self) -> bool {
        self.found == Self::LOSS
    }

    /// The lost versions, recorded at this time.
    pub fn lost(&self, since: Timestamp) -> Option<LostVersions> {
        let from_version = self.from_version?;
        let to_version = self.to_version?;
        self.is_loss().then(|| LostVersions { from_version, to_version, since, by: self.by.clone() })
    }
}

/// The signing key changes here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyRotated {
    /// The key that signed so far.
    pub from: Digest,
    /// The key that signs from here on.
    pub to: Digest,
}

/// The content of a checkpoint; the log signs and verifies the bytes of the line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The number of changesets since the thread was created.
    pub version: u64,
    /// Why the changeset was committed.
    pub reason: crate::changeset::Reason,
    /// The idempotency key of the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<CommitKey>,
    /// The hash of the request, if it has a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Digest>,
    /// The run the changeset belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The parent of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The turn of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// The epoch of the lease under which it was written.
    pub epoch: u64,
    /// The log this line belongs to.
    pub log_id: LogId,
    /// The segment of that log.
    pub segment: u32,
    /// The number of bytes of the segment before this line.
    pub byte_offset: u64,
    /// The SHA-256 of those bytes.
    pub hash: Digest,
    /// The other threads of the batch and their versions after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<(ThreadId, u64)>,
    /// Whether the thread had ended at this version.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
    /// The key that signed.
    pub signer: Digest,
    /// The signature.
    pub sig: String,
}
