//! The prompt: the system prompt and the first message, with the declared outputs.

use std::borrow::Cow;
use std::fmt::Write;

use selvedge_items::Agent;
use selvedge_items::directive::Directive;
use selvedge_items::interpolate::{Environment, InterpolationError, Scope, render};
use selvedge_items::knowledge::{Brought, LoadedKnowledge};
use selvedge_log::hash::sha256;
use selvedge_model::AgentId;
use selvedge_model::event::InjectedPlace;
use selvedge_model::id::TaskId;
use selvedge_model::run::{PromptPart, PromptSource};
use serde_json::{Map, Value, json};

/// A first message, and notices for the user.
pub(super) struct FirstMessage {
    pub(super) text: String,
    pub(super) notices: Vec<String>,
}

/// A text of a prompt, and what it comes from.
struct Part<'a> {
    source: PromptSource,
    id: Option<&'a str>,
    position: InjectedPlace,
    text: Cow<'a, str>,
}

impl Part<'_> {
    fn recorded(&self) -> PromptPart {
        let Self { source, id, position, text } = self;
        PromptPart { source: *source, id: id.map(str::to_owned), position: *position, digest: sha256(text.as_bytes()) }
    }
}

/// What a thread's prompt is made of.
pub(super) struct Prompt<'a> {
    /// The agent, and its name.
    pub(super) agent: (&'a AgentId, &'a Agent),
    /// The directive, and what its context brings.
    pub(super) directive: Option<(&'a Directive, &'a LoadedKnowledge)>,
    /// Its name.
    pub(super) directive_id: Option<&'a str>,
    /// The task, and its text.
    pub(super) task: Option<(Option<&'a TaskId>, &'a str)>,
    /// What the embedding program says.
    pub(super) instructions: &'a str,
}

impl Prompt<'_> {
    fn parts(&self) -> Vec<Part<'_>> {
        let (agent_id, agent) = self.agent;
        let text = [agent.identity.trim(), agent.instructions.trim()];
        let text = text.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n");
        let system = InjectedPlace::System;
        let of = |source, id, text| Part { source, id, position: system, text };
        let mut parts = vec![of(PromptSource::Agent, Some(agent_id.as_str()), Cow::Owned(text))];
        if let Some((directive, brought)) = self.directive {
            parts.push(of(PromptSource::Directive, self.directive_id, Cow::Borrowed(directive.description.trim())));
            let places = [
                (system, &brought.system),
                (InjectedPlace::Before, &brought.before),
                (InjectedPlace::After, &brought.after),
            ];
            for (position, entries) in places {
                parts.extend(entries.iter().map(|entry| {
                    let Brought { id, text } = entry;
                    Part { source: PromptSource::Knowledge, id: Some(id), position, text: Cow::Borrowed(text) }
                }));
            }
        }
        if let Some((id, task)) = self.task {
            let text = format!("<task>\n{task}\n</task>");
            parts.push(of(PromptSource::Task, id.map(TaskId::as_str), Cow::Owned(text)));
        }
        parts.push(of(PromptSource::Program, None, Cow::Borrowed(self.instructions)));
        parts.retain(|part| !part.text.is_empty());
        parts
    }

    /// The system prompt: the agent's identity and instructions, the directive's description and knowledge, the task and the program's
    /// instructions.
    pub(super) fn system(&self) -> String {
        let parts = self.parts();
        let of_system = parts.iter().filter(|part| part.position == InjectedPlace::System);
        of_system.map(|part| &*part.text).collect::<Vec<_>>().join("\n\n")
    }

    /// What is recorded of it.
    pub(super) fn recorded(&self) -> Vec<PromptPart> {
        self.parts().iter().map(Part::recorded).collect()
    }
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
    let of = |entries: &'_ [Brought]| entries.iter().map(|entry| entry.text.clone()).collect::<Vec<_>>();
    let parts = of(&brought.before).into_iter().chain([body]).chain(of(&brought.after));
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
