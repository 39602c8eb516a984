//! `selvedge keys trust`: trusts a key, or a revoked one again.

use std::path::{Path, PathBuf};

use selvedge_log::Trust;
use selvedge_model::{Clock, Digest};
use selvedge_store_local::system::SystemClock;
use serde::Serialize;

use crate::commands::verify::document::read_key;
use crate::context::{Context, User};
use crate::error::Result;
use crate::text::clean;

/// Trust a key
///
/// Compare the fingerprint with the key's owner, over a different channel than the one that the file came through. Trust is stored in your Selvedge
/// home; a project can't add to it. Use --again for a key that you revoked.
///
/// JSON, one object per key: {"fingerprint", "owner", "added"}; "added" is false if the key was already known, and "owner" is then
/// its known owner.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Public keys in PEM format
    #[arg(value_name = "FILE", required_unless_present = "again")]
    files: Vec<PathBuf>,
    /// A name for the keys' owner
    #[arg(long, value_name = "NAME", required_unless_present = "again")]
    owner: Option<String>,
    /// Trust a revoked key again: any unique prefix of its fingerprint
    #[arg(long, value_name = "FINGERPRINT", conflicts_with_all = ["files", "owner"])]
    again: Option<String>,
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
    if let Some(prefix) = &args.again {
        let fingerprint = user.resolve_key(prefix)?;
        Trust::trust_again(&user.trusted(), &fingerprint)?;
        let trust = user.trust()?;
        let owner = trust.known(&fingerprint).map_or("", |known| known.owner.as_str());
        return show(&Trusted { fingerprint, owner, added: false }, " again", context);
    }
    let owner = args.owner.as_deref().unwrap_or_default();
    args.files.iter().try_for_each(|file| add(&context.folder.join(file), owner, &user, context))
}

fn add(file: &Path, owner: &str, user: &User, context: &Context<'_>) -> Result<()> {
    let public = read_key(file)?;
    let fingerprint = public.fingerprint();
    let known = user.trust()?.known(&fingerprint).map(|known| known.owner.clone());
    Trust::add(&user.trusted(), &public, owner, SystemClock.now())?;
    let added = known.is_none();
    let trusted = Trusted { fingerprint, owner: known.as_deref().unwrap_or(owner), added };
    show(&trusted, if added { "" } else { " already" }, context)
}

fn show(trusted: &Trusted<'_>, how: &str, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        return context.output.record(trusted);
    }
    let Trusted { fingerprint, owner, .. } = trusted;
    context.output.text(format_args!("key {fingerprint} ({}) is trusted{how}", clean(owner)))
}
