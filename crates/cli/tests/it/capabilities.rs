//! `capabilities.md`: written once, for the right thread, without secrets, and protected against edits.

use std::fs;

use selvedge_model::event::{Handoff, Predecessor};
use selvedge_model::{AgentId, Batch, Changeset, Event, Expect, NewThread, Part, ThreadId};
use selvedge_store::{Commit, Logs};

use crate::running::{PAY_ONCE, RUN, TASK, capabilities, pay, project, put, thread_of};

#[test]
fn the_capabilities_of_a_thread_stand_on_its_page_as_a_tree() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let thread = thread_of(&sandbox.run(&RUN));
    let page = fs::read_to_string(capabilities(&sandbox, &thread)).unwrap();
    let tree = "## Capabilities Tree\n\n```\nselvedge\n└── execute\n    └── tool\n        └── pay\n```\n";
    assert!(page.contains(tree), "{page}");
}

/// The page was edited, and the thread ran without a notice.
#[test]
fn an_edited_capabilities_page_stops_the_thread_until_it_is_repaired() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let thread = thread_of(&sandbox.run(&RUN));
    let file = capabilities(&sandbox, &thread);
    let written = fs::read_to_string(&file).unwrap();
    fs::write(&file, written.replace("tool.pay`", "tool.*`")).unwrap();
    let error = sandbox.run(&["send", &thread, "go on", "--json"]).error(6, "integrity");
    assert!(error["message"].as_str().unwrap().contains("capabilities.md"), "{error}");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains(&format!("`selvedge repair {thread}`")), "{hint}");
    sandbox.run(&["resume", &thread, "go on", "--json"]).error(6, "integrity");
    sandbox.run(&["verify", &thread, "--json"]).error_beside_data(6, "thread_file_differs");
    let report = sandbox.run(&["doctor", "--json"]);
    assert!(report.code == Some(6) && report.stdout.contains("capabilities_refused"), "{report:?}");
    let mended = sandbox.run(&["repair", &thread]);
    assert!(mended.code == Some(0) && mended.stdout.contains("capabilities.md set aside"), "{mended:?}");
    assert_eq!(sandbox.run(&["send", &thread, "go on"]).code, Some(0));
    assert!(fs::read_to_string(&file).unwrap().ends_with("- `selvedge.execute.tool.pay`\n"));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
}

#[test]
fn definitions_of_tools_are_written_without_secrets() {
    let secret = "hunter2-hunter2-hunter2";
    let tool = pay("echo ok").replace("\"Pays.\"", &format!("\"Pays with {secret}.\""));
    let sandbox = project(TASK, &tool, PAY_ONCE);
    let ran = crate::support::Ran::of(
        sandbox.command(&RUN).env("PAY_TOKEN", secret).stdin(std::process::Stdio::null()).spawn().unwrap(),
    );
    let page = fs::read_to_string(capabilities(&sandbox, &thread_of(&ran))).unwrap();
    assert!(page.contains("Pays with [redacted]") && !page.contains(secret), "{page}");
}

#[test]
fn a_message_to_a_continued_thread_writes_the_capabilities_of_its_successor() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let old = thread_of(&sandbox.run(&RUN));
    let store = sandbox.open();
    let id = ThreadId::new(old.as_str()).unwrap();
    let next = ThreadId::new("next").unwrap();
    let head = store.head(&id).unwrap();
    let handoff = Handoff {
        new_thread_id: next.clone(),
        reason: None,
        directive: None,
        trailing_turns: 0,
        details: Default::default(),
    };
    let leaves = Part::new(id.clone(), Expect::Any, Changeset::of_event(Event::ThreadResumed(handoff)));
    let born = NewThread {
        continuation_of: Some(Predecessor { thread_id: id.clone(), version: head.version, hash: head.hash }),
        chain_root_id: Some(id.clone()),
        ..NewThread::of(AgentId::new("agent").unwrap())
    };
    let goes_on = Part::new(next, Expect::Absent, Changeset::creating(born));
    store.commit(Batch { parts: vec![leaves.clone(), goes_on], ..Batch::of(leaves) }).unwrap();
    store.close().unwrap();
    fs::remove_file(capabilities(&sandbox, &old)).unwrap();
    let sent = sandbox.run(&["send", &old, "go on", "--json"]);
    assert_eq!(sent.code, Some(0), "{sent:?}");
    let page = fs::read_to_string(capabilities(&sandbox, "next")).unwrap();
    assert!(page.contains("# Capabilities of `next`") && page.contains("no tool may be called"), "{page}");
    assert!(!capabilities(&sandbox, &old).exists(), "the thread that was named runs no more");
}

#[test]
fn a_run_of_a_task_has_its_text_in_the_prompt() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let run = [&RUN[..], &["--task", "7"]].concat();
    let error = sandbox.run(&run).error(3, "item_not_found");
    assert!(error["message"].as_str().unwrap().contains("tasks/7"), "{error}");
    put(&sandbox, ".ai/knowledge/tasks/7.md", "Pay Anna before Friday.\n");
    put(&sandbox, "script.yaml", "turns:\n  - say: Done.\n    repeat: forever\n");
    let ran = sandbox.run(&run);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(sandbox.run(&["thread", "show", &thread_of(&ran), "--json"]).json()["task_id"], "7");
}

/// `resume` gave no notice, and the prompt lacked the description.
#[test]
fn missing_or_changed_items_are_reported_when_the_next_run_begins() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    put(&sandbox, "script.yaml", "turns:\n  - say: Done.\n    repeat: forever\n");
    put(&sandbox, ".ai/knowledge/tasks/7.md", "Pay Anna before Friday.\n");
    put(&sandbox, ".ai/agents/clerk.yaml", "identity: You are a clerk.\n");
    let run = [&RUN[..], &["--task", "7", "--agent", "clerk"]].concat();
    let thread = thread_of(&sandbox.run(&run));
    let send = || sandbox.run(&["send", &thread, "and now?"]).stderr;
    let is_told = |told: &str| ["is missing", "changed since"].iter().any(|word| told.contains(word));
    let told = send();
    assert!(!is_told(&told), "{told}");
    put(&sandbox, ".ai/agents/clerk.yaml", "identity: You are a thief.\n");
    let told = send();
    assert!(told.contains("the system prompt changed since the last run"), "{told}");
    let told = send();
    assert!(!is_told(&told), "{told}");
    for file in ["agents/clerk.yaml", "knowledge/tasks/7.md", "directives/task.md"] {
        fs::remove_file(sandbox.project().join(".ai").join(file)).unwrap();
    }
    let told = send();
    for gone in ["agent `clerk` is missing", "task `7` is missing", "directive `task` is missing"] {
        assert!(told.contains(gone), "{told}");
    }
}

#[test]
fn a_successor_has_its_own_capabilities_page() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let old = thread_of(&sandbox.run(&RUN));
    let resumed = sandbox.run(&["resume", &old, "and once more", "--json"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let next = resumed.records().last().unwrap()["thread_id"].as_str().unwrap().to_owned();
    assert_ne!(next, old);
    let page = fs::read_to_string(capabilities(&sandbox, &next)).unwrap();
    assert!(page.contains(&format!("# Capabilities of `{next}`")) && page.contains("tool.pay"), "{page}");
}
