//! What a graph and its runs look like: the state of each node, readable pages, and a drawing.
//!
//! In reading order: [`GraphRun`] is what the logs of a run say; [`pages`] are its signed pages; [`layout`] places the boxes of a graph, and
//! [`svg`] draws them. Everything is derived from the definition and the logs, and can be made again.

pub mod layout;
pub mod pages;
mod run;
pub mod svg;

use selvedge_items::Condition;
use selvedge_items::graph::Edge;
use serde_json::Value;

pub use run::{GraphRun, NodeRecord, NodeStatus, StepRecord};

/// A condition in a few words.
pub fn condition(edge: &Edge) -> String {
    edge.when.as_ref().map(words).unwrap_or_default()
}

fn words(when: &Condition) -> String {
    let written = serde_json::to_value(when).unwrap_or_default();
    text(&written)
}

fn text(written: &Value) -> String {
    let list = |name: &str, word: &str| {
        let parts: Vec<String> = written.get(name)?.as_array()?.iter().map(text).collect();
        Some(parts.join(word))
    };
    if let Some(all) = list("all", " and ").or_else(|| list("any", " or ")) {
        return all;
    }
    if let Some(not) = written.get("not") {
        return format!("not {}", text(not));
    }
    let Some(path) = written.get("path").and_then(Value::as_array) else { return "always".to_owned() };
    let path: Vec<&str> = path.iter().filter_map(Value::as_str).collect();
    let op = written.get("op").and_then(Value::as_str).unwrap_or_default();
    let sign = match op {
        "eq" => "=",
        "ne" => "≠",
        "gt" => ">",
        "gte" => "≥",
        "lt" => "<",
        "lte" => "≤",
        other => other,
    };
    match (op, written.get("value")) {
        ("exists", _) => format!("{} exists", path.join(".")),
        (_, value) => format!("{} {sign} {}", path.join("."), value.cloned().unwrap_or_default()),
    }
}
