//! The signing key and the trusted keys. `folders`: their folders, and interrupted rotations.

mod folders;

use std::path::Path;

use selvedge_log::keys::{KeyError, KeyFolder};
use selvedge_log::trust::Status;
use selvedge_log::{KeyChain, Signer, Trust};
use selvedge_model::{Classify, Digest, Kind};
use selvedge_store::doctor::{Finding, Severity};

use crate::context::User;
use crate::error::Failure;
use crate::hints;

const KEY: &str = "your key";
const TRUST: &str = "your trusted keys";

/// The findings on the user's keys, and the keys to check the store with.
pub(super) struct KeyFindings {
    pub(super) findings: Vec<Finding>,
    /// Absent if the trusted keys can't be read.
    pub(super) trust: Option<Trust>,
    pub(super) signer: Option<Signer>,
}

/// Checks the user's keys.
pub(super) fn look(project: &Path) -> KeyFindings {
    let mut findings = Vec::new();
    let user = match User::find() {
        Ok(user) => user,
        Err(failure) => return KeyFindings { findings: vec![of_failure(failure)], trust: None, signer: None },
    };
    findings.extend(user.check_apart_from(project).err().map(of_failure));
    findings.extend(folders::look(&user));
    let trust = Trust::load(&user.trusted());
    let signer = KeyFolder::load(&user.signing());
    findings.extend(signer.as_ref().err().map(unusable));
    match &trust {
        // Without the trusted keys nothing else can be checked.
        Err(error) => findings.push(Finding::of_error(severity(error), TRUST, error)),
        Ok(trust) => {
            findings.extend(hints::no_trust().map(|help| {
                let what = format!("no key is trusted: `{}` is empty", user.trusted().display());
                let why = "the signers of logs can't be verified";
                Finding::new(Severity::Warning, "no_trusted_keys", TRUST, what, why).help(help)
            }));
            findings.extend(signer.as_ref().ok().and_then(|signer| trust_finding(&signer.fingerprint(), trust)));
            match KeyChain::load(&user.keys().chain(), trust) {
                Err(error) => findings.push(Finding::of_error(severity(&error), "the chain of your keys", &error)),
                Ok(chain) => {
                    findings.extend(signer.as_ref().ok().and_then(|signer| taken_over(&signer.fingerprint(), &chain)));
                    findings.extend(folders::broken_chain(&user));
                }
            }
            for (fingerprint, key) in trust.iter().filter(|(_, key)| key.status == Status::Revoked) {
                let what = format!("key {} of {} is revoked", fingerprint.short(), key.owner);
                let why = "none of its signatures is accepted any more, also in older logs";
                findings.push(Finding::new(Severity::Note, "key_revoked", TRUST, what, why));
            }
        }
    }
    // With its predecessors, whose seals count too. If they can't be read, no seal is checked.
    KeyFindings { findings, trust: trust.ok(), signer: user.signer().ok() }
}

fn severity(error: &impl Classify) -> Severity {
    if error.kind() == Kind::Integrity { Severity::Damage } else { Severity::Warning }
}

fn unusable(error: &KeyError) -> Finding {
    let why = "without it everything can be read and verified, but nothing can be written";
    Finding { why: why.to_owned(), ..Finding::of_error(severity(error), KEY, error) }
}

/// The finding if the signing key is revoked or not trusted.
fn trust_finding(key: &Digest, trust: &Trust) -> Option<Finding> {
    let (code, what, help) = match trust.status(key) {
        Some(Status::Trusted) => return None,
        Some(Status::Revoked) => ("own_key_revoked", "is revoked", "`selvedge keys rotate` creates a new one"),
        None => ("own_key_untrusted", "is not among your trusted keys", "`selvedge init` adds it"),
    };
    let what = format!("your signing key {} {what}", key.short());
    let why = "its signatures would not be accepted";
    Some(Finding::new(Severity::Warning, code, KEY, what, why).help(help))
}

/// The finding if the signing key is one that was rotated away.
fn taken_over(key: &Digest, chain: &KeyChain) -> Option<Finding> {
    let step = chain.step_from(key)?;
    let what = format!("your signing key {} was already replaced by {}", key.short(), step.to.short());
    let why = "an old copy of the folder was restored, or a rotation was interrupted; threads that the newer key signed can't be continued";
    let found = Finding::new(Severity::Warning, "own_key_retired", KEY, what, why);
    Some(
        found.help(
            "`selvedge keys rotate` finishes an interrupted rotation; otherwise restore the newer key from a copy",
        ),
    )
}

fn of_failure(failure: Failure) -> Finding {
    let finding = Finding::new(Severity::Warning, failure.code, KEY, failure.message, "keys were not checked");
    Finding { help: failure.hint, ..finding }
}
