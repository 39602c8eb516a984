//! `selvedge repair`: what a user sees of it.

use std::fs;

use crate::support::{HELLO, Sandbox};

#[test]
fn foreign_bytes_are_moved_aside_and_the_log_goes_on() {
    let (sandbox, thread) = Sandbox::with_thread();
    let path = sandbox.transcript(&thread);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], b"garbage"].concat()).unwrap();
    let dry = sandbox.run(&["repair", &thread, "--dry-run", "--json"]).json();
    assert_eq!((&dry["mended"][0]["found"], &dry["dry_run"]), (&"foreign_bytes".into(), &true.into()));
    let done = sandbox.run(&["repair", &thread, "--json"]).json();
    assert_eq!((&done["mended"][0]["bytes"], &done["version"]), (&7.into(), &1.into()));
    assert!(fs::read(&path).unwrap().starts_with(&whole));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    let ran = sandbox.run(&["repair", &thread]);
    assert!(ran.stdout.contains("needs no repair"), "{ran:?}");
}

#[test]
fn a_manifest_that_was_changed_is_kept_aside() {
    let (sandbox, thread) = Sandbox::with_thread();
    let path = sandbox.threads().join(&thread).join("thread.json");
    fs::write(&path, "{}").unwrap();
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(6));
    let done = sandbox.run(&["repair", &thread, "--json"]).json();
    let aside = done["mended"][0]["aside"].as_str().unwrap();
    assert_eq!(fs::read_to_string(sandbox.threads().join(&thread).join(aside)).unwrap(), "{}");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
}

#[test]
fn a_loss_must_be_accepted() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let path = sandbox.transcript(&thread);
    let whole = fs::read_to_string(&path).unwrap();
    let first: String = whole.split_inclusive('\n').take(2).collect();
    fs::write(&path, &first).unwrap();
    let refused = sandbox.run(&["repair", &thread, "--json"]).error(6, "truncated");
    assert!(refused["hint"].as_str().unwrap().contains("--accept-loss"), "{refused}");
    assert_eq!(refused["unchanged_up_to"], 0);
    let done = sandbox.run(&["repair", &thread, "--accept-loss", "--json"]).json();
    assert_eq!((&done["mended"][0]["found"], &done["version"]), (&"loss".into(), &2.into()));
    assert!(fs::read_to_string(&path).unwrap().starts_with(&first));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.append(&thread, "2", HELLO), 3);
}

#[test]
fn damage_is_refused_with_what_is_still_proven() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let path = sandbox.transcript(&thread);
    let damaged = fs::read_to_string(&path).unwrap().replace("hello", "hullo");
    fs::write(&path, &damaged).unwrap();
    let refused = sandbox.run(&["repair", &thread, "--accept-loss", "--json"]).error(6, "damaged");
    assert_eq!(refused["unchanged_up_to"], 0);
    assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    sandbox.run(&["repair", "nobody", "--json"]).error(3, "thread_not_found");
}
