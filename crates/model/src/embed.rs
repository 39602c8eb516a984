//! The contract of an embedder: it turns texts into vectors that are close to each other if the texts mean similar things.

use crate::blocking::BoxFuture;
use crate::cancel::Cancel;

/// Why texts could not be embedded.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// A failure that a retry may resolve: the endpoint could not be reached, or is overloaded.
    #[error("the embedder could not be reached or failed: {why}")]
    Transient {
        /// What happened.
        why: String,
    },
    /// The request can't succeed as it is: refused by the endpoint, or its answer can't be used.
    #[error("the embedder rejected the request: {why}")]
    Refused {
        /// What happened.
        why: String,
    },
    /// It was cancelled.
    #[error("the embedder was stopped")]
    Stopped,
}

impl EmbedError {
    /// Whether the same request may succeed later, unchanged.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Transient { .. })
    }
}

/// Turns texts into vectors.
///
/// Vectors of embedders with different names or dimensions can't be compared: store both together with the vectors.
pub trait Embedder: Send + Sync {
    /// Its name, which changes whenever its vectors do.
    fn name(&self) -> &str;

    /// The length of its vectors.
    fn dimensions(&self) -> usize;

    /// One vector for each text, in order, each of length 1 (or all zeros, for a text without content). Ends soon after `cancel` is
    /// triggered.
    fn embed<'a>(&'a self, texts: &'a [String], cancel: &'a Cancel)
    -> BoxFuture<'a, Result<Vec<Vec<f32>>, EmbedError>>;
}
