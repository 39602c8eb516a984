//! `selvedge backup` and `selvedge restore`, with other processes writing.

use std::fs;

use crate::support::{HELLO, Ran, Sandbox, feed};

#[test]
fn a_backup_made_while_processes_append_restores_elsewhere() {
    let sandbox = Sandbox::new();
    let threads: Vec<_> = (0..4).map(|_| sandbox.new_thread("scribe")).collect();
    for thread in &threads {
        sandbox.append(thread, "0", HELLO);
    }
    let appends: Vec<_> = threads
        .iter()
        .flat_map(|thread| (0..3).map(move |_| thread))
        .map(|thread| {
            let args = ["append", thread.as_str(), "--expect", "any", "--wait", "30", "--json"];
            feed(sandbox.command(&args).spawn().unwrap(), HELLO.as_bytes())
        })
        .collect();
    let made = sandbox.run(&["backup", "../copy", "--json"]).json();
    assert_eq!(made["threads"], 4);
    for append in appends {
        Ran::of(append).json();
    }
    let elsewhere = sandbox.root().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let there = elsewhere.to_str().unwrap();
    let copy = sandbox.root().join("copy");
    let restored = sandbox.run(&["-C", there, "restore", copy.to_str().unwrap(), "--json"]).json();
    assert_eq!((&restored["backup_id"], &restored["threads"]), (&made["backup_id"], &4.into()));
    assert_eq!(sandbox.run(&["-C", there, "verify", "--all"]).code, Some(0));
    for thread in &threads {
        let version =
            sandbox.run(&["-C", there, "thread", "show", thread, "--json"]).json()["version"].as_u64().unwrap();
        assert!((1..=4).contains(&version), "{version}");
        let ran = sandbox
            .run_with(&["-C", there, "append", thread, "--expect", &version.to_string(), "--json"], HELLO.as_bytes());
        assert_eq!(ran.json()["version"], version + 1);
    }
    assert!(elsewhere.join(".ai/.gitignore").exists());
}

#[test]
fn a_backup_goes_to_a_folder_of_its_own_and_a_restore_to_a_project_without_threads() {
    let (sandbox, _) = Sandbox::with_thread();
    assert_eq!(sandbox.run(&["backup", "../copy"]).code, Some(0));
    sandbox.run(&["backup", "../copy", "--json"]).error(4, "store_unusable");
    sandbox.run(&["backup", ".ai/agent/threads/copy", "--json"]).error(2, "usage");
    sandbox.run(&["backup", "no/such/place", "--json"]).error(3, "file_not_found");
    sandbox.run(&["restore", "../copy", "--json"]).error(4, "store_unusable");
    sandbox.run(&["restore", "../nothing", "--json"]).error(3, "file_not_found");
    fs::remove_file(sandbox.root().join("copy/backup.json")).unwrap();
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    let unfinished = sandbox.run(&["-C", "../elsewhere", "restore", "../copy", "--json"]).error(4, "store_unusable");
    assert!(unfinished["message"].as_str().unwrap().contains("not finished"), "{unfinished}");
    assert!(!sandbox.root().join("elsewhere/.ai").exists(), "nothing was written");
}
