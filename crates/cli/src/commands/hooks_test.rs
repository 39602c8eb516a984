//! `selvedge hooks test`: which hooks would fire at an event, and what they would call.

use std::path::PathBuf;

use selvedge::hooks::{Trial, TriedCall};
use selvedge::items::hook::HookEvent;
use selvedge_log::strict;
use selvedge_model::DirectiveId;
use serde_json::Value;

use super::hooks_list::event;
use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::input::read_text;
use crate::output::{DIM, GOOD, paint};
use crate::running::project;
use crate::text::clean;

/// Show which hooks of a directive would fire at an event, and what they would call; nothing is executed
///
/// The context is a JSON object with the values that conditions and actions refer to, such as {"cost": {"turns": 3}}. docs/hooks.md
/// lists the values of each event.
///
/// JSON: one object per hook of the event, {"hook", "source", "layer", "observer", "fires", "calls"}; each call has "item", "tool" and
/// "arguments", or "error" if it can't be filled in.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directive
    directive: DirectiveId,
    /// The event
    #[arg(long, value_parser = event)]
    event: HookEvent,
    /// A file with the context, as a JSON object; default: an empty one
    #[arg(long, value_name = "FILE")]
    context: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = project(context)?;
    let directive = project.library.directive(&args.directive)?;
    let hooks = project.ready_hooks(Some(&directive.item)).map_err(Failure::from)?;
    let values = match &args.context {
        Some(file) => values(&context.folder.join(file))?,
        None => Value::Object(serde_json::Map::new()),
    };
    let tried = hooks.try_at(args.event, &values);
    if context.output.is_json() {
        return tried.iter().try_for_each(|one| context.output.record(one));
    }
    if tried.is_empty() {
        context.output.tell(format!("no hook at `{}`; `selvedge hooks list` lists all", args.event.as_str()));
    }
    for one in &tried {
        show(one, context)?;
    }
    Ok(())
}

fn values(file: &std::path::Path) -> Result<Value> {
    let text = read_text(file)?;
    let values =
        strict::parse(text.as_bytes()).map_err(|error| Failure { exit: Exit::Usage, ..Failure::of(&error) })?;
    if values.is_object() {
        Ok(values)
    } else {
        Err(Failure::usage(format!("`{}` is not a JSON object", file.display())))
    }
}

fn show(Trial { hook, source, fires, calls, .. }: &Trial, context: &Context<'_>) -> Result<()> {
    let verdict = if *fires { paint(GOOD, "fires").to_string() } else { paint(DIM, "does not fire").to_string() };
    context.output.text(format_args!("{} ({}): {verdict}", clean(hook), source.as_str()))?;
    for TriedCall { item, tool, arguments, error } in calls.iter().filter(|_| *fires) {
        let text = match error {
            Some(error) => format!("{item}: {error}"),
            None => format!("{item}: calls {tool} {arguments}"),
        };
        context.output.text(format_args!("  {}", clean(&text)))?;
    }
    Ok(())
}
