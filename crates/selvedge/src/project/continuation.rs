//! Continuation: how a thread of a directive is handed off, and the first message of its successor.

use std::sync::Arc;

use selvedge_engine::run_config::{Continuation, ContinuedThread, WriteFirstMessage};
use selvedge_items::config::Coordination;
use selvedge_items::directive::Directive;
use selvedge_items::input::bind;
use selvedge_items::interpolate::{Environment, Scope, render};
use selvedge_items::{Layer, Library};
use selvedge_model::DirectiveId;
use serde_json::{Map, Value, json};

/// The directive of the thread that is continued.
pub(super) struct ContinuedDirective<'a> {
    pub(super) directive: Option<&'a Directive>,
    /// Its inputs.
    pub(super) inputs: &'a Map<String, Value>,
    /// The environment variables that it may use.
    pub(super) environment: Environment<'a>,
}

impl ContinuedDirective<'_> {
    /// The name of the directive, and its body with the inputs filled in; unchanged if the inputs don't fit an edited directive any more.
    fn name_and_body(&self) -> (String, String) {
        let Some(directive) = self.directive else { return ("(no directive)".to_owned(), String::new()) };
        let values = json!({"inputs": self.inputs});
        let rendered = render(&directive.body, &Scope { values: &values, environment: self.environment });
        (directive.name.clone(), rendered.map_or_else(|_| directive.body.clone(), |rendered| rendered.text))
    }
}

/// The continuation settings of a directive's threads.
pub(super) fn continuation(
    library: &Library,
    coordination: &Coordination,
    window: Option<u64>,
    original: &ContinuedDirective<'_>,
) -> Continuation {
    let said = &coordination.continuation;
    Continuation {
        threshold: said.trigger_threshold,
        ceiling_tokens: said.resume_ceiling_tokens,
        window_tokens: window.unwrap_or(said.context_tokens),
        chain_max: said.chain_max,
        first_message: first_message(library, &said.directive, original),
        ..Continuation::default()
    }
}

/// The message of the continuation directive; a plain message if that can't be read or rendered.
fn first_message(library: &Library, default: &str, original: &ContinuedDirective<'_>) -> WriteFirstMessage {
    let own = original.directive.and_then(|directive| directive.continuation_directive.clone());
    let id = own.as_ref().map_or(default, |own| own.as_str()).to_owned();
    let found = DirectiveId::new(&id).ok().and_then(|id| library.directive(&id).ok());
    let Some(found) = found else { return Arc::new(|_| None) };
    let is_built_in = found.sources.first().is_some_and(|source| source.layer == Layer::BuiltIn);
    if original.directive.is_none() && is_built_in {
        return Arc::new(|left| Some(without_directive(left)));
    }
    let original = original.name_and_body();
    Arc::new(move |left| rendered(&found.item, &original, left))
}

/// The message to the successor of a thread without a directive: the built-in one would name a directive.
fn without_directive(left: &ContinuedThread) -> String {
    format!(
        "You are continuing the conversation of the thread `{}`, which was handed off to you. The conversation above was carried over \
         from it; what it reports as done has been done.\n\n{}",
        left.previous_thread_id, left.message
    )
}

fn rendered(directive: &Directive, original: &(String, String), left: &ContinuedThread) -> Option<String> {
    let given = json!({
        "original_directive": original.0,
        "original_directive_body": original.1,
        "previous_thread_id": left.previous_thread_id,
        "continuation_message": left.message,
    });
    let Value::Object(given) = given else { return None };
    let inputs = bind(&directive.inputs, given).ok()?;
    let values = json!({"inputs": inputs});
    let nothing = Environment { allowed: &[], variables: None };
    let rendered = render(&directive.body, &Scope { values: &values, environment: nothing }).ok()?;
    Some(rendered.text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use selvedge_items::Policy;
    use selvedge_log::Trust;

    use super::*;

    const BUILT_IN: &str = "selvedge/agent/continuation";

    fn message(directive: Option<&Directive>) -> String {
        let library = Library { project: None, user: None, trust: Trust::of(&[]), policy: Policy::default() };
        let environment = Environment { allowed: &[], variables: None };
        let original = ContinuedDirective { directive, inputs: &Map::new(), environment };
        let left = ContinuedThread { previous_thread_id: "t-1".parse().unwrap(), message: "Go on.".to_owned() };
        first_message(&library, BUILT_IN, &original)(&left).unwrap()
    }

    /// The message named the directive `` with an empty body.
    #[test]
    fn the_message_to_the_successor_of_a_thread_without_a_directive_names_none() {
        let text = message(None);
        assert!(text.contains("`t-1`") && text.ends_with("Go on."), "{text}");
        assert!(!text.contains("``") && !text.contains("directive"), "{text}");
        let directive = Directive { name: "count".to_owned(), body: "Count.".to_owned(), ..Directive::default() };
        assert!(message(Some(&directive)).starts_with("You are continuing the directive `count`."));
    }
}
