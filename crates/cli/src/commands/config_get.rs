//! `selvedge config get`: the value of one key.

use serde_json::json;

use crate::config::{configuration, value};
use crate::context::Context;
use crate::error::Result;
use crate::text::clean;

/// Print the value of a configuration key
///
/// A section, a mapping or a list is printed as JSON; a key without a value is null.
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
    if context.output.is_json() {
        context.output.record(&json!({"key": args.key, "value": found}))
    } else {
        context.output.text(clean(&value(&found)))
    }
}
