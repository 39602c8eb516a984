//! Signed documents: Markdown, YAML, scripts, JSON, the older Rye format; manifests and tombstones.
//!
//! The first byte decides how the rest is interpreted. Only what was signed verifies: of a text every byte, of JSON the value, of the older
//! format what its verdict covers. And whatever is signed verifies, as that kind and for that item only.

use selvedge_legacy::rye;
use selvedge_log::document::Comment;
use selvedge_log::document::{DocumentKind, SIGNATURE_MEMBER, sign_json, sign_text, verify_json, verify_text};
use selvedge_log::keys::PublicKey;
use selvedge_log::strict;
use selvedge_model::Manifest;
use serde_json::Value;

use crate::golden::{self, SIGNER, TRUST, at};

const KIND: DocumentKind = DocumentKind::new("document");
const THREAD_KIND: DocumentKind = DocumentKind::new("thread");
const OTHER_KIND: DocumentKind = DocumentKind::new("tool");
const ID: &str = "notes/edge";
const BODIES: [&str; 3] = ["# Edge\n\ntext\n", "#!/bin/sh\necho edge\n", ""];

/// Verifies a document.
pub fn run(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    match how % 8 {
        0 => text(Comment::Html, bytes),
        1 => text(Comment::Hash, bytes),
        2 => text(Comment::Slash, bytes),
        3 => json(bytes),
        4 => rye(bytes),
        5 => signed_text(bytes),
        _ => signed_json(bytes),
    }
}

fn text(comment: Comment, bytes: &[u8]) {
    if let Ok(verified) = verify_text(KIND, ID, comment, bytes, &TRUST) {
        let known = BODIES.iter().any(|body| sign_text(KIND, ID, comment, body, &SIGNER, at()).as_bytes() == bytes);
        assert!(known, "an unsigned text verifies: {:?}", verified.value);
    }
}

fn json(bytes: &[u8]) {
    let golden: Value = strict::parse(golden::DOCUMENT).expect("the golden document is JSON");
    if verify_json(THREAD_KIND, golden::THREAD.as_str(), bytes, &TRUST).is_ok() {
        assert_eq!(strict::parse(bytes).expect("it was parsed before"), golden, "an unsigned value verifies");
    }
    for (kind, id) in [(OTHER_KIND, golden::THREAD.as_str()), (THREAD_KIND, "another-thread")] {
        assert!(verify_json(kind, id, bytes, &TRUST).is_err(), "it verifies as another kind or item");
    }
}

fn rye(bytes: &[u8]) {
    let key = PublicKey::from_pem(golden::RYE_KEY).expect("the key is whole");
    rye::is_signed(bytes);
    if let Ok(verified) = rye::verify(bytes, [&key]) {
        let golden = rye::verify(golden::RYE_DOCUMENT, [&key]).expect("the golden vector passes");
        assert_eq!(verified.hash, golden.hash, "an unsigned hash verifies");
    }
}

fn signed_text(bytes: &[u8]) {
    let Ok(body) = std::str::from_utf8(bytes) else { return };
    for comment in [Comment::Html, Comment::Hash, Comment::Slash] {
        let signed = sign_text(KIND, ID, comment, body, &SIGNER, at());
        match verify_text(KIND, ID, comment, signed.as_bytes(), &TRUST) {
            Ok(verified) => assert_eq!(verified.value, body),
            Err(error) => panic!("a signed text does not verify: {error}"),
        }
        assert_eq!(comment.unsigned(&signed), body, "removing the signature gives another text");
        assert!(verify_text(OTHER_KIND, ID, comment, signed.as_bytes(), &TRUST).is_err());
        assert!(verify_text(KIND, "elsewhere", comment, signed.as_bytes(), &TRUST).is_err());
    }
}

fn signed_json(bytes: &[u8]) {
    let Ok(value) = strict::parse(bytes) else { return };
    let Ok(signed) = sign_json(THREAD_KIND, ID, value.clone(), &SIGNER, at()) else { return };
    let verified = verify_json(THREAD_KIND, ID, signed.as_bytes(), &TRUST).expect("a signed value verifies");
    let mut unsigned = value;
    if let Value::Object(members) = &mut unsigned {
        members.remove(SIGNATURE_MEMBER);
    }
    assert_eq!(verified.value, unsigned, "a signed value is read as another one");
    assert!(verify_json(OTHER_KIND, ID, signed.as_bytes(), &TRUST).is_err());
    // A manifest with a valid signature may still have any content.
    if let Ok(manifest) = serde_json::from_value::<Manifest>(verified.value) {
        let text = serde_json::to_value(&manifest).expect("a manifest can be serialized");
        let again: Manifest = serde_json::from_value(text).expect("what was written can be read");
        assert_eq!(again, manifest);
    }
}

/// One of each.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (how, comment) in [(0, Comment::Html), (1, Comment::Hash), (2, Comment::Slash)] {
        let signed = |body: &&str| sign_text(KIND, ID, comment, body, &SIGNER, at());
        seeds.extend(BODIES.iter().map(|body| [&[how], signed(body).as_bytes()].concat()));
    }
    seeds.extend([3, 6].map(|how| [&[how], golden::DOCUMENT].concat()));
    seeds.push([&[4], golden::RYE_DOCUMENT].concat());
    seeds.push(
        [&[4], &br#"{"a":1,"_signature":"rye:signed:2026-04-01T05:06:44Z:00:00:6ea18199041a1ea8|p@u"}"#[..]].concat(),
    );
    seeds.extend(BODIES.iter().map(|body| [&[5], body.as_bytes()].concat()));
    seeds.push([&[6], &br#"{"a":[1.5,-0.0,1e21,"\u00e9"],"b":{"c":null},"log_version":1}"#[..]].concat());
    seeds
}
