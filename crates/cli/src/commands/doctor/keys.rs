//! The signing key, and who is trusted.

use std::path::Path;

use selvedge_log::keys::{KeyError, KeyFolder};
use selvedge_log::trust::Status;
use selvedge_log::{KeyChain, Trust};
use selvedge_model::{Classify, Digest, Kind};
use selvedge_store_local::doctor::{Finding, Severity};

use crate::context::User;
use crate::error::Failure;

const KEY: &str = "your key";
const TRUST: &str = "your trusted keys";

/// Looks at the user's folder; gives what was found, and the trust to look at the store with.
pub(super) fn look(project: &Path) -> (Vec<Finding>, Trust) {
    let mut findings = Vec::new();
    let user = match User::find() {
        Ok(user) => user,
        Err(failure) => return (vec![of_failure(failure)], Trust::default()),
    };
    findings.extend(user.check_apart_from(project).err().map(of_failure));
    let trust = match Trust::load(&user.trusted()) {
        Ok(trust) => trust,
        Err(error) => {
            findings.push(Finding::of_error(severity(&error), TRUST, &error));
            Trust::default()
        }
    };
    match KeyFolder::load(&user.signing()) {
        Ok(signer) => findings.extend(standing(&signer.fingerprint(), &trust)),
        Err(error) => findings.push(unusable(&error)),
    }
    if let Err(error) = KeyChain::load(&user.keys().chain(), &trust) {
        findings.push(Finding::of_error(severity(&error), "the chain of your keys", &error));
    }
    for (fingerprint, key) in trust.iter().filter(|(_, key)| key.status == Status::Revoked) {
        let what = format!("key {} of {} is revoked", fingerprint.short(), key.owner);
        let why = "what it signed is not believed any more, older logs included";
        findings.push(Finding::new(Severity::Note, "key_revoked", TRUST, what, why));
    }
    (findings, trust)
}

fn severity(error: &impl Classify) -> Severity {
    if error.kind() == Kind::Integrity { Severity::Damage } else { Severity::Warning }
}

fn unusable(error: &KeyError) -> Finding {
    let why = "everything can be read and verified; nothing can be written without it";
    Finding { why: why.to_owned(), ..Finding::of_error(severity(error), KEY, error) }
}

/// What the user's own trust store says of the key that signs.
fn standing(key: &Digest, trust: &Trust) -> Option<Finding> {
    let (code, what, help) = match trust.status(key) {
        Some(Status::Trusted) => return None,
        Some(Status::Revoked) => ("own_key_revoked", "is revoked", "`selvedge keys rotate` makes another one"),
        None => ("own_key_untrusted", "is not among your trusted keys", "`selvedge init` adds it"),
    };
    let what = format!("the key that you sign with, {}, {what}", key.short());
    let why = "what it signs would not be believed, by you or by others";
    Some(Finding::new(Severity::Warning, code, KEY, what, why).help(help))
}

fn of_failure(failure: Failure) -> Finding {
    let finding = Finding::new(Severity::Warning, failure.code, KEY, failure.message, "keys were not looked at");
    Finding { help: failure.hint, ..finding }
}
