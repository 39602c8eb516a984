//! `selvedge config`: values, origins, meanings and errors; and runs that use it.

use std::fs;
use std::path::Path;

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::support::{Sandbox, masked};

fn put(folder: &Path, name: &str, text: &str) {
    let file = folder.join("config").join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// Writes a file of the project's.
fn project(sandbox: &Sandbox, name: &str, text: &str) {
    put(&sandbox.project().join(".ai"), name, text);
}

/// Writes a file of the user's.
fn user(sandbox: &Sandbox, name: &str, text: &str) {
    put(&sandbox.home(), name, text);
}

fn of<'a>(records: &'a [Value], key: &str) -> &'a Value {
    records.iter().find(|record| record["key"] == key).unwrap_or_else(|| panic!("{key}: {records:?}"))
}

#[test]
fn every_key_is_listed_with_the_file_and_line_that_sets_it() {
    let sandbox = Sandbox::new();
    user(&sandbox, "agent/limits.yaml", "tokens: 5000\n");
    project(&sandbox, "agent/limits.yaml", "# ours\nturns: 3\n");
    let listed = sandbox.run(&["config", "list", "--json"]).records();
    let turns = of(&listed, "limits.turns");
    let file = sandbox.project().join(".ai/config/agent/limits.yaml");
    assert_eq!(*turns, json!({"key": "limits.turns", "value": 3, "layer": "project", "file": file, "line": 2}));
    assert_eq!(
        (&of(&listed, "limits.tokens")["layer"], &of(&listed, "limits.depth")["layer"]),
        (&json!("user"), &json!("built_in"))
    );
    assert_eq!(of(&listed, "state_persistence.retention.max_checkpoints")["value"], 10);
    let shown = sandbox.run(&["config", "list", "limits", "--origin"]).stdout;
    assert!(shown.contains(".ai/config/agent/limits.yaml:2") && !shown.contains("redaction"), "{shown}");
}

#[test]
fn a_key_is_printed_and_explained_with_all_its_values() {
    let sandbox = Sandbox::new();
    user(&sandbox, "agent/limits.yaml", "turns: 12\n");
    project(&sandbox, "agent/limits.yaml", "turns: 3\n");
    assert_eq!(sandbox.run(&["config", "get", "limits.turns"]).stdout, "3\n");
    assert_eq!(sandbox.run(&["config", "get", "limits", "--json"]).json()["value"]["turns"], 3);
    let explained = sandbox.run(&["config", "explain", "limits.turns", "--json"]).json();
    let said: Vec<_> =
        explained["values"].as_array().unwrap().iter().map(|said| (&said["layer"], &said["value"])).collect();
    let expected = [(json!("built_in"), json!(25)), (json!("user"), json!(12)), (json!("project"), json!(3))];
    assert_eq!(said, expected.iter().map(|(layer, value)| (layer, value)).collect::<Vec<_>>());
    let error = sandbox.run(&["config", "get", "limits.turn", "--json"]).error(3, "config_key_not_found");
    assert_eq!(error["hint"], "did you mean `limits.turns`?");
    sandbox.run(&["config", "explain", "nonsense", "--json"]).error(3, "config_key_not_found");
}

#[test]
fn errors_are_reported_with_their_line_by_every_command() {
    let sandbox = Sandbox::new();
    project(&sandbox, "agent/limits.yaml", "tokens: 1000\nturn: 3\n");
    for command in
        [&["config", "list", "--json"][..], &["config", "get", "limits", "--json"], &["directive", "list", "--json"]]
    {
        let error = sandbox.run(command).error(2, "config_invalid");
        assert_eq!((&error["line"], &error["hint"]), (&json!(2), &json!("did you mean `turns`?")), "{error}");
        assert!(error["file"].as_str().unwrap().ends_with(".ai/config/agent/limits.yaml"), "{error}");
    }
    // What a hint names must help, whatever is wrong.
    let explained = sandbox.run(&["config", "explain", "approvals.rules.any.action", "--json"]);
    assert!(explained.json()["type"].as_str().unwrap().contains("`deny`"), "{explained:?}");
    assert!(explained.stderr.contains("`turn` is not a key"), "{explained:?}");
    project(&sandbox, "agent/run.yaml", "unsigned: maybe\n");
    let checked = sandbox.run(&["config", "check", "--json"]);
    checked.error_beside_data(2, "config_invalid");
    let lines: Vec<_> = checked.records().iter().map(|record| record["error"]["line"].clone()).collect();
    assert_eq!(lines, [json!(1), json!(2)]);
}

#[test]
fn an_invalid_schema_of_snapshots_is_reported_by_a_check() {
    let sandbox = Sandbox::new();
    for schema in ["{type: banana}", "{$ref: \"http://example.com/schema.json\"}"] {
        project(&sandbox, "state_persistence.yaml", &format!("state:\n  schema: {schema}\n"));
        let checked = sandbox.run(&["config", "check", "--json"]);
        checked.error_beside_data(2, "config_invalid");
        let record = &checked.records()[0];
        assert_eq!((&record["ok"], &record["error"]["line"]), (&json!(false), &json!(2)), "{record}");
        assert!(record["error"]["file"].as_str().unwrap().ends_with("config/state_persistence.yaml"), "{record}");
        let shown = sandbox.run(&["config", "check"]);
        assert!(shown.stderr.contains("is not a valid JSON Schema") && shown.stderr.contains("line 2"), "{shown:?}");
    }
    project(&sandbox, "state_persistence.yaml", "state: {schema: {type: object}}\n");
    assert_eq!(sandbox.run(&["config", "check", "--json"]).json()["ok"], true);
}

#[test]
fn a_cycle_is_named() {
    let sandbox = Sandbox::new();
    project(&sandbox, "agent/limits.yaml", "extends: team/a.yaml\n");
    project(&sandbox, "team/a.yaml", "extends: ../agent/limits.yaml\n");
    sandbox.run(&["config", "check", "--json"]).error_beside_data(2, "config_cycle");
    sandbox.run(&["config", "list", "--json"]).error(2, "config_cycle");
}

#[test]
fn a_valid_configuration_is_reported_with_its_files_and_ignored_values() {
    let sandbox = Sandbox::new();
    project(&sandbox, "coordination.yaml", "coordination: {continuation: {trigger_threshold: 0.8}}\n");
    project(&sandbox, "agent/run.yaml", "environment: [HOME]\n");
    let checked = sandbox.run(&["config", "check", "--json"]).json();
    assert_eq!((&checked["ok"], checked["files"].as_array().unwrap().len()), (&json!(true), 2));
    let notices = checked["notices"].as_array().unwrap();
    assert!(
        notices
            .iter()
            .any(|notice| notice.as_str().unwrap().contains("`config/agent/coordination.yaml` is its new path"))
    );
    assert!(notices.iter().any(|notice| notice.as_str().unwrap().contains("only the user can set it")), "{notices:?}");
    let got = sandbox.run(&["config", "get", "coordination.continuation.trigger_threshold"]);
    assert_eq!(got.stdout, "0.8\n");
    assert!(got.stderr.contains("is its new path"), "{got:?}");
}

#[test]
fn the_override_of_document_001_is_applied() {
    let sandbox = Sandbox::new();
    let text = "extends: \"rye/agent/threads/config/state_schema.yaml\"\nretention:\n  max_checkpoints: 20\n";
    project(&sandbox, "state_persistence.yaml", text);
    let explained = sandbox.run(&["config", "explain", "state_persistence.retention.max_checkpoints", "--json"]).json();
    assert_eq!((&explained["value"], &explained["values"][1]["line"]), (&json!(20), &json!(3)));
    assert_eq!(sandbox.run(&["config", "get", "state_persistence.retention.cleanup.keep_last_n"]).stdout, "3\n");
}

#[test]
fn schemas_are_printed_for_editors() {
    let sandbox = Sandbox::empty();
    let all = sandbox.run(&["config", "check", "--schema", "--json"]).json();
    assert!(all.as_object().unwrap().len() >= 10, "{all}");
    let limits = sandbox.run(&["config", "check", "--schema", "limits", "--json"]).json();
    assert_eq!(limits, all["limits"]);
    assert_eq!(limits["properties"]["turns"]["default"], 25);
    let shown = sandbox.run(&["config", "check", "--schema", "run"]).stdout;
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), all["run"]);
    sandbox.run(&["config", "check", "--schema", "limit", "--json"]).error(3, "config_key_not_found");
}

const TASK: &str = "---\nname: task\nversion: 1.0.0\npermissions: [tool.file.*]\n---\nDo it.\n";
const READ: &str =
    "turns:\n  - calls: [{ tool: file_read, arguments: { path: notes.txt } }]\n  - say: done\n    repeat: forever\n";

fn with_task() -> Sandbox {
    let sandbox = Sandbox::new();
    for (name, text) in [(".ai/directives/task.md", TASK), ("read.yaml", READ), ("notes.txt", "notes")] {
        let file = sandbox.project().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    sandbox
}

const RUN: [&str; 5] = ["run", "task", "--model", "scripted:read.yaml", "--json"];

#[test]
fn a_run_uses_the_current_configuration() {
    let sandbox = with_task();
    project(&sandbox, "agent/limits.yaml", "turns: 1\n");
    sandbox.run(&RUN).error_beside_data(8, "limit_reached");
    project(&sandbox, "agent/limits.yaml", "turns: 2\n");
    assert_eq!(sandbox.run(&RUN).code, Some(0));
    project(
        &sandbox,
        "agent/approvals.yaml",
        "rules: [{id: reading, tool: file_read, action: deny, reason: not today}]\n",
    );
    let denied = sandbox.run(&RUN);
    assert!(denied.stdout.contains("not today"), "{denied:?}");
}

#[test]
fn an_error_class_decides_by_code_what_is_retried() {
    let sandbox = with_task();
    let script = "turns:\n  - { fail: [{ status: { code: 418, why: teapot } }], say: Done., repeat: forever }\n";
    fs::write(sandbox.project().join("script.yaml"), script).unwrap();
    let run = ["run", "task", "--model", "scripted:script.yaml", "--json"];
    let failed = sandbox.run(&run).error_beside_data(1, "run_failed");
    assert!(failed["message"].as_str().unwrap().contains("HTTP 418: teapot"), "{failed}");
    let classes = "wait_ms: 1\nclasses: [{ id: teapot, class: transient, codes: [418] }]\n";
    project(&sandbox, "agent/errors.yaml", classes);
    let ran = sandbox.run(&run);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_rule_for_a_missing_tool_is_reported_by_a_check_and_once_by_a_run() {
    let sandbox = with_task();
    let rules =
        "rules:\n  - { id: good, tool: spawn_thread, action: ask }\n  - { id: bad, tool: file_raed, action: deny }\n";
    project(&sandbox, "agent/approvals.yaml", rules);
    let word = "`approvals.rules.bad` matches no call: there is no tool `file_raed`; did you mean `file_read`?";
    let checked = sandbox.run(&["config", "check", "--json"]).json();
    let notices = checked["notices"].as_array().unwrap();
    assert!(notices.len() == 1 && notices[0].as_str().unwrap().contains(word), "{checked}");
    assert!(notices[0].as_str().unwrap().contains("approvals.yaml, line 3: "), "{checked}");
    let ran = sandbox.run(&RUN);
    assert_eq!((ran.code, ran.stderr.matches(word).count()), (Some(0), 1), "{ran:?}");
    // A user's rule may be for another project: only a check speaks of it.
    project(&sandbox, "agent/approvals.yaml", "rules: []\n");
    user(&sandbox, "agent/approvals.yaml", "rules: [{ id: other, tool: deploy, action: ask }]\n");
    let ran = sandbox.run(&RUN);
    assert!(ran.code == Some(0) && !ran.stderr.contains("deploy"), "{ran:?}");
    let checked = sandbox.run(&["config", "check"]);
    assert!(checked.stderr.contains("there is no tool `deploy`; `selvedge tool list`"), "{checked:?}");
}

#[test]
fn a_tier_is_the_model_that_the_configuration_names() {
    let sandbox = with_task();
    let task = TASK.replace("permissions", "model: { tier: fast }\npermissions");
    fs::write(sandbox.project().join(".ai/directives/task.md"), task).unwrap();
    let error = sandbox.run(&["run", "task", "--json"]).error(3, "model_not_found");
    assert!(error["hint"].as_str().unwrap().contains("tiers: {fast: MODEL}"), "{error}");
    project(&sandbox, "agent/models.yaml", "tiers: {fast: 'scripted:read.yaml'}\n");
    assert_eq!(sandbox.run(&["run", "task", "--json"]).code, Some(0));
}

#[test]
fn a_secret_that_the_configuration_describes_never_reaches_the_log() {
    let sandbox = with_task();
    fs::write(sandbox.project().join("notes.txt"), "own_0123456789abcdef").unwrap();
    project(&sandbox, "agent/redaction.yaml", "patterns: [{id: own, prefix: own_, length_min: 8}]\n");
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stdout.contains("own_0123") && ran.stdout.contains("[redacted]"), "{ran:?}");
}

#[test]
fn a_changed_configuration_is_reported_by_the_next_run() {
    let sandbox = with_task();
    let ran = sandbox.run(&RUN);
    let records = ran.records();
    let thread = records.last().unwrap()["thread_id"].as_str().unwrap().to_owned();
    let digest = sandbox.run(&["config", "check", "--json"]).json()["digest"].clone();
    let started = records.iter().find(|record| record["event_type"] == "run_started").unwrap();
    assert_eq!(started["payload"]["meta"]["config"], digest, "{started}");
    let same = sandbox.run(&["send", &thread, "again", "--json"]);
    assert!(same.code == Some(0) && !same.stderr.contains("configuration"), "{same:?}");
    project(&sandbox, "agent/limits.yaml", "turns: 20\n");
    let changed = sandbox.run(&["send", &thread, "again", "--json"]);
    assert!(changed.stderr.contains("the configuration changed since the last run"), "{changed:?}");
    assert!(changed.stderr.contains(".ai/config/agent/limits.yaml"), "{changed:?}");
}

#[test]
fn the_screens_of_the_configuration() {
    let sandbox = Sandbox::new();
    user(&sandbox, "agent/approvals.yaml", "default: ask\n");
    project(&sandbox, "agent/approvals.yaml", "default: allow\nrules:\n  - {id: pay, tool: pay, action: deny}\n");
    let mut screen = String::new();
    for command in [
        &["config", "list", "approvals", "--origin"][..],
        &["config", "get", "approvals.rules"],
        &["config", "explain", "approvals.default"],
        &["config", "explain", "approvals"],
        &["config", "check"],
        &["config", "get", "approval.default"],
    ] {
        let ran = sandbox.run(command);
        screen += &format!("$ selvedge {}\n{}{}\n", command.join(" "), ran.stdout, ran.stderr);
    }
    project(&sandbox, "agent/approvals.yaml", "rules:\n  - {id: pay, tol: pay, action: denied}\n");
    let ran = sandbox.run(&["config", "check"]);
    screen += &format!("$ selvedge config check\n{}{}", ran.stdout, ran.stderr);
    assert_snapshot!(masked(&screen, &sandbox));
}
