//! `selvedge keys rotate`: replaces the signing key.

use std::path::PathBuf;

use selvedge_log::keychain::{Rotated, rotate};
use selvedge_model::{Clock, Digest};
use selvedge_store_local::system::{SystemClock, SystemIds};
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::Result;

/// Replace the signing key with a new one
///
/// Creates a key, signs it with the old one, trusts it and puts it in place; the old private key is moved to `keys/retired`. Threads
/// are not changed: existing signatures stay valid, and the next commit of each thread records the rotation. If it is interrupted,
/// run it again to finish it.
///
/// JSON: {"from", "to", "resumed", "retired"}; "resumed" says that an interrupted rotation was finished, "retired" is the path of the
/// old private key.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct RotationReport {
    from: Digest,
    to: Digest,
    resumed: bool,
    #[serde(serialize_with = "crate::text::in_json")]
    retired: PathBuf,
}

pub(crate) fn run(Args {}: Args, context: &Context<'_>) -> Result<()> {
    let user = User::find()?;
    if let Some(project) = context.find_project() {
        user.check_apart_from(&project)?;
    }
    let folders = user.keys();
    let Rotated { from, to, resumed } = match rotate(&folders, &SystemIds, SystemClock.now()) {
        Ok(rotated) => rotated,
        Err(selvedge_log::keychain::KeyChainError::Key(error)) => return Err(user.without_key(error)),
        Err(error) => return Err(error.into()),
    };
    let done = RotationReport { from, to, resumed, retired: folders.retired().join(format!("{from}.pem")) };
    if context.output.is_json() {
        return context.output.record(&done);
    }
    let finished = if resumed { " (an interrupted rotation is finished)" } else { "" };
    context.output.text(format_args!("key {} replaces {}{finished}", to.short(), from.short()))?;
    context
        .output
        .tell(format_args!("The old private key is in {}; keep a copy of the new one.", done.retired.display()));
    context.output.tell(
        "New exports can be verified with any of your public keys, old or new; earlier exports with an earlier one. To import them, all keys \
         that signed must be trusted: `selvedge keys export [FINGERPRINT]` prints them.",
    );
    Ok(())
}
