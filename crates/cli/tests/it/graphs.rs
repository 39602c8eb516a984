//! Graphs with the real binary: the sample pipeline of the repository, killed again and again; pages, drawings, checks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kills::{Chance, Stand, killed_until_done};
use crate::running::put;
use crate::support::{Ran, Sandbox, copy};

/// The sample pipeline in a project of its own.
fn pipeline() -> Sandbox {
    let sandbox = Sandbox::new();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pipeline"), &sandbox.project());
    sandbox
}

fn newest(sandbox: &Sandbox) -> Option<(String, String)> {
    let listed = sandbox.run(&["thread", "list", "--json"]).json()["threads"].as_array().unwrap().clone();
    let run = listed.iter().find(|thread| thread["thread_id"].as_str().unwrap().starts_with("review-"))?;
    Some((run["thread_id"].as_str().unwrap().to_owned(), run["status"].as_str().unwrap().to_owned()))
}

/// How often each city was measured.
fn measured(sandbox: &Sandbox) -> BTreeMap<String, u32> {
    let text = fs::read_to_string(sandbox.project().join("measured.txt")).unwrap_or_default();
    let mut counts = BTreeMap::new();
    for city in text.lines() {
        *counts.entry(city.to_owned()).or_default() += 1;
    }
    counts
}

/// What a complete run must have left, however often it was killed.
#[track_caller]
fn assert_complete(sandbox: &Sandbox, thread: &str) {
    let outputs = sandbox.run(&["thread", "show", thread, "--json"]).json();
    let outputs = outputs.get("outputs").or_else(|| outputs["manifest"].get("outputs")).cloned().unwrap_or_default();
    assert_eq!(outputs["report"], "All five cities are measured.", "{outputs}");
    let cities: Vec<&str> =
        outputs["measured"].as_array().unwrap().iter().map(|one| one["city"].as_str().unwrap()).collect();
    assert_eq!(cities, ["Bern", "Basel", "Chur", "Genf", "Thun"]);
    let counts = measured(sandbox);
    assert!(counts.len() == 5 && counts.values().all(|times| *times == 1), "each effect once: {counts:?}");
    for args in [vec!["verify", "--all"], vec!["budget", thread, "--verify"], vec!["replay", thread]] {
        let ran = sandbox.run(&args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    }
}

fn next(sandbox: &Sandbox) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    match newest(sandbox) {
        None => words(&["graph", "run", "review"]),
        Some((thread, _)) => {
            let waits = sandbox.run(&["inbox", "--json"]).records();
            // Without a call it is decided, and only has to be resumed.
            let is_asked = |one: &Value| {
                one["thread_id"] == thread.as_str() && one["reason"] == "approval" && one["call_id"].is_string()
            };
            if waits.iter().any(is_asked) { words(&["approve", "--all", &thread]) } else { words(&["resume", &thread]) }
        }
    }
}

#[test]
fn the_sample_pipeline_is_killed_again_and_again_and_its_result_is_the_same() {
    let rounds = std::env::var("SELVEDGE_TEST_KILLS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    let mut chance = Chance::any();
    for _ in 0..rounds {
        let sandbox = pipeline();
        let look = || match newest(&sandbox) {
            None => Stand::Unborn,
            Some((thread, status)) if status == "completed" => Stand::Done(thread),
            // It waits for its approval, or its process was killed.
            Some(_) => Stand::Unborn,
        };
        let (thread, kills) = killed_until_done(&sandbox, &mut chance, || next(&sandbox), look);
        assert!(kills > 0);
        assert_complete(&sandbox, &thread);
    }
}

#[test]
fn the_sample_pipeline_waits_for_its_approval_and_its_pages_and_drawing_follow_it() {
    let sandbox = pipeline();
    let checked = sandbox.run(&["graph", "check", "review", "--json"]).json();
    assert_eq!((checked["ok"].as_bool(), &checked["findings"]), (Some(true), &serde_json::json!([])));
    let ran = sandbox.run(&["graph", "run", "review"]);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let (thread, _) = newest(&sandbox).unwrap();
    let page = sandbox.project().join(format!(".ai/knowledge/agent/threads/review/{thread}.md"));
    let text = fs::read_to_string(&page).unwrap();
    for row in
        ["| 1 | `fetch` | ✅ |", "| 2 | `measure` | ✅ |", "| 3 | `approve` | 🔄 |", "| 4 | `report` | ⏳ |", "5 items"]
    {
        assert!(text.contains(row), "{row}: {text}");
    }
    let state = sandbox.project().join(format!(".ai/knowledge/graphs/review/{thread}.md"));
    let text = fs::read_to_string(&state).unwrap();
    assert!(text.contains("current_node: \"approve\"") && text.contains("\"cities\": ["), "{text}");
    for id in [format!("agent/threads/review/{thread}"), format!("graphs/review/{thread}")] {
        let ran = sandbox.run(&["knowledge", "check", &id]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let shown = sandbox.run(&["graph", "show", &thread]);
    assert!(shown.stdout.contains("🔄 approve") && shown.stdout.contains("→ refused on error"), "{shown:?}");
    let drawn = sandbox.run(&["graph", "show", &thread, "--svg", "run.svg"]);
    assert_eq!(drawn.code, Some(0), "{drawn:?}");
    let svg = fs::read_to_string(sandbox.project().join("run.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("🔄  approve") && svg.matches("<g>").count() == 7, "{svg}");
    let approved = sandbox.run(&["approve", "--all", &thread]);
    assert_eq!(approved.code, Some(0), "{approved:?}");
    assert_complete(&sandbox, &thread);
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("**completed**") && text.contains("| 4 | `report` | ✅ |"), "{text}");
    let tree = sandbox.run(&["tree", &thread]);
    assert!(tree.stdout.contains("report-"), "{tree:?}");
    let listed = sandbox.run(&["graph", "show", "review", "--json"]).json();
    assert_eq!(listed["nodes"].as_array().unwrap().len(), 7);
}

#[test]
fn a_run_follows_the_definition_it_began_with() {
    let sandbox = pipeline();
    assert_eq!(sandbox.run(&["graph", "run", "review"]).code, Some(7));
    let (thread, _) = newest(&sandbox).unwrap();
    let file = sandbox.project().join(".ai/graphs/review.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("description: Measures", "description: Weighs")).unwrap();
    let asks = sandbox.run(&["approve", "--all", &thread, "--no-run"]);
    assert_eq!(asks.code, Some(0), "{asks:?}");
    sandbox.run(&["resume", &thread, "--json"]).error_beside_data(4, "graph_changed");
    let resumed = sandbox.run(&["resume", &thread, "--accept-changed"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert!(sandbox.run(&["log", &thread]).stdout.contains("accepted_change_of"));
}

#[test]
fn one_node_is_run_alone_with_a_state_that_was_given() {
    let sandbox = pipeline();
    put(&sandbox, "state.json", "{\"cities\": [\"Olten\"]}");
    let ran = sandbox.run(&["graph", "run", "review", "--step", "measure", "--state", "state.json", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ended = ran.records().pop().unwrap();
    let outputs = &ended["outputs"];
    assert_eq!(outputs["next_node"], "approve", "{ended}");
    assert_eq!(outputs["state"]["measured"][0]["city"], "Olten", "{ended}");
    assert_eq!(measured(&sandbox), BTreeMap::from([("Olten".to_owned(), 1)]));
    sandbox.run(&["graph", "run", "review", "--step", "nowhere", "--json"]).error(3, "graph_node_not_found");
}

#[test]
fn a_cancelled_run_is_told_from_a_failed_and_a_killed_one() {
    let sandbox = Sandbox::new();
    put(
        &sandbox,
        ".ai/graphs/nap.yaml",
        "start: nap\nstate: {}\nnodes:\n  nap: { type: wait, seconds: 3600, next: end }\n  end: { type: return }\n",
    );
    for (word, status) in [("cancel", "cancelled"), ("kill", "killed")] {
        let mut child = sandbox.command(&["graph", "run", "nap"]).stdin(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let thread = loop {
            let listed = sandbox.run(&["thread", "list", "--json"]).json()["threads"].as_array().unwrap().clone();
            let running = listed.iter().find(|thread| thread["status"] == "running");
            let found = running.map(|thread| thread["thread_id"].as_str().unwrap().to_owned());
            let is_napping = |thread: &String| sandbox.run(&["log", thread]).stdout.contains("step_started");
            if let Some(thread) = found.filter(is_napping) {
                break thread;
            }
            assert!(Instant::now() < until && child.try_wait().unwrap().is_none());
        };
        assert_eq!(sandbox.run(&[word, &thread]).code, Some(0));
        let ran = Ran::of(child);
        assert!(ran.code != Some(0), "{ran:?}");
        let shown = sandbox.run(&["graph", "show", &thread, "--json"]).json();
        assert_eq!(shown["status"], status, "{shown}");
        let log = sandbox.run(&["log", &thread]).stdout;
        assert!(log.contains("graph_cancelled") && !log.contains("graph_error"), "{log}");
    }
}

#[test]
fn check_names_what_is_wrong_with_its_line() {
    let sandbox = Sandbox::new();
    let graph = "permissions: [tool.file.lst]\nstart: one\nstate: { used: 1, idle: 2 }\nnodes:\n  one:\n    action: { item_type: tool, item_id: file_list }\n    next: tow\n  two: { type: gate, assign: { used: \"${state.missing}\" } }\n  three: { type: gate, next: two }\n  end: { type: return, output: \"${state.used}\" }\n";
    put(&sandbox, ".ai/graphs/bad.yaml", graph);
    let ran = sandbox.run(&["graph", "check", "bad", "--json"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let found: Value = serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
    let said: Vec<String> = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("{} {}: {}", one["level"].as_str().unwrap(), one["line"], one["message"].as_str().unwrap()))
        .collect();
    for part in [
        "error 5: node `one` leads to `tow`, and there is no such node",
        "error 8: node `two` is a dead end: it leads nowhere and does not return",
        "error 8: `state.missing` is read, but neither declared in `state` nor assigned",
        "warning 9: node `three` is unreachable: no edge from `one` leads to it",
        "warning 3: `state.idle` is declared, but never read or assigned",
        "warning null: the permission `tool.file.lst` matches no tool",
    ] {
        assert!(said.iter().any(|one| one == part), "{part}: {said:#?}");
    }
    put(&sandbox, ".ai/graphs/odd.yaml", "start: end\nnodes:\n  end:\n    type: return\n    ouput: 1\n");
    let ran = sandbox.run(&["graph", "check", "odd"]);
    assert!(ran.stdout.contains("5: error: `ouput` is not a known key"), "{ran:?}");
    // What can't run does not run.
    sandbox.run(&["graph", "run", "bad", "--json"]).error(2, "item_invalid");
}

/// The tool form of an earlier system, as its documents have it.
#[test]
fn a_graph_in_the_tool_form_of_older_documents_runs() {
    let sandbox = Sandbox::new();
    let graph = r#"version: "1.0.0"
tool_type: graph
executor_id: rye/core/runtimes/state-graph/runtime
category: workflows
description: Lists files, then counts.
permissions: [rye.execute.tool.file.list]
config_schema:
  type: object
  properties: { path: { type: string, default: "." } }
  required: [path]
config:
  start: list
  max_steps: 10
  on_error: fail
  state: { entries: null }
  nodes:
    list:
      action: { primary: execute, item_type: tool, item_id: rye/file-system/file_list, params: { path: "${inputs.path}" } }
      assign: { entries: "${result}" }
      next:
        - { to: done, when: { path: state.entries, op: exists } }
        - { to: none }
    none: { type: return, output: { status: empty } }
    done: { type: return, output: { status: ok } }
"#;
    put(&sandbox, ".ai/graphs/older.yaml", graph);
    let ran = sandbox.run(&["graph", "run", "older", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.records().pop().unwrap()["outputs"]["status"], "ok");
}
