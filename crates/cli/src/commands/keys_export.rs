//! `selvedge keys export`: prints a public key.

use selvedge_log::keys::{KeyError, KeyFolder, PublicKey};
use selvedge_model::Digest;
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::{Failure, Result};
use crate::text::owner;

/// Print a public key in PEM format
///
/// Without a fingerprint, prints your signing key's public half. Other people need it to verify what you signed. The private half never
/// leaves its file.
///
/// JSON: {"fingerprint", "owner", "public_key", "pem"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique prefix of the key's fingerprint
    fingerprint: Option<String>,
}

#[derive(Serialize)]
struct ExportedKey<'a> {
    fingerprint: Digest,
    owner: Option<&'a str>,
    public_key: String,
    pem: String,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let user = User::find()?;
    let trust = user.trust()?;
    let public = match &args.fingerprint {
        Some(prefix) => {
            let fingerprint = user.resolve_key(prefix)?;
            let known = trust.known(&fingerprint).map(|known| known.public);
            known.ok_or_else(|| Failure::of(&selvedge_log::trust::TrustError::Unknown { fingerprint }))?
        }
        None => own(&user)?,
    };
    let fingerprint = public.fingerprint();
    if context.output.is_json() {
        let public_key = public.to_text();
        let pem = public.to_pem();
        return context.output.record(&ExportedKey {
            fingerprint,
            owner: owner(&fingerprint, &trust),
            public_key,
            pem,
        });
    }
    context.output.bytes(public.to_pem().as_bytes())?;
    context
        .output
        .tell(format_args!("fingerprint {fingerprint}: send it to the receiver of the key over another channel"));
    Ok(())
}

/// The public half of the signing key, also if its private half is lost.
fn own(user: &User) -> Result<PublicKey> {
    match KeyFolder::load(&user.signing()) {
        Ok(signer) => Ok(signer.public()),
        Err(KeyError::Lost { .. }) => Ok(KeyFolder::public(&user.signing())?),
        Err(error) => Err(user.without_key(error)),
    }
}
