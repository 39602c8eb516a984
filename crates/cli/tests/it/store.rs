//! Stores in all kinds of trouble: a clear error each, and nothing written elsewhere.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::{HELLO, Sandbox, contents};

#[test]
fn a_missing_database_is_never_a_fresh_start() {
    let (sandbox, thread) = Sandbox::with_thread();
    for name in ["registry.db", "registry.db-wal", "registry.db-shm"] {
        let _ = fs::remove_file(sandbox.threads().join(name));
    }
    let log = fs::read(sandbox.transcript(&thread)).unwrap();
    for command in [&["thread", "list"][..], &["verify", "--all"], &["thread", "new", "--agent", "a"], &["append", &thread, "--expect", "0"]] {
        let error = sandbox.run_with(&[command, &["--json"]].concat(), HELLO.as_bytes()).error(6, "integrity");
        assert!(error["hint"].as_str().unwrap().contains("reindex"), "{error}");
    }
    assert_eq!(fs::read(sandbox.transcript(&thread)).unwrap(), log);
}

#[test]
fn a_corrupt_database_is_said_to_be_one() {
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
    fs::write(&path, text.replace("\"format\":1", "\"format\":99")).unwrap();
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

#[test]
fn what_a_crash_left_is_mended_and_said_unless_quiet() {
    // A crash between the commit and its way into the transcript: the redo is still there, the bytes are not.
    let (sandbox, thread) = Sandbox::with_thread();
    let id = selvedge_model::ThreadId::new(&*thread).unwrap();
    let crash = |expect: u64| {
        use selvedge_model::{Batch, Changeset, Expect, Part, Reason};
        use selvedge_store::Commit;
        let length = fs::metadata(sandbox.transcript(&thread)).unwrap().len();
        let store = sandbox.open();
        store.commit(Batch::of(Part::new(id.clone(), Expect::Exact(expect), Changeset::empty(Reason::Lifecycle)))).unwrap();
        let redo_is_pending = sandbox.root().join(format!("copy{expect}"));
        crate::support::copy(&sandbox.threads(), &redo_is_pending);
        std::mem::forget(store);
        (length, redo_is_pending)
    };
    let (length, copied) = crash(0);
    fs::remove_dir_all(sandbox.threads()).unwrap();
    crate::support::copy(&copied, &sandbox.threads());
    let file = fs::OpenOptions::new().write(true).open(sandbox.transcript(&thread)).unwrap();
    file.set_len(length).unwrap();
    drop(file);

    let record = sandbox.run(&["verify", &thread, "--json"]);
    if record.code == Some(0) {
        // The redo was still there when the copy was made, as it nearly always is.
        assert!(record.json()["healed_bytes"].as_u64().unwrap() > 0);
        let ran = sandbox.run_with(&["append", &thread, "--expect", "1"], HELLO.as_bytes());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "2\n"), "{ran:?}");
        assert!(ran.stderr.contains("recovered after a crash") && ran.stderr.lines().count() == 1, "{ran:?}");
        assert_eq!(sandbox.run(&["verify", &thread, "--json"]).json()["healed_bytes"], 0);
    }
}
