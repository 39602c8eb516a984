//! The forms of a snapshot: full, incremental, and packed. Pure.
//!
//! ```text
//! full     {header…, cost, inputs, messages, …}
//! change   {header…, base: {log_version, hash, depth}, patch: {ops: […]}}       relative to the one that `base` names
//! packed   {header…, base?, packed: {encoding, bytes, data}}                    either of the two, deflated, in base64
//! ```
//!
//! The header is the same in each form: which thread, which version of its log, when. A patch has the same ops as a state patch.

use base64ct::{Base64, Encoding};
use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;
use selvedge_model::Patch;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The most changes on top of each other before the next snapshot is full.
pub const CHAIN_MAX: u32 = 8;
/// The most bytes of a packed snapshot, unpacked.
pub const UNPACKED_MAX: usize = 256 << 20;
const HEADER: [&str; 8] =
    ["thread_id", "directive", "version", "saved_at", "trigger", "log_version", "log_hash", "status"];
const ENCODING: &str = "deflate+base64";
const LEVEL: u8 = 6;

/// The snapshot that a change is relative to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The version of the log that it folds.
    pub log_version: u64,
    /// Its signed hash.
    pub hash: selvedge_model::Digest,
    /// The number of changes down to the full snapshot, this one included.
    pub depth: u32,
}

/// Why a form can't be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The encoding is unknown, or its content can't be decoded.
    #[error("its packed content can't be decoded")]
    Packing,
    /// It has more bytes than it declares, or than the limit.
    #[error("unpacked it has more bytes than it declares, or than the limit of {UNPACKED_MAX}")]
    TooLong,
    /// Its header differs from that of its content.
    #[error("its header differs from the header of its content")]
    Header,
    /// It is a change without a base.
    #[error("it is a change that names no base")]
    NoBase,
    /// The change does not apply.
    #[error("its change does not apply to its base")]
    Change,
}

fn header(body: &Value) -> Map<String, Value> {
    let member = |name: &&str| Some(((*name).to_owned(), body.get(*name)?.clone()));
    HEADER.iter().filter_map(member).collect()
}

/// The change from `before` to `body`, as a snapshot.
pub fn change(before: &Value, body: &Value, base: &Base) -> Value {
    let mut ops = Vec::new();
    differences(&mut Vec::new(), before, body, &mut ops);
    let mut document = header(body);
    document.insert("base".to_owned(), json!(base));
    document.insert("patch".to_owned(), json!(Patch::new(ops)));
    Value::Object(document)
}

/// The base of a change; none for a full snapshot.
pub fn base_of(document: &Value) -> Result<Option<Base>, FormError> {
    match document.get("base") {
        None => Ok(None),
        Some(base) => serde_json::from_value(base.clone()).map(Some).map_err(|_| FormError::NoBase),
    }
}

/// Applies a change to its base; returns the full snapshot.
pub fn changed(mut before: Value, document: &Value) -> Result<Value, FormError> {
    let patch = document.get("patch").cloned().ok_or(FormError::Change)?;
    let patch: Patch = serde_json::from_value(patch).map_err(|_| FormError::Change)?;
    patch.apply_to(&mut before).map_err(|_| FormError::Change)?;
    // A seal is for one version, and each snapshot has its own.
    let members = before.as_object_mut().ok_or(FormError::Change)?;
    members.remove("seal");
    members.extend(document.get("seal").cloned().map(|seal| ("seal".to_owned(), seal)));
    if header(&before) == header(document) { Ok(before) } else { Err(FormError::Header) }
}

/// Packs a snapshot, full or a change.
pub fn pack(document: &Value) -> Value {
    let text = document.to_string();
    let data = Base64::encode_string(&compress_to_vec(text.as_bytes(), LEVEL));
    let mut packed = header(document);
    packed.extend(document.get("base").cloned().map(|base| ("base".to_owned(), base)));
    packed.insert("packed".to_owned(), json!({"encoding": ENCODING, "bytes": text.len(), "data": data}));
    Value::Object(packed)
}

/// Unpacks a snapshot, if it is packed. Never more bytes are produced than it declares, or than the limit.
pub fn unpacked(document: Value) -> Result<Value, FormError> {
    let Some(packed) = document.get("packed") else { return Ok(document) };
    let bytes = packed.get("bytes").and_then(Value::as_u64).and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.filter(|bytes| *bytes <= UNPACKED_MAX).ok_or(FormError::TooLong)?;
    let data = packed.get("data").and_then(Value::as_str).filter(|_| packed.get("encoding") == Some(&json!(ENCODING)));
    let data = Base64::decode_vec(data.ok_or(FormError::Packing)?).map_err(|_| FormError::Packing)?;
    let text = decompress_to_vec_with_limit(&data, bytes).map_err(|error| match error.status {
        miniz_oxide::inflate::TINFLStatus::HasMoreOutput => FormError::TooLong,
        _ => FormError::Packing,
    })?;
    let mut inside: Value = serde_json::from_slice(&text).map_err(|_| FormError::Packing)?;
    if text.len() != bytes || header(&inside) != header(&document) || inside.get("base") != document.get("base") {
        return Err(FormError::Header);
    }
    if let (Some(members), Some(seal)) = (inside.as_object_mut(), document.get("seal")) {
        members.insert("seal".to_owned(), seal.clone());
    }
    Ok(inside)
}

/// The ops that make `after` of `before`: objects are compared by member, lists only grow, everything else is set.
fn differences(at: &mut Vec<String>, before: &Value, after: &Value, ops: &mut Vec<Op>) {
    if before == after {
        return;
    }
    let path = |at: &[String]| Path::keys(at.iter().cloned());
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for key in before.keys().filter(|key| !after.contains_key(*key)) {
                at.push(key.clone());
                ops.push(Op::Delete { path: path(at) });
                at.pop();
            }
            for (key, value) in after {
                at.push(key.clone());
                match before.get(key) {
                    Some(before) => differences(at, before, value, ops),
                    None => ops.push(Op::Set { path: path(at), value: value.clone() }),
                }
                at.pop();
            }
        }
        (Value::Array(before), Value::Array(after)) if after.starts_with(before) => {
            let added = after[before.len()..].iter();
            ops.extend(added.map(|value| Op::Append { path: path(at), value: value.clone() }));
        }
        _ => ops.push(Op::Set { path: path(at), value: after.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_model::Digest;

    fn body(version: u64, messages: &[&str]) -> Value {
        let thread = json!({"fold": {"calls": {"a": {"n": version}, "b": 1}}});
        json!({"thread_id": "t", "log_version": version, "messages": messages, "thread": thread, "seal": "s"})
    }

    fn base() -> Base {
        Base { log_version: 1, hash: Digest([7; 32]), depth: 1 }
    }

    #[test]
    fn a_change_has_only_the_differences_and_applying_it_gives_the_full_snapshot() {
        let before = body(1, &["one"]);
        let mut after = body(2, &["one", "two"]);
        after["thread"]["fold"]["calls"].as_object_mut().unwrap().remove("b");
        let change = change(&before, &after, &base());
        let paths: Vec<Value> =
            change["patch"]["ops"].as_array().unwrap().iter().map(|op| op["path"].clone()).collect();
        let expected = [json!(["log_version"]), json!(["messages"]), json!(["thread", "fold", "calls", "b"])];
        assert!(expected.iter().all(|path| paths.contains(path)) && paths.len() == 4, "{paths:?}");
        let mut again = changed(before.clone(), &change).unwrap();
        again["seal"] = json!("s");
        assert_eq!(again, after);
        assert_eq!(base_of(&change), Ok(Some(base())));
        // The base is not the one that it names.
        assert_eq!(changed(json!({"log_version": 1, "messages": 7}), &change), Err(FormError::Change));
    }

    #[test]
    fn a_packed_snapshot_is_unpacked_and_a_full_one_is_left_as_it_is() {
        let whole = body(3, &["a long story ".repeat(500).as_str()]);
        let mut packed = pack(&whole);
        assert!(packed.to_string().len() < whole.to_string().len() / 4);
        packed["seal"] = json!("s");
        assert_eq!(unpacked(packed.clone()), Ok(whole.clone()));
        assert_eq!(unpacked(whole.clone()), Ok(whole));
        packed["log_version"] = json!(4);
        assert_eq!(unpacked(packed), Err(FormError::Header));
    }

    #[test]
    fn a_decompression_bomb_is_refused_before_it_is_unpacked() {
        // Many blanks in few bytes, declared as few, as too many, and as a negative number.
        let bomb = Base64::encode_string(&compress_to_vec(&vec![b' '; 64 << 20], 9));
        for bytes in [json!(100), json!(UNPACKED_MAX as u64 + 1), json!(-1)] {
            let document = json!({"packed": {"encoding": ENCODING, "bytes": bytes, "data": bomb}});
            assert_eq!(unpacked(document), Err(FormError::TooLong));
        }
        let garbage = json!({"packed": {"encoding": ENCODING, "bytes": 10, "data": "////"}});
        assert_eq!(unpacked(garbage), Err(FormError::Packing));
        let other = json!({"packed": {"encoding": "lzma", "bytes": 10, "data": ""}});
        assert_eq!(unpacked(other), Err(FormError::Packing));
    }
}
