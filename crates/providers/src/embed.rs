//! Embedders behind the contract of [`selvedge_model::embed`].
//!
//! - [`hashing`]: an embedder without a model: words and parts of words, hashed. It needs no network and no download.

pub mod hashing;

pub use hashing::Hashing;
