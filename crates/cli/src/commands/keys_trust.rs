//! `selvedge keys trust`: believe what somebody else's key signs.

use std::path::PathBuf;

use selvedge_log::Trust;
use selvedge_model::{Clock, Digest};
use selvedge_store_local::system::SystemClock;
use serde::Serialize;

use crate::commands::verify::document::read_key;
use crate::context::{Context, User};
use crate::error::Result;
use crate::text::clean;

/// Believe what a key signs
///
/// Compare the fingerprint with its owner, by another way than the one the file came. Trust lies in your own folder; nothing
/// inside a project adds to it.
///
/// JSON: {"fingerprint", "owner", "added"}; "added" is false if the key was known already, and "owner" is then who it was known as.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The public key as PEM
    file: PathBuf,
    /// Whose key it is, in your words
    #[arg(long, value_name = "NAME")]
    owner: String,
}

#[derive(Serialize)]
struct Trusted<'a> {
    fingerprint: Digest,
    owner: &'a str,
    added: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let user = User::find()?;
    if let Some(project) = context.find_project() {
        user.check_apart_from(&project)?;
    }
    let public = read_key(&context.folder.join(&args.file))?;
    let fingerprint = public.fingerprint();
    let known = user.trust()?.known(&fingerprint).map(|known| known.owner.clone());
    Trust::add(&user.trusted(), &public, &args.owner, SystemClock.now())?;
    let trusted = Trusted { fingerprint, owner: known.as_deref().unwrap_or(&args.owner), added: known.is_none() };
    if context.output.is_json() {
        return context.output.record(&trusted);
    }
    let already = if trusted.added { "" } else { " already" };
    context.output.text(format_args!("key {fingerprint} ({}) is trusted{already}", clean(trusted.owner)))
}
