//! What was too large for a line of the calling thread's log, read in parts.

use std::sync::Arc;

use selvedge_engine::blobs::{TextPart, blobs_named, part_of};
use selvedge_model::{Call, Cancel};
use serde_json::{Value, json};

use super::Shared;

/// The most bytes that are returned at once: a longer result would become a blob itself.
const PART_BYTES_MAX: u64 = 24 << 10;
/// How many bytes are returned if the call does not say.
const PART_BYTES: u64 = 8 << 10;

pub(super) fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "blob": {"type": "string", "description": "The name of the blob, or any unique beginning of it."},
            "offset": {"type": "integer", "minimum": 0, "description": "The byte to begin at. Default: 0."},
            "bytes": {
                "type": "integer",
                "minimum": 1,
                "maximum": PART_BYTES_MAX,
                "description": "The maximum number of bytes to return. Default: 8192.",
            },
        },
        "required": ["blob"],
        "additionalProperties": false,
    })
}

/// A part of a blob that the log of the calling thread names.
pub(super) fn read(shared: &Arc<Shared>, call: &Call, _: &Cancel) -> Result<Value, String> {
    let prefix = call.arguments.get("blob").and_then(Value::as_str).ok_or("`blob` is missing")?;
    let offset = number(call, "offset")?.unwrap_or(0);
    let bytes = number(call, "bytes")?.unwrap_or(PART_BYTES).clamp(1, PART_BYTES_MAX);
    let store = shared.store();
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let named = blobs_named(&**store, shared.engine.trust(), &call.thread, prefix).map_err(|error| words(&error))?;
    let mut named = named.into_iter();
    let blob = match (named.next().filter(|_| !prefix.is_empty()), named.next()) {
        (Some(one), None) => one,
        (None, _) => return Err(format!("this thread names no blob that begins with `{prefix}`")),
        (Some(_), Some(_)) => return Err(format!("this thread names several blobs that begin with `{prefix}`")),
    };
    let content = store.blob(&call.thread, &blob).map_err(|error| words(&error))?;
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let TextPart { text, offset, next, bytes } = part_of(&content, offset, length)
        .ok_or_else(|| format!("blob {} is not text: {} bytes", blob.short(), content.len()))?;
    let end = offset + text.len() as u64;
    Ok(match next {
        Some(next) => json!(format!("{text}\n[bytes {offset} to {end} of {bytes}; continue with `offset` {next}]")),
        None => json!(text),
    })
}

fn number(call: &Call, name: &str) -> Result<Option<u64>, String> {
    let given = call.arguments.get(name).filter(|given| !given.is_null());
    given.map(|given| given.as_u64().ok_or_else(|| format!("`{name}` must be a whole number, not {given}"))).transpose()
}
