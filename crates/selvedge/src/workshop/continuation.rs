//! How a thread of a directive goes on in another one: what the configuration says, and the word that seeds the successor.

use std::sync::Arc;

use selvedge_engine::assignment::{Continuation, Left, Seed};
use selvedge_items::Library;
use selvedge_items::config::Coordination;
use selvedge_items::directive::Directive;
use selvedge_items::input::bind;
use selvedge_items::interpolate::{Environment, Scope, render};
use selvedge_model::DirectiveId;
use serde_json::{Map, Value, json};

/// What a thread was told to do.
pub(super) struct Original<'a> {
    pub(super) directive: Option<&'a Directive>,
    /// What the directive was given.
    pub(super) inputs: &'a Map<String, Value>,
    /// What it may see of the environment.
    pub(super) environment: Environment<'a>,
}

impl Original<'_> {
    /// The name of the directive, and its body as the thread was told it. One that was changed since, so that the inputs don't fill it
    /// any more, stands as it is written.
    fn told(&self) -> (String, String) {
        let Some(directive) = self.directive else { return (String::new(), String::new()) };
        let values = json!({"inputs": self.inputs});
        let rendered = render(&directive.body, &Scope { values: &values, environment: self.environment });
        (directive.name.clone(), rendered.map_or_else(|_| directive.body.clone(), |rendered| rendered.text))
    }
}

/// How threads of a directive go on in others.
pub(super) fn continuation(
    library: &Library,
    coordination: &Coordination,
    window: Option<u64>,
    original: &Original<'_>,
) -> Continuation {
    let said = &coordination.continuation;
    Continuation {
        threshold: said.trigger_threshold,
        ceiling_tokens: said.resume_ceiling_tokens,
        window_tokens: window.unwrap_or(said.context_tokens),
        chain_max: said.chain_max,
        seed: seed(library, &said.directive, original),
        ..Continuation::default()
    }
}

/// The word of the continuation directive; without one that can be read and rendered, the plain message does.
fn seed(library: &Library, default: &str, original: &Original<'_>) -> Seed {
    let own = original.directive.and_then(|directive| directive.continuation_directive.clone());
    let id = own.as_ref().map_or(default, |own| own.as_str()).to_owned();
    let found = DirectiveId::new(&id).ok().and_then(|id| library.directive(&id).ok());
    let Some(found) = found else { return Arc::new(|_| None) };
    let original = original.told();
    Arc::new(move |left| word(&found.item, &original, left))
}

fn word(directive: &Directive, original: &(String, String), left: &Left) -> Option<String> {
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
