//! `selvedge repair`: what a user sees of it.

use std::fs;

use serde_json::{Value, json};

use crate::running::{PAY_ONCE, RUN, TASK, pay, project, thread_of};
use crate::support::{HELLO, Sandbox};

#[test]
fn unsigned_bytes_are_moved_aside_and_the_log_continues() {
    let (sandbox, thread) = Sandbox::with_thread();
    let path = sandbox.transcript(&thread);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], b"garbage"].concat()).unwrap();
    let dry = sandbox.run(&["repair", &thread, "--dry-run", "--json"]).json();
    assert_eq!((&dry["repairs"][0]["kind"], &dry["dry_run"]), (&"foreign_bytes".into(), &true.into()));
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
    assert_eq!((&done["repairs"][0]["kind"], &done["version"]), (&"loss".into(), &2.into()));
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
    let refused = sandbox.run(&["repair", &thread, "--accept-loss", "--json"]).error(6, "log_damaged");
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
    let at = sandbox.run(&["state", &thread, "--at", "1", "--json"]);
    assert!(
        at.error(6, "version_lost")["message"].as_str().unwrap().contains("version 1 of"),
        "the state before it was shown"
    );
    let listed = sandbox.run(&["snapshots", &thread, "--json"]).json();
    assert_eq!(listed["snapshots"][0]["usable"], false, "{listed}");
    assert!(listed["snapshots"][0]["why"].as_str().unwrap().contains("lost"), "{listed}");
    let budget = sandbox.run(&["budget", &thread, "--verify", "--json"]).json();
    assert_eq!(budget["verified"]["differences"], serde_json::json!([]), "{budget}");
}

/// `budget --verify` said that each ceiling had held at every posting, with nine of the account's postings lost.
#[test]
fn lost_postings_are_named_and_are_not_said_to_have_been_checked() {
    let price = "price: {input_per_million_tokens: 1, output_per_million_tokens: 2}\n";
    let usage = "usage: {input_tokens: 1000, output_tokens: 500}";
    let script = format!("{price}turns:\n  - {{ say: Done., {usage}, repeat: forever }}\n");
    let sandbox = project(&TASK.replace("permissions", "limits: { spend: 1 }\npermissions"), &pay("true"), &script);
    let thread = thread_of(&sandbox.run(&RUN));
    let path = sandbox.transcript(&thread);
    let first = fs::metadata(&path).unwrap().len();
    let verified = |thread: &str| sandbox.run(&["budget", thread, "--verify", "--json"]).json()["verified"].clone();
    let before = verified(&thread)["postings"].as_u64().unwrap();
    assert_eq!(sandbox.run(&["send", &thread, "again", "--json"]).code, Some(0));
    let lost = verified(&thread)["postings"].as_u64().unwrap();
    // The end of the log is lost, and the thread spends again.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(first).unwrap();
    assert_eq!(sandbox.run(&["repair", &thread, "--accept-loss"]).code, Some(0));
    let unposted = |expected: u64| {
        let told = verified(&thread);
        assert_eq!(
            (&told["verdict"], &told["holds"], &told["differences"]),
            (&"incomplete".into(), &Value::Null, &json!([]))
        );
        assert_eq!((&told["postings"], &told["postings_skipped"]), (&before.into(), &expected.into()), "{told}");
        let gone = format!("account `{thread}`: postings {} to {lost} were lost", before + 1);
        assert!(told["unavailable"][0].as_str().unwrap().starts_with(&gone), "{told}");
        let shown = sandbox.run(&["budget", &thread, "--verify"]);
        assert!(!shown.stdout.contains('✓') && shown.stdout.contains(&gone), "{shown:?}");
        assert_eq!(shown.code, Some(0), "{shown:?}");
    };
    unposted(0);
    assert_eq!(sandbox.run(&["send", &thread, "once more", "--json"]).code, Some(0));
    let after = sandbox.run(&["budget", &thread, "--json"]).json()["accounts"][0]["version"].as_u64().unwrap();
    assert!(after > lost);
    unposted(after - lost);
    // Rebuilt from the logs, the account says why it is incomplete, and nothing sends its user for logs that do not exist.
    for name in ["registry.db", "registry.db-wal", "registry.db-shm"] {
        _ = fs::remove_file(sandbox.threads().join(name));
    }
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    unposted(after - lost);
    let told = sandbox.run(&["budget", &thread, "--json"]).json();
    assert_eq!(
        (&told["accounts"][0]["incomplete"], &told["accounts"][0]["incomplete_cause"]),
        (&true.into(), &"lost".into())
    );
    for command in ["budget", "tree"] {
        let shown = sandbox.run(&[command, &thread]).stdout;
        assert!(shown.contains("lost") && !shown.contains("import"), "{shown}");
    }
    let shown = sandbox.run(&["thread", "show", &thread]).stdout;
    assert!(shown.contains("postings were lost") && !shown.contains("import the rest"), "{shown}");
}

#[test]
fn the_content_of_a_snapshot_is_recovered() {
    let (sandbox, thread) = cut();
    let before = sandbox.run(&["snapshots", &thread, "--json"]).json();
    let version = &before["snapshots"][0]["log_version"];
    let dry = sandbox.run(&["repair", &thread, "--from-snapshot", "--dry-run", "--json"]).json();
    let done = sandbox.run(&["repair", &thread, "--from-snapshot", "--json"]).json();
    assert_eq!(dry["repairs"].as_array().unwrap().len(), done["repairs"].as_array().unwrap().len());
    let brought = done["repairs"].as_array().unwrap().iter().find(|one| one["kind"] == "provisional").unwrap();
    assert_eq!(&brought["log_version"], version);
    assert!(brought["messages"].as_u64().unwrap() > 0, "{done}");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    let log = sandbox.run(&["log", &thread, "--json"]).records();
    let messages = log.iter().filter(|line| line["event_type"] == "message").count() as u64;
    assert_eq!(messages, brought["messages"].as_u64().unwrap());
    assert!(sandbox.run(&["repair", &thread, "--from-snapshot"]).stdout.contains("needs no repair"));
}
