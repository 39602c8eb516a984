//! The signed last line of a changeset.
//!
//! A checkpoint line ends in `,"sig":"` + 86 characters + `"}}` + `\n`. The signature covers the domain of checkpoints and the line's own
//! bytes before `,"sig":"`: verifying serialises nothing again, and every field, known or not, is covered.

use selvedge_model::event::Checkpoint;
use selvedge_model::{Event, ThreadId, Timestamp};

use crate::keys::{BadSignature, DOMAIN_CHECKPOINT, PublicKey, Signer};
use crate::line::{self, LineError};

const SIG_FIELD: &[u8] = b",\"sig\":\"";
const SIG_LENGTH: usize = 86;
const CLOSING: &[u8] = b"\"}}";

/// Appends a signed checkpoint line to `out`; replaces the signature in `checkpoint`.
pub fn encode(
    out: &mut Vec<u8>,
    seq: u64,
    timestamp: Timestamp,
    thread_id: &ThreadId,
    mut checkpoint: Checkpoint,
    signer: &Signer,
) -> Result<(), LineError> {
    checkpoint.signer = signer.fingerprint();
    checkpoint.sig = String::new();
    let start = out.len();
    line::encode(out, seq, timestamp, thread_id, &Event::Checkpoint(Box::new(checkpoint)))?;
    out.truncate(out.len() - SIG_FIELD.len() - CLOSING.len() - 1);
    let sig = signer.sign(DOMAIN_CHECKPOINT, &out[start..]);
    out.extend_from_slice(SIG_FIELD);
    out.extend_from_slice(sig.as_bytes());
    out.extend_from_slice(CLOSING);
    out.push(b'\n');
    Ok(())
}

/// Splits a checkpoint line, given without its `\n`, into its signed part and its signature.
pub fn split(line: &[u8]) -> Option<(&[u8], &str)> {
    let line = line.strip_suffix(CLOSING)?;
    let at = line.len().checked_sub(SIG_LENGTH)?;
    let sig = std::str::from_utf8(&line[at..]).ok()?;
    Some((line[..at].strip_suffix(SIG_FIELD)?, sig))
}

/// Verifies the signature of a checkpoint line, given without its `\n`.
pub fn verify(line: &[u8], key: &PublicKey) -> Result<(), BadSignature> {
    let (signed, sig) = split(line).ok_or(BadSignature)?;
    key.verify(DOMAIN_CHECKPOINT, signed, sig)
}
