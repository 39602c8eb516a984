//! A reader of stdout that is too slow for a run: the run does not wait for it, and no committed event is missing in what it reads.
//!
//! Events wait in a bounded queue. A screen that shows what is left in it would show a user a run with holes.

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::running::{put, status};
use crate::support::{Ran, Sandbox};

/// More turns than events wait for a reader.
const TURNS: usize = 600;

/// What the model says in each, in many pieces: all of it together is far more than a pipe holds.
fn answer() -> String {
    "Let me see what is there. ".repeat(20).trim().to_owned()
}

fn many_turns() -> Sandbox {
    let sandbox = Sandbox::new();
    put(
        &sandbox,
        ".ai/directives/task.md",
        "---\nname: task\nversion: 1.0.0\npermissions: [tool.file.list]\n---\nDo it.\n",
    );
    let say: Vec<String> = answer().split_inclusive(' ').map(str::to_owned).collect();
    let calls = json!([{"tool": "file_list", "arguments": {"path": "empty"}}]);
    let turns = json!([{"say": say, "calls": calls, "repeat": TURNS}, {"say": "Done, at last."}]);
    put(&sandbox, "script.yaml", &json!({ "turns": turns }).to_string());
    put(&sandbox, "empty/file", "");
    sandbox
}

/// Runs to the end without a reader of stdout, and reads it then.
fn read_late(sandbox: &Sandbox, more: &[&str]) -> (String, Ran) {
    let limits =
        ["run", "task", "--model", "scripted:script.yaml", "--limit", "turns=1000", "--limit", "tokens=100000000"];
    let mut child: Child = sandbox.command(&[&limits[..], more].concat()).stdin(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let thread = loop {
        let listed = sandbox.run(&["thread", "list", "--json"]).json();
        let thread = listed["threads"][0]["thread_id"].as_str().map(str::to_owned);
        if let Some(thread) = thread.filter(|thread| status(sandbox, thread) == "completed") {
            break thread;
        }
        assert!(child.try_wait().unwrap().is_none(), "{:?}", Ran::of(child));
        assert!(Instant::now() < deadline, "the run waits for its reader");
        thread::sleep(Duration::from_millis(100));
    };
    (thread, Ran::of(child))
}

#[test]
fn every_committed_event_is_read_once_and_in_order() {
    let sandbox = many_turns();
    let (thread, ran) = read_late(&sandbox, &["--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let records = ran.records();
    let seqs = |records: &[Value], fits: &dyn Fn(&Value) -> bool| -> Vec<u64> {
        records.iter().filter(|record| fits(record)).filter_map(|record| record["seq"].as_u64()).collect()
    };
    let shown = seqs(&records, &|record| record["type"] == "committed");
    // What it was born with was committed before it ran.
    let log = sandbox.run(&["log", &thread, "--json"]).records();
    let logged =
        seqs(&log, &|line| line["event_type"] != "checkpoint" && line["seq"].as_u64() >= shown.first().copied());
    assert_eq!(shown, logged);
    let missed: Vec<_> = records.iter().filter(|record| record["type"] == "missed").collect();
    assert!(!missed.is_empty() && missed.iter().all(|record| record["drafts"].is_number()), "{missed:?}");
    assert_eq!(records.last().unwrap()["type"], "ended");
}

#[test]
fn text_output_has_every_answer_whole() {
    let sandbox = many_turns();
    let (_, ran) = read_late(&sandbox, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let answers = ran.stdout.lines().filter(|line| *line == answer()).count();
    assert_eq!((answers, ran.stdout.matches("Done, at last.").count()), (TURNS, 1));
}
