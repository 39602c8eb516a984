//! `selvedge token list`: the tokens of the server.

use selvedge_model::Clock;
use selvedge_server::Tokens;
use selvedge_store_local::system::SystemClock;

use crate::context::{Context, User};
use crate::error::{Failure, Result};
use crate::output::table;
use crate::text::{clean, local_minute};

/// List the tokens of the server
///
/// The tokens themselves are not kept, only their hashes.
///
/// JSON: one object per token, {"id", "scope", "name", "created_at", "expires_at", "hash"}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(Args {}: Args, context: &Context<'_>) -> Result<()> {
    let tokens = Tokens::of_home(&User::find()?.folder).list().map_err(|error| Failure::of(&error))?;
    if context.output.is_json() {
        return tokens.iter().try_for_each(|token| context.output.record(token));
    }
    if tokens.is_empty() {
        context.output.say("no tokens; `selvedge token new --scope read` creates one");
        return Ok(());
    }
    let now = SystemClock.now();
    let rows = tokens.iter().map(|token| {
        let expires = match token.expires_at {
            Some(_) if token.is_expired(now) => "expired".to_owned(),
            Some(at) => local_minute(at),
            None => "never".to_owned(),
        };
        let name = clean(token.name.as_deref().unwrap_or_default());
        vec![token.id.clone(), token.scope.as_str().to_owned(), local_minute(token.created_at), expires, name]
    });
    context.output.text(table(&["ID", "SCOPE", "CREATED", "EXPIRES", "NAME"], &[], rows))
}
