//! Large JSON documents (snapshots of long threads), written almost exactly as they are hashed.
//!
//! ```text
//! {"_signature":"STAMP",MEMBERS}⏎        hashed is {MEMBERS} in the form of RFC 8785
//! ```
//!
//! It is an ordinary signed JSON document, and [`super::verify_json`] accepts it. Its bytes are the hashed bytes, except for floats that
//! RFC 8785 spells differently (`1.0` is `1` there, which would be read back as an integer): those are respelled while hashing. So it
//! can be verified without parsing it as JSON: a text with the signed hash is a text of the signed value.

use serde_json::Value;

use super::stamp::Stamp;
use super::{DocumentError, DocumentKind, LIMITS, SIGNATURE_MEMBER, Verified, verify_json};
use crate::fast_line::ordinary;
use crate::hash::{RunningHash, sha256};
use crate::keys::Signer;
use crate::strict::{self, StrictError};
use crate::trust::Trust;
use selvedge_model::digest::Digest;
use selvedge_model::time::Timestamp;

/// Signs a JSON object that has at least one member and no stamp. Returns the file's text, on one line, and the signed
/// hash.
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
    let hash = if has_plain_keys(value) { hash_respelled(b"", &content) } else { sha256(&canonical(value)) };
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

/// Verifies a JSON document in any form, and returns the signed hash. The caller has the text; a text whose bytes are the hashed ones
/// has not been parsed as JSON yet.
pub fn verify_exact(
    kind: DocumentKind,
    id: &str,
    bytes: &[u8],
    trust: &Trust,
) -> Result<Verified<Digest>, DocumentError> {
    if let Some((stamp, members)) = parts(bytes)
        && stamp.hash == hash_respelled(b"{", members)
    {
        stamp.verify(kind, id, trust, || Ok(stamp.hash))?;
        return Ok(Verified { value: stamp.hash, signer: stamp.fingerprint, at: stamp.at });
    }
    // The same value may be written in another form.
    let verified = verify_json(kind, id, bytes, trust)?;
    let hash = sha256(&canonical(&verified.value));
    Ok(Verified { value: hash, signer: verified.signer, at: verified.at })
}

/// The stamp of a document in this form, and the text after it.
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

/// Whether sorting keys by their bytes gives the order of RFC 8785, which differs only for characters beyond the first 65,536.
/// Strings and integers are written the same in both.
fn has_plain_keys(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(has_plain_keys),
        Value::Object(members) => {
            members.iter().all(|(key, member)| key.bytes().all(|byte| byte < 0xee) && has_plain_keys(member))
        }
        _ => true,
    }
}

/// The hash of a text with every float spelled as in RFC 8785. Text that is not JSON has some hash, too.
fn hash_respelled(before: &[u8], text: &[u8]) -> Digest {
    let mut hash = RunningHash::new();
    hash.update(before);
    // Everything before `done` is hashed; everything before `at` is scanned.
    let mut done = 0;
    let mut at = 0;
    while let Some(found) = text[at..].iter().position(|byte| matches!(byte, b'"' | b'0'..=b'9' | b'-')) {
        at += found;
        if text[at] == b'"' {
            at = end_of_string(text, at + 1);
            continue;
        }
        let length = text[at..].iter().position(|byte| !is_number_byte(*byte)).unwrap_or(text.len() - at);
        let number = &text[at..at + length];
        if let Some(respelled) = respelled(number) {
            hash.update(&text[done..at]);
            hash.update(&respelled);
            done = at + length;
        }
        at += length;
    }
    hash.update(&text[done..]);
    hash.digest()
}

/// The end of a string whose opening quotation mark is before `at`.
fn end_of_string(text: &[u8], mut at: usize) -> usize {
    loop {
        at += ordinary(&text[at..]);
        match text.get(at) {
            Some(b'"') => return at + 1,
            // An escaped character does not end the string.
            Some(b'\\') => at = (at + 2).min(text.len()),
            Some(_) => {}
            None => return text.len(),
        }
    }
}

fn is_number_byte(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
}

/// A float as RFC 8785 spells it; `None` for an integer, whose spelling does not change.
fn respelled(number: &[u8]) -> Option<Vec<u8>> {
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
    fn it_verifies_as_ordinary_signed_json_and_in_any_form() {
        let text = signed();
        let plain = verify_json(STATE, ID, &text, &trust()).unwrap();
        let exact = verify_exact(STATE, ID, &text, &trust()).unwrap();
        assert_eq!((plain.signer, plain.at), (exact.signer, exact.at));
        let pretty = serde_json::to_vec_pretty(&serde_json::from_slice::<Value>(&text).unwrap()).unwrap();
        assert_eq!(verify_exact(STATE, ID, &pretty, &trust()).unwrap(), exact);
        // Almost all documents are verified without parsing.
        let (plain, hash) = sign_exact(STATE, ID, &json!({"b": [1, 2.0], "a": "1.0"}), &signer(1), at()).unwrap();
        let (stamp, members) = parts(&plain).unwrap();
        assert_eq!(members, br#""a":"1.0","b":[1,2.0]}"#);
        assert_eq!((stamp.hash, hash_respelled(b"{", members)), (hash, sha256(br#"{"a":"1.0","b":[1,2]}"#)));
    }

    #[test]
    fn every_flipped_bit_is_found_or_leaves_the_value_unchanged() {
        let text = signed();
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        for position in 0..text.len() {
            for bit in 0..8 {
                let mut changed = text.clone();
                changed[position] ^= 1 << bit;
                if verify_exact(STATE, ID, &changed, &trust()).is_ok() {
                    // White space, or another spelling of a number.
                    assert_eq!(read(&changed), read(&text), "byte {position} bit {bit}");
                }
            }
        }
    }

    #[test]
    fn it_verifies_only_for_its_kind_thread_and_signer() {
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
        fn the_hash_is_that_of_the_canonical_form(value in any_value()) {
            prop_assume!(has_plain_keys(&value));
            let text = serde_json::to_vec(&value).unwrap();
            prop_assert_eq!(hash_respelled(b"", &text), sha256(&canonical(&value)));
        }
    }
}
