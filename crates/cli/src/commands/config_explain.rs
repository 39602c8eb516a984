//! `selvedge config explain`: the meaning of a key, and its values in all layers.

use selvedge::items::config::{ConfigError, Explained};
use selvedge::items::{Config, Layer};

use crate::config::{folders, shown, value};
use crate::context::Context;
use crate::error::Result;
use crate::output::{BOLD, DIM, paint};
use crate::text::{clean, one_line};

/// Explain a configuration key: its meaning, its type, and its value in each layer
///
/// The layers are shown in the order in which they are merged: the default of the program, the user's file, the project's file. The last
/// one counts.
///
/// JSON: {"key", "meaning", "type", "project", "file", "value", "values"}; "type" says which values are valid, "project" what a project
/// can't set, "file" is its file below `config`, "value" the value that counts, and "values" are {"value", "layer", "file", "line"}, of
/// which the last counts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The key, such as `limits.turns`, or a section, such as `limits`
    #[arg(value_name = "KEY")]
    key: String,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let explained = or_built_in(context)?.explain(&args.key)?;
    if context.output.is_json() {
        return context.output.record(&explained);
    }
    let Explained { key, meaning, type_name, project, file, values, .. } = explained;
    let line = |name: &str, text: String| {
        context.output.text(format_args!("  {} {}", paint(DIM, format_args!("{name:<8}")), clean(&text)))
    };
    context.output.text(format_args!("{}\n  {}", paint(BOLD, clean(&key)), clean(&meaning)))?;
    line("type", type_name)?;
    line("file", format!(".ai/config/{file}"))?;
    project.map_or(Ok(()), |project| line("project", project.to_owned()))?;
    for set in &values {
        let shown_value = one_line(&value(&set.value), 60);
        match set.origin.layer {
            Layer::BuiltIn => line("built in", shown_value)?,
            Layer::User => line("user", format!("{shown_value}  {}", shown(&set.origin, context)))?,
            Layer::Project => line("project", format!("{shown_value}  {}", shown(&set.origin, context)))?,
        }
    }
    Ok(())
}

/// The configuration; if it is invalid, the built-in one, so that keys can still be explained.
fn or_built_in(context: &Context<'_>) -> Result<Config> {
    let config = match Config::load(&folders(context)?) {
        Err(error @ (ConfigError::Invalid { .. } | ConfigError::Cycle { .. })) => {
            context.output.say(format!("{}; only default values are shown", clean(&error.to_string())));
            Config::built_in()
        }
        config => config?,
    };
    for notice in config.notices() {
        context.output.say(clean(notice));
    }
    Ok(config)
}
