//! Payloads that are too large for a line, or must be erasable: 32 random bytes of salt, then the content.
//!
//! A blob's name is the SHA-256 of salt and content together. The salt keeps the name from revealing the content, so that after an erasure
//! the log that names the blob reveals nothing about it.

use selvedge_log::hash::sha256;
use selvedge_model::{Digest, Ids};

const SALT: usize = 32;

/// Prepends fresh salt to `content` and returns the blob's name and bytes.
pub fn seal(content: &[u8], ids: &dyn Ids) -> (Digest, Vec<u8>) {
    let mut stored = vec![0; SALT];
    ids.fill(&mut stored);
    stored.extend_from_slice(content);
    (sha256(&stored), stored)
}

/// The content of a stored blob, if it matches `name`.
pub fn open(name: &Digest, stored: &[u8]) -> Option<Vec<u8>> {
    (sha256(stored) == *name).then(|| stored.get(SALT..).map(<[u8]>::to_vec)).flatten()
}
