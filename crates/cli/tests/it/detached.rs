//! A thread in a process of its own: the identity of the process is recorded before it may act, and only by that is it killed.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::children::{SLEEPS, calling, eventually, family, has};
use crate::running::{put, status};
use crate::support::{Ran, Sandbox};

fn signal(name: &str, pid: u64) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

/// Starts a thread that sleeps, in a process of its own; gives both.
fn sleeper(sandbox: &Sandbox) -> (String, u64) {
    let started = sandbox.run(&["run", "child", "--detach", "--json"]).json();
    let thread = started["thread_id"].as_str().unwrap().to_owned();
    eventually("it runs", || has(sandbox, "begun.txt"));
    let log = sandbox.run(&["log", &thread, "--json"]).records();
    assert_eq!(log[0]["event_type"], "thread_created");
    let process = &log[0]["payload"]["process"];
    assert!(process["start_time"].is_u64() && process["boot_id"].is_string(), "{}", log[0]);
    (thread, process["pid"].as_u64().unwrap())
}

#[test]
fn an_unresponsive_detached_run_is_killed_by_the_process_identity_in_its_log() {
    let sandbox = family(&calling(""), SLEEPS);
    let (thread, pid) = sleeper(&sandbox);
    signal("-STOP", pid);
    let ran = sandbox.run(&["kill", &thread, "--json"]);
    let told = ran.json();
    assert_eq!((ran.code, &told["status"], &told["pid"]), (Some(0), &json!("killed"), &json!(pid)), "{ran:?}");
    assert_eq!(status(&sandbox, &thread), "killed");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z"), "it lives: {stat}");
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

#[test]
fn a_held_thread_names_the_process() {
    let sandbox = family(&calling(""), SLEEPS);
    let (thread, pid) = sleeper(&sandbox);
    let error = sandbox.run(&["resume", &thread, "--json"]).error(4, "lease_held");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("leased to process {pid}")), "{message}");
    // And what is told to do helps.
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains(&format!("`selvedge cancel {thread}`")), "{hint}");
    sandbox.run(&["cancel", &thread, "--json"]).json();
    eventually("it has ended", || status(&sandbox, &thread) == "cancelled");
}

/// Edits the last words of a model in a log, which stays as long as it was.
fn edit(sandbox: &Sandbox, thread: &str) {
    let log = sandbox.threads().join(thread).join("transcript.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("The child is done."));
    fs::write(&log, text.replace("The child is done.", "The child is gone.")).unwrap();
}

#[test]
fn wait_and_search_show_nothing_of_an_edited_log() {
    let sandbox = family(&calling(""), "turns:\n  - { say: The child is done., repeat: forever }\n");
    let of = |ran: &Value| ran["thread_id"].as_str().unwrap().to_owned();
    let edited = of(sandbox.run(&["run", "child", "--json"]).records().last().unwrap());
    let sound = of(sandbox.run(&["run", "child", "--json"]).records().last().unwrap());
    edit(&sandbox, &edited);
    let ran = sandbox.run(&["wait", &edited, &sound, "--json"]);
    ran.error_beside_data(6, "integrity");
    let results = &ran.records()[0]["results"];
    assert_eq!((&results[&edited]["status"], &results[&edited]["result"]), (&json!("unverified"), &Value::Null));
    assert_eq!(results[&sound]["result"], "The child is done.", "a damaged one does not affect the others");
    assert!(!ran.stdout.contains("gone"), "{ran:?}");
    let ran = sandbox.run(&["chain", "search", &edited, "gone", "--json"]);
    assert!(ran.code == Some(6) && !ran.stdout.contains("gone"), "{ran:?}");
    put(&sandbox, "fast", "");
}

const SAYS: &str = "turns:\n  - { say: The child is done., repeat: forever }\n";

fn ended(sandbox: &Sandbox, args: &[&str]) -> String {
    let ran = sandbox.run(args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.records().last().unwrap()["thread_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_chain_is_the_same_from_each_of_its_threads_also_when_one_was_deleted() {
    let sandbox = family(&calling(""), SAYS);
    let first = ended(&sandbox, &["run", "child", "--json"]);
    let second = ended(&sandbox, &["resume", &first, "and now?", "--json"]);
    assert_eq!(sandbox.run(&["thread", "delete", &first, "--yes"]).code, Some(0));
    let chain = |thread: &str| sandbox.run(&["chain", thread, "--json"]).json();
    assert_eq!((chain(&first), &chain(&first)["chain_length"]), (chain(&second), &json!(2)));
    let found = |thread: &str| sandbox.run(&["chain", "search", thread, "done", "--json"]).json();
    assert_eq!(found(&first), found(&second));
    let third = ended(&sandbox, &["resume", &first, "go on", "--json"]);
    assert!(third != first && third != second);
    assert_eq!(chain(&first)["chain_length"], 3);
    // One whose whole chain is gone is gone.
    for thread in [&third, &second] {
        assert_eq!(sandbox.run(&["thread", "delete", thread, "--yes"]).code, Some(0));
    }
    sandbox.run(&["resume", &first, "go on", "--json"]).error(3, "thread_deleted");
}

#[test]
fn of_many_concurrent_resumes_none_reports_an_internal_failure() {
    let sandbox = family(&calling(""), SAYS);
    let first = ended(&sandbox, &["run", "child", "--json"]);
    let resume = ["resume", &first, "and now?", "--json"];
    let started: Vec<_> =
        (0..6).map(|_| sandbox.command(&resume).stdin(std::process::Stdio::null()).spawn().unwrap()).collect();
    let ran: Vec<Ran> = started.into_iter().map(Ran::of).collect();
    assert!(ran.iter().any(|ran| ran.code == Some(0)), "{ran:?}");
    for ran in &ran {
        let is_held = ran.code == Some(4) && ran.stderr.contains("lease_held");
        assert!(ran.code == Some(0) || is_held, "{ran:?}");
    }
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
    // An append to a continued thread is answered with its successor.
    let end = sandbox.run(&["chain", &first, "--json"]).json()["chain"].as_array().unwrap().last().unwrap().clone();
    put(&sandbox, "said.json", r#"{"reason":"UserMessage","messages":[{"role":"user","content":"hello"}]}"#);
    let refused = sandbox.run(&["append", &first, "--expect", "any", "--file", "said.json", "--json"]);
    let last = refused.stderr.lines().last().unwrap_or_default();
    assert!(last.contains(end["thread_id"].as_str().unwrap()), "{refused:?}");
}

#[test]
fn empty_messages_and_empty_searches_are_refused() {
    let sandbox = family(&calling(""), SAYS);
    let thread = ended(&sandbox, &["run", "child", "--json"]);
    for nothing in ["", " \n"] {
        sandbox.run(&["resume", &thread, nothing, "--json"]).error(2, "usage");
    }
    assert_eq!(sandbox.run(&["chain", &thread, "--json"]).json()["chain_length"], 1);
    let error = sandbox.run(&["chain", "search", &thread, "", "--json"]).error(2, "invalid_pattern");
    assert!(!error["hint"].as_str().unwrap_or_default().contains("--regex"), "{error}");
    let error = sandbox.run(&["chain", "search", &thread, "(", "--regex", "--json"]).error(2, "invalid_pattern");
    assert!(error["hint"].as_str().unwrap().contains("--regex"), "{error}");
}
