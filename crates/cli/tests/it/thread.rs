//! `selvedge thread …`.

use std::fs;

use selvedge_model::ThreadId;
use selvedge_store::{Acquire, Leases};

use crate::support::{HELLO, Sandbox};

#[test]
fn new_prints_the_id_as_text_and_more_as_json() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["thread", "new", "--agent", "scribe"]);
    let id = ran.stdout.trim_end();
    assert!(ThreadId::new(id).unwrap().hex().is_some() && id.starts_with("scribe-"), "{ran:?}");
    let made = sandbox.run(&["thread", "new", "--agent", "scribe", "--directive", "daily/minutes", "--json"]).json();
    assert_eq!(made["version"], 0);
    assert!(made["thread_id"].as_str().unwrap().starts_with("minutes-"));
}

#[test]
fn show_shows_the_options_of_new() {
    let sandbox = Sandbox::new();
    let parent = sandbox.new_thread("scribe");
    let short = &parent[..parent.len() - 4];
    let args = [
        "--agent",
        "a/b",
        "--directive",
        "d",
        "--task",
        "T 1",
        "--title",
        "Tea",
        "--id",
        "kiwi/leads-7",
        "--parent",
        short,
    ];
    sandbox.run(&[&["thread", "new"], &args[..]].concat());
    let shown = sandbox.run(&["thread", "show", "kiwi/leads-7", "--json"]).json();
    for (field, value) in
        [("thread_id", "kiwi/leads-7"), ("agent_id", "a/b"), ("directive", "d"), ("task_id", "T 1"), ("title", "Tea")]
    {
        assert_eq!(shown[field], value, "{shown}");
    }
    assert_eq!(
        (&shown["parent_id"], &shown["version"], &shown["status"]),
        (&parent.as_str().into(), &0.into(), &"created".into())
    );
    assert_eq!(sandbox.run(&["thread", "show", &parent, "--json"]).json()["children"][0], "kiwi/leads-7");
    assert!(sandbox.threads().join("kiwi~leads-7/transcript.jsonl").is_file());
}

#[test]
fn ids_that_lead_elsewhere_are_refused_before_any_path_is_built() {
    let sandbox = Sandbox::new();
    for id in ["../../x", "/etc/x", "a//b", ".x", "A", "a b", "", "a/../b"] {
        let ran = sandbox.run(&["thread", "new", "--agent", "scribe", "--id", id, "--json"]);
        ran.error(2, "usage");
        for command in [
            &["thread", "show", id][..],
            &["log", id],
            &["state", id],
            &["verify", id],
            &["thread", "delete", id, "--yes"],
        ] {
            sandbox.run(&[command, &["--json"]].concat()).error(3, "thread_not_found");
        }
    }
    let mut names: Vec<_> = fs::read_dir(sandbox.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["home", "project"]);
}

#[test]
fn an_id_that_is_taken_is_a_conflict() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.run(&["thread", "new", "--agent", "scribe", "--id", &thread, "--json"]).error(5, "thread_exists");
}

#[test]
fn any_unique_prefix_of_the_id_or_its_hex_suffix_names_a_thread() {
    let sandbox = Sandbox::new();
    for id in ["scribe-aaaaaaaaaaaa", "scribe-aaaabbbbbbbb", "other-cccccccccccc"] {
        sandbox.run(&["thread", "new", "--agent", "scribe", "--id", id]);
    }
    let found = |prefix: &str| sandbox.run(&["thread", "show", prefix, "--json"]);
    for (prefix, id) in [
        ("o", "other-cccccccccccc"),
        ("cc", "other-cccccccccccc"),
        ("aaaab", "scribe-aaaabbbbbbbb"),
        ("scribe-aaaaa", "scribe-aaaaaaaaaaaa"),
    ] {
        assert_eq!(found(prefix).json()["thread_id"], id, "{prefix}");
    }
    for prefix in ["scribe", "aaaa", "scribe-aaaa"] {
        let error = found(prefix).error(3, "ambiguous");
        assert_eq!(error["candidates"].as_array().unwrap().len(), 2, "{error}");
    }
    found("zzz").error(3, "thread_not_found");
}

#[test]
fn list_filters_and_pages() {
    let sandbox = Sandbox::new();
    for (agent, id, title) in
        [("ann", "a-1", "Tea"), ("ann", "a-2", "Coffee"), ("bob", "b-1", "More tea"), ("bob", "b-2", "x")]
    {
        sandbox.run(&["thread", "new", "--agent", agent, "--id", id, "--title", title]);
    }
    sandbox.append(
        "b-2",
        "0",
        r#"{"reason":"UserMessage","run_id":"r","run_meta":{"agent_id":"bob","origin":"user","status":"running"}}"#,
    );
    let ids = |args: &[&str]| -> Vec<String> {
        let page = sandbox.run(&[&["thread"], args, &["--json"]].concat()).json();
        page["threads"]
            .as_array()
            .unwrap()
            .iter()
            .map(|thread| thread["thread_id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&["list"]), ["b-2", "b-1", "a-2", "a-1"]);
    assert_eq!(ids(&["list", "--agent", "ann"]), ["a-2", "a-1"]);
    assert_eq!(ids(&["list", "--status", "running"]), ["b-2"]);
    assert_eq!(ids(&["list", "--text", "TEA"]), ["b-1", "a-1"]);
    assert_eq!(ids(&["find", "tea"]), ["b-1", "a-1"]);
    assert_eq!(ids(&["find", "a-"]), ["a-2", "a-1"]);
    assert!(ids(&["find", "nothing of the kind"]).is_empty());
    let first = sandbox.run(&["thread", "list", "--limit", "3", "--json"]).json();
    sandbox.run(&["thread", "new", "--agent", "late", "--id", "c-1"]);
    let next = first["next"].to_string();
    assert_eq!(ids(&["list", "--limit", "3", "--after", &next]), ["a-1"]);
    sandbox.run(&["thread", "list", "--status", "asleep", "--json"]).error(2, "usage");
}

#[test]
fn rename_is_a_change_of_the_log() {
    let (sandbox, thread) = Sandbox::with_thread();
    let renamed = sandbox.run(&["thread", "rename", &thread, "Tea time", "--json"]).json();
    assert_eq!((&renamed["version"], &renamed["note"]), (&1.into(), &serde_json::Value::Null));
    assert_eq!(sandbox.run(&["thread", "show", &thread, "--json"]).json()["title"], "Tea time");
    for bad in ["", " ", "two\nlines", "\u{1b}[2J", &"x".repeat(1001)] {
        sandbox.run(&["thread", "rename", &thread, bad, "--json"]).error(2, "usage");
    }
}

#[test]
fn rename_queues_a_request_for_the_process_that_holds_the_thread() {
    let (sandbox, thread) = Sandbox::with_thread();
    let store = sandbox.open();
    let lease = store.acquire(&ThreadId::new(&*thread).unwrap(), Acquire::default()).unwrap();
    let renamed = sandbox.run(&["thread", "rename", &thread, "Tea time", "--wait", "0", "--json"]).json();
    assert_eq!((&renamed["version"], &renamed["queued"]), (&serde_json::Value::Null, &true.into()));
    let requests = sandbox.run(&["thread", "show", &thread, "--json"]).json()["requests"].clone();
    assert_eq!(requests[0]["request"], serde_json::json!({"kind": "rename", "title": "Tea time"}));
    store.release(&lease).unwrap();
    drop(store);
    // The next process that takes the thread applies it.
    assert_eq!(sandbox.run(&["cancel", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["thread", "show", &thread, "--json"]).json()["title"], "Tea time");
}

#[test]
fn delete_needs_confirmation_and_is_permanent() {
    let (sandbox, thread) = Sandbox::with_thread();
    let error = sandbox.run(&["thread", "delete", &thread, "--json"]).error(2, "usage");
    assert!(error["hint"].as_str().unwrap().contains("--yes"));
    let deleted = sandbox.run(&["thread", "delete", &thread, "--yes", "--json"]).json();
    assert_eq!((&deleted["thread_id"], &deleted["version"]), (&thread.as_str().into(), &0.into()));
    assert!(!sandbox.threads().join(&thread).exists());
    sandbox.run(&["thread", "show", &thread, "--json"]).error(3, "thread_deleted");
    sandbox.run_with(&["append", &thread, "--expect", "any", "--json"], HELLO.as_bytes()).error(3, "thread_deleted");
    let again = sandbox.run(&["thread", "new", "--agent", "scribe", "--id", &thread, "--json"]);
    assert_ne!(again.code, Some(0), "{again:?}");
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

#[test]
fn a_thread_that_runs_or_is_held_is_not_deleted() {
    let (sandbox, thread) = Sandbox::with_thread();
    let store = sandbox.open();
    let lease = store.acquire(&ThreadId::new(&*thread).unwrap(), Acquire::default()).unwrap();
    sandbox.run(&["thread", "delete", &thread, "--yes", "--json"]).error(4, "lease_held");
    store.release(&lease).unwrap();
    store.close().unwrap();
    sandbox.append(
        &thread,
        "0",
        r#"{"reason":"UserMessage","run_id":"r","run_meta":{"agent_id":"scribe","origin":"user","status":"running"}}"#,
    );
    sandbox.run(&["thread", "delete", &thread, "--yes", "--json"]).error(4, "thread_running");
}

/// The column `result` was filled for threads that return outputs alone.
#[test]
fn the_registry_has_the_result_of_a_thread_that_ends_in_text() {
    let sandbox = Sandbox::new();
    crate::running::put(&sandbox, ".ai/directives/say.md", "---\nname: say\nmodel: scripted:script.yaml\n---\nGo.\n");
    crate::running::put(&sandbox, "script.yaml", "turns:\n  - { say: All is well. }\n");
    assert_eq!(sandbox.run(&["run", "say"]).code, Some(0));
    let registry = rusqlite::Connection::open(sandbox.threads().join("registry.db")).unwrap();
    let result: String = registry.query_row("SELECT result FROM threads", [], |row| row.get(0)).unwrap();
    assert_eq!(result, "\"All is well.\"");
    let shown = sandbox.run(&["thread", "show", "@", "--json"]).json();
    assert_eq!(sandbox.run(&["verify", "@"]).code, Some(0), "{shown}");
}
