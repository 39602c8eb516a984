//! The keys and statements that are included with a log: the exporter's chain of rotations, and those that were imported with the log.
//!
//! Imported ones are kept beside the thread unchanged, so that a second export has them too. They are trusted no more here than in the
//! archive, and inconsistent ones are left out.

use std::collections::BTreeMap;

use selvedge_log::Trust;
use selvedge_log::keychain::RotationStatement;
use selvedge_log::keys::PublicKey;
use selvedge_model::{Digest, ThreadId};

use crate::verify::StoredThread;

/// The included keys and statements.
pub(super) struct Chain {
    pub(super) keys: BTreeMap<Digest, PublicKey>,
    pub(super) statements: Vec<RotationStatement>,
}

impl Chain {
    /// The chain around the signers of a log.
    pub(super) fn of<S: StoredThread + ?Sized>(of: &S, thread: &ThreadId, signers: &[Digest]) -> Self {
        let mut keys = BTreeMap::new();
        for (name, bytes) in of.imported_keys(thread) {
            let key = std::str::from_utf8(&bytes).ok().and_then(|pem| PublicKey::from_pem(pem).ok());
            keys.extend(key.filter(|key| key.fingerprint() == name).map(|key| (name, key)));
        }
        let own = of.trust().statements_around(signers).into_iter().cloned().collect::<Vec<_>>();
        keys.extend(own.iter().flat_map(|one| [one.from, one.to]).chain(signers.iter().copied()).filter_map(|name| {
            let known = of.trust().key(&name)?;
            Some((name, *known))
        }));
        let mut all: BTreeMap<Digest, RotationStatement> = own.iter().map(|one| (one.to, one.clone())).collect();
        for (name, bytes) in of.imported_statements(thread) {
            let arrived = RotationStatement::parse(&bytes).ok().filter(|one| one.to == name);
            let arrived = arrived.filter(|one| keys.get(&one.from).is_some_and(|old| one.check(old).is_ok()));
            if let Some(one) = arrived {
                _ = all.entry(name).or_insert(one);
            }
        }
        let all: Vec<RotationStatement> = all.into_values().collect();
        // Each key has one successor: where the two chains disagree, the exporter's own is included.
        let holds = Trust::default().extended_by(&all, &[]).is_ok();
        let around = Trust::default().with_rotation_statements(if holds { &all } else { &own });
        let statements: Vec<RotationStatement> = around.statements_around(signers).into_iter().cloned().collect();
        let is_named =
            |key: &Digest| signers.contains(key) || statements.iter().any(|one| one.from == *key || one.to == *key);
        keys.retain(|key, _| is_named(key));
        Self { keys, statements }
    }
}
