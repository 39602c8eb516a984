//! The prompt: the system prompt and the first message, with the declared outputs.

use std::fmt::Write;

use selvedge_items::Agent;
use selvedge_items::directive::Directive;
use selvedge_items::interpolate::{Environment, InterpolationError, Scope, render};
use selvedge_items::knowledge::LoadedKnowledge;
use serde_json::{Map, Value, json};

/// A first message, and notices for the user.
pub(super) struct FirstMessage {
    pub(super) text: String,
    pub(super) notices: Vec<String>,
}

/// The system prompt: the agent's identity and instructions, the directive's description and knowledge, and the task.
pub(super) fn system(agent: &Agent, directive: Option<(&Directive, &LoadedKnowledge)>, task: Option<&str>) -> String {
    let (description, known) = match directive {
        Some((directive, brought)) => (directive.description.trim(), brought.system.as_slice()),
        None => ("", [].as_slice()),
    };
    let parts = [agent.identity.trim(), agent.instructions.trim(), description];
    let task = task.map(|task| format!("<task>\n{task}\n</task>"));
    let parts = parts.into_iter().map(str::to_owned).chain(known.iter().cloned()).chain(task);
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// The first message: the body of the directive with its inputs, the knowledge before and after it, and the declared outputs.
pub(super) fn task(
    directive: &Directive,
    brought: &LoadedKnowledge,
    inputs: &Map<String, Value>,
    environment: Environment<'_>,
) -> Result<FirstMessage, InterpolationError> {
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
        .map(|source| format!("`{source}` is not a known expression; it is left in the prompt as it is"));
    Ok(FirstMessage { text, notices: notices.collect() })
}
