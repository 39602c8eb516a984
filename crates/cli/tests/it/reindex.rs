//! `selvedge reindex`: what a user sees of it.

use std::fs;

use crate::support::{HELLO, Sandbox};

#[test]
fn a_lost_database_and_manifests_are_restored() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let gone = sandbox.new_thread("scribe");
    assert_eq!(sandbox.run(&["thread", "delete", &gone, "--yes"]).code, Some(0));
    let shown = sandbox.run(&["thread", "show", &thread, "--json"]).json();
    for name in ["registry.db", "registry.db-wal", "registry.db-shm", "store.json"] {
        let _ = fs::remove_file(sandbox.threads().join(name));
    }
    let manifest = sandbox.threads().join(&thread).join("thread.json");
    fs::remove_file(&manifest).unwrap();
    let refused = sandbox.run(&["init", "--json"]).error(6, "integrity");
    assert!(refused["hint"].as_str().unwrap().contains("selvedge reindex"), "{refused}");
    let rebuilt = sandbox.run(&["reindex", "--json"]).json();
    assert_eq!(
        (&rebuilt["threads"], &rebuilt["changesets"], &rebuilt["tombstones"]),
        (&1.into(), &2.into(), &1.into())
    );
    assert_eq!(rebuilt["left_out"].as_array().unwrap().len(), 0, "{rebuilt}");
    assert!(manifest.exists());
    assert_eq!(sandbox.run(&["thread", "show", &thread, "--json"]).json(), shown);
    assert_eq!(sandbox.append(&thread, "1", HELLO), 2);
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["thread", "show", &gone, "--json"]).error(3, "thread_deleted")["retryable"], false);
}

#[test]
fn a_damaged_log_is_reported_and_sets_the_exit_code() {
    let (sandbox, thread) = Sandbox::with_thread();
    let other = sandbox.new_thread("scribe");
    sandbox.append(&thread, "0", HELLO);
    let path = sandbox.transcript(&thread);
    let damaged = fs::read_to_string(&path).unwrap().replace("hello", "hullo");
    fs::write(&path, &damaged).unwrap();
    let ran = sandbox.run(&["reindex", "--json"]);
    assert_eq!(ran.error_beside_data(6, "threads_skipped")["thread_id"], thread.as_str());
    let rebuilt = &ran.records()[0];
    assert_eq!((&rebuilt["threads"], &rebuilt["left_out"][0]["thread_id"]), (&1.into(), &thread.as_str().into()));
    assert_eq!(rebuilt["left_out"][0]["known"], true);
    assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    assert_eq!(sandbox.run(&["verify", &other]).code, Some(0));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(6));
}

#[test]
fn nothing_is_rebuilt_while_another_process_writes() {
    let (sandbox, _) = Sandbox::with_thread();
    let store = sandbox.open();
    let refused = sandbox.run(&["reindex", "--json"]).error(4, "store_unusable");
    assert!(refused["message"].as_str().unwrap().contains(store.owner().as_str()), "{refused}");
    store.close().unwrap();
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    let elsewhere = Sandbox::empty();
    elsewhere.run(&["reindex", "--json"]).error(3, "no_store");
}

#[test]
fn the_database_is_rebuilt_without_the_private_key() {
    let (sandbox, thread) = Sandbox::with_thread();
    fs::remove_file(sandbox.home().join("keys/signing/private_key.pem")).unwrap();
    fs::remove_file(sandbox.threads().join("registry.db")).unwrap();
    assert_eq!(sandbox.run(&["reindex", "--json"]).json()["threads"], 1);
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
}
