//! `selvedge keys revoke`: revokes the trust in a key.

use selvedge_log::keys::KeyFolder;
use selvedge_log::{KeyChain, Trust};
use selvedge_model::{Clock, Digest, Timestamp};
use selvedge_store_local::system::SystemClock;
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::{Failure, Result};

/// Revoke the trust in a key
///
/// For a key that may have been stolen. Nothing that it signed verifies any more, and threads that it signed can't be continued; the
/// logs themselves are not changed. Revoking one of your own keys, current or earlier, needs confirmation, or --yes. `selvedge keys
/// trust --again` undoes it. To replace an old key, rotate it instead.
///
/// `selvedge verify --all` lists every thread with a signature of the key; `selvedge doctor` checks only the end of long logs, unless
/// --deep is given. While an earlier key of yours is revoked, every log is verified whole before a command appends to it.
///
/// JSON: {"fingerprint", "owner", "revoked_at"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique prefix of the key's fingerprint
    fingerprint: String,
    /// Don't ask for confirmation, even for a key of your own
    #[arg(short, long)]
    yes: bool,
}

#[derive(Serialize)]
struct Revoked<'a> {
    fingerprint: Digest,
    owner: &'a str,
    revoked_at: Option<Timestamp>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let user = User::find()?;
    if let Some(project) = context.find_project() {
        user.check_apart_from(&project)?;
    }
    let fingerprint = user.resolve_key(&args.fingerprint)?;
    let own = own_key(&user, &fingerprint)?;
    if let Some(own) = own.filter(|_| !args.yes) {
        confirm(own, &fingerprint, context)?;
    }
    Trust::revoke(&user.trusted(), &fingerprint, SystemClock.now())?;
    let trust = user.trust()?;
    let known = trust.known(&fingerprint);
    let owner = known.map_or("", |known| known.owner.as_str());
    if context.output.is_json() {
        let revoked_at = known.and_then(|known| known.revoked_at);
        return context.output.record(&Revoked { fingerprint, owner, revoked_at });
    }
    context.output.text(format_args!("key {} ({}) is revoked", fingerprint.short(), crate::text::clean(owner)))?;
    let short = fingerprint.short();
    context.output.tell(format_args!("If this was a mistake: `selvedge keys trust --again {short}`"));
    if own == Some(OwnKey::Signs) {
        context
            .output
            .tell("`selvedge keys rotate` creates a new signing key; threads of the revoked one can't be continued.");
    }
    Ok(())
}

/// The role of one of the user's own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnKey {
    /// It is the signing key.
    Signs,
    /// It is the signing key, and its private half is missing.
    Lost,
    /// It is an earlier signing key.
    Signed,
}

fn own_key(user: &User, fingerprint: &Digest) -> Result<Option<OwnKey>> {
    match KeyFolder::load(&user.signing()) {
        Ok(signer) if signer.fingerprint() == *fingerprint => return Ok(Some(OwnKey::Signs)),
        Ok(_) => {}
        Err(_) if KeyFolder::public(&user.signing()).is_ok_and(|public| public.fingerprint() == *fingerprint) => {
            return Ok(Some(OwnKey::Lost));
        }
        Err(_) => {}
    }
    // A key with a broken chain is still the user's own.
    let trust = user.trust()?;
    let chain = KeyChain::load(&user.keys().chain(), &trust).unwrap_or_default();
    let is_kept = user.keys().retired().join(format!("{fingerprint}.pem")).symlink_metadata().is_ok();
    let is_of_chain = chain.step_from(fingerprint).is_some() || chain.step_to(fingerprint).is_some();
    Ok((is_kept || is_of_chain).then_some(OwnKey::Signed))
}

fn confirm(own: OwnKey, fingerprint: &Digest, context: &Context<'_>) -> Result<()> {
    let short = fingerprint.short();
    let message = match own {
        OwnKey::Signs | OwnKey::Lost => {
            format!("key {short} is your signing key: if it is revoked, nothing that you signed verifies any more")
        }
        OwnKey::Signed => format!(
            "key {short} is an earlier key of yours: if it is revoked, no thread with one of its signatures verifies any more, also \
             those that your current key continued"
        ),
    };
    match context.output.ask(&format!("{message}. Revoke it? [y/N]")).as_deref() {
        Some("y" | "Y" | "yes") => Ok(()),
        _ => {
            let help = match own {
                OwnKey::Signs => "`selvedge keys rotate` creates a new key; ",
                // A key without its private half can't sign a rotation.
                OwnKey::Lost | OwnKey::Signed => "",
            };
            let hint = format!("{help}`selvedge keys revoke {short} --yes` revokes it");
            Err(Failure { code: "own_key_not_confirmed", ..Failure::usage(message) }.hint(hint))
        }
    }
}
