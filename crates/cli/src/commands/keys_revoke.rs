//! `selvedge keys revoke`: believe a key no more.

use selvedge_log::Trust;
use selvedge_log::keys::KeyFolder;
use selvedge_model::{Clock, Digest, Timestamp};
use selvedge_store_local::system::SystemClock;
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::{Failure, Result};

/// Believe a key no more
///
/// For a key that somebody else may have got hold of. Nothing that it signed verifies any more, from the first byte on, and nothing
/// is gone on with that it signed; the logs themselves stay as they are. It can't be undone by trusting the key again. A key that is only old
/// is better rotated.
///
/// JSON: {"fingerprint", "owner", "revoked_at"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the key's fingerprint
    fingerprint: String,
    /// Also if it is the key that signs for you
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
    let is_own = KeyFolder::load(&user.signing()).is_ok_and(|signer| signer.fingerprint() == fingerprint);
    if is_own && !args.yes {
        let message =
            format!("key {} signs for you: without it nothing you signed verifies any more", fingerprint.short());
        let hint = format!(
            "`selvedge keys rotate` takes a new key; `selvedge keys revoke {} --yes` means it",
            fingerprint.short()
        );
        return Err(Failure { code: "own_key", ..Failure::usage(message) }.hint(hint));
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
    if is_own {
        context
            .output
            .tell("`selvedge keys rotate` makes a key to sign with; threads of the revoked one can't be gone on with.");
    }
    Ok(())
}
