//! `selvedge config get`: what one key is set to.

use serde_json::json;

use crate::config::{configuration, value};
use crate::context::Context;
use crate::error::Result;
use crate::text::clean;

/// Show what a key of the configuration is set to
///
/// A section, a mapping or a list is shown as JSON; what is not set is null.
///
/// JSON: {"key", "value"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The key, such as `limits.turns`; entries of lists are named by their id
    #[arg(value_name = "KEY")]
    key: String,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let found = configuration(context)?.get(&args.key)?;
    match context.output.is_json() {
        true => context.output.record(&json!({"key": args.key, "value": found})),
        false => context.output.text(clean(&value(&found))),
    }
}
