//! `selvedge snapshots` and `selvedge state --snapshot`: copies of the state, and that nothing depends on them.

use std::fs;

use serde_json::json;

use crate::running::{PAY_ONCE, RUN, TASK, pay, project, put};
use crate::support::Sandbox;

/// A thread that a limit suspended.
fn suspended() -> (Sandbox, String) {
    let directive = TASK.replace("permissions", "limits: { turns: 1 }\npermissions");
    let sandbox = project(&directive, &pay("true"), PAY_ONCE);
    sandbox.run(&RUN).error_beside_data(8, "limit_reached");
    let thread =
        sandbox.run(&["thread", "list", "--json"]).json()["threads"][0]["thread_id"].as_str().unwrap().to_owned();
    (sandbox, thread)
}

#[test]
fn a_suspended_thread_has_a_snapshot_and_deleting_it_changes_nothing() {
    let (sandbox, thread) = suspended();
    let listed = sandbox.run(&["snapshots", &thread, "--json"]).json();
    let one = &listed["snapshots"][0];
    assert_eq!((&one["place"], &one["usable"], &one["base"]), (&json!("newest"), &json!(true), &json!(null)));
    assert_eq!(one["log_version"], listed["log_version"]);
    let shown = sandbox.run(&["snapshots", &thread]).stdout;
    assert!(shown.contains("newest") && shown.contains("whole") && shown.contains("usable"), "{shown}");
    let ran = sandbox.run(&["state", &thread, "--snapshot", "--json"]);
    let state = ran.json();
    assert_eq!((&state["status"], &state["suspend_reason"]), (&json!("suspended"), &json!("limit")));
    assert_eq!((&state["trigger"], ran.stderr.as_str()), (&json!("on_suspend"), ""));
    fs::remove_file(sandbox.threads().join(&thread).join("state.json")).unwrap();
    let ran = sandbox.run(&["state", &thread, "--snapshot", "--json"]);
    let again = ran.json();
    assert!(ran.stderr.contains("built from the log"), "{}", ran.stderr);
    assert_eq!((&again["messages"], &again["log_hash"]), (&state["messages"], &state["log_hash"]));
    assert_eq!(sandbox.run(&["snapshots", &thread, "--json"]).json()["snapshots"], json!([]));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
}

/// A snapshot that was built from the log had no hooks: they are in the directive and not in the log.
#[test]
fn a_snapshot_built_from_the_log_has_the_hooks_of_the_directive() {
    let (sandbox, thread) = suspended();
    let file = sandbox.project().join(".ai/directives/task.md");
    let hook =
        "hooks: [{ id: end, event: after_complete, action: { primary: execute, item_type: tool, item_id: sum } }]";
    let directive = fs::read_to_string(&file).unwrap().replacen("name: task\n", &format!("name: task\n{hook}\n"), 1);
    fs::write(&file, directive).unwrap();
    fs::remove_file(sandbox.threads().join(&thread).join("state.json")).unwrap();
    let state = sandbox.run(&["state", &thread, "--snapshot", "--json"]).json();
    assert_eq!(state["hooks"], json!([{ "event": "after_complete", "directive": "sum", "inputs": {} }]), "{state}");
}

#[test]
fn an_edited_snapshot_is_reported_and_not_shown() {
    let (sandbox, thread) = suspended();
    let path = sandbox.threads().join(&thread).join("state.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("Do it.", "Undo it.")).unwrap();
    let listed = sandbox.run(&["snapshots", &thread, "--json"]).json();
    assert_eq!(listed["snapshots"][0]["usable"], json!(false));
    let ran = sandbox.run(&["state", &thread, "--snapshot", "--json"]);
    assert!(ran.stderr.contains("changed after it was signed"), "{}", ran.stderr);
    assert!(!ran.stdout.contains("Undo it."));
    let repaired = sandbox.run(&["repair", &thread]);
    assert!(repaired.stdout.contains("state.json set aside"), "{repaired:?}");
    assert_eq!(sandbox.run(&["snapshots", &thread, "--json"]).json()["snapshots"], json!([]));
}

#[test]
fn all_commands_agree_on_a_snapshot_whose_base_is_missing() {
    let directive = TASK.replace("permissions", "limits: { turns: 1 }\npermissions");
    let sandbox = project(&directive, &pay("true"), PAY_ONCE);
    let config = "checkpoint:\n  performance: { incremental: true, coalesce: always }\n";
    put(&sandbox, ".ai/config/state_persistence.yaml", config);
    sandbox.run(&RUN).error_beside_data(8, "limit_reached");
    let threads = sandbox.run(&["thread", "list", "--json"]).json();
    let thread = threads["threads"][0]["thread_id"].as_str().unwrap();
    let newest = || sandbox.run(&["snapshots", thread, "--json"]).json()["snapshots"][0].clone();
    assert!(newest()["usable"] == json!(true) && newest()["base"].is_u64(), "{}", newest());
    fs::remove_dir_all(sandbox.threads().join(thread).join("checkpoints")).unwrap();
    assert_eq!(newest()["usable"], json!(false));
    let why = newest()["why"].as_str().unwrap().to_owned();
    let shown = sandbox.run(&["state", thread, "--snapshot", "--json"]);
    assert!(
        why.contains("its base of version") && why.contains("does not exist") && shown.stderr.contains(&why),
        "{why}: {shown:?}"
    );
}

/// The list failed, `doctor` had nothing to report, and the run said nothing of it.
#[test]
fn a_file_in_the_place_of_the_archive_folder_is_reported_and_the_rest_is_listed() {
    let (sandbox, thread) = suspended();
    let file = sandbox.threads().join(&thread).join("archive");
    fs::write(&file, "mine").unwrap();
    let ran = sandbox.run(&["resume", &thread, "--raise", "turns=5"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("could not be archived or removed") && ran.stderr.contains("archive"), "{ran:?}");
    assert!(sandbox.run(&["log", &thread]).stdout.contains("snapshot_failed"));
    let ran = sandbox.run(&["snapshots", &thread, "--json"]);
    let listed = ran.json();
    assert_eq!((&listed["snapshots"][0]["place"], &listed["snapshots"][0]["usable"]), (&json!("newest"), &json!(true)));
    assert!(listed["unreadable_folders"][0].as_str().unwrap().contains("it is not a folder"), "{listed}");
    assert!(sandbox.run(&["snapshots", &thread]).stderr.contains("move it away"));
    let ran = sandbox.run(&["doctor", "--json"]);
    assert!(ran.stdout.contains("snapshot_folder_refused"), "{ran:?}");
    assert_eq!(sandbox.run(&["help", "snapshot_folder_refused"]).code, Some(0));
    fs::remove_file(&file).unwrap();
    assert_eq!(sandbox.run(&["snapshots", &thread, "--json"]).json()["unreadable_folders"], json!([]));
}

#[test]
fn an_invalid_snapshot_is_listed_as_not_usable() {
    let (sandbox, thread) = suspended();
    let path = sandbox.threads().join(&thread).join("state.json");
    let good = fs::read(&path).unwrap();
    let named = || {
        let one = &sandbox.run(&["snapshots", &thread, "--json"]).json()["snapshots"][0];
        assert_eq!((&one["place"], &one["usable"]), (&json!("newest"), &json!(false)), "{one}");
        assert!(one["why"].is_string(), "{one}");
        let shown = sandbox.run(&["snapshots", &thread]);
        assert!(shown.stdout.contains("not usable: "), "{shown:?}");
        let ran = sandbox.run(&["state", &thread, "--snapshot", "--json"]);
        assert!(
            ran.stderr.contains("`state.json` is not used: ") && ran.stderr.contains("built from the log"),
            "{ran:?}"
        );
    };
    for bytes in [0, 1, 100, 400] {
        fs::write(&path, &good[..bytes]).unwrap();
        named();
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    named();
}

/// The override that the published form of the configuration shows.
#[test]
fn a_project_overrides_when_and_how_snapshots_are_saved() {
    let sandbox = project(TASK, &pay("true"), PAY_ONCE);
    let own = "extends: \"rye/agent/threads/config/state_schema.yaml\"\n\
               checkpoint:\n  triggers:\n    pre_turn:\n      enabled: false\n    post_llm:\n      enabled: true\n  \
               performance:\n    incremental: true\n    compress: true\n    coalesce: always\n\
               retention:\n  max_checkpoints: 20\n  cleanup:\n    keep_last_n: 5\n  on_completion:\n    action: keep\n";
    put(&sandbox, ".ai/config/state_persistence.yaml", own);
    assert_eq!(sandbox.run(&RUN).code, Some(0));
    let thread =
        sandbox.run(&["thread", "list", "--json"]).json()["threads"][0]["thread_id"].as_str().unwrap().to_owned();
    let listed = sandbox.run(&["snapshots", &thread, "--json"]).json();
    let bases: Vec<bool> = listed["snapshots"].as_array().unwrap().iter().map(|one| one["base"].is_null()).collect();
    // The answer, the result, the last answer, the end; nothing before the first turn. The first is whole, the others are changes.
    assert_eq!(bases, [false, false, false, true], "{listed}");
    let file = fs::read_to_string(sandbox.threads().join(&thread).join("state.json")).unwrap();
    assert!(file.contains("deflate+base64") && !file.contains("One moment."), "{file}");
    let state = sandbox.run(&["state", &thread, "--snapshot", "--json"]).json();
    assert_eq!((&state["trigger"], state["messages"].as_array().unwrap().len()), (&json!("on_completion"), 4));
    assert_eq!(state["status"], "completed");
    let get = |key: &str| sandbox.run(&["config", "get", key]).stdout.trim().to_owned();
    assert_eq!(get("state_persistence.retention.max_checkpoints"), "20");
    assert_eq!(get("state_persistence.retention.cleanup.keep_last_n"), "5");
    assert_eq!(get("state_persistence.checkpoint.triggers.pre_turn.enabled"), "false");
}
