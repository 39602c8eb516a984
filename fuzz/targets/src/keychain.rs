//! Statements of key rotations.
//!
//! Statements are separated by zero bytes. Only the one key that really is a successor becomes trusted, and the statement that makes it
//! trusted is what was signed.

use selvedge_log::document::{DocumentKind, sign_json};
use selvedge_log::keychain::RotationStatement;
use selvedge_log::{Signer, Trust, strict};
use serde_json::{Value, json};

use crate::golden::{HEIR, SIGNER, TRUST, at};

const KIND: DocumentKind = DocumentKind::new("key_rotation");
const DOMAIN: &str = "selvedge/key-rotation/1";

/// Reads statements and follows them from a trusted key.
pub fn run(bytes: &[u8]) {
    let parsed = bytes.split(|byte| *byte == 0).take(4).filter_map(|text| RotationStatement::parse(text).ok());
    let statements: Vec<RotationStatement> = parsed.collect();
    for rotation in &statements {
        assert_eq!(rotation.to, rotation.public().fingerprint());
        assert_ne!(rotation.from, rotation.to);
        if rotation.check(&SIGNER.public()).is_ok() {
            let said = strict::parse(rotation.text());
            let signed = strict::parse(statement(&SIGNER, &HEIR).as_bytes());
            assert_eq!(said, signed, "an unsigned statement is valid");
        }
    }
    let both = [SIGNER.public(), HEIR.public()];
    for trust in [&*TRUST, &Trust::of(&[HEIR.public()])] {
        let Ok(vouched) = trust.extended_by(&statements, &both) else { continue };
        for (fingerprint, _) in vouched.iter() {
            assert!(both.iter().any(|key| key.fingerprint() == *fingerprint), "another key is trusted");
        }
    }
}

/// The statement that `new` succeeds `old`.
fn statement(old: &Signer, new: &Signer) -> String {
    let from = old.fingerprint();
    let to = new.fingerprint();
    let key = new.public().to_text();
    let message = format!("{from}\n{to}\n{key}\n{}", at());
    let said: Value = json!({
        "from": from, "to": to, "public_key": key, "rotated_at": at(), "countersignature": new.sign(DOMAIN, message.as_bytes()),
    });
    sign_json(KIND, &to.to_string(), said, old, at()).expect("a statement can be signed")
}

/// A rotation, and one back.
pub fn seeds() -> Vec<Vec<u8>> {
    let there = statement(&SIGNER, &HEIR).into_bytes();
    let back = statement(&HEIR, &SIGNER).into_bytes();
    vec![there.clone(), back.clone(), [&there[..], b"\0", &back].concat(), [&there[..], b"\0", &there].concat()]
}
