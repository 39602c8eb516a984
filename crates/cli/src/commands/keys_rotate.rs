//! `selvedge keys rotate`: a new key in the place of the one that signs.

use std::path::PathBuf;

use selvedge_log::keychain::{Rotated, rotate};
use selvedge_model::{Clock, Digest};
use selvedge_store_local::system::{SystemClock, SystemIds};
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::Result;

/// Take a new key, which goes on with what the old one signed
///
/// Makes a key, has the old one sign for it, trusts it and puts it in place; the old private key is kept in `keys/retired`. Threads
/// need nothing: what was signed stays valid, and the next change of each says that another key signs from there on. Cut
/// short, the command is finished by running it again.
///
/// JSON: {"from", "to", "resumed", "retired"}; "resumed" says that an earlier rotation had been cut short, "retired" is where the
/// old private key lies.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct Done {
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
    let done = Done { from, to, resumed, retired: folders.retired().join(format!("{from}.pem")) };
    if context.output.is_json() {
        return context.output.record(&done);
    }
    let finished = if resumed { " (a rotation that was cut short is finished)" } else { "" };
    context.output.text(format_args!("key {} took over from {}{finished}", to.short(), from.short()))?;
    context
        .output
        .tell(format_args!("The old private key is kept in {}; keep a copy of the new one.", done.retired.display()));
    context.output.tell(
        "Whoever checks what you export from now on needs any one of your keys, old or new; what you exported before is checked with one \
         from before; who takes it into a store needs each that signed: `selvedge keys export [FINGERPRINT]` prints them.",
    );
    Ok(())
}
