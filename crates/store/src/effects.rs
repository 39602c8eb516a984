//! Effects: what is done after an answer was delivered, in any process that has the store open.
//!
//! Each follows the feed on its own. What an effect writes is derived from the logs, so it may be lost and is made again; nothing reads it to
//! decide. Each has a lock, so that one process does it at a time, and a state with its position and its last failure.

use base64ct::{Base64, Encoding};
use selvedge_model::{AgentId, Cancel, Digest, ThreadId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::search::Hit;
use crate::usage::UsageRecord;

/// An effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The records of usage.
    Usage,
    /// The pages of threads.
    Pages,
    /// The titles of threads.
    Titles,
    /// The vectors of passages.
    Embeddings,
}

impl Effect {
    /// All of them, in the order in which they are done.
    pub const ALL: [Self; 4] = [Self::Usage, Self::Pages, Self::Titles, Self::Embeddings];

    /// Its name, as stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Pages => "pages",
            Self::Titles => "titles",
            Self::Embeddings => "embeddings",
        }
    }
}

/// How far an effect is, and why it failed when it was last tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EffectState {
    /// The position in the feed up to which it is done; none before the first time, and for vectors, which the index knows about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The last failure, if the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<EffectFailure>,
}

/// Why an effect failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EffectFailure {
    /// When.
    pub at: Timestamp,
    /// Why, as a sentence.
    pub why: String,
    /// Whether it was stopped before it ended by itself, as by a host that does not answer.
    #[serde(default)]
    pub stopped: bool,
}

/// The vector of a passage, as a line of `embeddings.jsonl`. It has no text: the passage is found by its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Embedding {
    /// The thread.
    pub thread_id: ThreadId,
    /// The version whose changeset has the passage.
    pub version: u64,
    /// The number of the line that has it, or that names the blob.
    pub line: u64,
    /// The blob, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
    /// The byte of the text at which the passage begins.
    pub offset: u64,
    /// The number that changes with the passage, see [`crate::search::document::digest`].
    pub digest: i64,
    /// The name of the embedder.
    pub model: String,
    /// The vector, as base64 of 32-bit floating-point numbers, the lowest byte first.
    pub vector: String,
}

impl Embedding {
    /// The vector of a passage.
    pub fn new(hit: &Hit, model: &str, vector: &[f32]) -> Self {
        let bytes: Vec<u8> = vector.iter().flat_map(|one| one.to_le_bytes()).collect();
        Self {
            thread_id: hit.thread.clone(),
            version: hit.version,
            line: hit.line,
            blob: hit.blob,
            offset: hit.offset,
            digest: hit.digest,
            model: model.to_owned(),
            vector: Base64::encode_string(&bytes),
        }
    }

    /// The bytes of the vector; nothing if it is not valid.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        Base64::decode_vec(&self.vector).ok()
    }

    /// What names the passage of the vector.
    pub fn key(&self) -> (ThreadId, u64, Option<Digest>, u64, i64) {
        (self.thread_id.clone(), self.line, self.blob, self.offset, self.digest)
    }
}

/// What a store does and keeps for effects.
pub trait Effects: Send + Sync {
    /// Adds the usage of the runs that ended since the last call, in any process, to the records; returns how many were added. On return they
    /// are durable. Killed at any moment, the next call continues: no record is lost and none is there twice. Records that were removed are
    /// derived again, except those of threads that were deleted.
    fn record_usage(&self, cancel: &Cancel) -> Result<u64>;

    /// Passes every usage record to `each`, in the order in which they were written.
    fn each_usage(&self, each: &mut dyn FnMut(UsageRecord)) -> Result<()>;

    /// Adds vectors of pending passages to those of an agent; one whose thread was deleted or whose blob was erased meanwhile is dropped. The
    /// passages are those of [`crate::search::Search::pending_vectors`], asked for under the lock of the effect: so none is there already.
    /// Vectors of another model are removed.
    fn put_embeddings(&self, agent: &AgentId, embeddings: &[Embedding]) -> Result<()>;

    /// Takes the lock of an effect until the guard is dropped; none if another process has it.
    fn lock_effect(&self, effect: Effect) -> Result<Option<EffectLock>>;

    /// The state of an effect.
    fn effect_state(&self, effect: Effect) -> Result<EffectState>;

    /// Replaces the state of an effect. A power failure may lose it.
    fn set_effect_state(&self, effect: Effect, state: &EffectState) -> Result<()>;
}

/// The lock of an effect, released when dropped.
pub struct EffectLock(#[expect(dead_code, reason = "it is only held")] Box<dyn Send>);

impl EffectLock {
    /// A lock that this value holds.
    pub fn new(held: Box<dyn Send>) -> Self {
        Self(held)
    }
}
