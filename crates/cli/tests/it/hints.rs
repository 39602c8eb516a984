//! Hints: the command that they name works.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use selvedge_model::event::Handoff;
use selvedge_model::{Batch, Changeset, Event, Expect, Part, Reason, ThreadId};
use selvedge_store::Commit;
use serde_json::Value;

use crate::running::{RUN, put, thread_of};
use crate::support::{HELLO, Sandbox};

fn pipe(path: &std::path::Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Both waited for a writer of the pipe.
#[test]
fn a_pipe_in_the_place_of_a_document_is_refused_at_once() {
    let sandbox = Sandbox::new();
    pipe(&sandbox.project().join("pipe.md"));
    sandbox.run(&["verify", "--document", "pipe.md", "--json"]).error(2, "usage");
    sandbox.run(&["sign", "pipe.md", "--json"]).error(2, "usage");
}

#[test]
fn a_document_verified_with_the_wrong_key_names_its_own() {
    let sandbox = Sandbox::new();
    let stranger = Sandbox::new();
    fs::write(sandbox.project().join("a.md"), "text").unwrap();
    assert_eq!(sandbox.run(&["sign", "a.md"]).code, Some(0));
    let other = sandbox.root().join("other.pem");
    fs::write(&other, stranger.run(&["keys", "export"]).stdout).unwrap();
    let asked = ["verify", "--document", "a.md", "--public-key", other.to_str().unwrap(), "--json"];
    let error = sandbox.run(&asked).error(6, "document_untrusted_key");
    assert!(error["hint"].as_str().unwrap().contains("leave --public-key out"), "{error}");
    // Without the other key the hint is kept, and it holds.
    sandbox.run(&["verify", "--document", "a.md", "--json"]).json();
}

/// Doctor had no help, and `repair` failed with `io`.
#[test]
fn another_file_in_place_of_a_manifest_is_set_aside_by_repair() {
    let (sandbox, thread) = Sandbox::with_thread();
    let path = sandbox.threads().join(&thread).join("thread.json");
    for is_pipe in [true, false] {
        fs::remove_file(&path).unwrap();
        if is_pipe {
            pipe(&path)
        } else {
            symlink("elsewhere", &path).unwrap()
        }
        let doctor = sandbox.run(&["doctor", "--json"]);
        let said: Value = serde_json::from_str(&doctor.stdout).unwrap();
        let found = said["findings"].as_array().unwrap().iter().find(|found| found["code"] == "manifest_refused");
        let help = found.unwrap_or_else(|| panic!("{doctor:?}"))["help"].as_str().unwrap();
        assert!(help.contains(&format!("selvedge repair {thread}")), "{help}");
        sandbox.run(&["repair", &thread, "--json"]).json();
        assert_eq!(sandbox.run(&["doctor"]).code, Some(0));
    }
}

#[test]
fn damage_in_an_archive_names_the_transcript_and_the_hint_keeps_the_key() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let archive = sandbox.root().join("a.tar");
    let key = sandbox.root().join("k.pem");
    assert_eq!(sandbox.run(&["export", &thread, "-o", archive.to_str().unwrap()]).code, Some(0));
    fs::write(&key, sandbox.run(&["keys", "export"]).stdout).unwrap();
    let mut bytes = fs::read(&archive).unwrap();
    let at = bytes.windows(5).position(|window| window == b"hello").unwrap();
    bytes[at] = b'j';
    fs::write(&archive, bytes).unwrap();
    let archive = archive.to_str().unwrap();
    let key = key.to_str().unwrap();
    let ran = sandbox.run(&["verify", archive, "--public-key", key, "--json"]);
    assert_eq!(ran.records()[0]["damage"]["inside"], "transcript.jsonl");
    let hint = ran.error_beside_data(6, "log_damaged")["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains(&format!("--public-key {key}")), "{hint}");
    assert!(
        sandbox
            .run(&["verify", archive, "--public-key", key])
            .stdout
            .contains(&format!("of transcript.jsonl in {archive}"))
    );
}

#[test]
fn every_finding_has_a_page() {
    let sandbox = Sandbox::empty();
    for code in ["thread_not_indexed", "manifest_untrusted", "processes_dead"] {
        assert_eq!(sandbox.run(&["help", code]).code, Some(0), "{code}");
    }
}

/// `resume` asked for a message that it had been given, and `wait` named a `resume` that could not help.
#[test]
fn a_chain_without_an_end_is_reported_as_damaged_by_every_command() {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/task.md", "---\nname: task\nversion: 1.0.0\n---\nDo it.\n");
    put(&sandbox, "script.yaml", "turns:\n  - {say: Done., repeat: forever}\n");
    let thread = thread_of(&sandbox.run(&RUN));
    let missing = ThreadId::new("missing-0123456789ab").unwrap();
    let to = Handoff {
        new_thread_id: missing,
        reason: None,
        directive: None,
        trailing_turns: 0,
        details: Default::default(),
    };
    let changeset = Changeset { events: vec![Event::ThreadHandoff(to)], ..Changeset::empty(Reason::Lifecycle) };
    let store = sandbox.open();
    store.commit(Batch::of(Part::new(ThreadId::new(&*thread).unwrap(), Expect::Any, changeset))).unwrap();
    store.close().unwrap();
    let resumed = sandbox.run(&["resume", &thread, "again", "--json"]).error(6, "chain_damaged");
    let waited = sandbox.run(&["wait", &thread, "--json"]).error_beside_data(1, "thread_stalled");
    for error in [resumed, waited] {
        let hint = error["hint"].as_str().unwrap();
        assert!(hint.contains("`selvedge doctor`") && hint.contains("`selvedge reindex`"), "{error}");
    }
}

/// Each error pointed at something else: the shell's quoting, the parser's type, the format, or nothing.
#[test]
fn invalid_arguments_are_answered_with_the_valid_form() {
    let (sandbox, thread) = Sandbox::with_thread();
    put(&sandbox, ".ai/directives/task.md", "---\nname: task\ninputs: [{ name: city }]\n---\nGo to {input:city}.\n");
    put(&sandbox, "notes.txt", "no archive\n");
    pipe(&sandbox.project().join("pipe"));
    let most = "at most 18446744073709551615";
    let beyond = r#"{"reason":"UserMessage","turn":18446744073709551616}"#;
    let refused = sandbox.run_with(&["append", &thread, "--expect", "any"], beyond.as_bytes());
    assert!(refused.stderr.contains("a whole number from 0 to 18446744073709551615 is expected"), "{refused:?}");
    assert!(!refused.stderr.contains("floating point"), "{refused:?}");
    for (args, message) in [
        (vec!["state", &thread, "--at", "99999999999999999999"], most),
        (vec!["state", &thread, "--at", "-1"], "not a whole number of at least 0"),
        (vec!["append", &thread, "--expect", "99999999999999999999"], most),
        (vec!["append", &thread, "--expect", "-1"], "neither a version nor `any`"),
        (vec!["wait", &thread, "--timeout", "-1"], "between 0 and a year"),
        (vec!["thread", "list", "--after", "zzz"], "the cursor at the end of the previous page"),
        (vec!["prune", "--older-than", "99999999999d"], "is too long: at most 106751991d"),
        (vec!["run", "task.md"], "without its file extension: `task`"),
        (vec!["run", "task", "--input", "planet=mars"], "`planet` is not declared; declared: `city`"),
        (vec!["import", "."], "is a folder; an archive is a file"),
        (vec!["import", "pipe"], "is not a regular file; an archive is a file"),
        (vec!["import", "notes.txt"], "is not an archive of a thread"),
        (vec!["verify", "pipe"], "is not a regular file"),
        (vec!["verify", "./pipe"], "is not a regular file"),
    ] {
        let ran = sandbox.run(&args);
        assert!(matches!(ran.code, Some(2 | 3)) && ran.stderr.contains(message), "{args:?}: {ran:?}");
    }
}
