//! The statement of a rotation as it is passed to other users, and the keys that follow from it.
//!
//! A user who trusts one key of a chain trusts the other keys, one step at a time and in both directions:
//!
//! - forwards, because the old key signed that the new one takes over, and its statement contains the whole new key;
//! - backwards, because the new key countersigned that it took over from the old one, by its fingerprint, and the old one agreed:
//!   the holder of the new key says that the old one was theirs. The old public key comes from elsewhere and is only
//!   accepted if it has that fingerprint.
//!
//! A revoked key is not trusted, nor does trust follow from it. Two keys that took over from the same one, and cycles, are
//! refused, as in the user's own folder.

use std::collections::BTreeMap;

use selvedge_model::time::Timestamp;
use serde_json::Value;

use super::{DOMAIN, KIND, KeyChain, Rotation, Statement};
use crate::document;
use crate::keys::{Fingerprint, PublicKey};
use crate::trust::Trust;

/// One statement, whose form and countersignature were verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotationStatement {
    /// The key that signed before.
    pub from: Fingerprint,
    /// The key that signs afterwards.
    pub to: Fingerprint,
    /// When it happened, as the keys claim.
    pub rotated_at: Timestamp,
    public: PublicKey,
    text: Vec<u8>,
}

impl RotationStatement {
    /// Parses a statement, and verifies everything that does not need the old key.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let mut value = crate::strict::parse(text).map_err(|error| error.to_string())?;
        if let Value::Object(members) = &mut value {
            members.remove(document::SIGNATURE_MEMBER);
        }
        let statement: Statement = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let public = PublicKey::from_text(&statement.public_key).map_err(|error| format!("its public key: {error}"))?;
        if statement.to != public.fingerprint() {
            return Err("its `to` is not the fingerprint of its public key".to_owned());
        }
        if statement.from == statement.to {
            return Err("a key can't take over from itself".to_owned());
        }
        public
            .verify(DOMAIN, &statement.message(), &statement.countersignature)
            .map_err(|_| "the new key did not countersign it".to_owned())?;
        let Statement { from, to, rotated_at, .. } = statement;
        Ok(Self { from, to, rotated_at, public, text: text.to_vec() })
    }

    /// Verifies that the old key signed it.
    pub fn check(&self, old: &PublicKey) -> Result<(), String> {
        let verified = document::verify_json(KIND, &self.to.to_string(), &self.text, &Trust::of(&[*old]));
        verified.map(drop).map_err(|error| error.to_string())
    }

    /// The exact bytes of the statement.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The key that took over.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }
}

impl Trust {
    /// The same trust, extended to every key that these statements lead to from a trusted one. `keys` are public keys from
    /// any source; they are not trusted by themselves.
    pub fn extended_by(&self, statements: &[RotationStatement], keys: &[PublicKey]) -> Result<Self, String> {
        refuse_forks_and_cycles(statements)?;
        let given: BTreeMap<_, _> = keys.iter().map(|key| (key.fingerprint(), *key)).collect();
        let mut trust = self.clone();
        loop {
            let mut found = None;
            for statement in statements {
                let old = trust.status(&statement.from);
                let new = trust.status(&statement.to);
                let believed = match (trust.key(&statement.from), trust.key(&statement.to)) {
                    (Some(old), None) if new.is_none() => Some((*old, statement.public, statement.from)),
                    (None, Some(_)) if old.is_none() => {
                        given.get(&statement.from).map(|old| (*old, *old, statement.to))
                    }
                    _ => None,
                };
                if let Some((old, public, by)) = believed {
                    statement
                        .check(&old)
                        .map_err(|why| format!("the rotation to key {}: {why}", statement.to.short()))?;
                    found = Some((public, by));
                    break;
                }
            }
            match found {
                Some((public, by)) => trust.believe(public, &by),
                None => return Ok(trust),
            }
        }
    }
}

fn refuse_forks_and_cycles(statements: &[RotationStatement]) -> Result<(), String> {
    let step =
        |one: &RotationStatement| Rotation { from: one.from, to: one.to, rotated_at: one.rotated_at, counts: true };
    let steps: BTreeMap<_, _> = statements.iter().map(|one| (one.to, step(one))).collect();
    if steps.len() != statements.len() {
        return Err("a key took over from two keys".to_owned());
    }
    match KeyChain::of_steps(steps).fork_or_cycle() {
        Some((_, why)) => Err(why),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::signer;

    fn statement(from: u8, to: u8) -> RotationStatement {
        let at = "2026-11-15T03:28:58Z".parse().unwrap();
        RotationStatement::parse(Statement::sign(&signer(from), &signer(to), at).unwrap().as_bytes()).unwrap()
    }

    fn publics(bytes: &[u8]) -> Vec<PublicKey> {
        bytes.iter().map(|byte| signer(*byte).public()).collect()
    }

    fn believed(trust: &Trust) -> Vec<u8> {
        (1..=9).filter(|byte| trust.key(&signer(*byte).fingerprint()).is_some()).collect()
    }

    #[test]
    fn trust_in_any_key_of_a_chain_is_enough() {
        let statements = [statement(1, 2), statement(2, 3), statement(3, 4)];
        for one in 1..=4 {
            let trust = Trust::of(&publics(&[one])).extended_by(&statements, &publics(&[1, 2, 3, 4])).unwrap();
            assert_eq!(believed(&trust), [1, 2, 3, 4], "from {one}");
        }
        let stranger = Trust::of(&publics(&[5])).extended_by(&statements, &publics(&[1, 2, 3, 4])).unwrap();
        assert_eq!(believed(&stranger), [5]);
    }

    #[test]
    fn forwards_a_statement_is_enough_and_a_key_alone_is_not_trusted() {
        let statements = [statement(1, 2), statement(2, 3)];
        assert_eq!(believed(&Trust::of(&publics(&[1])).extended_by(&statements, &[]).unwrap()), [1, 2, 3]);
        assert_eq!(believed(&Trust::of(&publics(&[3])).extended_by(&statements, &[]).unwrap()), [3]);
        assert_eq!(believed(&Trust::of(&publics(&[1])).extended_by(&[], &publics(&[2, 3])).unwrap()), [1]);
    }

    #[test]
    fn trust_does_not_pass_through_a_revoked_key() {
        let root = tempfile::tempdir().unwrap();
        let at = "2026-11-15T03:28:58Z".parse().unwrap();
        for byte in [1, 2] {
            Trust::add(root.path(), &signer(byte).public(), "Ada", at).unwrap();
        }
        Trust::revoke(root.path(), &signer(2).fingerprint(), at).unwrap();
        let trust = Trust::load(root.path()).unwrap();
        let statements = [statement(1, 2), statement(2, 3)];
        assert_eq!(believed(&trust.extended_by(&statements, &publics(&[1, 2, 3])).unwrap()), [1]);
    }

    #[test]
    fn forged_forking_and_cyclic_statements_are_refused() {
        let text = |from: u8, to: u8| String::from_utf8(statement(from, to).text).unwrap();
        // Another key's signature under a statement about a trusted key.
        let mine: Value = serde_json::from_str(&text(1, 2)).unwrap();
        let mut forged: Value = serde_json::from_str(&text(3, 2)).unwrap();
        forged["from"] = mine["from"].clone();
        assert!(RotationStatement::parse(forged.to_string().as_bytes()).unwrap_err().contains("countersign"));
        forged["countersignature"] = mine["countersignature"].clone();
        let forged = RotationStatement::parse(forged.to_string().as_bytes()).unwrap();
        for one in [1, 2] {
            let trust = Trust::of(&publics(&[one]));
            assert!(trust.extended_by(std::slice::from_ref(&forged), &publics(&[1, 2, 3])).is_err(), "from {one}");
        }
        let trust = Trust::of(&publics(&[1]));
        for invalid in
            [vec![statement(1, 2), statement(1, 3)], vec![statement(1, 2), statement(2, 1)], vec![statement(1, 2); 2]]
        {
            assert!(trust.extended_by(&invalid, &publics(&[1, 2, 3])).is_err());
        }
    }

    #[test]
    fn a_time_in_another_form_is_refused() {
        let text = String::from_utf8(statement(1, 2).text().to_vec()).unwrap();
        assert!(text.contains("2026-11-15T03:28:58.000000Z"), "{text}");
        let other = text.replace("2026-11-15T03:28:58.000000Z", "2026-11-15T03:28:58Z");
        assert!(RotationStatement::parse(other.as_bytes()).is_err());
    }

    #[test]
    fn trust_does_not_pass_through_a_key_that_the_user_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trusted");
        let at = "2026-11-15T03:28:58Z".parse().unwrap();
        Trust::add(&path, &signer(2).public(), "once", at).unwrap();
        Trust::revoke(&path, &signer(2).fingerprint(), at).unwrap();
        let own = Trust::load(&path).unwrap();
        let named = Trust::of(&publics(&[1]));
        let chain = [statement(1, 2), statement(2, 3)];
        assert_eq!(believed(&named.extended_by(&chain, &publics(&[1, 2, 3])).unwrap()), [1, 2, 3]);
        let careful = named.without_revoked(&own).extended_by(&chain, &publics(&[1, 2, 3])).unwrap();
        assert_eq!(believed(&careful), [1], "trust does not pass through a revoked key");
        assert_eq!(believed(&Trust::of(&publics(&[2])).without_revoked(&own)), [2], "a named key is trusted");
    }
}
