//! `selvedge token revoke`: removes a token of the server.

use selvedge_server::Tokens;

use crate::context::{Context, User};
use crate::error::{Failure, Result};

/// Revoke a token of the server
///
/// A server that is running refuses it from the next request on; a stream that is open stays open.
///
/// JSON: the token, as `selvedge token list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The id of the token
    id: String,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let tokens = Tokens::of_home(&User::find()?.folder);
    let revoked = tokens.revoke(&args.id).map_err(|error| Failure::of(&error))?;
    if context.output.is_json() {
        return context.output.record(&revoked);
    }
    context.output.say(format!("token {} is revoked", revoked.id));
    Ok(())
}
