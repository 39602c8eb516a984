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

/// One damaged log once made every backup of its store fail, and one damaged file every restore.
#[test]
fn damage_is_reported_with_exit_6_and_the_rest_is_copied_and_restored() {
    let (sandbox, bad) = Sandbox::with_thread();
    let good = sandbox.new_thread("scribe");
    sandbox.append(&bad, "0", HELLO);
    let mut log = fs::read(sandbox.transcript(&bad)).unwrap();
    log[100] ^= 1;
    fs::write(sandbox.transcript(&bad), &log).unwrap();
    let ran = sandbox.run(&["backup", "../copy", "--json"]);
    let error = ran.error_beside_data(6, "threads_skipped");
    assert_eq!(error["thread_id"], bad.as_str());
    let made = &ran.records()[0];
    assert_eq!(
        (&made["failed_checks"][0]["thread_id"], &made["failed_checks"][0]["copied"]),
        (&bad.as_str().into(), &true.into())
    );
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    let ran = sandbox.run(&["-C", "../elsewhere", "restore", "../copy", "--json"]);
    let error = ran.error_beside_data(6, "threads_skipped");
    assert!(error["hint"].as_str().unwrap().contains("selvedge import"), "{error}");
    let restored = &ran.records()[0];
    assert_eq!((&restored["threads"], &restored["failed_checks"][0]["copied"]), (&1.into(), &false.into()));
    let there = |args: &[&str]| sandbox.run(&[&["-C", "../elsewhere"], args].concat());
    assert_eq!((there(&["verify", &good]).code, there(&["doctor"]).code), (Some(0), Some(1)), "one is left out");
    there(&["thread", "show", &bad, "--json"]).error(3, "thread_not_found");
    let text = sandbox.run(&["backup", "../second"]);
    assert!(text.stdout.contains("copied as it is:") && text.stderr.contains("selvedge verify"), "{text:?}");
}

#[test]
fn a_store_whose_key_is_lost_can_be_backed_up_and_restored() {
    let (sandbox, thread) = Sandbox::with_thread();
    fs::remove_dir_all(sandbox.home().join("keys/signing")).unwrap();
    let made = sandbox.run(&["backup", "../copy", "--json"]).json();
    assert_eq!((&made["signed"], &made["threads"]), (&false.into(), &1.into()));
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    let ran = sandbox.run(&["-C", "../elsewhere", "restore", "../copy"]);
    assert!(ran.code == Some(0) && ran.stderr.contains("is not signed"), "{ran:?}");
    assert_eq!(sandbox.run(&["-C", "../elsewhere", "verify", &thread]).code, Some(0));
}

#[test]
fn an_interrupted_backup_can_be_run_again() {
    let (sandbox, _) = Sandbox::with_thread();
    fs::create_dir_all(sandbox.root().join("copy.partial/threads")).unwrap();
    fs::write(sandbox.root().join("copy.partial/threads/registry.db"), "half").unwrap();
    sandbox.run(&["-C", "../copy.partial", "restore", "../copy", "--json"]).error(3, "file_not_found");
    assert_eq!(sandbox.run(&["backup", "../copy"]).code, Some(0));
    assert!(!sandbox.root().join("copy.partial").exists());
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    assert_eq!(sandbox.run(&["-C", "../elsewhere", "restore", "../copy"]).code, Some(0));
}
