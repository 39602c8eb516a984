//! `selvedge append`.

use std::fs;

use selvedge_model::ThreadId;
use selvedge_store::{Acquire, Leases};

use crate::support::{HELLO, Sandbox};

#[test]
fn append_prints_the_new_version() {
    let (sandbox, thread) = Sandbox::with_thread();
    let ran = sandbox.run_with(&["append", &thread, "--expect", "0"], HELLO.as_bytes());
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "1\n", ""));
    let appended = sandbox.run_with(&["append", &thread, "--expect", "1", "--json"], HELLO.as_bytes()).json();
    assert_eq!(
        (&appended["version"], &appended["thread_id"], &appended["replayed"]),
        (&2.into(), &thread.as_str().into(), &false.into())
    );
    let file = sandbox.root().join("changeset.json");
    fs::write(&file, HELLO).unwrap();
    let ran = sandbox.run(&["append", &thread, "--expect", "any", "--file", file.to_str().unwrap()]);
    assert_eq!(ran.stdout, "3\n");
}

#[test]
fn a_stale_expectation_is_a_conflict_with_both_versions_and_nothing_is_committed() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let before = fs::read(sandbox.transcript(&thread)).unwrap();
    for stale in ["0", "2"] {
        let ran = sandbox.run_with(&["append", &thread, "--expect", stale, "--json"], HELLO.as_bytes());
        let error = ran.error(5, "version_conflict");
        assert_eq!((error["expected"].to_string().as_str(), &error["actual"]), (stale, &1.into()));
        assert!(error["hint"].as_str().unwrap().contains("--expect 1"));
    }
    assert_eq!(fs::read(sandbox.transcript(&thread)).unwrap(), before);
}

#[test]
fn the_same_key_and_request_return_the_first_answer() {
    let (sandbox, thread) = Sandbox::with_thread();
    let keyed = |changeset: &str| {
        sandbox.run_with(&["append", &thread, "--expect", "0", "--key", "k 1", "--json"], changeset.as_bytes())
    };
    assert_eq!(keyed(HELLO).json()["replayed"], false);
    let again = keyed(HELLO).json();
    assert_eq!((&again["replayed"], &again["version"]), (&true.into(), &1.into()));
    keyed(r#"{"reason":"Lifecycle"}"#).error(5, "idempotency_key_reused");
    assert_eq!(sandbox.run(&["thread", "show", &thread, "--json"]).json()["version"], 1);
}

#[test]
fn invalid_input_is_explained_with_a_minimal_valid_example() {
    let (sandbox, thread) = Sandbox::with_thread();
    let deep = format!(r#"{{"reason":"UserMessage","snapshot":{}{}}}"#, "[".repeat(70), "]".repeat(70));
    let cases: [(&[u8], &str, &str); 11] = [
        (b"", "usage", "empty"),
        (b" \n", "usage", "empty"),
        (b"hello", "json_syntax", "not JSON"),
        (b"{\"reason\":\"UserMessage\"} {}", "json_syntax", "not JSON"),
        (b"{\"reason\":\"UserMessage\",\"reason\":\"Lifecycle\"}", "json_duplicate_key", "`reason` appears twice"),
        (b"{\"reason\":\"User\xffMessage\"}", "json_not_utf8", "byte 15"),
        (b"{\"reason\":\"Whatever\"}", "json_invalid_fields", "`UserMessage`"),
        (b"{\"reason\":\"UserMessage\",\"messges\":[]}", "json_invalid_fields", "`messges`"),
        (b"{\"reason\":\"UserMessage\",\"events\":[]}", "json_invalid_fields", "`events`"),
        (b"[]", "json_invalid_fields", "struct Changeset"),
        (deep.as_bytes(), "json_too_deep", "64"),
    ];
    for (input, code, word) in cases {
        let error = sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], input).error(2, code);
        assert!(error["message"].as_str().unwrap().contains(word), "{error}");
        assert!(error["hint"].as_str().unwrap().contains(HELLO), "{error}");
    }
    assert_eq!(sandbox.run(&["thread", "show", &thread, "--json"]).json()["version"], 0);
}

#[test]
fn the_smallest_good_input_of_the_hint_is_good() {
    let (sandbox, thread) = Sandbox::with_thread();
    let error = sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], b"x").error(2, "json_syntax");
    let hint = error["hint"].as_str().unwrap();
    assert_eq!(sandbox.append(&thread, "0", &hint[hint.find('{').unwrap()..]), 1);
}

#[test]
fn input_beyond_eight_mebibytes_is_refused_without_reading_on() {
    let (sandbox, thread) = Sandbox::with_thread();
    let huge = format!(r#"{{"reason":"UserMessage","snapshot":"{}"}}"#, "x".repeat(9 << 20));
    sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], huge.as_bytes()).error(2, "json_too_long");
    let mut child =
        sandbox.command(&["append", &thread, "--expect", "0", "--json", "--file", "/dev/zero"]).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn an_invalid_changeset_is_refused_as_a_whole() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", r#"{"reason":"UserMessage","messages":[{"id":"m","role":"user","content":"tea"}]}"#);
    let refused = |changeset: &str, code: i32, word: &str| {
        sandbox.run_with(&["append", &thread, "--expect", "1", "--json"], changeset.as_bytes()).error(code, word);
    };
    refused(
        r#"{"reason":"UserMessage","messages":[{"role":"user","content":"x"}],"patches":[{"ops":[{"op":"set","path":["a"],"value":1},{"op":"increment","path":["none"],"amount":1}]}]}"#,
        2,
        "patch_refused",
    );
    refused(
        r#"{"reason":"UserMessage","messages":[{"id":"m","role":"user","content":"coffee"}]}"#,
        2,
        "message_changed",
    );
    refused(
        r#"{"reason":"UserMessage","run_meta":{"agent_id":"scribe","origin":"user","status":"running"}}"#,
        2,
        "invalid_changeset",
    );
    let state = sandbox.run(&["state", &thread, "--json"]).json();
    assert_eq!(
        (&state["version"], &state["state"], state["messages"].as_array().unwrap().len()),
        (&1.into(), &serde_json::json!({}), 1)
    );
}

#[test]
fn a_second_run_beside_an_active_one_is_not_allowed() {
    let (sandbox, thread) = Sandbox::with_thread();
    let run = |id: &str| {
        format!(
            r#"{{"reason":"UserMessage","run_id":"{id}","run_meta":{{"agent_id":"scribe","origin":"user","status":"running"}}}}"#
        )
    };
    sandbox.append(&thread, "0", &run("r1"));
    sandbox.run_with(&["append", &thread, "--expect", "1", "--json"], run("r2").as_bytes()).error(4, "run_active");
}

/// A run that another program records through `append` was once settled as lost by any command that read it, and the program's next append was
/// a conflict.
#[test]
fn a_run_that_another_program_records_is_not_changed_by_any_command() {
    let (sandbox, thread) = Sandbox::with_thread();
    let meta = |status: &str| {
        format!(r#""run_id":"r1","run_meta":{{"agent_id":"scribe","origin":"user","status":"{status}"}}"#)
    };
    sandbox.append(&thread, "0", &format!(r#"{{"reason":"UserMessage",{}}}"#, meta("running")));
    let shown = sandbox.run(&["thread", "show", &thread, "--json"]).json();
    assert_eq!((&shown["status"], shown.get("needs")), (&"running".into(), None), "{shown}");
    assert_eq!(sandbox.run(&["tree", &thread, "--json"]).json()["status"], "running");
    assert_eq!(sandbox.run(&["thread", "list", "--json"]).json()["threads"][0]["status"], "running");
    sandbox.run(&["wait", &thread, "--timeout", "0.7", "--json"]).error_beside_data(1, "wait_timeout");
    assert_eq!(sandbox.run(&["budget", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["inbox", "--json"]).records().len(), 0);
    assert!(!sandbox.run(&["doctor", "--json"]).stdout.contains("thread_stalled"));
    for verb in [&["cancel"][..], &["kill"], &["resume"], &["send"]] {
        let said: &[&str] = if verb == ["send"] { &["hello"] } else { &[] };
        let error = sandbox.run(&[verb, &[&thread], said, &["--json"]].concat()).error(4, "not_runnable");
        assert!(error["message"].as_str().unwrap().contains("recorded by another program"), "{error}");
    }
    sandbox.append(&thread, "1", &format!(r#"{{"reason":"RunFinished",{}}}"#, meta("done")));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["send", &thread, "hello"]).code, Some(0), "the run has ended");
}

#[test]
fn append_waits_for_a_held_thread_and_then_is_refused() {
    let (sandbox, thread) = Sandbox::with_thread();
    let store = sandbox.open();
    let lease = store.acquire(&ThreadId::new(&*thread).unwrap(), Acquire::default()).unwrap();
    let append = |wait: &str| {
        sandbox.run_with(&["append", &thread, "--expect", "0", "--wait", wait, "--json"], HELLO.as_bytes())
    };
    let error = append("0").error(4, "lease_held");
    assert_eq!((&error["retryable"], error["holder"].as_str()), (&true.into(), Some(lease.owner.as_str())));
    assert_eq!(error["pid"], std::process::id(), "{error}");
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| append("20"));
        std::thread::sleep(std::time::Duration::from_millis(300));
        store.release(&lease).unwrap();
        waiting.join().unwrap()
    });
    assert_eq!(waiting.json()["version"], 1);
}

#[test]
fn a_thread_of_another_key_can_not_be_continued() {
    let (sandbox, thread) = Sandbox::with_thread();
    fs::remove_dir_all(sandbox.home().join("keys/signing")).unwrap();
    sandbox.run(&["init"]);
    let append = || sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], HELLO.as_bytes());
    // The rows were sealed with the other key, and could as well be anything.
    append().error(6, "row_unsealed");
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    append().error(4, "wrong_signer");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
}

#[test]
fn usage_errors_are_json_too() {
    let (sandbox, thread) = Sandbox::with_thread();
    for args in [
        &["append", &thread][..],
        &["append", &thread, "--expect", "-1"],
        &["append", &thread, "--expect", "soon"],
        &["append"],
        &["sing"],
    ] {
        sandbox.run(&[args, &["--json"]].concat()).error(2, "usage");
        assert_eq!(sandbox.run(args).code, Some(2));
    }
}

/// A command that opened the store while another process was between its commit and its file reported a crash.
#[test]
fn concurrent_appends_report_no_crash() {
    let sandbox = Sandbox::new();
    let threads: Vec<String> = (0..8).map(|_| sandbox.new_thread("scribe")).collect();
    std::thread::scope(|scope| {
        for thread in &threads {
            let sandbox = &sandbox;
            scope.spawn(move || {
                for _ in 0..125 {
                    let ran = sandbox.run_with(&["append", thread, "--expect", "any"], HELLO.as_bytes());
                    assert_eq!((ran.code, ran.stderr.contains("crash")), (Some(0), false), "{ran:?}");
                }
            });
        }
    });
}
