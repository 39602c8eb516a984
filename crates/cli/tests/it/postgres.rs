//! Every command works on a store on PostgreSQL as it does on a local one.

use selvedge_store_postgres::test_server;
use serde_json::Value;

use crate::support::{HELLO, Sandbox};

/// A project whose threads are on the server that all tests share.
fn on_a_server() -> (Sandbox, String) {
    let sandbox = Sandbox::empty();
    let address = test_server::schema(test_server::shared());
    let made = sandbox.run(&["--store", &address, "--json", "init"]).json();
    assert_eq!(made["store_created"], true, "{made}");
    (sandbox, address)
}

fn succeeds(sandbox: &Sandbox, address: &str, arguments: &[&str]) -> Vec<Value> {
    let mut all = vec!["--store", address, "--json"];
    all.extend(arguments);
    let ran = sandbox.run(&all);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
    ran.records()
}

#[test]
fn a_directive_runs_and_its_thread_is_shown_verified_and_exported() {
    let (sandbox, address) = on_a_server();
    let ended = succeeds(&sandbox, &address, &["run", "hello"]);
    let thread = ended.last().unwrap()["thread_id"].as_str().unwrap().to_owned();
    assert_eq!(succeeds(&sandbox, &address, &["thread", "list"])[0]["threads"][0]["thread_id"], thread.as_str());
    assert_eq!(succeeds(&sandbox, &address, &["thread", "show", "@"])[0]["status"], "completed");
    succeeds(&sandbox, &address, &["send", "@", "and again"]);
    assert!(succeeds(&sandbox, &address, &["log", "@"]).len() > 5);
    let verified = succeeds(&sandbox, &address, &["verify", "--all"]);
    assert!(verified.iter().any(|one| one["thread_id"] == thread.as_str()), "{verified:?}");
    for arguments in [
        &["transcript", "@"][..],
        &["state", "@"],
        &["tree", "@"],
        &["budget", "@"],
        &["usage"],
        &["inbox"],
        &["snapshots", "@"],
        &["search", "again"],
        &["chain", "@"],
        &["store", "status"],
        &["heads", "export"],
        &["heads", "verify"],
    ] {
        succeeds(&sandbox, &address, arguments);
    }
    let archive = sandbox.project().join("thread.tar");
    succeeds(&sandbox, &address, &["export", "@", "-o", archive.to_str().unwrap()]);
    let judged = sandbox.run(&["verify", archive.to_str().unwrap()]);
    assert_eq!(judged.code, Some(0), "{judged:?}");
    assert!(!sandbox.project().join(".ai/agent/threads").exists(), "nothing of it is in the folder");
}

#[test]
fn commands_on_the_files_of_a_local_store_say_so() {
    let (sandbox, address) = on_a_server();
    for arguments in [&["backup", "copy"][..], &["repair", "@"], &["reindex"], &["doctor"], &["restore", "copy"]] {
        let mut all = vec!["--store", &address];
        all.extend(arguments);
        let ran = sandbox.run(&all);
        assert_ne!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("works on the files of a local store"), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn a_thread_is_copied_there_and_back_byte_for_byte() {
    let (sandbox, address) = on_a_server();
    assert_eq!(sandbox.run(&["init"]).code, Some(0));
    let ran = sandbox.run(&["--json", "run", "hello"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let created = sandbox.run(&["--json", "thread", "new", "--agent", "guide"]).json();
    let plain = created["thread_id"].as_str().unwrap().to_owned();
    sandbox.append(&plain, "any", HELLO);
    let copied = sandbox.run(&["--json", "store", "copy", "--from", ".", "--to", &address]);
    assert_eq!(copied.code, Some(0), "{copied:?}");
    assert_eq!(copied.records().last().unwrap()["copied"], 2, "{copied:?}");
    let again = sandbox.run(&["--json", "store", "copy", "--from", ".", "--to", &address]);
    assert_eq!(again.records().last().unwrap()["unchanged"], 2, "{again:?}");
    // It is continued there, and the longer log comes back to a new folder.
    succeeds(&sandbox, &address, &["send", ran.records().last().unwrap()["thread_id"].as_str().unwrap(), "more"]);
    succeeds(&sandbox, &address, &["verify", "--all"]);
    let back = sandbox.run(&["--json", "store", "copy", "--from", &address, "--to", "../back/.ai"]);
    assert_eq!(back.code, Some(0), "{back:?}");
    let verified = sandbox.run(&["-C", "../back", "--json", "verify", "--all"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    for thread in back.records().iter().filter_map(|one| one["thread_id"].as_str()) {
        let on_server = sandbox.run(&["--store", &address, "log", thread, "--raw"]);
        let local = sandbox.run(&["-C", "../back", "log", thread, "--raw"]);
        assert_eq!(on_server.code, Some(0), "{on_server:?}");
        assert_eq!(on_server.stdout, local.stdout, "`{thread}`");
    }
}

#[test]
fn a_thread_that_grew_is_continued_on_the_server_by_a_second_copy() {
    let (sandbox, address) = on_a_server();
    assert_eq!(sandbox.run(&["init"]).code, Some(0));
    let thread =
        sandbox.run(&["--json", "run", "hello"]).records().last().unwrap()["thread_id"].as_str().unwrap().to_owned();
    let copy = || sandbox.run(&["--json", "store", "copy", "--from", ".", "--to", &address]);
    let first = copy();
    assert_eq!(first.records().last().unwrap()["copied"], 1, "{first:?}");
    assert_eq!(sandbox.run(&["send", &thread, "more"]).code, Some(0));
    let second = copy();
    assert_eq!(second.records().last().unwrap()["copied"], 1, "{second:?}");
    succeeds(&sandbox, &address, &["verify", &thread]);
    // Both went on: neither is a prefix of the other.
    assert_eq!(sandbox.run(&["send", &thread, "here"]).code, Some(0));
    succeeds(&sandbox, &address, &["send", &thread, "there"]);
    let third = copy();
    assert_eq!(third.records().iter().filter(|one| one["outcome"] == "refused").count(), 1, "{third:?}");
    assert_ne!(third.code, Some(0));
}
