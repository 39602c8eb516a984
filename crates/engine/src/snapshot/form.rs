//! The forms of a snapshot: whole, only what changed, and packed. Pure.
//!
//! ```text
//! whole    {header…, cost, inputs, messages, …}
//! change   {header…, base: {log_version, hash, depth}, patch: {ops: […]}}       on top of the one that `base` names
//! packed   {header…, base?, packed: {encoding, bytes, data}}                    either of the two, deflated, in base64
//! ```
//!
//! The header says the same in each form: which thread, which version of its log, when. A patch has the ops that states have.

use base64ct::{Base64, Encoding};
use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;
use selvedge_model::Patch;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// How many changes may stand on top of each other before the next one is whole.
pub const CHAIN_MAX: u32 = 8;
/// How many bytes a packed snapshot may have, unpacked.
pub const UNPACKED_MAX: usize = 256 << 20;
const HEADER: [&str; 8] =
    ["thread_id", "directive", "version", "saved_at", "trigger", "log_version", "log_hash", "status"];
const ENCODING: &str = "deflate+base64";
const LEVEL: u8 = 6;

/// What a change stands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The version of the log that the other one folds.
    pub log_version: u64,
    /// What was signed there.
    pub hash: selvedge_model::Digest,
    /// How many changes stand on each other here, this one counted.
    pub depth: u32,
}

/// Why a form can't be undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The packing is not one that is known, or its content can't be read.
    #[error("it is packed in a way that can't be read")]
    Packing,
    /// It would have more bytes than it says, or than anybody reads.
    #[error("unpacked it has more bytes than it says, or than the {UNPACKED_MAX} that are read")]
    TooLong,
    /// It has no header, or another one inside than outside.
    #[error("it says one thing of itself outside and another inside")]
    Header,
    /// It does not stand on anything.
    #[error("it changes something that it does not name")]
    NoBase,
    /// The change does not apply.
    #[error("its change does not apply to what it stands on")]
    Change,
}

fn header(body: &Value) -> Map<String, Value> {
    let member = |name: &&str| Some(((*name).to_owned(), body.get(*name)?.clone()));
    HEADER.iter().filter_map(member).collect()
}

/// What changed from `before` to `body`.
pub fn change(before: &Value, body: &Value, base: &Base) -> Value {
    let mut ops = Vec::new();
    differences(&mut Vec::new(), before, body, &mut ops);
    let mut document = header(body);
    document.insert("base".to_owned(), json!(base));
    document.insert("patch".to_owned(), json!(Patch::new(ops)));
    Value::Object(document)
}

/// What a change stands on, if it is one.
pub fn base_of(document: &Value) -> Result<Option<Base>, FormError> {
    match document.get("base") {
        None => Ok(None),
        Some(base) => serde_json::from_value(base.clone()).map(Some).map_err(|_| FormError::NoBase),
    }
}

/// Applies a change to what it stands on.
pub fn changed(mut before: Value, document: &Value) -> Result<Value, FormError> {
    let patch = document.get("patch").cloned().ok_or(FormError::Change)?;
    let patch: Patch = serde_json::from_value(patch).map_err(|_| FormError::Change)?;
    patch.apply_to(&mut before).map_err(|_| FormError::Change)?;
    // The store's word is for the version that it was given for, and there is one in every snapshot.
    let members = before.as_object_mut().ok_or(FormError::Change)?;
    members.remove("seal");
    members.extend(document.get("seal").cloned().map(|seal| ("seal".to_owned(), seal)));
    match header(&before) == header(document) {
        true => Ok(before),
        false => Err(FormError::Header),
    }
}

/// Packs a snapshot, whole or a change.
pub fn pack(document: &Value) -> Value {
    let text = document.to_string();
    let data = Base64::encode_string(&compress_to_vec(text.as_bytes(), LEVEL));
    let mut packed = header(document);
    packed.extend(document.get("base").cloned().map(|base| ("base".to_owned(), base)));
    packed.insert("packed".to_owned(), json!({"encoding": ENCODING, "bytes": text.len(), "data": data}));
    Value::Object(packed)
}

/// Unpacks a snapshot, if it is packed. No more bytes are made than it says, and no more than anybody reads.
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

/// The ops that make `after` of `before`: members are looked into, lists only grow, all else is set.
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
    fn only_what_changed_is_said_and_applying_it_gives_the_whole() {
        let (before, mut after) = (body(1, &["one"]), body(2, &["one", "two"]));
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
        // What it stands on is another one than it says.
        assert_eq!(changed(json!({"log_version": 1, "messages": 7}), &change), Err(FormError::Change));
    }

    #[test]
    fn what_is_packed_is_unpacked_and_a_whole_one_is_left_as_it_is() {
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
    fn a_bomb_is_refused_before_it_goes_off() {
        // A gigabyte of blanks in a megabyte, which says that it is small; and one that says what it is.
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
