//! Damaged and unusable stores: a clear error each, and nothing written elsewhere.

use std::fs;
use std::os::unix::fs::symlink;

use selvedge_model::{Batch, Changeset, Expect, Part, Reason, ThreadId};
use selvedge_store::Commit;

use crate::support::{HELLO, Sandbox, contents, copy};

#[test]
fn a_missing_database_is_never_a_fresh_start() {
    let (sandbox, thread) = Sandbox::with_thread();
    for name in ["registry.db", "registry.db-wal", "registry.db-shm"] {
        let _ = fs::remove_file(sandbox.threads().join(name));
    }
    let log = fs::read(sandbox.transcript(&thread)).unwrap();
    for command in [
        &["thread", "list"][..],
        &["verify", "--all"],
        &["thread", "new", "--agent", "a"],
        &["append", &thread, "--expect", "0"],
    ] {
        let error = sandbox.run_with(&[command, &["--json"]].concat(), HELLO.as_bytes()).error(6, "integrity");
        assert!(error["hint"].as_str().unwrap().contains("registry.db"), "{error}");
    }
    assert_eq!(fs::read(sandbox.transcript(&thread)).unwrap(), log);
}

#[test]
fn a_corrupt_database_is_reported_as_corrupt() {
    let (sandbox, _) = Sandbox::with_thread();
    for name in ["registry.db", "registry.db-wal", "registry.db-shm"] {
        let path = sandbox.threads().join(name);
        if path.exists() {
            fs::write(path, b"not a database at all".repeat(300)).unwrap();
        }
    }
    let ran = sandbox.run(&["thread", "list", "--json"]);
    assert!(matches!(ran.code, Some(1 | 6)) && ran.stdout.is_empty() && ran.stderr.contains("\"error\""), "{ran:?}");
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let (sandbox, _) = Sandbox::with_thread();
    let path = sandbox.threads().join("store.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"format\":8", "\"format\":99")).unwrap();
    let error = sandbox.run(&["thread", "list", "--json"]).error(4, "store_unusable");
    assert!(error["message"].as_str().unwrap().contains("99"), "{error}");
}

#[test]
fn a_link_where_a_folder_should_be_is_not_followed() {
    let sandbox = Sandbox::empty();
    let elsewhere = sandbox.root().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, sandbox.project().join(".ai")).unwrap();
    let ran = sandbox.run(&["init", "--json"]);
    assert!(matches!(ran.code, Some(1..=6)) && ran.stderr.contains("\"error\""), "{ran:?}");
    assert_eq!(contents(&elsewhere), []);
}

#[test]
fn a_foreign_file_in_the_folder_is_left_alone() {
    let (sandbox, thread) = Sandbox::with_thread();
    fs::write(sandbox.threads().join("notes.txt"), "mine").unwrap();
    fs::create_dir(sandbox.threads().join("not-a-thread")).unwrap();
    assert_eq!(sandbox.append(&thread, "0", HELLO), 1);
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
    assert_eq!(fs::read_to_string(sandbox.threads().join("notes.txt")).unwrap(), "mine");
}

/// A thread at version 1 whose second changeset is in the redo and not in its transcript, as a crash leaves it.
/// Nothing, if the transcript was synced before it could be copied.
fn after_a_crash() -> Option<(Sandbox, String)> {
    let (sandbox, thread) = Sandbox::with_thread();
    let length = fs::metadata(sandbox.transcript(&thread)).unwrap().len();
    let store = sandbox.open();
    let part = Part::new(ThreadId::new(&*thread).unwrap(), Expect::Exact(0), Changeset::empty(Reason::Lifecycle));
    store.commit(Batch::of(part)).unwrap();
    let copied = sandbox.root().join("copied");
    copy(&sandbox.threads(), &copied);
    drop(store);
    fs::remove_dir_all(sandbox.threads()).unwrap();
    fs::rename(copied, sandbox.threads()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(sandbox.transcript(&thread)).unwrap();
    file.set_len(length).unwrap();
    let ran = sandbox.run(&["verify", &thread, "--json"]);
    (ran.code == Some(0)).then_some((sandbox, thread))
}

#[test]
fn pending_writes_of_a_crash_are_visible_to_readers_and_completed_by_writers() {
    let (sandbox, thread) =
        (0..20).find_map(|_| after_a_crash()).expect("the redo outlives its commit at least sometimes");
    let verdict = sandbox.run(&["verify", &thread, "--json"]).json();
    assert!(verdict["pending_bytes"].as_u64().unwrap() > 0 && verdict["unchanged_up_to"] == 1, "{verdict}");
    assert!(sandbox.run(&["verify", &thread]).stdout.contains("pending: "));
    assert_eq!(sandbox.run(&["state", &thread, "--json"]).json()["version"], 1);
    let ran = sandbox.run_with(&["append", &thread, "--expect", "1", "--json"], HELLO.as_bytes());
    assert_eq!(ran.json()["version"], 2);
    let notice: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert!(notice["notice"]["message"].as_str().unwrap().contains("after a crash: "), "{ran:?}");
    assert_eq!(sandbox.run(&["verify", &thread, "--json"]).json()["pending_bytes"], 0);
}

#[test]
fn a_full_disk_is_reported() {
    let (sandbox, _) = Sandbox::with_thread();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = sandbox.command(&["thread", "list"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("can't write to stdout"));
}
