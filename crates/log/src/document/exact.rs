//! Large JSON documents, written as nearly as can be as they are hashed: snapshots of long threads.
//!
//! ```text
//! {"_signature":"STAMP",MEMBERS}⏎        what is hashed is {MEMBERS} in the form of RFC 8785
//! ```
//!
//! To any reader it is a signed JSON document like all others, and [`super::verify_json`] takes it. What stands there is what is hashed, but
//! for floats that RFC 8785 spells otherwise (`1.0` is `1` to it, and no integer to whoever reads it back): those are spelt so while it
//! is hashed. So it does not have to be read as JSON to check it: a text that gives the hash that was signed is the text of the value
//! that was signed, whatever stands around it.

use serde_json::Value;

use super::stamp::Stamp;
use super::{DocumentError, DocumentKind, LIMITS, SIGNATURE_MEMBER, Verified, verify_json};
use crate::direct::ordinary;
use crate::hash::{RunningHash, sha256};
use crate::keys::Signer;
use crate::strict::{self, StrictError};
use crate::trust::Trust;
use selvedge_model::digest::Digest;
use selvedge_model::time::Timestamp;

/// Signs a JSON object that has at least one member and no stamp. Gives the file's text, on one line, and the hash
/// that is signed.
pub fn sign_exact(
    kind: DocumentKind,
    id: &str,
    value: &Value,
    signer: &Signer,
    at: Timestamp,
) -> Result<(Vec<u8>, Digest), DocumentError> {
    if value.get(SIGNATURE_MEMBER).is_some() {
        return Err(DocumentError::Malformed { why: "it is signed already" });
    }
    strict::check_writable(value, LIMITS.depth_max)?;
    strict::check_canonicalizable(value)?;
    let content = serde_json::to_vec(value).expect("a value always has a text");
    let hash = match has_plain_keys(value) {
        true => hash_respelt(b"", &content),
        false => sha256(&canonical(value)),
    };
    let members = match content.strip_prefix(b"{") {
        Some(members) if members != b"}" => members,
        _ => return Err(DocumentError::Malformed { why: "it has no members" }),
    };
    let stamp = Stamp::sign(kind, id, hash, signer, at);
    let mut text = format!("{{\"{SIGNATURE_MEMBER}\":\"{stamp}\",").into_bytes();
    text.reserve(content.len() + 1);
    text.extend_from_slice(members);
    text.push(b'\n');
    if text.len() > LIMITS.bytes_max {
        return Err(StrictError::TooLong { bytes: text.len(), bytes_max: LIMITS.bytes_max }.into());
    }
    Ok((text, hash))
}

/// Checks a JSON document in whatever form, and gives back the hash that was signed. Its text is what the caller has; where what stands
/// there is what was hashed, nobody has read it as JSON yet.
pub fn verify_exact(
    kind: DocumentKind,
    id: &str,
    bytes: &[u8],
    trust: &Trust,
) -> Result<Verified<Digest>, DocumentError> {
    if let Some((stamp, members)) = parts(bytes)
        && stamp.hash == hash_respelt(b"{", members)
    {
        stamp.verify(kind, id, trust, || Ok(stamp.hash))?;
        return Ok(Verified { value: stamp.hash, signer: stamp.fingerprint, at: stamp.at });
    }
    // The same value may stand there in any other way.
    let verified = verify_json(kind, id, bytes, trust)?;
    let hash = sha256(&canonical(&verified.value));
    Ok(Verified { value: hash, signer: verified.signer, at: verified.at })
}

/// The stamp, and what stands behind it up to the last brace, of a document in this form.
fn parts(bytes: &[u8]) -> Option<(Stamp<'_>, &[u8])> {
    let bytes = bytes.strip_suffix(b"\n")?.strip_prefix(b"{\"")?.strip_prefix(SIGNATURE_MEMBER.as_bytes())?;
    let bytes = bytes.strip_prefix(b"\":\"")?;
    let end = bytes.iter().position(|byte| *byte == b'"')?;
    let members = bytes[end + 1..].strip_prefix(b",")?;
    let stamp = Stamp::parse(std::str::from_utf8(&bytes[..end]).ok()?).ok()?;
    Some((stamp, members))
}

fn canonical(value: &Value) -> Vec<u8> {
    serde_json_canonicalizer::to_vec(value).expect("a value with finite numbers always has a canonical text")
}

/// Whether keys in the order of their bytes are in the order of RFC 8785, which is another one only beyond the first 65,536 characters.
/// Strings and integers are written alike in both.
fn has_plain_keys(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(has_plain_keys),
        Value::Object(members) => {
            members.iter().all(|(key, member)| key.bytes().all(|byte| byte < 0xee) && has_plain_keys(member))
        }
        _ => true,
    }
}

/// The hash of a text with every float spelt as RFC 8785 does. A text that is no JSON has some hash, too.
fn hash_respelt(before: &[u8], text: &[u8]) -> Digest {
    let mut hash = RunningHash::new();
    hash.update(before);
    // What was hashed ends at `done`; the text is looked at up to `at`.
    let (mut done, mut at) = (0, 0);
    while let Some(found) = text[at..].iter().position(|byte| matches!(byte, b'"' | b'0'..=b'9' | b'-')) {
        at += found;
        if text[at] == b'"' {
            at = end_of_string(text, at + 1);
            continue;
        }
        let length = text[at..].iter().position(|byte| !is_of_number(*byte)).unwrap_or(text.len() - at);
        let number = &text[at..at + length];
        if let Some(respelt) = respelt(number) {
            hash.update(&text[done..at]);
            hash.update(&respelt);
            done = at + length;
        }
        at += length;
    }
    hash.update(&text[done..]);
    hash.digest()
}

/// Where a string ends whose first quotation mark stands before `at`.
fn end_of_string(text: &[u8], mut at: usize) -> usize {
    loop {
        at += ordinary(&text[at..]);
        match text.get(at) {
            Some(b'"') => return at + 1,
            // What is escaped ends nothing.
            Some(b'\\') => at = (at + 2).min(text.len()),
            Some(_) => {}
            None => return text.len(),
        }
    }
}

fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
}

/// A float as RFC 8785 spells it; integers it spells as they are.
fn respelt(number: &[u8]) -> Option<Vec<u8>> {
    if number.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-') {
        return None;
    }
    let float: f64 = serde_json::from_slice(number).ok()?;
    serde_json_canonicalizer::to_vec(&float).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::signer;
    use proptest::prelude::*;
    use serde_json::json;

    const STATE: DocumentKind = DocumentKind::new("state");
    const ID: &str = "scribe-0123456789ab";

    fn at() -> Timestamp {
        "2026-11-15T03:28:58.999Z".parse().unwrap()
    }

    fn trust() -> Trust {
        Trust::of(&[signer(1).public()])
    }

    fn signed() -> Vec<u8> {
        let value = json!({"z": [1, 2.5, 1.0, 1e-7], "a": {"\u{10000}": 1, "\u{ffff}": 2}, "Ü": "\u{1}\n\"/"});
        sign_exact(STATE, ID, &value, &signer(1), at()).unwrap().0
    }

    #[test]
    fn any_reader_of_signed_json_takes_it_and_it_takes_any_form() {
        let text = signed();
        let plain = verify_json(STATE, ID, &text, &trust()).unwrap();
        let exact = verify_exact(STATE, ID, &text, &trust()).unwrap();
        assert_eq!((plain.signer, plain.at), (exact.signer, exact.at));
        let pretty = serde_json::to_vec_pretty(&serde_json::from_slice::<Value>(&text).unwrap()).unwrap();
        assert_eq!(verify_exact(STATE, ID, &pretty, &trust()).unwrap(), exact);
        // Nearly all are checked without being read.
        let (plain, hash) = sign_exact(STATE, ID, &json!({"b": [1, 2.0], "a": "1.0"}), &signer(1), at()).unwrap();
        let (stamp, members) = parts(&plain).unwrap();
        assert_eq!(members, br#""a":"1.0","b":[1,2.0]}"#);
        assert_eq!((stamp.hash, hash_respelt(b"{", members)), (hash, sha256(br#"{"a":"1.0","b":[1,2]}"#)));
    }

    #[test]
    fn every_flipped_bit_is_found_or_changes_nothing() {
        let text = signed();
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        for position in 0..text.len() {
            for bit in 0..8 {
                let mut changed = text.clone();
                changed[position] ^= 1 << bit;
                if verify_exact(STATE, ID, &changed, &trust()).is_ok() {
                    // White space, or a number spelt otherwise.
                    assert_eq!(read(&changed), read(&text), "byte {position} bit {bit}");
                }
            }
        }
    }

    #[test]
    fn it_belongs_to_its_kind_its_thread_and_its_signer() {
        let text = signed();
        assert!(verify_exact(DocumentKind::new("thread"), ID, &text, &trust()).is_err());
        assert!(verify_exact(STATE, "scribe-ffffffffffff", &text, &trust()).is_err());
        assert!(verify_exact(STATE, ID, &text, &Trust::of(&[signer(2).public()])).is_err());
        assert!(sign_exact(STATE, ID, &json!({}), &signer(1), at()).is_err());
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-(1_i64 << 53)..(1 << 53)).prop_map(Value::from),
            any::<f64>().prop_filter("finite", |number| number.abs() < 9e15).prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("\\PC{0,4}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_hashed_is_the_canonical_form(value in any_value()) {
            prop_assume!(has_plain_keys(&value));
            let text = serde_json::to_vec(&value).unwrap();
            prop_assert_eq!(hash_respelt(b"", &text), sha256(&canonical(&value)));
        }
    }
}
