//! Lifetimes of values in a thread's state: `agent/scopes.yaml`. The type is [`selvedge_model::scope::Scopes`].

use selvedge_model::path::Path;
use selvedge_model::scope::{Scope, Scopes};
use serde::Deserialize;
use serde_json::Value;

use super::section::InvalidCombination;
use super::shape::{Key, Shape};

const DECLARED: &[Key] = &[
    Key::new("path", Shape::List(&Shape::NAME), "The path, as a list of keys from the outside in.").required(),
    Key::new(
        "scope",
        Shape::Word(&["thread", "run", "tool_call"]),
        "As long as the thread, until the next run is prepared, or until the result of its tool call is committed.",
    )
    .required(),
];

pub(super) const KEYS: &[Key] = &[Key::new(
    "declared",
    Shape::Entries(DECLARED),
    "Lifetimes of paths of the state, with everything inside them. A path that is not declared is kept as long as its thread.",
)];

#[derive(Deserialize)]
struct Declared {
    id: String,
    path: Path,
    scope: Scope,
}

/// The declared scopes, and the built-in ones.
pub(super) fn read(mut value: Value) -> Result<Scopes, InvalidCombination> {
    let declared: Vec<Declared> = serde_json::from_value(value["declared"].take()).map_err(InvalidCombination::of)?;
    let mut scopes = Scopes::builtin();
    for Declared { id, path, scope } in declared {
        scopes
            .declare(path, scope)
            .map_err(|error| InvalidCombination::at(format!("declared.{id}"), error.to_string()))?;
    }
    Ok(scopes)
}
