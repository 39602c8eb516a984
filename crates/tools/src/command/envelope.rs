//! The output of a tool that may change the state of its thread: one JSON object on stdout.
//!
//! ```json
//! {"result": "noted", "patches": [{"ops": [{"op": "append", "path": ["notes"], "value": "milk"}]}],
//!  "state_actions": [{"base_path": ["notes"], "payload": {"add": "milk"}}]}
//! ```
//!
//! - All of it counts or nothing: an output that is no such object, or reaches outside of the paths that the tool declares, changes nothing, and
//!   the result of the call is an error.
//! - Whether the patches apply is decided by the engine, like those of every other tool, against the state at the time of the commit.
//! - State actions are recorded with the id of the call, for audit. Nothing replays them.

use selvedge_model::event::Fields;
use selvedge_model::path::Path;
use selvedge_model::{CallId, Output, Patch};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A value is stored in a log, whose lines have a limited depth.
const DEPTH_MAX: usize = 32;
/// The most patches and the most state actions of one call.
const CHANGES_MAX: usize = 1000;
/// The most bytes of one patch or state action. Much larger ones could not be committed, and the results of the whole turn would be lost.
const CHANGE_BYTES_MAX: usize = 1 << 20;
/// How keys begin that a log line can't hold: `serde_json` gives them a meaning of its own.
const RESERVED_KEYS: &str = "$serde_json::private::";

/// The printed object. An unknown field could change the meaning of the rest, so it is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    patches: Vec<Patch>,
    #[serde(default)]
    state_actions: Vec<Fields>,
}

/// Reads the output of a call of `tool`, which may change the state below `may_change` and nowhere else.
pub(super) fn read(text: &str, tool: &str, call: &CallId, may_change: &[Path]) -> Result<Output, String> {
    let not_object = |error: serde_json::Error| format!("it is not an output object: {error}");
    // Through a map, because an array would be read as the fields in order.
    let object: Fields = serde_json::from_str(text).map_err(not_object)?;
    let envelope: Envelope = serde_json::from_value(Value::Object(object)).map_err(not_object)?;
    let Envelope { result, error, mut patches, mut state_actions } = envelope;
    if let Some(error) = error {
        if result.is_some() || !patches.is_empty() || !state_actions.is_empty() {
            return Err("an `error` can't have a result, patches or state actions beside it".to_owned());
        }
        return Ok(Output::error(error));
    }
    check(&patches, &state_actions, may_change)?;
    for patch in &mut patches {
        // Who made it is not for the tool to say.
        patch.source = Some(format!("tool:{tool}"));
    }
    for action in &mut state_actions {
        action.insert("call_id".to_owned(), json!(call));
        action.insert("source".to_owned(), json!(format!("tool:{tool}")));
    }
    let content = result.unwrap_or_else(|| json!("done"));
    let content = if check_value(&content).is_err() { json!(content.to_string()) } else { content };
    Ok(Output { content, patches, state_actions, is_error: false })
}

fn check(patches: &[Patch], actions: &[Fields], may_change: &[Path]) -> Result<(), String> {
    if patches.len() > CHANGES_MAX || actions.len() > CHANGES_MAX {
        return Err(format!("it has more than {CHANGES_MAX} patches or state actions"));
    }
    let inside = |path: &Path| may_change.iter().any(|declared| path.starts_with(declared));
    let outside = |path: &Path| format!("`{path}` is outside of the paths that the tool declares in `state`");
    for patch in patches {
        check_size("a patch", patch)?;
    }
    for op in patches.iter().flat_map(|patch| &patch.ops) {
        if !inside(op.path()) {
            return Err(outside(op.path()));
        }
        let value = serde_json::to_value(op).map_err(|error| error.to_string())?;
        check_value(&value).map_err(|why| format!("a value for `{}` {why}", op.path()))?;
        check_path(op.path())?;
    }
    for action in actions {
        let path = action.get("base_path").cloned().map(serde_json::from_value::<Path>);
        let Some(Ok(path)) = path else {
            return Err("a state action needs its `base_path`, an array of keys".to_owned());
        };
        if !inside(&path) {
            return Err(outside(&path));
        }
        check_size("a state action", action)?;
        for (key, value) in action {
            let checked = check_key(key).and_then(|()| check_value(value));
            checked.map_err(|why| format!("a state action for `{path}` {why}"))?;
        }
    }
    Ok(())
}

/// Checks that one change fits into a line of the log.
fn check_size(what: &str, change: &impl Serialize) -> Result<(), String> {
    let bytes = serde_json::to_vec(change).map_err(|error| error.to_string())?.len();
    if bytes <= CHANGE_BYTES_MAX {
        return Ok(());
    }
    Err(format!("{what} has {bytes} bytes, more than {CHANGE_BYTES_MAX}: it can't be committed"))
}

/// Checks that a line of the log can hold a value.
pub(crate) fn check_value(value: &Value) -> Result<(), String> {
    fn keys(value: &Value) -> Result<(), String> {
        match value {
            Value::Array(items) => items.iter().try_for_each(keys),
            Value::Object(members) => {
                members.iter().try_for_each(|(key, member)| check_key(key).and_then(|()| keys(member)))
            }
            _ => Ok(()),
        }
    }
    if depth(value) > DEPTH_MAX {
        return Err("is nested too deeply".to_owned());
    }
    keys(value)
}

fn check_key(key: &str) -> Result<(), String> {
    if key.starts_with(RESERVED_KEYS) {
        return Err(format!("has a key that begins with `{RESERVED_KEYS}`, which no log can hold"));
    }
    Ok(())
}

/// A path names keys of the state, which is stored too.
fn check_path(path: &Path) -> Result<(), String> {
    let Ok(Value::Array(keys)) = serde_json::to_value(path) else { return Ok(()) };
    let mut keys = keys.iter().filter_map(Value::as_str);
    keys.try_for_each(check_key).map_err(|why| format!("a path {why}"))
}

/// How deeply a value is nested.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<Output, String> {
        read(text, "note", &CallId::new("c1").unwrap(), &[Path::keys(["notes"]), Path::keys(["a", "b"])])
    }

    #[test]
    fn an_output_counts_wholly_or_not_at_all() {
        let set = |path: &str| format!("{{\"ops\":[{{\"op\":\"set\",\"path\":{path},\"value\":1}}]}}");
        let both = |paths: [&str; 2]| format!("{{\"result\":1,\"patches\":[{},{}]}}", set(paths[0]), set(paths[1]));
        let inside = said(&both(["[\"notes\",0]", "[\"a\",\"b\"]"])).unwrap();
        assert_eq!((inside.patches.len(), inside.content), (2, json!(1)));
        assert_eq!(inside.patches[0].source.as_deref(), Some("tool:note"));
        for outside in ["[]", "[\"a\"]", "[\"note\"]", "[\"__run\"]", "[\"a\",\"c\"]"] {
            let why = said(&both(["[\"notes\"]", outside])).unwrap_err();
            assert!(why.contains("outside of the paths"), "{why}");
        }
        for bad in ["", "text", "[]", "{\"results\":1}", "{\"error\":\"x\",\"result\":1}", "{\"state_actions\":[{}]}"] {
            assert!(said(bad).is_err(), "{bad}");
        }
        let deep = format!("{}1{}", "[".repeat(40), "]".repeat(40));
        assert!(
            said(&format!("{{\"patches\":[{{\"ops\":[{{\"op\":\"set\",\"path\":[\"notes\"],\"value\":{deep}}}]}}]}}"))
                .is_err()
        );
        assert_eq!(said("{}").unwrap().content, json!("done"));
        assert!(said("{\"error\":\"no\"}").unwrap().is_error);
    }

    /// They passed, and the commit with the results of the turn was refused.
    #[test]
    fn what_a_log_cannot_hold_is_refused_here() {
        let refused = |changes: Value, wanted: &str| {
            let why = said(&changes.to_string()).unwrap_err();
            assert!(why.contains(wanted), "{why}");
        };
        let patch =
            |path: Value, value: Value| json!({"patches": [{"ops": [{"op": "set", "path": path, "value": value}]}]});
        let action = |payload: Value| json!({"state_actions": [{"base_path": ["notes"], "payload": payload}]});
        let reserved = "$serde_json::private::Number";
        refused(patch(json!(["notes"]), json!([{reserved: "1"}])), "no log can hold");
        refused(patch(json!(["notes", reserved]), json!(1)), "no log can hold");
        refused(action(json!({reserved: 1})), "no log can hold");
        refused(json!({"state_actions": [{"base_path": ["notes"], reserved: 1}]}), "no log can hold");
        for (bytes, fits) in [(CHANGE_BYTES_MAX - 200, true), (CHANGE_BYTES_MAX + 1, false)] {
            let long = json!("x".repeat(bytes));
            for changes in [patch(json!(["notes"]), long.clone()), action(long)] {
                assert_eq!(said(&changes.to_string()).is_ok(), fits);
                if !fits {
                    refused(changes, "can't be committed");
                }
            }
        }
        assert_eq!(
            said(&json!({"result": {reserved: 1}}).to_string()).unwrap().content,
            json!({reserved: 1}).to_string()
        );
    }

    #[test]
    fn an_action_is_recorded_with_its_call_and_tool() {
        let output =
            said("{\"state_actions\":[{\"base_path\":[\"notes\"],\"call_id\":\"forged\",\"payload\":1}]}").unwrap();
        let action = Value::Object(output.state_actions[0].clone());
        assert_eq!(action, json!({"base_path": ["notes"], "call_id": "c1", "payload": 1, "source": "tool:note"}));
    }
}
