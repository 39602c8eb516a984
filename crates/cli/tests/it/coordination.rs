//! Every key of `coordination.yaml`, by its effect on runs.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::children::{PAYS, SPAWN, SPAWN_ASYNC, calling, eventually, family};
use crate::handoff::{MOST, RUN, chain, counted, counting};
use crate::running::put;
use crate::support::Sandbox;

fn set(sandbox: &Sandbox, text: &str) {
    put(sandbox, ".ai/config/agent/coordination.yaml", text);
}

/// Counts to the end; gives how many threads that took.
fn links(sandbox: &Sandbox) -> usize {
    _ = fs::remove_file(sandbox.project().join("counted.txt"));
    let ran = sandbox.run(&RUN);
    assert_eq!((ran.code, counted(sandbox).len()), (Some(0), MOST), "{ran:?}");
    chain(sandbox, ran.records()[0]["thread_id"].as_str().unwrap()).len()
}

#[test]
fn the_threshold_sets_how_full_a_context_may_be() {
    let sandbox = counting(1000);
    set(&sandbox, "coordination: { continuation: { trigger_threshold: 0.9 } }\n");
    let late = links(&sandbox);
    set(&sandbox, "coordination: { continuation: { trigger_threshold: 0.45 } }\n");
    let early = links(&sandbox);
    assert!(early > late, "{late} {early}");
}

#[test]
fn the_resume_ceiling_limits_what_a_successor_starts_with() {
    let sandbox = counting(800);
    let kept = || {
        let root = sandbox.run(&RUN).records()[0]["thread_id"].as_str().unwrap().to_owned();
        _ = fs::remove_file(sandbox.project().join("counted.txt"));
        let shown = sandbox.run(&["chain", &root, "--json"]).json();
        shown["chain"][0]["continued"]["trailing_turns"].as_u64().unwrap()
    };
    let much = kept();
    set(&sandbox, "coordination: { continuation: { resume_ceiling_tokens: 100 } }\n");
    let little = kept();
    assert!(little < much, "{little} {much}");
}

#[test]
fn a_window_that_no_provider_knows_is_the_configured_one() {
    let sandbox = counting(440);
    let script = fs::read_to_string(sandbox.project().join("script.yaml")).unwrap();
    put(&sandbox, "script.yaml", script.split_once('\n').unwrap().1);
    assert_eq!(links(&sandbox), 1);
    set(&sandbox, "coordination: { continuation: { context_tokens: 440 } }\n");
    assert!(links(&sandbox) > 2);
}

#[test]
fn a_chain_has_a_maximum_length() {
    let sandbox = counting(440);
    set(&sandbox, "coordination: { continuation: { chain_max: 2 } }\n");
    let ran = sandbox.run(&RUN);
    let error = ran.error_beside_data(1, "run_suspended");
    assert!(error["message"].as_str().unwrap().contains("chain_too_deep"), "{error}");
    let root = ran.records()[0]["thread_id"].as_str().unwrap().to_owned();
    assert_eq!(chain(&sandbox, &root).len(), 2);
    // What it says to type helps once the chain may be longer.
    set(&sandbox, "coordination: { continuation: { chain_max: 50 } }\n");
    let ran = sandbox.run(&["resume", &root, "--json"]);
    assert_eq!((ran.code, counted(&sandbox).len()), (Some(0), MOST), "{ran:?}");
}

#[test]
fn a_successor_gets_the_message_of_the_configured_directive() {
    let sandbox = counting(600);
    let greeting = "---\nname: greeting\nversion: 1.0.0\ninputs:\n  - { name: original_directive }\n  - { name: original_directive_body }\n  - { name: previous_thread_id }\n  - { name: continuation_message }\n---\nWelcome after {input:previous_thread_id}, which worked on {input:original_directive}. {input:original_directive_body}\n";
    put(&sandbox, ".ai/directives/greeting.md", greeting);
    set(&sandbox, "coordination: { continuation: { directive: greeting } }\n");
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let links = chain(&sandbox, ran.records()[0]["thread_id"].as_str().unwrap());
    let word = format!("Welcome after {}, which worked on count. The task is to count to 16.", links[0].0);
    let log = sandbox.run(&["log", &links[1].0, "--json"]).stdout;
    assert!(log.contains(&word), "{log}");
}

#[test]
fn a_wait_without_a_timeout_takes_the_configured_one() {
    let (sandbox, _) = Sandbox::with_thread();
    let on = sandbox.new_thread("scribe");
    set(&sandbox, "coordination: { wait_threads: { default_timeout: 0.2 } }\n");
    let store = sandbox.open();
    let lease =
        selvedge_store::Leases::acquire(&store, &on.parse().unwrap(), selvedge_store::Acquire::default()).unwrap();
    let begun = Instant::now();
    let ran = sandbox.run(&["wait", &on, "--json"]);
    ran.error_beside_data(1, "wait_timeout");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(lease);
}

#[test]
fn only_the_configured_number_of_children_runs_at_the_same_time() {
    let clashes = |most: u64| {
        let sandbox = family(&calling(&format!("{SPAWN}, {SPAWN}, {SPAWN}")), PAYS);
        let tool = json!({
            "name": "pay", "description": "Pays.", "class": "at_most_once", "environment": ["PATH"],
            "input_schema": {"type": "object"},
            "command": ["sh", "-c", "mkdir till 2>/dev/null || echo clash >> clash.txt; sleep 0.5; rmdir till 2>/dev/null; echo ok"],
        });
        put(&sandbox, ".ai/tools/pay.yaml", &tool.to_string());
        set(&sandbox, &format!("coordination: {{ concurrency: {{ children_max: {most} }} }}\n"));
        let ran = sandbox.run(&["run", "parent"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        sandbox.project().join("clash.txt").exists()
    };
    assert!(!clashes(1), "two were at the till at once");
    assert!(clashes(8), "they waited for one another");
}

/// Sync and async children share the slots; a child without one waits.
#[test]
fn the_limit_of_concurrent_children_counts_both_kinds() {
    let calls = [[SPAWN_ASYNC; 3], [SPAWN, SPAWN_ASYNC, SPAWN]].concat().join(", ");
    let sandbox = family(&calling(&calls), PAYS);
    let tool = json!({
        "name": "pay", "description": "Pays.", "class": "at_most_once", "environment": ["PATH"],
        "input_schema": {"type": "object"},
        "command": ["sh", "-c", "echo in >> door.txt; sleep 0.4; echo out >> door.txt; echo ok"],
    });
    put(&sandbox, ".ai/tools/pay.yaml", &tool.to_string());
    set(&sandbox, "coordination: { concurrency: { children_max: 2 } }\n");
    let ran = sandbox.run(&["run", "parent"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let door = || fs::read_to_string(sandbox.project().join("door.txt")).unwrap();
    eventually("all six came and went", || door().lines().filter(|line| *line == "out").count() == 6);
    let mut inside = 0;
    let mut most = 0;
    for line in door().lines() {
        inside = if line == "in" { inside + 1 } else { inside - 1 };
        most = most.max(inside);
    }
    assert_eq!(most, 2, "{}", door());
}

#[test]
fn a_log_of_an_untrusted_key_is_refused_or_shown_with_a_warning_and_never_continued() {
    let (sandbox, thread) = Sandbox::with_thread();
    let stranger = sandbox.root().join("stranger");
    let run = |args: &[&str]| {
        let mut command = sandbox.command(args);
        crate::support::Ran::of(
            command.env("SELVEDGE_HOME", &stranger).stdin(std::process::Stdio::null()).spawn().unwrap(),
        )
    };
    assert_eq!(run(&["init", "--json"]).code, Some(0));
    assert_eq!(run(&["state", &thread, "--json"]).code, Some(6), "strict is the default");
    // A project does not decide how careful its user is.
    set(&sandbox, "coordination:\n  transcript_integrity: lenient\n");
    assert_eq!(run(&["state", &thread, "--json"]).code, Some(6));
    let own = stranger.join("config/agent/coordination.yaml");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(own, "coordination:\n  transcript_integrity: lenient\n").unwrap();
    let shown = run(&["state", &thread, "--json"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.stderr.contains("WARNING: not verified"), "{}", shown.stderr);
    assert_eq!(shown.json()["thread_id"], thread.as_str());
    let refused = run(&["send", &thread, "go on", "--json"]);
    assert_eq!(refused.code, Some(6), "{refused:?}");
}
