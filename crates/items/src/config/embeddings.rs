//! Vectors of passages, for searches by meaning: `agent/embeddings.yaml`.

use serde::{Deserialize, Serialize};

use super::shape::{Key, Shape};

/// The name of the embedder that needs no model.
pub const HASHING: &str = "hashing";

/// Which embedder makes vectors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embeddings {
    /// The embedder; no vectors are made without one.
    pub model: Option<String>,
    /// The length of its vectors.
    pub dimensions: u64,
}

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "model",
        Shape::Optional(&Shape::NAME),
        "What makes vectors of messages and results for `selvedge search --semantic`: `hashing` (offline, by the words and their parts), or \
         `PROVIDER:MODEL` of a provider of the format `openai`, such as `openai:text-embedding-3-small`. Texts are sent to that provider. None \
         are made by default.",
    ),
    Key::new(
        "dimensions",
        Shape::Whole { min: 1, max: 65_536 },
        "The length of the vectors of a `PROVIDER:MODEL`. If it or the model changes, all vectors are made anew.",
    ),
];
