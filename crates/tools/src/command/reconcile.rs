//! The answer of a reconcile command.

use selvedge_model::Output;
use selvedge_model::tool::Reconciled;
use serde::Deserialize;
use serde_json::Value;

use crate::process::{End, Ended};

/// The printed answer. An unknown field could change the meaning of the rest, so it is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    done: Option<bool>,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<String>,
}

/// A result is stored in a log, whose lines have a limited depth.
const DEPTH_MAX: usize = 32;

/// Reads the answer; anything unclear means unknown.
pub(super) fn read(ended: &Ended) -> Reconciled {
    let is_clear = matches!(&ended.end, End::Exited(status) if status.success()) && ended.stdout.dropped == 0;
    let said = is_clear.then(|| serde_json::from_str::<Said>(&ended.stdout.text()).ok()).flatten();
    match said {
        Some(Said { done: Some(true), result: None, error: Some(error) }) => Reconciled::Done(Output::error(error)),
        Some(Said { done: Some(true), result, error: None }) => {
            let content = result.unwrap_or_else(|| Value::String("done".to_owned()));
            if depth(&content) > DEPTH_MAX {
                Reconciled::Done(Output::text(content.to_string()))
            } else {
                Reconciled::Done(Output { content, ..Output::default() })
            }
        }
        Some(Said { done: Some(false), result: None, error: None }) => Reconciled::NotDone,
        _ => Reconciled::Unknown,
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}
