//! `selvedge token new`: a token for a program that uses the server.

use std::time::Duration;

use selvedge_model::{Clock, Timestamp};
use selvedge_server::token::Token;
use selvedge_server::{Scope, Tokens};
use selvedge_store_local::system::{SystemClock, SystemIds};
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::{Failure, Result};
use crate::text::local;

/// Create a token for the server
///
/// The token is printed once and not kept: only its hash is, in `tokens.json` in your Selvedge home. It counts for every project that
/// you serve. Scopes: read (threads, logs, budgets, the inbox), decide (and decisions), run (and starting, sending, stopping), admin.
///
/// JSON: {"token", "id", "scope", "name", "created_at", "expires_at", "hash"}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What its holder may do: read, decide, run or admin
    #[arg(long)]
    scope: Scope,
    /// When it expires: a number with s, m, h or d
    #[arg(long, value_name = "TIME", value_parser = duration)]
    expires: Option<Duration>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
}

#[derive(Serialize)]
struct Created {
    token: String,
    #[serde(flatten)]
    kept: Token,
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "use a number with a unit, such as 30d, 12h or 90m".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = number.checked_mul(seconds).filter(|seconds| (1..=3650 * 86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "use a time from one second to ten years".to_owned())
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let now = SystemClock.now();
    let expires_at = args.expires.map(|time| Timestamp::from_micros(now.as_micros() + time.as_micros() as i64));
    let tokens = Tokens::of_home(&User::find()?.folder);
    let created = tokens.create(args.scope, args.name, now, expires_at, &SystemIds);
    let (kept, token) = created.map_err(|error| Failure::of(&error))?;
    if context.output.is_json() {
        return context.output.record(&Created { token, kept });
    }
    context.output.text(&token)?;
    let until = kept.expires_at.map_or_else(|| "does not expire".to_owned(), |at| format!("expires {}", local(at)));
    context.output.say(format!("token {} ({}) {until}; it is not shown again", kept.id, kept.scope.as_str()));
    Ok(())
}
