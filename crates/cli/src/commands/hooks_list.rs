//! `selvedge hooks list`: the hooks that fire here, in their order.

use selvedge::items::hook::{Hook, HookEvent, Placed, Source};
use selvedge_model::DirectiveId;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::table;
use crate::running::project;
use crate::text::clean;

/// List hooks in the order in which they fire
///
/// Hooks come from four sources, lowest first: built in, your config/agent/hooks.yaml, the project's .ai/config/agent/hooks.yaml, and the
/// directive. Observers fire after all others. A hook with the id of a lower one takes its position. The built-in ones are what a run
/// does with errors and limits if no other hook decides.
///
/// JSON: one object per hook, {"id", "event", "condition", "actions", "position", "wrap", "observer", "required", "timeout_seconds",
/// "description", "source", "layer"}; "source" is built_in, user, project or directive, "layer" the source whose position in the order it
/// has.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only hooks of this event
    #[arg(long, value_parser = event)]
    event: Option<HookEvent>,
    /// With the hooks of this directive
    #[arg(long, value_name = "ID")]
    directive: Option<DirectiveId>,
}

/// Reads the name of an event.
pub(crate) fn event(text: &str) -> std::result::Result<HookEvent, String> {
    HookEvent::named(text).ok_or_else(|| format!("not one of {}", HookEvent::ALL.map(HookEvent::as_str).join(", ")))
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = project(context)?;
    let directive = args.directive.as_ref().map(|id| project.library.directive(id)).transpose()?;
    let hooks = project.hooks(directive.as_ref().map(|found| &found.item)).map_err(Failure::from)?;
    let shown = hooks.iter().filter(|placed| args.event.is_none_or(|event| placed.hook.event == event));
    if context.output.is_json() {
        return shown.into_iter().try_for_each(|placed| context.output.record(placed));
    }
    context.output.text(table(&["HOOK", "EVENT", "FROM", "ACTION", "DESCRIPTION"], &[], shown.map(row)))
}

fn row(placed: &Placed) -> Vec<String> {
    let Placed { hook, source, .. } = placed;
    let from = match (source, hook.observer) {
        (Source::BuiltIn, _) => "built in".to_owned(),
        (source, false) => source.as_str().to_owned(),
        (source, true) => format!("{} (observer)", source.as_str()),
    };
    vec![clean(&hook.id), hook.event.as_str().to_owned(), from, actions(hook), clean(&hook.description)]
}

fn actions(hook: &Hook) -> String {
    let actions = hook.actions.iter().map(|action| {
        let decision = action.params.get("action").and_then(|word| word.as_str());
        match decision.filter(|_| action.item_id.ends_with("/internal/control")) {
            Some(word) => format!("decide {word}"),
            None => format!("{} {}", action.item_type, action.item_id),
        }
    });
    clean(&actions.collect::<Vec<_>>().join(", then "))
}
