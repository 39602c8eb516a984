//! `selvedge state`, `--state`, and tools that change the state.

use serde_json::{Value, json};

use crate::running::{RUN, paid, project, put, start_and_await, thread_of};
use crate::support::{Ran, Sandbox};

#[test]
fn the_state_of_every_version_can_be_shown() {
    let (sandbox, thread) = Sandbox::with_thread();
    let set = |value: u64| {
        format!(
            r#"{{"reason":"UserMessage","messages":[{{"role":"user","content":"m{value}"}}],"patches":[{{"ops":[{{"op":"set","path":["n"],"value":{value}}}]}}]}}"#
        )
    };
    sandbox.append(&thread, "0", &set(1));
    sandbox.append(&thread, "1", &set(2));
    sandbox.append(&thread, "2", r#"{"reason":"Lifecycle","snapshot":{"fresh":true}}"#);
    let at = |version: &str| sandbox.run(&["state", &thread, "--at", version, "--json"]).json();
    let seen: Vec<Value> = ["0", "1", "2", "3"].map(|version| at(version)["state"].clone()).to_vec();
    assert_eq!(seen, [json!({}), json!({ "n": 1 }), json!({ "n": 2 }), json!({ "fresh": true })]);
    let now = sandbox.run(&["state", &thread, "--json"]).json();
    assert_eq!(
        (&now["version"], &now["state"], &now["latest_version"]),
        (&3.into(), &json!({ "fresh": true }), &3.into())
    );
    assert_eq!((at("1")["messages"].as_array().unwrap().len(), &at("1")["latest_version"]), (1, &3.into()));
    let people: Value = serde_json::from_str(&sandbox.run(&["state", &thread]).stdout).unwrap();
    assert_eq!(people, now);
}

#[test]
fn a_version_that_is_not_there_is_not_found() {
    let (sandbox, thread) = Sandbox::with_thread();
    let error = sandbox.run(&["state", &thread, "--at", "7", "--json"]).error(3, "version_not_found");
    assert_eq!(error["latest_version"], 0);
}

const TASK: &str = "---\nname: task\npermissions: [tool.note]\n---\nDo it.\n";

/// A tool that may change `notes`, and prints this.
fn noting(output: &str) -> String {
    let tool = json!({
        "name": "note", "description": "Notes.", "class": "idempotent", "environment": ["PATH"], "state": [["notes"], ["scratch"]],
        "command": ["sh", "-c", "printf %s \"$1\"; echo x >> ran.txt", "note", output],
    });
    tool.to_string()
}

const CALL: &str =
    "turns:\n  - { calls: [{ tool: note, arguments: {} }] }\n  - { say: \"Heard: {result}\", repeat: forever }\n";

/// A thread whose tool printed this: its state, its state actions, and what the model was told.
fn after(output: &Value) -> (Sandbox, String, Value, Vec<Value>, String) {
    let sandbox = project(TASK, "", CALL);
    std::fs::remove_file(sandbox.project().join(".ai/tools/pay.yaml")).unwrap();
    put(&sandbox, ".ai/tools/note.yaml", &noting(&output.to_string()));
    let ran = sandbox.run(&RUN);
    let thread = thread_of(&ran);
    let told = ran.records().pop().unwrap()["result"].as_str().unwrap_or_else(|| panic!("{ran:?}")).to_owned();
    let state = sandbox.run(&["state", &thread, "--json"]).json()["state"].clone();
    let lines = sandbox.run(&["log", &thread, "--json"]).records();
    let actions = lines.into_iter().filter(|line| line["event_type"] == "state_action");
    let actions = actions.map(|line| line["payload"].clone()).collect();
    (sandbox, thread, state, actions, told)
}

fn patch(ops: Value) -> Value {
    json!({ "ops": ops })
}

#[test]
fn a_command_tool_changes_the_state_wholly_and_its_actions_are_on_record() {
    let notes = json!({"op": "append", "path": ["notes"], "value": "milk"});
    let count = json!({"op": "set", "path": ["scratch", "n"], "value": 1});
    let output = json!({
        "result": {"noted": 1}, "patches": [patch(json!([notes])), patch(json!([count]))],
        "state_actions": [{"base_path": ["notes"], "payload": {"add": "milk"}}],
    });
    let (sandbox, thread, state, actions, told) = after(&output);
    assert_eq!(state, json!({"notes": ["milk"], "scratch": {"n": 1}}));
    assert!(told.contains("noted"), "{told}");
    let [action] = actions.try_into().unwrap();
    assert_eq!((&action["payload"], &action["source"]), (&json!({"add": "milk"}), &json!("tool:note")));
    assert!(action["call_id"].is_string());
    // Folding and replaying the log apply the patches once and the actions never.
    assert_eq!(sandbox.run(&["replay", &thread, "--json"]).json()["identical"], true);
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["send", &thread, "again", "--json"]).code, Some(0));
    assert_eq!(sandbox.run(&["state", &thread, "--json"]).json()["state"], state);
}

#[test]
fn what_a_tool_may_not_change_or_can_not_changes_nothing() {
    let good = json!({"op": "set", "path": ["notes"], "value": ["milk"]});
    let action = json!([{"base_path": ["notes"], "payload": 1}]);
    for (bad, said) in [
        (json!({"op": "set", "path": ["other"], "value": 1}), "outside of the paths"),
        (json!({"op": "set", "path": [], "value": {}}), "outside of the paths"),
        (json!({"op": "delete", "path": ["__run"]}), "outside of the paths"),
        (json!({"op": "increment", "path": ["notes", "n"], "amount": 1}), "does not apply"),
        (json!({"op": "dance", "path": ["notes"]}), "not an output object"),
    ] {
        let output = json!({"patches": [patch(json!([good])), patch(json!([bad]))], "state_actions": action});
        let (_, _, state, actions, told) = after(&output);
        assert_eq!((state, actions), (json!({}), vec![]), "{bad}");
        assert!(told.contains(said), "{bad}: {told}");
    }
    let (_, _, state, actions, told) = after(&json!({"result": 1, "state_actions": [{"base_path": ["elsewhere"]}]}));
    assert_eq!((state, actions), (json!({}), vec![]));
    assert!(told.contains("outside of the paths"), "{told}");
}

#[test]
fn a_tool_can_not_declare_what_the_engine_keeps() {
    let sandbox = project(TASK, "", CALL);
    let tool = noting("{}").replace("[\"scratch\"]", "[\"__run\"]");
    put(&sandbox, ".ai/tools/note.yaml", &tool);
    let ran: Ran = sandbox.run(&["tool", "list", "--json"]);
    assert!(format!("{ran:?}").contains("the engine keeps its own values there"), "{ran:?}");
}

#[test]
fn a_state_is_replaced_with_the_message() {
    let sandbox = project(TASK, "", "turns:\n  - { say: Done., repeat: forever }\n");
    put(&sandbox, "first.json", r#"{"notes": ["a"], "n": 1}"#);
    put(&sandbox, "second.json", r#"{"fresh": true}"#);
    let ran = sandbox.run(&[&RUN[..], &["--state", "first.json"]].concat());
    let thread = thread_of(&ran);
    let state = || sandbox.run(&["state", &thread, "--json"]).json()["state"].clone();
    assert_eq!(state(), json!({"notes": ["a"], "n": 1}));
    assert_eq!(sandbox.run(&["send", &thread, "on", "--state", "second.json"]).code, Some(0));
    assert_eq!(state(), json!({"fresh": true}));
    // The snapshot is in the changeset of the message.
    let lines = sandbox.run(&["log", &thread, "--json"]).records();
    let at = lines.iter().rposition(|line| line["event_type"] == "snapshot").unwrap();
    assert_eq!(lines[at + 1]["payload"]["content"], "on");
    assert_eq!(lines[at - 1]["event_type"], "run_started");
    for (name, text) in [("list.json", "[]"), ("twice.json", r#"{"a":1,"a":2}"#), ("broken.json", "{")] {
        put(&sandbox, name, text);
        sandbox.run(&["send", &thread, "on", "--state", name, "--json"]).error(2, "usage");
    }
    sandbox.run(&["send", &thread, "on", "--state", "missing.json", "--json"]).error(3, "file_not_found");
    assert_eq!(state(), json!({"fresh": true}));
}

/// The process dies in the middle of a call that may be made once; its tool says what became of it, with what it would have changed.
#[test]
fn a_reconciled_call_changes_the_state_once_and_within_its_scopes() {
    let noting = |reconciled: &Value| {
        let tool = json!({
            "name": "note", "description": "Notes.", "class": "at_most_once", "environment": ["PATH"], "state": [["notes"]],
            "command": ["sh", "-c", "echo noted >> paid.txt; sleep 60"],
            "reconcile": ["sh", "-c", "printf %s \"$1\"", "was", reconciled.to_string()],
        });
        tool.to_string()
    };
    let done = |path: &str| {
        let patches = [patch(json!([{"op": "append", "path": [path], "value": "milk"}]))];
        json!({"done": true, "result": "noted", "patches": patches, "state_actions": [{"base_path": [path], "payload": 1}]})
    };
    for (path, wanted, said) in
        [("notes", json!({"notes": ["milk"]}), "noted"), ("other", json!({}), "outside of the paths")]
    {
        let sandbox = project(TASK, "", CALL);
        std::fs::remove_file(sandbox.project().join(".ai/tools/pay.yaml")).unwrap();
        put(&sandbox, ".ai/tools/note.yaml", &noting(&done(path)));
        let mut child = start_and_await(&sandbox, 1);
        child.kill().unwrap();
        child.wait().unwrap();
        let ran = sandbox.run(&["resume", "@", "--json"]);
        let told = ran.records().pop().unwrap()["result"].as_str().unwrap_or_else(|| panic!("{ran:?}")).to_owned();
        assert!(told.contains(said), "{told}");
        assert_eq!(sandbox.run(&["send", "@", "again", "--json"]).code, Some(0));
        assert_eq!(sandbox.run(&["state", "@", "--json"]).json()["state"], wanted);
        let lines = sandbox.run(&["log", "@", "--json"]).records();
        let actions = lines.iter().filter(|line| line["event_type"] == "state_action").count();
        assert_eq!((actions, paid(&sandbox)), (usize::from(path == "notes"), 1));
        assert_eq!(sandbox.run(&["verify", "@"]).code, Some(0));
    }
}
