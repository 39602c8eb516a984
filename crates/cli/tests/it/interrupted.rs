//! Ctrl-C, `cancel` and `kill`: what is stopped, how soon, and the exit code.

use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::running::{
    PAY_ONCE, TASK, is_orphaned, killed_in_the_middle, pay, project, start_and_await, status, thread_of,
};
use crate::support::{Ran, Sandbox};

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "it never came to this: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// An interrupted wait was reported as "not allowed".
#[test]
fn interrupting_a_queued_send_exits_with_130_and_the_message_is_served() {
    let sandbox = project(TASK, &pay("while [ ! -e fast ]; do sleep 0.05; done"), PAY_ONCE);
    let running = start_and_await(&sandbox, 1);
    let mut command = sandbox.command(&["send", "task", "and hurry", "--json"]);
    let waiting = command.stdin(std::process::Stdio::null()).spawn().unwrap();
    let notes = || sandbox.run(&["doctor", "--json"]).stdout.contains("requests_queued");
    eventually("the message waits", notes);
    interrupt(&waiting);
    let ran = Ran::of(waiting);
    let error = ran.error_beside_data(130, "message_queued");
    assert!(error["hint"].as_str().unwrap().contains("selvedge log"), "{error}");
    std::fs::write(sandbox.project().join("fast"), "").unwrap();
    let ran = Ran::of(running);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let log = sandbox.run(&["log", &thread_of(&ran), "--json"]).stdout;
    assert!(log.contains("and hurry"), "{log}");
}

/// A tool that ignores TERM has two seconds; a second Ctrl-C does not wait for them.
#[test]
fn interrupting_twice_kills_a_tool_that_ignores_term() {
    let sandbox = project(TASK, &pay("trap '' TERM INT; while :; do sleep 0.05; done"), PAY_ONCE);
    let child = start_and_await(&sandbox, 1);
    interrupt(&child);
    thread::sleep(Duration::from_millis(300));
    assert!(is_orphaned(&sandbox), "it ignores the first");
    let begun = Instant::now();
    interrupt(&child);
    let ran = Ran::of(child);
    assert!(begun.elapsed() < Duration::from_millis(1500), "it took {:?}", begun.elapsed());
    ran.error_beside_data(1, "run_failed");
    let thread = thread_of(&ran);
    assert_eq!((status(&sandbox, &thread).as_str(), is_orphaned(&sandbox)), ("killed", false));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["send", &thread, "go on"]).code, Some(0), "the thread goes on");
}

#[test]
fn a_thread_that_never_ran_can_be_cancelled_and_sent_to() {
    for (verb, status) in [("cancel", "cancelled"), ("kill", "killed")] {
        let (sandbox, thread) = Sandbox::with_thread();
        let expected = json!({"thread_id": thread, "status": status, "pid": null});
        assert_eq!(sandbox.run(&[verb, &thread, "--json"]).json(), expected);
        assert_eq!(sandbox.run(&[verb, &thread, "--json"]).json(), expected, "again changes nothing");
        assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
        assert_eq!(sandbox.run(&["send", &thread, "hello"]).code, Some(0));
    }
}

/// Doctor told people to write the end of a run by hand.
#[test]
fn the_remedy_of_doctor_for_a_dead_run_works() {
    let sandbox = project(TASK, &pay("[ -e fast ] || sleep 60"), PAY_ONCE);
    let thread = killed_in_the_middle(&sandbox);
    let report = sandbox.run(&["doctor", "--json"]).records().remove(0);
    let findings = report["findings"].as_array().unwrap();
    let left =
        findings.iter().find(|finding| finding["code"] == "thread_stalled").unwrap_or_else(|| panic!("{report}"));
    let help = left["help"].as_str().unwrap();
    assert!(help.contains(&format!("`selvedge resume {thread}`")), "{help}");
    assert_eq!(sandbox.run(&["resume", &thread]).code, Some(7), "a decision is needed, and reported");
    let report = sandbox.run(&["doctor", "--json"]);
    assert!(!report.stdout.contains("thread_stalled"), "{report:?}");
}

/// Looking at a dead run once settled it, without the snapshot that a suspension promises.
#[test]
fn reading_a_dead_run_writes_nothing_and_the_next_writer_settles_it_with_its_snapshot() {
    let sandbox = project(TASK, &pay("[ -e fast ] || sleep 60"), PAY_ONCE);
    let thread = killed_in_the_middle(&sandbox);
    let log = || std::fs::read(sandbox.threads().join(&thread).join("transcript.jsonl")).unwrap();
    let before = log();
    let take_up = format!("selvedge resume {thread}");
    for look in [&["thread", "show"][..], &["tree"], &["wait", "--timeout", "5"], &["budget"], &["thread", "list"]] {
        let named: &[&str] = if look == ["thread", "list"] { &[] } else { &[&thread] };
        let ran = sandbox.run(&[look, named].concat());
        let shown = format!("{}{}", ran.stdout, ran.stderr);
        let is_told = shown.contains("stalled") || shown.contains("does not go on");
        assert!(look == ["budget"] || look == ["thread", "list"] || is_told, "{look:?}: {ran:?}");
        assert!(look == ["budget"] || look == ["thread", "list"] || shown.contains(&take_up), "{look:?}: {ran:?}");
        assert_eq!(log(), before, "{look:?} wrote to the log");
    }
    let shown = sandbox.run(&["thread", "show", &thread, "--json"]).json();
    assert_eq!((&shown["status"], &shown["needs"]["commands"]), (&json!("stalled"), &json!([take_up])), "{shown}");
    assert!(!sandbox.threads().join(&thread).join("state.json").exists());
    assert_eq!(sandbox.run(&["resume", &thread]).code, Some(7), "a person must decide about the call");
    let state = sandbox.run(&["state", &thread, "--snapshot", "--json"]).json();
    assert_eq!((&state["status"], &state["trigger"]), (&json!("suspended"), &json!("on_suspend")), "{state}");
}

/// The second decision replaced the first, which may already have been applied.
#[test]
fn the_first_decision_about_a_call_counts() {
    let sandbox = project(TASK, &pay("sleep 60"), PAY_ONCE);
    let thread = killed_in_the_middle(&sandbox);
    let settle =
        |how: &[&str]| sandbox.run(&[&["settle", "call_1", "--thread", &thread, "--no-run", "--json"], how].concat());
    assert_eq!(settle(&["--done", "receipt 7"]).json()["recorded"], "now");
    assert_eq!(settle(&["--done", "receipt 7"]).json()["recorded"], "before");
    for other in [&["--not-done"][..], &["--unknown"], &["--done", "receipt 8"]] {
        settle(other).error(5, "already_decided");
    }
    assert_eq!(sandbox.run(&["resume", &thread]).code, Some(0));
    // The thread went on: the same said again changes nothing, and something else is refused.
    assert_eq!(settle(&["--done", "receipt 7"]).json()["recorded"], "before");
    settle(&["--not-done"]).error(3, "call_not_open");
}
