//! `selvedge prune`: only threads that have ended, and only on request.

use std::fs;

use serde_json::Value;

use crate::support::{HELLO, Sandbox};

const STARTED: &str =
    r#"{"run_id":"r1","run_meta":{"agent_id":"scribe","origin":"user","status":"running"},"reason":"UserMessage"}"#;
const DONE: &str = r#"{"run_id":"r1","run_meta":{"agent_id":"scribe","origin":"user","status":"done","termination_code":"completed"},"reason":"RunFinished"}"#;

/// A thread whose run is done.
fn ended(sandbox: &Sandbox) -> String {
    let thread = sandbox.new_thread("scribe");
    sandbox.append(&thread, "0", DONE);
    thread
}

fn ids(records: &[Value]) -> Vec<String> {
    records.iter().map(|record| record["thread_id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn only_old_threads_that_have_ended_are_deleted_and_only_with_confirmation() {
    let sandbox = Sandbox::new();
    let done = ended(&sandbox);
    let created = sandbox.new_thread("scribe");
    let running = sandbox.new_thread("scribe");
    sandbox.append(&running, "0", STARTED);
    assert_eq!(sandbox.run(&["prune", "--yes", "--json"]).records(), Vec::<Value>::new(), "nothing is 90 days old");
    let dry = sandbox.run(&["prune", "--older-than", "0h", "--dry-run", "--json"]);
    assert_eq!((ids(&dry.records()), &dry.records()[0]["deleted"]), (vec![done.clone()], &false.into()));
    sandbox.run(&["prune", "--older-than", "0h", "--json"]).error(2, "usage");
    assert_eq!(sandbox.run(&["thread", "show", &done]).code, Some(0), "without a yes nothing is deleted");
    let pruned = sandbox.run(&["prune", "--older-than", "0h", "--yes", "--json"]).records();
    assert_eq!((ids(&pruned), &pruned[0]["deleted"]), (vec![done.clone()], &true.into()));
    sandbox.run(&["thread", "show", &done, "--json"]).error(3, "thread_deleted");
    for thread in [created, running] {
        assert_eq!(sandbox.run(&["thread", "show", &thread]).code, Some(0));
    }
}

/// The folder was copied, which nothing takes in again.
#[test]
fn pruned_threads_can_be_archived_first_for_import_and_verify() {
    let sandbox = Sandbox::new();
    let thread = ended(&sandbox);
    let log = fs::read(sandbox.transcript(&thread)).unwrap();
    let exported = sandbox.command(&["export", &thread]).output().unwrap().stdout;
    // A process was killed in the middle of a copy.
    fs::create_dir_all(sandbox.root().join("kept")).unwrap();
    fs::write(sandbox.root().join(format!("kept/.{thread}.tar.tmp")), "half").unwrap();
    let args = ["prune", "--older-than", "0d", "--archive", "../kept", "--yes", "--json"];
    let pruned = sandbox.run(&args).records();
    let kept = fs::read_dir(sandbox.root().join("kept")).unwrap().count();
    assert_eq!(kept, 1);
    let archived = pruned[0]["archived"].as_str().unwrap();
    assert!(fs::read(archived).unwrap() == exported, "the same file that `export` writes");
    assert_eq!(sandbox.run(&["verify", archived]).code, Some(0));
    let elsewhere = sandbox.root().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let there = elsewhere.to_str().unwrap();
    assert_eq!(sandbox.run(&["-C", there, "init"]).code, Some(0));
    assert_eq!(sandbox.run(&["-C", there, "import", archived, "--json"]).json()["outcome"], "imported");
    assert_eq!(fs::read(elsewhere.join(".ai/agent/threads").join(&thread).join("transcript.jsonl")).unwrap(), log);
}

#[test]
fn an_existing_archive_is_neither_repeated_nor_overwritten() {
    let sandbox = Sandbox::new();
    let same = ended(&sandbox);
    let other = ended(&sandbox);
    let kept = sandbox.root().join("kept");
    fs::create_dir(&kept).unwrap();
    let archive = |thread: &str| kept.join(format!("{thread}.tar"));
    assert_eq!(sandbox.run(&["export", &same, "-o", archive(&same).to_str().unwrap()]).code, Some(0));
    fs::copy(archive(&same), archive(&other)).unwrap();
    let ran = sandbox.run(&["prune", "--older-than", "0d", "--archive", "../kept", "--yes", "--json"]);
    ran.error_beside_data(4, "archive_exists");
    assert_eq!(ids(&ran.records()), std::slice::from_ref(&same), "what was kept is deleted, and nothing else");
    assert_eq!(sandbox.run(&["thread", "show", &other]).code, Some(0));
    assert_eq!(fs::read(archive(&same)).unwrap(), fs::read(archive(&other)).unwrap());
}

#[test]
fn a_damaged_thread_is_neither_archived_nor_deleted() {
    let sandbox = Sandbox::new();
    let thread = ended(&sandbox);
    let mut log = fs::read(sandbox.transcript(&thread)).unwrap();
    log[200] ^= 1;
    fs::write(sandbox.transcript(&thread), log).unwrap();
    let ran = sandbox.run(&["prune", "--older-than", "0d", "--archive", "../kept", "--yes", "--json"]);
    ran.error(6, "log_damaged");
    assert!(sandbox.transcript(&thread).exists());
    assert_eq!(fs::read_dir(sandbox.root().join("kept")).unwrap().count(), 0);
}

#[test]
fn only_terminal_statuses_and_valid_ages_are_accepted() {
    let sandbox = Sandbox::new();
    let thread = ended(&sandbox);
    sandbox.run(&["prune", "--status", "running", "--json"]).error(2, "usage");
    sandbox.run(&["prune", "--older-than", "soon", "--json"]).error(2, "usage");
    let none = sandbox.run(&["prune", "--older-than", "0h", "--status", "killed", "--dry-run", "--json"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), ""));
    let some = sandbox.run(&["prune", "--older-than", "0h", "--status", "completed", "--dry-run", "--json"]);
    assert_eq!(ids(&some.records()), [thread]);
}

/// What continues a thread still needs it, and so does what started it.
#[test]
fn a_thread_that_a_parent_or_successor_needs_is_kept() {
    use selvedge_model::event::{Handoff, Predecessor};
    use selvedge_model::{AgentId, Batch, Changeset, Event, Expect, NewThread, Part, ThreadId};
    use selvedge_store::{Commit, Logs};

    let sandbox = Sandbox::new();
    let old = ended(&sandbox);
    let parent = sandbox.new_thread("scribe");
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
    let continuation_of = Some(Predecessor { thread_id: id.clone(), version: head.version, hash: head.hash });
    let of = NewThread::of(AgentId::new("scribe").unwrap());
    let born = NewThread { continuation_of, chain_root_id: Some(id), ..of.clone() };
    let goes_on = Part::new(next, Expect::Absent, Changeset::creating(born));
    store.commit(Batch { parts: vec![leaves.clone(), goes_on], ..Batch::of(leaves) }).unwrap();
    let child = NewThread { parent_id: Some(ThreadId::new(parent.as_str()).unwrap()), ..of };
    let child = Part::new(ThreadId::new("child").unwrap(), Expect::Absent, Changeset::creating(child));
    store.commit(Batch::of(child)).unwrap();
    store.close().unwrap();
    sandbox.append("child", "0", DONE);
    let dry = || ids(&sandbox.run(&["prune", "--older-than", "0h", "--dry-run", "--json"]).records());
    assert_eq!(dry(), Vec::<String>::new(), "`next` and the parent have not ended");
    sandbox.append("next", "0", DONE);
    sandbox.append(&parent, "0", HELLO);
    assert_eq!(dry(), [old, "next".to_owned()]);
    sandbox.append(&parent, "1", DONE);
    assert_eq!(dry().len(), 4);
}
