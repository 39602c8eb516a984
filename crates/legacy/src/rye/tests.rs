use base64ct::{Base64UrlUnpadded, Encoding};
use ed25519_dalek::{Signer as _, SigningKey};

use super::*;

const TIME: &str = "2026-04-01T05:06:44Z";

fn key(byte: u8) -> (SigningKey, PublicKey) {
    let key = SigningKey::from_bytes(&[byte; 32]);
    let public = PublicKey::from_bytes(key.verifying_key().as_bytes()).unwrap();
    (key, public)
}

/// A signature over `covered`, as Rye writes it.
fn stamp(covered: &[u8]) -> String {
    let (key, public) = key(1);
    let hash = sha256(covered).to_string();
    let signature = Base64UrlUnpadded::encode_string(&key.sign(hash.as_bytes()).to_bytes());
    format!("{MARK}{TIME}:{hash}:{signature}:{}", key_id(&public))
}

fn check(document: &str) -> Result<Verified, RyeError> {
    verify(document.as_bytes(), &[key(1).1, key(2).1])
}

fn coverage(document: &str) -> Coverage {
    check(document).unwrap_or_else(|error| panic!("{error}: {document}")).coverage
}

#[test]
fn every_comment_style_verifies_and_covers_the_rest() {
    let body = "\nname: x\nbody\n";
    let stamp = stamp(body.as_bytes());
    for (before, after) in [("<!-- ", " -->"), ("# ", ""), ("// ", "")] {
        let document = format!("{before}{stamp}{after}\n{body}");
        let verified = check(&document).unwrap();
        assert_eq!((verified.coverage, verified.key, verified.time.as_str()), (Coverage::Rest, key(1).1, TIME));
        assert!(is_signed(document.as_bytes()));
        assert_eq!(check(&format!("{document} ")).unwrap_err().code(), "document_changed");
    }
    assert_eq!(coverage(&format!("#!/usr/bin/env python\n# {stamp}\n{body}")), Coverage::Script);
    assert_eq!(check(&format!("\n# {stamp}\n{body}")).unwrap_err(), RyeError::Unsigned);
}

#[test]
fn padding_is_removed_and_a_provider_is_shown_but_not_trusted() {
    let stamp = stamp(b"body");
    let (front, key_id) = stamp.rsplit_once(':').unwrap();
    for padding in ["", "=="] {
        assert_eq!(coverage(&format!("# {front}{padding}:{key_id}\nbody")), Coverage::Rest);
    }
    for padding in ["=", "==="] {
        let refused = check(&format!("# {front}{padding}:{key_id}\nbody")).unwrap_err();
        assert_eq!(refused.code(), "document_malformed");
    }
    let named = check(&format!("# {stamp}|github@ada\nbody")).unwrap();
    assert_eq!(named.provider.as_deref(), Some("github@ada"));
    assert!(named.coverage.not_covered().iter().any(|what| what.contains("named after")));
}

#[test]
fn only_the_element_of_a_directive_is_covered_and_the_verdict_says_so() {
    let element = "<directive name=\"x\" version=\"1.0.0\">\n<metadata/>\n</directive>";
    let document =
        |body: &str| format!("<!-- {} -->\n# X\n\n```xml\n{element}\n```\n\n{body}\n", stamp(element.as_bytes()));
    let verified = check(&document("Be good.")).unwrap();
    assert_eq!(verified.coverage, Coverage::Directive);
    assert!(verified.coverage.not_covered()[0].contains("the body, with the agent's instructions, is NOT covered"));
    assert_eq!(check(&document("Be evil.")).unwrap().coverage, Coverage::Directive, "a weakness of the scheme");
    let changed = document("Be good.").replace("1.0.0", "1.0.1");
    assert_eq!(check(&changed).unwrap_err().code(), "document_changed");
    // Another element with a similar name does not start the directive.
    let other = document("Be good.").replacen("# X", "<directives>", 1);
    assert_eq!(coverage(&other), Coverage::Directive);
}

#[test]
fn only_the_text_after_the_metadata_of_knowledge_is_covered() {
    let document = format!("<!-- {} -->\n---\ntitle: x\n---\n\n body \n", stamp(b"body"));
    assert_eq!(coverage(&document), Coverage::BehindMetadata);
    assert_eq!(coverage(&document.replace("title: x", "title: y")), Coverage::BehindMetadata);
    let whole = "---\ntitle: x\n---\n\n body \n";
    assert_eq!(coverage(&format!("<!-- {} -->\n{whole}", stamp(whole.as_bytes()))), Coverage::Rest, "the widest");
}

#[test]
fn json_is_hashed_as_python_writes_it() {
    let canonical = r#"{"a":{"spend":1e-05,"x":1.0},"big":1e+16,"n":3,"z":"\u00fc\ud83d\ude00"}"#;
    let text = |spend: &str, n: &str| {
        let stamp = stamp(canonical.as_bytes());
        format!(
            "{{\n  \"z\": \"ü😀\",\n  \"n\": {n},\n  \"big\": 1e16,\n  \"a\": {{\"x\": 1.0, \"spend\": {spend}}},\n  \"_signature\": \"{stamp}\"\n}}\n"
        )
    };
    assert_eq!(coverage(&text("0.00001", "3")), Coverage::Value);
    assert!(is_signed(text("0.00001", "3").as_bytes()));
    assert_eq!(check(&text("0.00002", "3")).unwrap_err().code(), "document_changed");
    assert_eq!(check(&text("0.00001", "3.0")).unwrap_err().code(), "document_changed");
    assert_eq!(check(&text("0.00001", "9007199254740993")).unwrap_err().code(), "document_not_signable");
    assert_eq!(check(&text("0.00001", "3, \"n\": 3")).unwrap_err().code(), "document_not_signable");
    assert_eq!(check("{\"a\": 1}").unwrap_err(), RyeError::Unsigned);
    assert!(!is_signed(b"{\"_signature\": \"selvedge:signed:1:x\"}"));
}

#[test]
fn another_key_a_borrowed_name_and_a_moved_signature_are_refused() {
    let document = format!("# {}\nbody", stamp(b"body"));
    assert_eq!(verify(document.as_bytes(), &[key(2).1]).unwrap_err().code(), "document_untrusted_key");
    let borrowed = document.replace(&key_id(&key(1).1), &key_id(&key(2).1));
    assert_eq!(check(&borrowed).unwrap_err(), RyeError::BadSignature);
    let other = stamp(b"other");
    let moved = format!("# {}{}\nbody", &stamp(b"body")[..96], &other[96..]);
    assert_eq!(check(&moved).unwrap_err(), RyeError::BadSignature);
    assert_eq!(check("# rye:signed:\nbody").unwrap_err().code(), "document_malformed");
    assert_eq!(check("# rye:signed:2026-04-01T05:06:44Z:é\nbody").unwrap_err().code(), "document_malformed");
    assert_eq!(check("# a title\nbody").unwrap_err(), RyeError::Unsigned);
    assert_eq!(check("").unwrap_err(), RyeError::Unsigned);
}
