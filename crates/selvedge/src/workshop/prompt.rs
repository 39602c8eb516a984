//! The words a model is given: who it is, what it is told to do, and what it has to give back.

use std::fmt::Write;

use selvedge_items::Agent;
use selvedge_items::directive::Directive;
use selvedge_items::interpolate::{Environment, InterpolationError, Scope, render};
use serde_json::{Map, Value, json};

/// A first message, and what whoever ordered it should know.
pub(super) struct Task {
    pub(super) text: String,
    pub(super) notices: Vec<String>,
}

/// The rules a model answers under.
pub(super) fn system(agent: &Agent, directive: Option<&Directive>) -> String {
    let parts = [
        agent.identity.trim(),
        agent.instructions.trim(),
        directive.map_or("", |directive| directive.description.trim()),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// The first message: the body of the directive with its inputs, and what is to be given back.
pub(super) fn task(
    directive: &Directive,
    inputs: &Map<String, Value>,
    environment: Environment<'_>,
) -> Result<Task, InterpolationError> {
    let values = json!({"inputs": inputs});
    let rendered = render(&directive.body, &Scope { values: &values, environment })?;
    let mut text = rendered.text.trim().to_owned();
    if !directive.outputs.is_empty() {
        text.push_str("\n\nWhen you are done, call `directive_return` with:\n");
        for output in &directive.outputs {
            let needed = if output.required { "required" } else { "optional" };
            _ = writeln!(text, "- `{}` ({needed}) {}", output.name, output.description.trim());
        }
    }
    let notices = rendered
        .unknown
        .iter()
        .map(|source| format!("`{source}` is no expression that is known; it stands in the prompt as it is"));
    Ok(Task { text, notices: notices.collect() })
}
