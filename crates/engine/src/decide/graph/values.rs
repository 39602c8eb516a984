//! What the templates and conditions of a graph can refer to.
//!
//! ```text
//! always         state, inputs, graph {id, run, step, node}, message (the last one that was sent to the run), _now, _timestamp
//! in a loop      the item by its name, index
//! after a node   result
//! ```
//!
//! Only those parts of the state are copied that a template names, so that a large state costs nothing.

use selvedge_items::Condition;
use selvedge_items::interpolate::{self, Environment, Scope, paths};
use selvedge_model::Role;
use serde_json::{Map, Value, json};

use super::Walk;

/// One item of a loop.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub(super) name: &'a str,
    pub(super) index: usize,
    pub(super) value: &'a Value,
}

/// Inserts values into a template.
pub(super) fn fill(
    walk: &Walk<'_>,
    state: &Value,
    template: &Value,
    result: Option<&Value>,
    item: Option<Item<'_>>,
) -> Result<Value, String> {
    let mut named = Vec::new();
    name_paths(template, &mut named);
    let values = values(walk, state, named.iter().map(Vec::as_slice), result, item);
    let environment = Environment { allowed: &[], variables: None };
    interpolate::fill(template, &Scope { values: &values, environment }).map_err(|error| error.to_string())
}

/// Whether a condition holds.
pub(super) fn holds(walk: &Walk<'_>, state: &Value, condition: &Condition, result: &Value) -> bool {
    let values = values(walk, state, condition.paths().into_iter(), Some(result), None);
    condition.holds(&values)
}

fn name_paths(template: &Value, named: &mut Vec<Vec<String>>) {
    match template {
        Value::String(text) => named.extend(paths(text)),
        Value::Array(items) => items.iter().for_each(|item| name_paths(item, named)),
        Value::Object(fields) => fields.values().for_each(|field| name_paths(field, named)),
        _ => {}
    }
}

/// The values that these paths need.
fn values<'p>(
    walk: &Walk<'_>,
    state: &Value,
    named: impl Iterator<Item = &'p [String]>,
    result: Option<&Value>,
    item: Option<Item<'_>>,
) -> Value {
    let manifest = walk.fold.manifest();
    // The time of the last commit: it is on record, so that a replay has the same.
    let now = manifest.updated_at;
    let mut values = Map::new();
    let mut shown = Map::new();
    for path in named {
        match path {
            [first, key, ..] if first == "state" => {
                shown.extend(state.get(key).map(|value| (key.clone(), value.clone())));
            }
            [first] if first == "state" => shown = state.as_object().cloned().unwrap_or_default(),
            [first, ..] if first == "inputs" => _ = values.insert(first.clone(), json!(manifest.inputs)),
            [first, ..] if first == "message" => _ = values.insert(first.clone(), message(walk)),
            [first, ..] if first == "graph" => {
                let graph = json!({
                    "id": walk.graph.id, "run": manifest.chain_root_id, "thread": manifest.thread_id,
                    "step": walk.at.map_or(walk.progress.step, |(step, _)| step),
                    "node": walk.at.map(|(_, node)| node).or(walk.progress.node.as_deref()),
                });
                values.insert(first.clone(), graph);
            }
            [first, ..] if first == "_now" => _ = values.insert(first.clone(), json!(now)),
            [first, ..] if first == "_timestamp" => _ = values.insert(first.clone(), json!(now.as_micros() / 1000)),
            [first, ..] if first == "result" => {
                values.extend(result.map(|result| (first.clone(), result.clone())));
            }
            [first, ..] if item.is_some_and(|item| item.name == first) => {
                values.extend(item.map(|item| (first.clone(), item.value.clone())));
            }
            [first, ..] if first == "index" => {
                values.extend(item.map(|item| (first.clone(), json!(item.index))));
            }
            _ => {}
        }
    }
    values.insert("state".to_owned(), Value::Object(shown));
    Value::Object(values)
}

/// The last message that was sent to the run.
fn message(walk: &Walk<'_>) -> Value {
    let messages = walk.fold.conversation.messages();
    let last = messages.iter().rev().find(|message| message.role == Role::User);
    last.map_or(Value::Null, |message| json!(message.plain_text()))
}
