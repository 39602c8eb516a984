//! `selvedge replay`: recorded threads, with the current project.

use std::fs;

use serde_json::{Value, json};

use crate::children::{PAYS, SPAWN, calling, family};
use crate::running::{PAY_ONCE, RUN, TASK, paid, pay, project, put, thread_of};
use crate::support::{HELLO, Ran, Sandbox, contents};

fn replay(sandbox: &Sandbox, thread: &str, more: &[&str]) -> Ran {
    sandbox.run(&[&["replay", thread, "--json"], more].concat())
}

/// A thread that paid once.
fn payer() -> (Sandbox, String) {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let thread = thread_of(&ran);
    (sandbox, thread)
}

#[test]
fn a_replay_of_the_demos_killed_thread_is_identical() {
    let sandbox = Sandbox::empty();
    let demo = sandbox.run(&["demo", "--dir", "here", "--json"]);
    let thread = demo.records()[0]["thread_id"].as_str().unwrap().to_owned();
    let folder = sandbox.project().join("here");
    let before = contents(&folder.join("project/.ai"));
    let in_demo = |args: &[&str]| {
        let mut command = sandbox.command(args);
        command.env("SELVEDGE_HOME", folder.join("user")).current_dir(folder.join("project"));
        Ran::of(command.spawn().unwrap()).json()
    };
    for other in in_demo(&["thread", "list", "--json"])["threads"].as_array().unwrap() {
        let report = in_demo(&["replay", other["thread_id"].as_str().unwrap(), "--json"]);
        assert_eq!((&report["identical"], &report["differences"]), (&json!(true), &json!([])), "{report}");
    }
    let report = in_demo(&["replay", &thread, "--json"]);
    assert_eq!((&report["identical"], &report["differences"]), (&json!(true), &json!([])), "{report}");
    assert!(report["compared"].as_u64() > Some(10) && report["prompt"] == json!([]), "{report}");
    assert_eq!(report["state_recorded"], report["state_now"]);
    let paid = fs::read_to_string(folder.join("project/paid.txt")).unwrap();
    assert_eq!(paid.lines().count(), 3, "no payment is repeated");
    let logs = |files: Vec<(std::path::PathBuf, Vec<u8>)>| -> Vec<_> {
        files.into_iter().filter(|(path, _)| path.ends_with("transcript.jsonl")).collect()
    };
    assert_eq!(logs(contents(&folder.join("project/.ai"))), logs(before), "the thread is not touched");
}

#[test]
fn a_replay_applies_the_current_rules_to_a_recorded_thread() {
    let (sandbox, thread) = payer();
    assert_eq!(replay(&sandbox, &thread, &[]).json()["identical"], true);
    put(&sandbox, ".ai/config/agent/approvals.yaml", "rules:\n  - { id: money, tool: pay, action: ask }\n");
    let ran = replay(&sandbox, &thread, &[]);
    let error = ran.error_beside_data(1, "replay_diverged");
    let report = &ran.records()[0];
    let asked = &report["differences"][0];
    let difference = &report["differences"][1];
    assert_eq!((&asked["what"], &asked["reason"]), (&json!("asked"), &json!("AssistantTurnCommitted")), "{report}");
    assert_eq!((&difference["what"], &difference["reason"]), (&json!("changeset"), &json!("ToolIntentCommitted")));
    assert_eq!((&report["ended_at"], &error["version"]), (&difference["version"], &asked["version"]));
    assert_eq!(difference["now"]["events"][0]["suspended"]["code"], "approval", "{report}");
    assert_eq!(paid(&sandbox), 1);
    let screen = sandbox.run(&["replay", &thread]);
    assert!(screen.stdout.contains("ToolIntentCommitted: tool_intent pay"), "{screen:?}");
    assert!(screen.stdout.contains("suspended approval"), "{screen:?}");
    // Nothing follows, and no hint suggests it.
    let hint = error["hint"].as_str().unwrap();
    assert!(!hint.contains("--from") && hint.contains(&format!("selvedge log {thread}")), "{error}");
    assert_eq!(sandbox.run(&["log", &thread]).code, Some(0));
    let version = difference["version"].to_string();
    let nothing = replay(&sandbox, &thread, &["--from", &version]);
    let error = nothing.error(2, "nothing_to_compare");
    assert!(error["hint"].as_str().unwrap().contains(&format!("selvedge replay {thread} --from 0")), "{error}");
    replay(&sandbox, &thread, &["--from", "0"]).error_beside_data(1, "replay_diverged");
}

#[test]
fn the_hinted_command_compares_the_runs_after_a_difference() {
    let (sandbox, thread) = payer();
    assert_eq!(sandbox.run(&["send", &thread, "more"]).code, Some(0));
    put(&sandbox, ".ai/config/agent/approvals.yaml", "rules:\n  - { id: money, tool: pay, action: ask }\n");
    let error = replay(&sandbox, &thread, &[]).error_beside_data(1, "replay_diverged");
    let hint = error["hint"].as_str().unwrap();
    let words: Vec<&str> = hint.split('`').nth(1).unwrap().split(' ').skip(1).chain(["--json"]).collect();
    let report = sandbox.run(&words).json();
    assert!(report["identical"] == true && report["compared"].as_u64() > Some(0), "{report}");
}

#[test]
fn a_replay_from_the_middle_of_a_run_compares_what_follows() {
    let (sandbox, thread) = payer();
    let whole = replay(&sandbox, &thread, &[]).json();
    let last = whole["version"].as_u64().unwrap();
    let compared = whole["compared"].as_u64().unwrap();
    for from in 1..last {
        let report = replay(&sandbox, &thread, &["--from", &from.to_string()]).json();
        assert_eq!((&report["identical"], &report["from_record"]), (&json!(true), &json!(from + 1)), "{report}");
        assert_eq!(report["compared"], json!(compared - from), "{report}");
    }
    let nothing = replay(&sandbox, &thread, &["--from", &last.to_string()]);
    // It was said to be identical, beside the error.
    let error = nothing.error(2, "nothing_to_compare");
    let hint = error["hint"].as_str().unwrap();
    let from = hint.split("--from ").nth(1).unwrap().split('`').next().unwrap();
    assert_eq!(replay(&sandbox, &thread, &["--from", from]).json()["identical"], true);
    // What differs before that version is not looked at; what differs behind it is found.
    put(&sandbox, ".ai/config/agent/approvals.yaml", "rules:\n  - { id: money, tool: pay, action: ask }\n");
    let ran = replay(&sandbox, &thread, &["--from", "2"]);
    let error = ran.error_beside_data(1, "replay_diverged");
    assert!(error["version"].as_u64() > Some(2) && ran.records()[0]["from_record"] == json!(3), "{error}");
}

/// What is said beside a replay, by its name.
fn told(report: &Value) -> Vec<(&str, &Value, &Value)> {
    let told = report["prompt"].as_array().unwrap().iter();
    told.map(|told| (told["what"].as_str().unwrap(), &told["recorded"], &told["now"])).collect()
}

#[test]
fn what_the_current_directive_would_grant_is_reported_and_can_be_replayed() {
    let (sandbox, thread) = payer();
    put(&sandbox, ".ai/directives/task.md", &TASK.replace("[tool.pay]", "[]"));
    let report = replay(&sandbox, &thread, &[]).json();
    assert_eq!(report["identical"], true, "a thread keeps what it was born with: {report}");
    let pay = json!(["selvedge.execute.tool.pay"]);
    assert_eq!(told(&report), [("capabilities", &pay, &json!([]))]);
    let ran = replay(&sandbox, &thread, &["--current-directive"]);
    ran.error_beside_data(1, "replay_diverged");
    let difference = &ran.records()[0]["differences"][0];
    assert_eq!(difference["reason"], "ToolIntentCommitted", "{difference}");
    assert!(difference["now"].to_string().contains("capability_denied"), "{difference}");
    put(&sandbox, ".ai/directives/task.md", TASK);
    let same = replay(&sandbox, &thread, &["--current-directive"]).json();
    assert_eq!((&same["identical"], &same["prompt"]), (&json!(true), &json!([])), "{same}");
    fs::remove_file(sandbox.project().join(".ai/directives/task.md")).unwrap();
    let gone = replay(&sandbox, &thread, &[]).json();
    let said = told(&gone);
    assert_eq!((said.len(), said[0].0, said[0].1), (1, "directive", &json!("task")), "{gone}");
    assert!(sandbox.run(&["replay", &thread]).stderr.contains("directive: recorded \"task\""));
    assert_eq!(replay(&sandbox, &thread, &["--current-directive"]).code, Some(3));
}

#[test]
fn replays_of_threads_with_children_or_handoffs_are_identical() {
    let sandbox = family(&calling(SPAWN), PAYS);
    let parent = thread_of(&sandbox.run(&["run", "parent", "--json"]));
    let script = "turns:\n  - { when: { user: { equals: enough } }, calls: [{ tool: handoff_thread, arguments: {} }] }\n  - { say: I took over., repeat: forever }\n";
    put(&sandbox, "script.yaml", script);
    let handed = sandbox.run(&["send", &parent, "enough", "--json"]);
    let successor = handed.records().pop().unwrap()["thread_id"].as_str().unwrap().to_owned();
    assert_ne!(successor, parent);
    let child = sandbox.run(&["tree", &parent, "--json"]).json()["children"][0]["thread_id"].clone();
    let before = sandbox.run(&["thread", "list", "--json"]).json();
    for thread in [&parent, &successor, child.as_str().unwrap()] {
        let report = replay(&sandbox, thread, &[]).json();
        assert_eq!((&report["identical"], &report["prompt"]), (&json!(true), &json!([])), "{report}");
        assert!(report["compared"].as_u64() > Some(1), "{report}");
    }
    assert_eq!(sandbox.run(&["thread", "list", "--json"]).json(), before, "nothing is started");
    assert_eq!(paid(&sandbox), 1);
}

#[test]
fn changed_limits_and_a_missing_tool_are_reported_where_they_matter() {
    let (sandbox, thread) = payer();
    let limited = replay(&sandbox, &thread, &["--limit", "turns=1"]);
    limited.error_beside_data(1, "replay_diverged");
    let difference = &limited.records()[0]["differences"][0];
    assert_eq!(difference["reason"], "AssistantTurnCommitted", "the second turn");
    assert_eq!(difference["now"]["events"][0]["suspended"]["code"], "turns_exceeded");
    fs::remove_file(sandbox.project().join(".ai/tools/pay.yaml")).unwrap();
    let gone = replay(&sandbox, &thread, &[]);
    gone.error_beside_data(1, "replay_diverged");
    assert_eq!(gone.records()[0]["differences"][0]["reason"], "ToolIntentCommitted");
}

#[test]
fn a_changed_prompt_is_reported_and_is_not_a_difference() {
    let (sandbox, thread) = payer();
    put(&sandbox, ".ai/directives/task.md", &TASK.replace("Do it.", "Do it well."));
    put(&sandbox, ".ai/tools/pay.yaml", &pay("echo ok").replace("Pays.", "Pays a person."));
    fs::remove_file(sandbox.project().join("script.yaml")).unwrap();
    let report = replay(&sandbox, &thread, &[]).json();
    assert_eq!((&report["identical"], &report["redefined"]), (&json!(true), &json!(["pay"])), "{report}");
    let told: Vec<&Value> = report["prompt"].as_array().unwrap().iter().collect();
    let what: Vec<&str> = told.iter().map(|told| told["what"].as_str().unwrap()).collect();
    assert_eq!(what, ["first message", "tool `pay`"]);
    assert_eq!((&told[0]["recorded"], &told[0]["now"]), (&json!("Do it."), &json!("Do it well.")));
    assert_eq!(told[1]["now"]["description"], "Pays a person.");
}

#[test]
fn a_log_that_is_not_what_was_signed_is_not_replayed() {
    let (sandbox, thread) = payer();
    let log = sandbox.transcript(&thread);
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, text.replacen("anna", "emma", 1)).unwrap();
    replay(&sandbox, &thread, &[]).error(6, "log_damaged");
}

#[test]
fn changesets_of_other_programs_are_taken_from_the_record() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let report = replay(&sandbox, &thread, &[]).json();
    assert_eq!(
        (&report["identical"], &report["compared"], &report["from_record"]),
        (&json!(true), &json!(0), &json!(2))
    );
    let screen = sandbox.run(&["replay", &thread]);
    assert!(screen.stdout.starts_with("no changeset of "), "{screen:?}");
    replay(&sandbox, &thread, &["--from", "9"]).error(3, "version_not_found");
    replay(&sandbox, "missing", &[]).error(3, "thread_not_found");
}
