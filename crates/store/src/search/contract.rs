//! The contract of a search index.
//!
//! An index follows the feed with a durable cursor of its own. It is a hint: it may be lost, damaged or older than the logs, and then it is
//! rebuilt. So the caller looks every hit up in the log before it shows it, and calls [`Search::index_again`] for a thread that differs.

use selvedge_model::{Cancel, Digest, ThreadId, Timestamp};
use serde::Serialize;

use super::document::PassageKind;
use super::query::Query;
use crate::error::Result;

/// What is asked of an index.
#[derive(Clone, Debug)]
pub struct SearchRequest<'a> {
    /// What to search for, and where.
    pub query: &'a Query,
    /// The vector of the query, and the name of its embedder.
    pub vector: Option<(&'a str, &'a [f32])>,
    /// The most threads that are returned.
    pub limit: usize,
}

/// One passage that matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The thread.
    pub thread: ThreadId,
    /// The kind of the document.
    pub kind: PassageKind,
    /// The version whose changeset has it.
    pub version: u64,
    /// The number of the line that has it, or that names the blob.
    pub line: u64,
    /// The blob, if it is one.
    pub blob: Option<Digest>,
    /// The byte of the text at which the passage begins.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The digest of the passage, see [`super::document::digest`].
    pub digest: i64,
    /// When the line was written.
    pub at: Timestamp,
    /// Its score; comparable within one answer only.
    pub score: f64,
    /// How many passages of the thread match, as far as they were looked at.
    pub matches: u64,
}

/// The content that an index leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NotSearched {
    /// Blobs that are no text.
    pub blobs_not_text: u64,
    /// Blobs of which only the beginning is indexed.
    pub blobs_cut: u64,
    /// Blobs that are missing or not what was signed.
    pub blobs_unreadable: u64,
    /// Threads whose logs can't be read; what was indexed of them before is still searched.
    pub threads_unreadable: u64,
}

impl NotSearched {
    /// Whether everything was searched.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for NotSearched {
    fn add_assign(&mut self, other: Self) {
        self.blobs_not_text += other.blobs_not_text;
        self.blobs_cut += other.blobs_cut;
        self.blobs_unreadable += other.blobs_unreadable;
        self.threads_unreadable += other.threads_unreadable;
    }
}

/// The answer of an index: the best passage of each thread, the best first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchHits {
    /// The passages.
    pub hits: Vec<Hit>,
    /// Whether more threads match.
    pub has_more: bool,
    /// What was not searched, in all threads that the filters admit.
    pub unsearched: NotSearched,
    /// Passages that the filters admit and that have no vector of the request's embedder yet; 0 for a request without a vector.
    pub without_vectors: u64,
}

/// What catching up did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IndexProgress {
    /// How many commits were indexed.
    pub commits: u64,
    /// How many commits are left, if it was stopped or the index can't be written.
    pub behind: u64,
    /// Whether the index was built anew.
    pub rebuilt: bool,
}

/// A passage without a vector.
#[derive(Clone, Debug, PartialEq)]
pub struct UnembeddedPassage {
    /// The number of the passage in the index.
    pub document: i64,
    /// Where it is.
    pub hit: Hit,
}

/// A full-text index of a store.
pub trait Search: Send + Sync {
    /// Indexes what was committed since the last call, in any process. On return everything that was committed before the call can be
    /// found, unless the answer says what is left. Killed at any moment, the next call continues.
    fn catch_up(&self, cancel: &Cancel) -> Result<IndexProgress>;

    /// Searches.
    fn search(&self, ask: &SearchRequest<'_>) -> Result<SearchHits>;

    /// Removes a thread from the index and indexes it again from its log, if it still exists.
    fn index_again(&self, thread: &ThreadId) -> Result<()>;

    /// Passages that have no vector of this embedder yet, neither here nor in the files of embeddings; at most `limit`. Vectors of other
    /// embedders, or of another length, are removed.
    fn pending_vectors(&self, embedder: &str, dimensions: usize, limit: usize) -> Result<Vec<UnembeddedPassage>>;

    /// Stores the vectors of passages; one whose passage is gone meanwhile is dropped.
    fn put_vectors(&self, embedder: &str, vectors: &[(UnembeddedPassage, Vec<f32>)]) -> Result<()>;

    /// The whole index as text, the same for equal indexes: for tests and for comparing one with one that was built anew.
    fn dump(&self) -> Result<String>;
}
