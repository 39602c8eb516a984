//! The folded state that a backend saves in its database, so that an append in a fresh process does not fold the whole log.
//!
//! It is used only with a mark of our own key, bound to its position in the log, and together with the running hash at that position:
//! otherwise a program that edits the database could make the next commit sign a state that does not apply.

use selvedge_log::hash::{Binding, RunningHash, SealKey};
use selvedge_log::{Head, Tail};
use selvedge_model::Digest;
use selvedge_model::digest::hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Error, Result};

/// A folded state, as it was saved.
#[derive(Debug)]
pub struct SavedState {
    /// The version of the log at that state.
    pub version: u64,
    /// The length of the log at that version.
    pub bytes: u64,
    /// As [`seal`] wrote it.
    pub text: String,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    mark: Digest,
    hash: String,
    state: Box<RawValue>,
}

fn content(hash: &str, state: &str) -> Vec<u8> {
    [hash.as_bytes(), &[0], state.as_bytes()].concat()
}

fn binding(head: &Head, version: u64, offset: u64) -> Binding<'_> {
    Binding { log_id: head.log_id.as_str(), segment: head.segment, version, offset }
}

/// The text to be saved for the state at `tail`.
pub fn seal(seal: &SealKey, head: &Head, tail: &Tail, state: &Value) -> Result<String> {
    let binding = binding(head, head.version, head.bytes);
    let hash = hex(&seal.seal(&binding, &tail.hash));
    let state = serde_json::value::to_raw_value(state).map_err(unwritable)?;
    let mark = seal.mark(&binding, &content(&hash, state.get()));
    serde_json::to_string(&Envelope { mark, hash, state }).map_err(unwritable)
}

/// The saved state, the running hash at its position, and that position; none if our key did not mark it.
pub fn open(seal: &SealKey, head: &Head, saved: &SavedState) -> Option<(Value, RunningHash, u64)> {
    let binding = binding(head, saved.version, saved.bytes);
    let envelope: Envelope = serde_json::from_str(&saved.text).ok()?;
    let is_ours = seal.is_marked(&binding, &content(&envelope.hash, envelope.state.get()), &envelope.mark);
    let hash = seal.open(&binding, &bytes(&envelope.hash)?).filter(|_| is_ours)?;
    Some((serde_json::from_str(envelope.state.get()).ok()?, hash, saved.bytes))
}

/// A state that no JSON can express.
fn unwritable(error: serde_json::Error) -> Error {
    Error::Integrity { what: "a folded state".to_owned(), why: error.to_string(), hint: None }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}
