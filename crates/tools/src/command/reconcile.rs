//! The answer of a reconcile command. That of a tool that may change the state has its patches and state actions too.

use selvedge_model::path::Path;
use selvedge_model::tool::Reconciled;
use selvedge_model::{CallId, Output};
use serde::Deserialize;
use serde_json::{Value, json};

use super::envelope::{self, check_value};
use crate::process::{EndedProcess, ProcessEnd};

/// The printed answer. An unknown field could change the meaning of the rest, so it is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReconcileReply {
    done: Option<bool>,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    patches: Vec<Value>,
    #[serde(default)]
    state_actions: Vec<Value>,
}

/// Reads the answer; anything unclear means unknown.
pub(super) fn read(ended: &EndedProcess, tool: &str, call: &CallId, may_change: &[Path]) -> Reconciled {
    let is_clear = matches!(&ended.end, ProcessEnd::Exited(status) if status.success()) && ended.stdout.dropped == 0;
    let said = is_clear.then(|| serde_json::from_str::<ReconcileReply>(&ended.stdout.text()).ok()).flatten();
    let Some(said) = said else { return Reconciled::Unknown };
    let changes_state = !said.patches.is_empty() || !said.state_actions.is_empty();
    match said {
        ReconcileReply { done: Some(true), result: None, error: Some(error), .. } if !changes_state => {
            Reconciled::Done(Output::error(error))
        }
        ReconcileReply { done: Some(true), result, error: None, patches, state_actions } if changes_state => {
            let output = json!({"result": result, "patches": patches, "state_actions": state_actions}).to_string();
            let read = envelope::read(&output, tool, call, may_change);
            Reconciled::Done(read.unwrap_or_else(|why| Output::error(format!("`{tool}` is done, but {why}"))))
        }
        ReconcileReply { done: Some(true), result, error: None, .. } => {
            let content = result.unwrap_or_else(|| Value::String("done".to_owned()));
            if check_value(&content).is_err() {
                Reconciled::Done(Output::text(content.to_string()))
            } else {
                Reconciled::Done(Output { content, ..Output::default() })
            }
        }
        ReconcileReply { done: Some(false), result: None, error: None, .. } if !changes_state => Reconciled::NotDone,
        _ => Reconciled::Unknown,
    }
}
