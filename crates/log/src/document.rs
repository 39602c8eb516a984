//! Signed documents: files that are rewritten as a whole, unlike a log. Manifests, snapshots, readable pages, items.
//!
//! A document carries one line of text, its stamp:
//!
//! ```text
//! selvedge:signed:1:KIND:TIME:HASH:SIG:FINGERPRINT
//!
//! KIND         [a-z_]+
//! TIME         YYYY-MM-DDTHH:MM:SSZ, when the signer claims it signed
//! HASH         SHA-256 of the content, 64 lower-case hex characters
//! SIG          Ed25519, 86 characters of base64url without padding
//! FINGERPRINT  SHA-256 of the 32 raw bytes of the public key, 64 lower-case hex characters
//! ```
//!
//! The position of the stamp and the content that is hashed:
//!
//! | form | stamp | hashed content |
//! |---|---|---|
//! | JSON | member `_signature` of the top object | RFC 8785 bytes of the object without `_signature` |
//! | Markdown, HTML | first line `<!-- STAMP -->` | every byte after the first newline |
//! | YAML, TOML, Python, shell | first line `# STAMP` | every byte after the first newline |
//! | JavaScript, TypeScript, Rust | first line `// STAMP` | every byte after the first newline |
//!
//! If such a text (not Markdown) begins with `#!`, that line stays the first and the stamp is the second; the content is
//! then every byte but the stamp's line.
//!
//! The signature is Ed25519 over these bytes, where `‖` joins, `0x00` is one zero byte and `0x0a` one newline:
//!
//! ```text
//! "selvedge/document/1/" ‖ KIND ‖ 0x00 ‖ ID ‖ 0x0a ‖ TIME ‖ 0x0a ‖ HASH
//! ```
//!
//! ID is the item id or path that the reader expects, in UTF-8; it is not part of the stamp. TIME and HASH are the
//! texts of the stamp. So kind, id, time and content are all covered, and no document is accepted as one of another kind,
//! thread or path. The fingerprint is covered by the choice of the key.
//!
//! Invariants:
//!
//! - JSON is read strictly and has no number that RFC 8785 would round, when signing and when verifying. The signature covers
//!   the value, not white space, the order of members or the spelling of a number (`1.0` is the number `1`).
//! - Everything that is signed here is within the limits for verifying.
//! - Content is returned only after key and signature were verified.

mod large_json;
mod stamp;
mod stamp_position;

use std::borrow::Cow;

use selvedge_model::digest::Digest;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::time::Timestamp;
use serde_json::Value;

use crate::hash::{RunningHash, sha256};
use crate::keys::{Fingerprint, Signer};
use crate::strict::{self, Limits, StrictError};
use crate::trust::Trust;
pub use large_json::{sign_exact, verify_exact};
use stamp::{MARK, Stamp};
pub use stamp_position::{Comment, Form};

/// The member of a JSON document that contains its stamp.
pub const SIGNATURE_MEMBER: &str = "_signature";

/// A snapshot has the content of many lines, and some levels around it.
const LIMITS: Limits = Limits { bytes_max: 256 * 1024 * 1024, depth_max: 96 };

/// The kind of a document: `[a-z_]+`, a constant of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentKind(&'static str);

impl DocumentKind {
    /// Names a kind. Panics if the name is not `[a-z_]+`, which for a constant means it does not compile.
    pub const fn new(name: &'static str) -> Self {
        assert!(is_kind(name), "the name of a document kind is [a-z_]+");
        Self(name)
    }

    /// The kinds that this project signs: items that users write, and files beside logs and keys.
    pub const KNOWN: [Self; 12] = [
        Self("directive"),
        Self("knowledge"),
        Self("tool"),
        Self("agent"),
        Self("graph"),
        Self("config"),
        Self("document"),
        Self("thread"),
        Self("state"),
        Self("capabilities"),
        Self("tombstone"),
        Self("key_rotation"),
    ];

    /// The kind with this name, if it is one of [`Self::KNOWN`].
    pub fn known(name: &str) -> Option<Self> {
        Self::KNOWN.into_iter().find(|kind| kind.0 == name)
    }

    /// The name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

const fn is_kind(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if !matches!(bytes[i], b'a'..=b'z' | b'_') {
            return false;
        }
        i += 1;
    }
    !bytes.is_empty()
}

/// Content that was verified to be what its signer signed, for that kind and id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<T> {
    /// The content, without the stamp.
    pub value: T,
    /// The key that signed it.
    pub signer: Fingerprint,
    /// When it was signed, as the signer claims.
    pub at: Timestamp,
}

/// Why a document can't be signed or verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// There is no stamp.
    #[error("the document is not signed")]
    Unsigned,
    /// The stamp or the form of the document is not understood.
    #[error("the document is malformed: {why}")]
    Malformed {
        /// What is wrong.
        why: &'static str,
    },
    /// It was signed as another kind.
    #[error("the document is signed as `{found}` where `{expected}` is expected")]
    WrongKind {
        /// The expected kind.
        expected: String,
        /// The kind in its stamp.
        found: String,
    },
    /// The content differs from what was signed.
    #[error("the document was changed after it was signed: its hash is {actual}, but {signed} was signed")]
    HashMismatch {
        /// The hash in the stamp.
        signed: Digest,
        /// The hash of the content.
        actual: Digest,
    },
    /// The key is not in the trust store.
    #[error("the document is signed by the key {fingerprint}, which is not trusted")]
    UntrustedKey {
        /// The key.
        fingerprint: Fingerprint,
    },
    /// The key was trusted and has been revoked.
    #[error("the document is signed by the key {fingerprint}, which was revoked")]
    RevokedKey {
        /// The key.
        fingerprint: Fingerprint,
    },
    /// The signature is not this key's for this content, kind, id and time.
    #[error("the document's signature does not match: its stamp was changed, or it was signed for another id")]
    BadSignature,
    /// The JSON is not strict, or can't be signed exactly.
    #[error("the document can't be read or signed as JSON: {0}")]
    NotStrict(#[from] StrictError),
}

impl Classify for DocumentError {
    fn kind(&self) -> Kind {
        Kind::Integrity
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unsigned => "document_unsigned",
            Self::Malformed { .. } => "document_malformed",
            Self::WrongKind { .. } => "document_wrong_kind",
            Self::HashMismatch { .. } => "document_changed",
            Self::UntrustedKey { .. } => "document_untrusted_key",
            Self::RevokedKey { .. } => "document_revoked_key",
            Self::BadSignature => "document_invalid_signature",
            Self::NotStrict(_) => "document_not_signable",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::UntrustedKey { .. } => {
                Some("if you know whose key it is, trust it with `selvedge keys trust FILE --owner NAME`".to_owned())
            }
            Self::RevokedKey { fingerprint } => Some(format!(
                "you revoked this key (`selvedge keys list` shows when); to trust it again: `selvedge keys trust --again {}`",
                fingerprint.short()
            )),
            Self::NotStrict(error) => error.hint(),
            _ => None,
        }
    }
}

/// Signs a JSON object; replaces an existing stamp. Returns the file's text: two spaces per level, the stamp last.
pub fn sign_json(
    kind: DocumentKind,
    id: &str,
    value: Value,
    signer: &Signer,
    at: Timestamp,
) -> Result<String, DocumentError> {
    let (value, _) = split_stamp(value)?;
    strict::check_writable(&value, LIMITS.depth_max)?;
    let stamp = Stamp::sign(kind, id, content_hash(&value)?, signer, at);
    let mut text = serde_json::to_string_pretty(&value).expect("a value always has a text");
    // Between the last member, if there is one, and the closing brace.
    let members = text.strip_suffix("\n}").map_or("{".to_owned(), |members| format!("{members},"));
    text = format!("{members}\n  \"{SIGNATURE_MEMBER}\": \"{stamp}\"\n}}\n");
    if text.len() > LIMITS.bytes_max {
        return Err(StrictError::TooLong { bytes: text.len(), bytes_max: LIMITS.bytes_max }.into());
    }
    Ok(text)
}

/// Verifies a JSON document and returns the object without its stamp.
pub fn verify_json(
    kind: DocumentKind,
    id: &str,
    bytes: &[u8],
    trust: &Trust,
) -> Result<Verified<Value>, DocumentError> {
    let (value, stamp) = split_stamp(strict::parse_within(bytes, LIMITS)?)?;
    let stamp = match &stamp {
        None => return Err(DocumentError::Unsigned),
        Some(Value::String(text)) => Stamp::parse(text)?,
        Some(_) => return Err(DocumentError::Malformed { why: "its `_signature` is not text" }),
    };
    stamp.verify(kind, id, trust, || content_hash(&value))?;
    Ok(Verified { value, signer: stamp.fingerprint, at: stamp.at })
}

/// Signs a text. Returns the file's text: the stamp as a comment, then the unchanged body; a shebang line stays first, before the
/// stamp.
pub fn sign_text(kind: DocumentKind, id: &str, comment: Comment, body: &str, signer: &Signer, at: Timestamp) -> String {
    let stamp = Stamp::sign(kind, id, sha256(body.as_bytes()), signer, at);
    let (before, after) = comment.ends();
    let (shebang, rest) = body.split_at(comment.shebang(body.as_bytes()).len());
    format!("{shebang}{before}{stamp}{after}\n{rest}")
}

/// Verifies a text document and returns its body.
pub fn verify_text<'a>(
    kind: DocumentKind,
    id: &str,
    comment: Comment,
    bytes: &'a [u8],
    trust: &Trust,
) -> Result<Verified<Cow<'a, str>>, DocumentError> {
    let malformed = |why| DocumentError::Malformed { why };
    let (before, after) = comment.ends();
    let shebang = comment.shebang(bytes);
    let after_shebang = &bytes[shebang.len()..];
    let Some(line) = after_shebang.strip_prefix(before.as_bytes()).filter(|rest| rest.starts_with(MARK.as_bytes()))
    else {
        return Err(DocumentError::Unsigned);
    };
    let end = line.iter().position(|byte| *byte == b'\n').ok_or(malformed("the line of its signature has no end"))?;
    let rest = &line[end + 1..];
    let line = &line[..end];
    if shebang.is_empty() && !comment.shebang(rest).is_empty() {
        return Err(malformed("its signature is before its shebang line"));
    }
    let line = line.strip_suffix(after.as_bytes()).ok_or(malformed("the comment with its signature is not closed"))?;
    let stamp = Stamp::parse(std::str::from_utf8(line).map_err(|_| malformed("its signature is not text"))?)?;
    let mut hash = RunningHash::new();
    hash.update(shebang);
    hash.update(rest);
    stamp.verify(kind, id, trust, || Ok(hash.digest()))?;
    let text = |bytes: &'a [u8]| std::str::from_utf8(bytes).map_err(|_| malformed("its body is not UTF-8"));
    let value = match shebang {
        [] => Cow::Borrowed(text(rest)?),
        shebang => Cow::Owned(format!("{}{}", text(shebang)?, text(rest)?)),
    };
    Ok(Verified { value, signer: stamp.fingerprint, at: stamp.at })
}

/// The object without its stamp, and the stamp.
fn split_stamp(value: Value) -> Result<(Value, Option<Value>), DocumentError> {
    let Value::Object(mut members) = value else {
        return Err(DocumentError::Malformed { why: "it is not a JSON object" });
    };
    let stamp = members.remove(SIGNATURE_MEMBER);
    Ok((Value::Object(members), stamp))
}

fn content_hash(value: &Value) -> Result<Digest, DocumentError> {
    strict::check_canonicalizable(value)?;
    let bytes =
        serde_json_canonicalizer::to_vec(value).expect("a value with finite numbers always has a canonical text");
    Ok(sha256(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::signer;
    use proptest::prelude::*;
    use serde_json::json;

    const PAGE: DocumentKind = DocumentKind::new("page");
    const THREAD: DocumentKind = DocumentKind::new("thread");
    const ID: &str = "scribe-0123456789ab";

    fn at() -> Timestamp {
        "2026-11-15T03:28:58.999Z".parse().unwrap()
    }

    fn trust() -> Trust {
        Trust::of(&[signer(1).public()])
    }

    fn value() -> Value {
        json!({ "title": "Ünits", "cost": { "spend": 0.5, "turns": 3 }, "tags": ["a", null], "_z": true })
    }

    fn signed() -> String {
        sign_json(THREAD, ID, value(), &signer(1), at()).unwrap()
    }

    fn verify(bytes: &[u8]) -> Result<Verified<Value>, DocumentError> {
        verify_json(THREAD, ID, bytes, &trust())
    }

    fn code<T>(result: Result<T, DocumentError>) -> &'static str {
        result.map_or_else(|e| e.code(), |_| "ok")
    }

    #[test]
    fn a_verified_object_is_returned_without_its_stamp() {
        let verified = verify(signed().as_bytes()).unwrap();
        assert_eq!(verified.value, value());
        assert_eq!((verified.signer, verified.at), (signer(1).fingerprint(), at().whole_seconds()));
        let empty = sign_json(THREAD, ID, json!({}), &signer(1), at()).unwrap();
        assert_eq!(verify(empty.as_bytes()).unwrap().value, json!({}));
        let again = sign_json(THREAD, ID, serde_json::from_str(&signed()).unwrap(), &signer(1), at()).unwrap();
        assert_eq!(again, signed());
    }

    #[test]
    fn the_stamp_is_the_last_member_and_reads_as_documented() {
        let text = signed();
        let lines: Vec<&str> = text.lines().collect();
        let stamp = lines[lines.len() - 2].strip_prefix("  \"_signature\": \"").unwrap().strip_suffix('"').unwrap();
        assert!(lines[0] == "{" && lines[lines.len() - 1] == "}" && text.ends_with("}\n"));
        // Sorted, without white space, as RFC 8785 has it.
        let hash = sha256(r#"{"_z":true,"cost":{"spend":0.5,"turns":3},"tags":["a",null],"title":"Ünits"}"#.as_bytes());
        let message = format!("{ID}\n2026-11-15T03:28:58Z\n{hash}");
        let signature = signer(1).sign("selvedge/document/1/thread", message.as_bytes());
        let fingerprint = signer(1).fingerprint();
        assert_eq!(stamp, format!("selvedge:signed:1:thread:2026-11-15T03:28:58Z:{hash}:{signature}:{fingerprint}"));
    }

    #[test]
    fn one_flipped_bit_anywhere_in_a_json_document_is_noticed() {
        let bytes = signed().into_bytes();
        for position in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[position] ^= 1 << bit;
                let found = verify(&changed);
                assert!(found.is_err(), "byte {position} bit {bit}: {:?}", String::from_utf8_lossy(&changed));
            }
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_in_a_text_document_is_noticed() {
        const SCRIPT: &str = "#!/bin/sh\necho\n";
        for (comment, body) in [
            (Comment::Html, "# Title\n\nbody"),
            (Comment::Hash, "# Title\n\nbody"),
            (Comment::Slash, "let x = 1;\n"),
            (Comment::Hash, SCRIPT),
            (Comment::Slash, SCRIPT),
        ] {
            let bytes = sign_text(PAGE, ID, comment, body, &signer(1), at()).into_bytes();
            assert_eq!(bytes.starts_with(b"#!/bin/sh\n"), body == SCRIPT, "a shebang line stays first");
            assert_eq!(verify_text(PAGE, ID, comment, &bytes, &trust()).unwrap().value, body);
            for position in 0..bytes.len() {
                for bit in 0..8 {
                    let mut changed = bytes.clone();
                    changed[position] ^= 1 << bit;
                    let found = verify_text(PAGE, ID, comment, &changed, &trust());
                    assert!(found.is_err(), "byte {position} bit {bit}");
                }
                assert!(verify_text(PAGE, ID, comment, &bytes[..position], &trust()).is_err());
            }
        }
    }

    #[test]
    fn another_spelling_of_the_same_json_value_still_verifies() {
        let value: Value = serde_json::from_str(&signed()).unwrap();
        assert_eq!(code(verify(value.to_string().as_bytes())), "ok");
    }

    #[test]
    fn a_document_of_one_kind_is_refused_as_another() {
        assert_eq!(code(verify_json(PAGE, ID, signed().as_bytes(), &trust())), "document_wrong_kind");
        let renamed = signed().replace(":1:thread:", ":1:page:");
        assert_eq!(code(verify_json(PAGE, ID, renamed.as_bytes(), &trust())), "document_invalid_signature");
    }

    #[test]
    fn a_document_is_refused_under_another_id_and_at_another_time() {
        let elsewhere = verify_json(THREAD, "scribe-0123456789ac", signed().as_bytes(), &trust());
        assert_eq!(code(elsewhere), "document_invalid_signature");
        let later = signed().replace("03:28:58Z", "03:28:59Z");
        assert_eq!(code(verify(later.as_bytes())), "document_invalid_signature");
        let text = sign_text(PAGE, "a", Comment::Html, "body", &signer(1), at());
        assert_eq!(
            code(verify_text(PAGE, "b", Comment::Html, text.as_bytes(), &trust())),
            "document_invalid_signature"
        );
    }

    #[test]
    fn an_untrusted_revoked_or_borrowed_key_is_refused() {
        let other = Trust::of(&[signer(2).public()]);
        assert_eq!(code(verify_json(THREAD, ID, signed().as_bytes(), &other)), "document_untrusted_key");

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trusted");
        Trust::add(&path, &signer(1).public(), "me", at()).unwrap();
        let file = path.join(format!("{}.json", signer(1).fingerprint()));
        let entry = std::fs::read_to_string(&file).unwrap();
        let loaded = Trust::load(&path).unwrap();
        assert_eq!(code(verify_json(THREAD, ID, signed().as_bytes(), &loaded)), "ok");
        std::fs::write(&file, entry.replace("\"trusted\"", "\"revoked\"")).unwrap();
        let revoked = Trust::load(&path).unwrap();
        assert_eq!(code(verify_json(THREAD, ID, signed().as_bytes(), &revoked)), "document_revoked_key");

        let mine = signer(1).fingerprint().to_string();
        let theirs = signer(2).fingerprint().to_string();
        let borrowed = signed().replace(&mine, &theirs);
        let both = Trust::of(&[signer(1).public(), signer(2).public()]);
        assert_eq!(code(verify_json(THREAD, ID, borrowed.as_bytes(), &both)), "document_invalid_signature");
    }

    #[test]
    fn json_that_is_not_strict_or_not_exact_is_neither_signed_nor_verified() {
        let sign = |value| code(sign_json(THREAD, ID, value, &signer(1), at()));
        let deep = (0..96).fold(json!(1), |inner, _| json!({ "a": inner }));
        assert_eq!(sign(deep.clone()), "ok");
        assert_eq!(sign(json!({ "a": deep })), "document_not_signable");
        assert_eq!(sign(json!({ "a": [9_007_199_254_740_993_u64] })), "document_not_signable");
        assert_eq!(sign(json!({ "$serde_json::private::RawValue": "1" })), "document_not_signable");
        assert_eq!(sign(json!([1])), "document_malformed");
        let twice = signed().replace("\"turns\": 3", "\"turns\": 3, \"turns\": 3");
        assert_eq!(code(verify(twice.as_bytes())), "document_not_signable");
        let two_stamps = signed().replacen('{', "{\"_signature\": \"x\",", 1);
        assert_eq!(code(verify(two_stamps.as_bytes())), "document_not_signable");
        let large = signed().replace("\"turns\": 3", "\"turns\": 9007199254740993");
        assert_eq!(code(verify(large.as_bytes())), "document_not_signable");
    }

    #[test]
    fn a_missing_stamp_is_distinguished_from_a_bad_one() {
        assert_eq!(code(verify(b"{}")), "document_unsigned");
        assert_eq!(code(verify(b"[]")), "document_malformed");
        let stamp = signed().lines().rev().nth(1).unwrap().trim().to_owned();
        for wrong in [
            "\"_signature\": 1".to_owned(),
            "\"_signature\": \"\"".to_owned(),
            stamp.replace(":signed:1:", ":signed:2:"),
            stamp.replace(":thread:", "::"),
            stamp.replace(":thread:", ":Thread:"),
            stamp.replace("03:28:58Z", "03:28:61Z"),
            stamp.replace("2026-11-15T", "2026-11-15 "),
            stamp.replace("T03:28:58Z", "t03:28:58z"),
            stamp.replace("2026-11-15T03:28:58Z", "20261115T032858.000Z"),
            format!("{}=\"", &stamp[..stamp.len() - 1]),
            format!("{}\"", &stamp[..stamp.len() - 2]),
        ] {
            assert_ne!(wrong, stamp);
            assert_eq!(code(verify(format!("{{{wrong}}}").as_bytes())), "document_malformed", "{wrong}");
        }
        let text = |bytes: &[u8]| code(verify_text(PAGE, ID, Comment::Hash, bytes, &trust()));
        assert_eq!(text(b""), "document_unsigned");
        assert_eq!(text(b"# Title\n"), "document_unsigned");
        assert_eq!(text(b"\n# selvedge:signed:1:page:\n"), "document_unsigned");
        assert_eq!(text(b"# selvedge:signed:1:page:\n"), "document_malformed");
        assert_eq!(text(b"# selvedge:signed:1:page:"), "document_malformed");
        let crlf = sign_text(PAGE, ID, Comment::Hash, "a", &signer(1), at()).replacen('\n', "\r\n", 1);
        assert_eq!(text(crlf.as_bytes()), "document_malformed");
    }

    #[test]
    fn a_stamp_can_not_be_moved_before_the_shebang_line() {
        let text = sign_text(PAGE, ID, Comment::Hash, "#!/bin/sh\necho\n", &signer(1), at());
        let lines: Vec<&str> = text.lines().collect();
        let moved = format!("{}\n{}\n{}\n", lines[1], lines[0], lines[2]);
        assert_eq!(code(verify_text(PAGE, ID, Comment::Hash, moved.as_bytes(), &trust())), "document_malformed");
        let odd = sign_text(PAGE, ID, Comment::Hash, "#!/bin/sh", &signer(1), at());
        assert_eq!(verify_text(PAGE, ID, Comment::Hash, odd.as_bytes(), &trust()).unwrap().value, "#!/bin/sh");
    }

    #[test]
    fn every_kind_is_refused_as_every_other_kind() {
        let kinds = DocumentKind::KNOWN;
        for signed_as in kinds {
            let json = sign_json(signed_as, ID, value(), &signer(1), at()).unwrap();
            let text = sign_text(signed_as, ID, Comment::Html, "body", &signer(1), at());
            for read_as in kinds {
                let expected = if read_as == signed_as { "ok" } else { "document_wrong_kind" };
                assert_eq!(code(verify_json(read_as, ID, json.as_bytes(), &trust())), expected);
                assert_eq!(code(verify_text(read_as, ID, Comment::Html, text.as_bytes(), &trust())), expected);
                assert_eq!(DocumentKind::known(read_as.as_str()), Some(read_as));
            }
        }
    }

    #[test]
    fn a_stamp_alone_is_a_document_with_an_empty_body() {
        let text = sign_text(PAGE, ID, Comment::Hash, "", &signer(1), at());
        assert!(text.ends_with('\n'));
        assert_eq!(verify_text(PAGE, ID, Comment::Hash, text.as_bytes(), &trust()).unwrap().value, "");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_small_object_survives_signing(
            members in prop::collection::btree_map(".{0,6}", prop_oneof![
                any::<i32>().prop_map(Value::from),
                (-1e15..1e15).prop_map(Value::from),
                ".{0,12}".prop_map(Value::from),
                prop::collection::vec(any::<bool>(), 0..3).prop_map(Value::from),
            ], 0..6),
        ) {
            let value = Value::Object(members.into_iter().collect());
            let text = sign_json(THREAD, ID, value.clone(), &signer(1), at()).unwrap();
            prop_assert_eq!(verify(text.as_bytes()).unwrap().value, value);
        }
    }
}
