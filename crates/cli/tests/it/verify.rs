//! `selvedge verify`: verdicts on good and damaged logs.

use std::fs;

use selvedge_model::{Batch, Changeset, Expect, Part, Reason, ThreadId};
use selvedge_store::Commit;
use serde_json::Value;

use crate::support::{HELLO, Sandbox, contents, copy};

/// A thread with versions 0 to 3, closed.
fn with_log() -> (Sandbox, String) {
    let (sandbox, thread) = Sandbox::with_thread();
    for version in 0..3 {
        sandbox.append(&thread, &version.to_string(), HELLO);
    }
    (sandbox, thread)
}

fn damage(sandbox: &Sandbox, thread: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let path = sandbox.transcript(thread);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn verdict(sandbox: &Sandbox, thread: &str, code: &str) -> Value {
    let ran = sandbox.run(&["verify", thread, "--json"]);
    ran.error_beside_data(6, code);
    let [record] = &ran.records()[..] else { panic!("{ran:?}") };
    assert_eq!((&record["sound"], record["code"].as_str()), (&false.into(), Some(code)));
    record.clone()
}

#[test]
fn a_good_log_is_proven_up_to_a_version_by_a_key_and_no_further() {
    let (sandbox, thread) = with_log();
    let before = contents(&sandbox.project());
    let record = sandbox.run(&["verify", &thread, "--json"]).json();
    assert_eq!(
        (&record["sound"], &record["unchanged_up_to"], &record["code"]),
        (&true.into(), &3.into(), &"sound".into())
    );
    assert_eq!((&record["signers"][0]["owner"], &record["signers"][0]["checkpoints"]), (&"self".into(), &4.into()));
    assert_eq!(record["named_by"][0], serde_json::json!({ "by": "the database", "version": 3 }));
    assert_eq!(record["does_not_prove"].as_array().unwrap().len(), 3);
    let text = sandbox.run(&["verify", &thread]).stdout;
    assert!(
        text.contains("unchanged up to version 3 since it was signed by key") && text.contains("Not proven"),
        "{text}"
    );
    let logs = |files: &[(std::path::PathBuf, Vec<u8>)]| -> Vec<_> {
        files.iter().filter(|(path, _)| !path.to_str().unwrap().contains("registry.db")).cloned().collect()
    };
    assert!(logs(&contents(&sandbox.project())) == logs(&before), "verify never writes");
}

#[test]
fn explain_shows_every_signed_checkpoint() {
    let (sandbox, thread) = with_log();
    let record = sandbox.run(&["verify", &thread, "--explain", "--json"]).json();
    let statements = record["statements"].as_array().unwrap();
    let versions: Vec<_> = statements.iter().map(|statement| statement["version"].as_u64().unwrap()).collect();
    assert_eq!(versions, [0, 1, 2, 3]);
    for field in ["reason", "timestamp", "signer", "hash", "byte_offset"] {
        assert!(!statements[1][field].is_null(), "{field}");
    }
    assert_eq!(sandbox.run(&["verify", &thread, "--explain"]).stdout.matches("UserMessage").count(), 3);
}

#[test]
fn a_flipped_byte_is_named_by_file_line_byte_and_version() {
    let (sandbox, thread) = with_log();
    let text = fs::read_to_string(sandbox.transcript(&thread)).unwrap();
    let at = text.match_indices("hello").nth(1).unwrap().0;
    let line = text[..at].matches('\n').count() as u64 + 1;
    damage(&sandbox, &thread, |bytes| bytes[at] ^= 1);
    let record = verdict(&sandbox, &thread, "log_damaged");
    let found = &record["damage"];
    assert_eq!((&record["unchanged_up_to"], &found["version"]), (&1.into(), &2.into()));
    let lines = found["first_line"].as_u64().unwrap()..=found["line"].as_u64().unwrap();
    assert!(lines.contains(&line), "{record}");
    assert_eq!(found["file"].as_str(), sandbox.transcript(&thread).to_str());
    let ran = sandbox.run(&["verify", &thread]);
    assert!(ran.stdout.contains("damaged in version 2") && ran.stdout.contains("transcript.jsonl"), "{ran:?}");
    sandbox.run(&["state", &thread, "--json"]).error(6, "log_damaged");
}

#[test]
fn unsigned_bytes_are_counted_and_the_log_before_them_is_valid() {
    let (sandbox, thread) = with_log();
    damage(&sandbox, &thread, |bytes| bytes.extend(b"{\"seq\":"));
    let record = verdict(&sandbox, &thread, "foreign_bytes");
    assert_eq!((&record["unchanged_up_to"], &record["foreign_bytes"]), (&3.into(), &7.into()));
    let text = sandbox.run(&["verify", &thread]).stdout;
    assert!(text.contains("unchanged up to version 3") && text.contains("7 unsigned bytes"), "{text}");
    // The next append puts them aside and says so in the log.
    assert_eq!(sandbox.append(&thread, "3", HELLO), 4);
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert!(sandbox.run(&["log", &thread]).stdout.contains("recovery"));
}

#[test]
fn a_cut_log_is_reported_as_truncated_even_if_the_rest_is_signed() {
    let (sandbox, thread) = with_log();
    damage(&sandbox, &thread, |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let end = text.match_indices("\"event_type\":\"checkpoint\"").nth(2).unwrap().0;
        bytes.truncate(end + text[end..].find('\n').unwrap() + 1);
    });
    let record = verdict(&sandbox, &thread, "truncated");
    assert_eq!(record["unchanged_up_to"], 2);
    assert!(record["message"].as_str().unwrap().contains("the database"), "{record}");
}

#[test]
fn one_bad_log_among_good_ones_is_reported_and_sets_the_exit_code() {
    let (sandbox, bad) = with_log();
    let good = sandbox.new_thread("scribe");
    damage(&sandbox, &bad, |bytes| bytes[20] ^= 1);
    for args in [&["verify", "--all", "--json"][..], &["verify", &good, &bad, "--json"]] {
        let ran = sandbox.run(args);
        let error = ran.error_beside_data(6, "log_damaged");
        assert!(error["hint"].as_str().unwrap().contains(&bad), "{error}");
        let sound: Vec<_> =
            ran.records().into_iter().map(|record| (record["thread_id"] == good, record["sound"].clone())).collect();
        assert_eq!(sound.len(), 2);
        assert!(sound.into_iter().all(|(is_good, sound)| sound == is_good));
    }
    assert_eq!(sandbox.run(&["verify", &good]).code, Some(0));
}

#[test]
fn threads_or_all_must_be_named_and_not_both() {
    let (sandbox, thread) = with_log();
    sandbox.run(&["verify", "--json"]).error(2, "usage");
    sandbox.run(&["verify", &thread, "--all", "--json"]).error(2, "usage");
}

/// Two logs of one batch; one of them and the database are set back to before it.
#[test]
fn a_log_of_the_same_batch_reveals_an_older_database() {
    let sandbox = Sandbox::new();
    let ann = sandbox.new_thread("ann");
    let bob = sandbox.new_thread("bob");
    let before = sandbox.root().join("before");
    copy(&sandbox.threads(), &before);
    let store = sandbox.open();
    let part = |id: &str| Part::new(ThreadId::new(id).unwrap(), Expect::Exact(0), Changeset::empty(Reason::Lifecycle));
    store.commit(Batch { parts: vec![part(&ann), part(&bob)], ..Batch::of(part(&ann)) }).unwrap();
    store.close().unwrap();
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
    let statements = sandbox.run(&["verify", &ann, "--explain", "--json"]).json()["statements"].clone();
    assert_eq!(statements[1]["with"], serde_json::json!([{ "thread_id": bob, "version": 1 }]));

    let newer = sandbox.root().join("newer");
    copy(&sandbox.threads().join(&ann), &newer);
    fs::remove_dir_all(sandbox.threads()).unwrap();
    copy(&before, &sandbox.threads());
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0), "alone, an older copy of everything looks sound");
    copy(&newer, &sandbox.threads().join(&ann));
    let ran = sandbox.run(&["verify", "--all", "--json"]);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    let codes: Vec<_> =
        ran.records().into_iter().map(|record| (record["thread_id"].clone(), record["code"].clone())).collect();
    assert!(codes.contains(&(ann.as_str().into(), "database_behind".into())), "{codes:?}");
}

/// It waited for a writer of the pipe.
#[test]
fn a_pipe_in_place_of_a_file_is_refused_without_waiting() {
    let sandbox = Sandbox::new();
    let pipe = sandbox.root().join("pipe.tar");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.display().to_string();
    let key = sandbox.root().join("key.pem");
    fs::write(&key, sandbox.run(&["keys", "export"]).stdout).unwrap();
    let key = key.display().to_string();
    sandbox.run(&["verify", &pipe, "--public-key", &key, "--json"]).error_beside_data(2, "usage");
    sandbox.run(&["verify", &key, "--public-key", &pipe, "--json"]).error(2, "usage");
    sandbox.run(&["import", &pipe, "--json"]).error(2, "usage");
    sandbox.run(&["import", &pipe, "--format", "selvedge", "--json"]).error_beside_data(2, "usage");
}
