//! The words a model is given: who it is, what it is told to do, and what it has to give back.

use std::fmt::Write;

use selvedge_items::Agent;
use selvedge_items::directive::Directive;
use selvedge_items::interpolate::{Environment, InterpolationError, Scope, render};
use selvedge_items::knowledge::Brought;
use serde_json::{Map, Value, json};

/// A first message, and what whoever ordered it should know.
pub(super) struct Task {
    pub(super) text: String,
    pub(super) notices: Vec<String>,
}

/// The rules a model answers under: who it is, what its directive is for, what that says it should know, and the task it is bound to.
pub(super) fn system(agent: &Agent, directive: Option<(&Directive, &Brought)>, task: Option<&str>) -> String {
    let (description, known) = match directive {
        Some((directive, brought)) => (directive.description.trim(), brought.system.as_slice()),
        None => ("", [].as_slice()),
    };
    let said = [agent.identity.trim(), agent.instructions.trim(), description];
    let task = task.map(|task| format!("<task>\n{task}\n</task>"));
    let parts = said.into_iter().map(str::to_owned).chain(known.iter().cloned()).chain(task);
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// The first message: the body of the directive with its inputs, between what should be known before and after it, and what is to
/// be given back.
pub(super) fn task(
    directive: &Directive,
    brought: &Brought,
    inputs: &Map<String, Value>,
    environment: Environment<'_>,
) -> Result<Task, InterpolationError> {
    let values = json!({"inputs": inputs});
    let rendered = render(&directive.body, &Scope { values: &values, environment })?;
    let body = rendered.text.trim().to_owned();
    let parts = brought.before.iter().cloned().chain([body]).chain(brought.after.iter().cloned());
    let mut text = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n");
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
