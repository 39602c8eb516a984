//! `selvedge config list`: all keys with their values.

use crate::config::{configuration, shown, value};
use crate::context::Context;
use crate::error::Result;
use crate::output::table;
use crate::text::{clean, one_line};

/// List every configuration key with its value
///
/// Default values are listed too. Entries of lists are named by their id.
///
/// JSON: one object per key, {"key", "value", "layer", "file", "line"}; "layer" is built_in, user or project, and "file" and "line"
/// say where it is set.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show the file and the line where each key is set
    #[arg(long)]
    origin: bool,
    /// Only keys that begin with this
    #[arg(value_name = "KEY")]
    key: Option<String>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let config = configuration(context)?;
    let begins = |key: &str| args.key.as_deref().is_none_or(|asked| key.starts_with(asked));
    let settings = config.list().into_iter().filter(|setting| begins(&setting.key));
    if context.output.is_json() {
        return settings.into_iter().try_for_each(|setting| context.output.record(&setting));
    }
    let mut header = vec!["KEY", "VALUE"];
    header.extend(args.origin.then_some("SET IN"));
    let rows = settings.map(|setting| {
        let mut row = vec![clean(&setting.key), one_line(&value(&setting.value), 60)];
        row.extend(args.origin.then(|| shown(&setting.origin, context)));
        row
    });
    context.output.text(table(&header, &[], rows))
}
