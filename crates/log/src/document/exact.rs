//! Large JSON documents, written as nearly as can be as they are hashed: snapshots of long threads.
//!
//! ```text
//! {"_signature":"STAMP",MEMBERS}⏎        what is hashed is {MEMBERS} in the form of RFC 8785
//! ```
//!
//! To any reader it is a signed JSON document like all others, and [`super::verify_json`] takes it. Where no float is spelt otherwise
//! in RFC 8785, what stands there is what is hashed, and no canonical form has to be made of it to check it. A value whose canonical form has
//! the hash that was signed is the value that was signed, whatever stands around it: nothing else has to be asked of the text.

use std::io;

use serde::Serialize;
use serde_json::Value;

use super::stamp::Stamp;
use super::{DocumentError, DocumentKind, LIMITS, SIGNATURE_MEMBER, Verified, split_stamp, verify_json};
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
    let hash = sha256(&canonical(value));
    // As it is spelt: `1.0` is no integer to whoever reads it back.
    let content = serde_json::to_vec(value).expect("a value always has a text");
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

/// Checks a JSON document in whatever form, and gives back the object without its stamp, and the hash that was signed.
pub fn verify_exact(
    kind: DocumentKind,
    id: &str,
    bytes: &[u8],
    trust: &Trust,
) -> Result<(Verified<Value>, Digest), DocumentError> {
    if let Some((stamp, members)) = parts(bytes)
        && let Ok(value) = serde_json::from_slice(bytes)
    {
        let (value, _) = split_stamp(value)?;
        let mut hash = RunningHash::new();
        hash.update(b"{");
        hash.update(members);
        let mut actual = hash.digest();
        // The same value may be spelt otherwise.
        if stamp.hash != actual {
            strict::check_canonicalizable(&value)?;
            actual = sha256(&canonical(&value));
        }
        stamp.verify(kind, id, trust, || Ok(actual))?;
        return Ok((Verified { value, signer: stamp.fingerprint, at: stamp.at }, actual));
    }
    let verified = verify_json(kind, id, bytes, trust)?;
    let hash = sha256(&canonical(&verified.value));
    Ok((verified, hash))
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

/// The RFC 8785 bytes of a value whose numbers RFC 8785 keeps.
///
/// Strings and integers are written alike in both forms; keys are ordered otherwise only beyond the first 65,536 characters; some floats are
/// spelt otherwise.
fn canonical(value: &Value) -> Vec<u8> {
    const WHY: &str = "a value with finite numbers always has a canonical text";
    if !has_plain_keys(value) {
        return serde_json_canonicalizer::to_vec(value).expect(WHY);
    }
    let mut text = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Spelling)).expect(WHY);
    text
}

/// Whether keys in the order of their bytes are in the order of RFC 8785.
fn has_plain_keys(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(has_plain_keys),
        Value::Object(members) => {
            members.iter().all(|(key, member)| key.bytes().all(|byte| byte < 0xee) && has_plain_keys(member))
        }
        _ => true,
    }
}

/// Writes floats as RFC 8785 does.
struct Spelling;

impl serde_json::ser::Formatter for Spelling {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(&serde_json_canonicalizer::to_vec(&value).map_err(io::Error::other)?)
    }
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
        let (exact, hash) = verify_exact(STATE, ID, &text, &trust()).unwrap();
        assert_eq!(plain, exact);
        let pretty = serde_json::to_vec_pretty(&serde_json::from_slice::<Value>(&text).unwrap()).unwrap();
        assert_eq!(verify_exact(STATE, ID, &pretty, &trust()).unwrap(), (exact, hash));
    }

    #[test]
    fn every_flipped_bit_is_found_or_changes_nothing() {
        let text = signed();
        let (good, _) = verify_exact(STATE, ID, &text, &trust()).unwrap();
        for position in 0..text.len() {
            for bit in 0..8 {
                let mut changed = text.clone();
                changed[position] ^= 1 << bit;
                if let Ok((found, _)) = verify_exact(STATE, ID, &changed, &trust()) {
                    // White space, or a number spelt otherwise.
                    assert_eq!(found, good, "byte {position} bit {bit}");
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
            prop_assert_eq!(canonical(&value), serde_json_canonicalizer::to_vec(&value).unwrap());
        }
    }
}
