//! `selvedge log`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{HELLO, Sandbox};

#[test]
fn json_has_every_line_in_order() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let records = sandbox.run(&["log", &thread, "--json"]).records();
    let types: Vec<_> = records.iter().map(|record| record["event_type"].as_str().unwrap()).collect();
    assert_eq!(types, ["thread_created", "checkpoint", "message", "checkpoint"]);
    for (seq, record) in records.iter().enumerate() {
        assert_eq!((&record["seq"], &record["thread_id"]), (&seq.into(), &thread.as_str().into()));
        assert!(record["timestamp"].as_str().unwrap().ends_with('Z') && record["payload"].is_object());
    }
}

#[test]
fn raw_is_the_file_to_the_byte() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", r#"{"reason":"UserMessage","messages":[{"role":"user","content":"Grüße\n\u0007"}]}"#);
    let file = fs::read_to_string(sandbox.transcript(&thread)).unwrap();
    assert_eq!(sandbox.run(&["log", &thread, "--raw"]).stdout, file);
    let lines: Vec<_> = file.split_inclusive('\n').collect();
    assert_eq!(sandbox.run(&["log", &thread, "--raw", "--after", "1"]).stdout, lines[2..].concat());
    assert_eq!(sandbox.run(&["log", &thread, "--raw", "--after", "0", "--limit", "2"]).stdout, lines[1..3].concat());
}

#[test]
fn after_and_limit_select_lines() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let seqs = |args: &[&str]| -> Vec<Value> {
        let ran = sandbox.run(&[&["log", &thread, "--json"], args].concat());
        ran.records().into_iter().map(|record| record["seq"].clone()).collect()
    };
    assert_eq!(seqs(&["--after", "1"]), [2, 3]);
    assert_eq!(seqs(&["--after", "3"]), [0; 0]);
    assert_eq!(seqs(&["--limit", "1"]), [0]);
    assert_eq!(seqs(&["--after", "0", "--limit", "2"]), [1, 2]);
    assert_eq!(seqs(&["--limit", "0"]), [0; 0]);
}

#[test]
fn untrusted_text_can_not_control_the_terminal() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", r#"{"reason":"UserMessage","messages":[{"role":"user","content":"a\u001b[2Jb\nc"}]}"#);
    let shown = sandbox.run(&["log", &thread]).stdout;
    assert!(shown.contains(r"user: a\u{1b}[2Jb c") && !shown.contains('\u{1b}'), "{shown}");
}

fn follow(sandbox: &Sandbox, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = sandbox.command(args).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (child, stdout)
}

fn next(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line
}

#[test]
fn follow_shows_new_commits() {
    let (sandbox, thread) = Sandbox::with_thread();
    for mode in ["--json", "--raw"] {
        let (mut child, mut lines) =
            follow(&sandbox, &["log", &thread, "--follow", "--after", "0", "--limit", "4", mode]);
        assert!(next(&mut lines).contains("checkpoint"));
        sandbox.append(&thread, "any", HELLO);
        sandbox.new_thread("other");
        sandbox.append(&thread, "any", HELLO);
        let seen = [next(&mut lines), next(&mut lines), next(&mut lines)];
        assert!(
            seen[0].contains("\"message\"") && seen[1].contains("\"checkpoint\"") && seen[2].contains("\"message\""),
            "{seen:?}"
        );
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(next(&mut lines), "");
    }
}

#[test]
fn a_closed_stdout_ends_follow_quietly() {
    let (sandbox, thread) = Sandbox::with_thread();
    let (mut child, mut lines) = follow(&sandbox, &["log", &thread, "--follow"]);
    next(&mut lines);
    drop(lines);
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it goes on without a listener");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

#[test]
fn an_interrupt_exits_with_130() {
    let (sandbox, thread) = Sandbox::with_thread();
    let (mut child, mut lines) = follow(&sandbox, &["log", &thread, "--follow"]);
    next(&mut lines);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn an_invalid_line_is_reported() {
    let (sandbox, thread) = Sandbox::with_thread();
    let path = sandbox.transcript(&thread);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("thread_created", "thread_drawn__")).unwrap();
    let error = sandbox.run(&["log", &thread, "--json"]).error(6, "invalid_line");
    assert!(error["message"].as_str().unwrap().starts_with("line 1 of the log"), "{error}");
    let raw = sandbox.run(&["log", &thread, "--raw"]);
    assert_eq!(raw.code, Some(6), "the bytes are shown, and what they are worth is said");
}
