//! `selvedge keys list`: the trusted and revoked keys, the signing key, and rotations.

use selvedge_log::keychain::KeyChain;
use selvedge_log::keys::{KeyError, KeyFolder};
use selvedge_log::trust::{Status, TrustedKey};
use selvedge_model::{Digest, Timestamp};
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::Result;
use crate::output::table;
use crate::text::{clean, local_minute};

/// List your keys and the keys you trust or have revoked
///
/// Marks the current signing key, and shows which keys were replaced or revoked.
///
/// JSON: {"current", "lost", "keys":[{"fingerprint", "owner", "status", "added_at", "revoked_at", "current", "predecessor",
/// "successor", "rotated_at"}]}; "status" is trusted, revoked, or unknown for a signing key that is not in the trust store;
/// "lost" is a key whose private half is missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct KeyList {
    current: Option<Digest>,
    lost: Option<Digest>,
    keys: Vec<KeyEntry>,
}

#[derive(Serialize)]
struct KeyEntry {
    fingerprint: Digest,
    owner: Option<String>,
    status: &'static str,
    added_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
    current: bool,
    predecessor: Option<Digest>,
    successor: Option<Digest>,
    rotated_at: Option<Timestamp>,
}

pub(crate) fn run(Args {}: Args, context: &Context<'_>) -> Result<()> {
    let user = User::find()?;
    let (current, lost) = match KeyFolder::load(&user.signing()) {
        Ok(signer) => (Some(signer.fingerprint()), None),
        Err(KeyError::Lost { fingerprint, .. }) => (None, Some(fingerprint)),
        Err(KeyError::Absent { .. }) => (None, None),
        Err(error) => return Err(error.into()),
    };
    let trust = user.trust()?;
    let chain = KeyChain::load(&user.keys().chain(), &trust)?;
    let mut keys: Vec<KeyEntry> =
        trust.iter().map(|(known, key)| KeyEntry::of(*known, Some(key), current, &chain)).collect();
    if let Some(unknown) = current.filter(|current| trust.known(current).is_none()) {
        keys.push(KeyEntry::of(unknown, None, current, &chain));
    }
    keys.sort_by_key(|key| (!key.current, std::cmp::Reverse(key.added_at)));
    let listed = KeyList { current, lost, keys };
    if context.output.is_json() { context.output.record(&listed) } else { show(&listed, context) }
}

impl KeyEntry {
    fn of(fingerprint: Digest, known: Option<&TrustedKey>, current: Option<Digest>, chain: &KeyChain) -> Self {
        let status = match known.map(|key| key.status) {
            Some(Status::Trusted) => "trusted",
            Some(Status::Revoked) => "revoked",
            None => "unknown",
        };
        Self {
            fingerprint,
            owner: known.map(|key| key.owner.clone()),
            status,
            added_at: known.map(|key| key.added_at),
            revoked_at: known.and_then(|key| key.revoked_at),
            current: current == Some(fingerprint),
            predecessor: chain.step_to(&fingerprint).map(|step| step.from),
            successor: chain.step_from(&fingerprint).map(|step| step.to),
            rotated_at: chain.step_to(&fingerprint).map(|step| step.rotated_at),
        }
    }

    fn row(&self) -> Vec<String> {
        let note = match self {
            Self { current: true, .. } => "signing key".to_owned(),
            Self { revoked_at: Some(at), .. } => format!("since {}", local_minute(*at)),
            Self { successor: Some(heir), .. } => format!("replaced by {}", heir.short()),
            _ => String::new(),
        };
        vec![
            self.fingerprint.short(),
            self.status.to_owned(),
            self.owner.as_deref().map_or("-".to_owned(), clean),
            self.added_at.map_or("-".to_owned(), local_minute),
            note,
        ]
    }
}

fn show(listed: &KeyList, context: &Context<'_>) -> Result<()> {
    if listed.keys.is_empty() {
        context.output.tell("no keys");
    } else {
        let header = ["KEY", "STATUS", "OWNER", "ADDED", ""];
        context.output.text(table(&header, &[], listed.keys.iter().map(KeyEntry::row)))?;
    }
    if let Some(lost) = listed.lost {
        context.output.tell(format!(
            "The private half of key {} is lost: threads that it signed stay readable and verifiable, but can't be continued.",
            lost.short()
        ));
    } else if listed.current.is_none() {
        context.output.tell("There is no signing key; `selvedge init` creates one.");
    }
    Ok(())
}
