//! `selvedge repair`: what a user sees of it.

use std::fs;

use crate::running::{PAY_ONCE, RUN, TASK, pay, project};
use crate::support::{HELLO, Sandbox};

#[test]
fn unsigned_bytes_are_moved_aside_and_the_log_continues() {
    let (sandbox, thread) = Sandbox::with_thread();
    let path = sandbox.transcript(&thread);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], b"garbage"].concat()).unwrap();
    let dry = sandbox.run(&["repair", &thread, "--dry-run", "--json"]).json();
    assert_eq!((&dry["repairs"][0]["found"], &dry["dry_run"]), (&"foreign_bytes".into(), &true.into()));
    let done = sandbox.run(&["repair", &thread, "--json"]).json();
    assert_eq!((&done["repairs"][0]["bytes"], &done["version"]), (&7.into(), &1.into()));
    assert!(fs::read(&path).unwrap().starts_with(&whole));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    let ran = sandbox.run(&["repair", &thread]);
    assert!(ran.stdout.contains("needs no repair"), "{ran:?}");
}

#[test]
fn a_changed_manifest_is_set_aside() {
    let (sandbox, thread) = Sandbox::with_thread();
    let path = sandbox.threads().join(&thread).join("thread.json");
    fs::write(&path, "{}").unwrap();
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(6));
    let done = sandbox.run(&["repair", &thread, "--json"]).json();
    let aside = done["repairs"][0]["aside"].as_str().unwrap();
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
    assert_eq!((&done["repairs"][0]["found"], &done["version"]), (&"loss".into(), &2.into()));
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
    sandbox.run(&["repair", "missing", "--json"]).error(3, "thread_not_found");
}

/// The log of a thread that a limit suspended, without its last changesets; the snapshot that was saved then is still there.
fn cut() -> (Sandbox, String) {
    let directive = TASK.replace("permissions", "limits: { turns: 1 }\npermissions");
    let sandbox = project(&directive, &pay("true"), PAY_ONCE);
    sandbox.run(&RUN).error_beside_data(8, "limit_reached");
    let listed = sandbox.run(&["thread", "list", "--json"]).json();
    let thread = listed["threads"][0]["thread_id"].as_str().unwrap().to_owned();
    let path = sandbox.transcript(&thread);
    let whole = fs::read_to_string(&path).unwrap();
    let checkpoint = "\"event_type\":\"checkpoint\"";
    let first = whole.match_indices(checkpoint).next().unwrap().0;
    let end = first + whole[first..].find('\n').unwrap() + 1;
    fs::write(&path, &whole[..end]).unwrap();
    (sandbox, thread)
}

#[test]
fn an_accepted_loss_stays_visible_and_the_ledger_agrees() {
    let (sandbox, thread) = cut();
    assert_eq!(sandbox.run(&["repair", &thread, "--accept-loss"]).code, Some(0));
    let told = sandbox.run(&["verify", &thread, "--json"]).json();
    let lost = &told["lost"][0];
    assert_eq!((&told["sound"], &lost["from_version"]), (&true.into(), &1.into()), "{told}");
    assert!(lost["since"].is_string() && told["message"].as_str().unwrap().contains("which are lost"), "{told}");
    assert!(sandbox.run(&["verify", &thread]).stdout.contains("lost: versions 1 to "));
    let file = sandbox.root().join("lost.tar").display().to_string();
    assert_eq!(sandbox.run(&["export", &thread, "-o", &file]).code, Some(0));
    assert_eq!(sandbox.run(&["verify", &file, "--json"]).json()["lost"], told["lost"]);
    let doctor = sandbox.run(&["doctor", "--json"]).json();
    assert!(doctor["findings"].as_array().unwrap().iter().any(|one| one["code"] == "versions_lost"), "{doctor}");
    let listed = sandbox.run(&["snapshots", &thread, "--json"]).json();
    assert_eq!(listed["snapshots"][0]["good"], false, "{listed}");
    assert!(listed["snapshots"][0]["why"].as_str().unwrap().contains("lost"), "{listed}");
    let budget = sandbox.run(&["budget", &thread, "--verify", "--json"]).json();
    assert_eq!(budget["verified"]["holds"], true, "{budget}");
}

#[test]
fn the_content_of_a_snapshot_is_recovered() {
    let (sandbox, thread) = cut();
    let before = sandbox.run(&["snapshots", &thread, "--json"]).json();
    let version = &before["snapshots"][0]["log_version"];
    let dry = sandbox.run(&["repair", &thread, "--from-snapshot", "--dry-run", "--json"]).json();
    let done = sandbox.run(&["repair", &thread, "--from-snapshot", "--json"]).json();
    assert_eq!(dry["repairs"].as_array().unwrap().len(), done["repairs"].as_array().unwrap().len());
    let brought = done["repairs"].as_array().unwrap().iter().find(|one| one["found"] == "provisional").unwrap();
    assert_eq!(&brought["log_version"], version);
    assert!(brought["messages"].as_u64().unwrap() > 0, "{done}");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    let log = sandbox.run(&["log", &thread, "--json"]).records();
    let messages = log.iter().filter(|line| line["event_type"] == "message").count() as u64;
    assert_eq!(messages, brought["messages"].as_u64().unwrap());
    assert!(sandbox.run(&["repair", &thread, "--from-snapshot"]).stdout.contains("needs no repair"));
}
