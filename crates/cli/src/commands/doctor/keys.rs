//! The signing key, and who is trusted. `folders`: where they lie, and what a rotation left there.

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

/// What was found of the user's own, and what to look at the store with.
pub(super) struct Looked {
    pub(super) findings: Vec<Finding>,
    /// Nothing if it is not known who is trusted.
    pub(super) trust: Option<Trust>,
    pub(super) signer: Option<Signer>,
}

/// Looks at the user's folder.
pub(super) fn look(project: &Path) -> Looked {
    let mut findings = Vec::new();
    let user = match User::find() {
        Ok(user) => user,
        Err(failure) => return Looked { findings: vec![of_failure(failure)], trust: None, signer: None },
    };
    findings.extend(user.check_apart_from(project).err().map(of_failure));
    findings.extend(folders::look(&user));
    let trust = Trust::load(&user.trusted());
    let signer = KeyFolder::load(&user.signing());
    findings.extend(signer.as_ref().err().map(unusable));
    match &trust {
        // Nothing more can be said of keys when it is not known who is trusted.
        Err(error) => findings.push(Finding::of_error(severity(error), TRUST, error)),
        Ok(trust) => {
            findings.extend(hints::no_trust().map(|help| {
                let what = format!("no key is trusted: `{}` holds none", user.trusted().display());
                let why = "whether a log was signed by one of your keys can't be told";
                Finding::new(Severity::Warning, "trust_missing", TRUST, what, why).help(help)
            }));
            findings.extend(signer.as_ref().ok().and_then(|signer| standing(&signer.fingerprint(), trust)));
            match KeyChain::load(&user.keys().chain(), trust) {
                Err(error) => findings.push(Finding::of_error(severity(&error), "the chain of your keys", &error)),
                Ok(chain) => {
                    findings.extend(signer.as_ref().ok().and_then(|signer| taken_over(&signer.fingerprint(), &chain)));
                    findings.extend(folders::broken_chain(&user));
                }
            }
            for (fingerprint, key) in trust.iter().filter(|(_, key)| key.status == Status::Revoked) {
                let what = format!("key {} of {} is revoked", fingerprint.short(), key.owner);
                let why = "what it signed is not believed any more, older logs included";
                findings.push(Finding::new(Severity::Note, "key_revoked", TRUST, what, why));
            }
        }
    }
    // With those that it took over from, whose seals count too. Where they can't be had, no seal is judged.
    Looked { findings, trust: trust.ok(), signer: user.signer().ok() }
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

/// Whether the key that signs is one that another has taken over from.
fn taken_over(key: &Digest, chain: &KeyChain) -> Option<Finding> {
    let step = chain.step_from(key)?;
    let what = format!(
        "the key that you sign with, {}, was taken over by {} and is in its place again",
        key.short(),
        step.to.short()
    );
    let why = "an old copy of the folder was put back, or a rotation was cut short; what the newer key signed can't be gone on with";
    let found = Finding::new(Severity::Warning, "own_key_retired", KEY, what, why);
    Some(found.help(
        "`selvedge keys rotate` finishes a rotation that was cut short; otherwise put the newer key back from a copy",
    ))
}

fn of_failure(failure: Failure) -> Finding {
    let finding = Finding::new(Severity::Warning, failure.code, KEY, failure.message, "keys were not looked at");
    Finding { help: failure.hint, ..finding }
}
