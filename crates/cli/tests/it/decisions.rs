//! What a person needs to decide, and error messages that name the cause.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use selvedge_log::keys::KeyFolder;
use serde_json::{Value, json};

use crate::approvals::inbox;
use crate::running::{PAY_ONCE, RUN, TASK, is_orphaned, killed_in_the_middle, pay, project, put, thread_of};
use crate::support::{HELLO, Ran, Sandbox, masked};

const PRICE: &str = "price: {input_per_million_tokens: 1, output_per_million_tokens: 2}\n";

/// A thread whose run was killed while its tool ran, and that was taken up again: the outcome of `call_1` is unknown.
fn unknown_outcome() -> (Sandbox, String) {
    let sandbox = project(TASK, &pay("sleep 60"), &format!("{PRICE}{PAY_ONCE}"));
    let thread = killed_in_the_middle(&sandbox);
    let ran = sandbox.run(&["resume", &thread, "--json"]);
    let error = ran.error_beside_data(7, "outcome_unknown");
    assert!(error["hint"].as_str().unwrap().contains("--not-done"), "{error}");
    (sandbox, thread)
}

/// The inbox named the call and nothing else; `tree` and `budget` did not even do that.
#[test]
fn an_unknown_outcome_is_shown_with_what_is_known_and_the_three_ways_to_resolve_it() {
    let (sandbox, thread) = unknown_outcome();
    assert!(!is_orphaned(&sandbox));
    let need = inbox(&sandbox).remove(0);
    assert_eq!((&need["tool"], &need["arguments"]), (&json!("pay"), &json!({"to": "anna"})), "{need}");
    assert_eq!(need["probed"], json!({"call_id": "call_1", "process": "ended", "no_reconcile": true}), "{need}");
    let dispatched = need["dispatched_at"].as_str().unwrap();
    let log = sandbox.run(&["log", &thread, "--json"]).records();
    let intent = log.iter().find(|line| line["event_type"] == "tool_intent").unwrap();
    assert_eq!(intent["timestamp"], dispatched);
    let budget = sandbox.run(&["budget", &thread, "--json"]).json();
    let tree = sandbox.run(&["tree", &thread, "--json"]).json();
    for call in [&budget["accounts"][0]["unknown_calls"][0], &tree["unknown_calls"][0]] {
        for field in ["thread_id", "call_id", "tool", "arguments", "dispatched_at", "probed", "commands"] {
            assert_eq!(call[field], need[field], "{field}");
        }
    }
    for command in [vec!["inbox"], vec!["tree", &thread], vec!["budget", &thread]] {
        let shown = sandbox.run(&command).stdout;
        for text in [
            "pay",
            r#"{"to":"anna"}"#,
            "call_1",
            "dispatched 20",
            "its process was still alive, and recovery killed it; its tool has no reconcile command, so it could not be asked",
            &format!("selvedge settle call_1 --thread {thread} --done [RESULT]"),
            &format!("selvedge settle call_1 --thread {thread} --not-done"),
            &format!("selvedge settle call_1 --thread {thread} --unknown"),
        ] {
            assert!(shown.contains(text), "{command:?} lacks `{text}`: {shown}");
        }
    }
    let shown = sandbox.run(&["thread", "show", &thread]).stdout;
    assert!(shown.contains(&format!("`selvedge inbox {thread}`")), "{shown}");
    // What the log says of it is signed, and stays when the call is settled.
    assert_eq!(sandbox.run(&["settle", "call_1", "--done", "paid"]).code, Some(0));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python/verify.py");
    let key = KeyFolder::load(&sandbox.home().join("keys/signing")).unwrap().public().to_text();
    let transcript = sandbox.transcript(&thread);
    let checked =
        Command::new("python3").arg(script).arg(transcript).args(["--thread", &thread, "--key", &key]).output();
    // Nothing to show where there is no Python.
    if let Ok(checked) = checked {
        let answer = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.status.success() && answer.contains("\"unchanged\""), "{answer}");
    }
    let probed = log.iter().filter(|line| line["event_type"] == "suspended").map(|line| &line["payload"]["probed"]);
    let fates: Vec<&Value> = probed.map(|probed| &probed[0]["process"]).collect();
    assert_eq!(fates, ["ended", "ended"], "what an earlier look ended is not called gone by a later one");
}

#[test]
fn a_process_that_had_died_is_not_reported_as_killed() {
    let sandbox = project(TASK, &pay("kill -9 $PPID; exit 1"), PAY_ONCE);
    let ran = sandbox.run(&RUN);
    let thread = thread_of(&ran);
    while is_orphaned(&sandbox) {
        std::thread::yield_now();
    }
    sandbox.run(&["resume", &thread, "--json"]).error_beside_data(7, "outcome_unknown");
    assert_eq!(inbox(&sandbox)[0]["probed"]["process"], "gone");
    assert!(sandbox.run(&["inbox"]).stdout.contains("its process had died when recovery checked"));
}

/// A person who resolved it by hand did not know that the tool could have reported it.
#[test]
fn a_call_whose_tool_was_not_asked_yet_can_be_reconciled_by_resume() {
    let sandbox = project(TASK, &pay("sleep 60"), PAY_ONCE);
    let thread = killed_in_the_middle(&sandbox);
    // Another command that runs threads settles what it finds, and asks no tool.
    put(&sandbox, ".ai/directives/other.md", "---\nname: other\n---\nSay it.\n");
    put(&sandbox, "other.yaml", "turns:\n  - { say: Done., repeat: forever }\n");
    assert_eq!(sandbox.run(&["run", "other", "--model", "scripted:other.yaml"]).code, Some(0));
    let need = inbox(&sandbox).remove(0);
    assert_eq!(need["probed"], json!({"call_id": "call_1", "process": "ended"}), "{need}");
    assert_eq!(need["commands"][0], json!(format!("selvedge resume {thread}")));
    assert!(sandbox.run(&["inbox"]).stdout.contains("`selvedge resume` asks it"));
    sandbox.run(&["resume", &thread, "--json"]).error_beside_data(7, "outcome_unknown");
    let probed = json!({"call_id": "call_1", "process": "ended", "no_reconcile": true});
    assert_eq!(inbox(&sandbox)[0]["probed"], probed, "what the first process found out is kept");
    assert_eq!(inbox(&sandbox)[0]["commands"].as_array().unwrap().len(), 3, "nothing is left to ask");
}

/// A tool without a `reconcile` command was said to have been asked, and the record was the same.
#[test]
fn only_a_tool_that_was_asked_is_said_not_to_know() {
    let mut tool: Value = serde_json::from_str(&pay("sleep 60")).unwrap();
    tool["reconcile"] = json!(["sh", "-c", "echo perhaps"]);
    let sandbox = project(TASK, &tool.to_string(), PAY_ONCE);
    let thread = killed_in_the_middle(&sandbox);
    sandbox.run(&["resume", &thread, "--json"]).error_beside_data(7, "outcome_unknown");
    let probed = json!({"call_id": "call_1", "process": "ended", "reconciled": "unknown"});
    assert_eq!(inbox(&sandbox)[0]["probed"], probed);
    assert!(sandbox.run(&["inbox"]).stdout.contains("its tool could not report the outcome"));
}

/// A model chose them: they moved the cursor of the approver's terminal.
#[test]
fn arguments_of_an_unknown_outcome_can_not_control_the_terminal() {
    let script = PAY_ONCE.replace("to: anna", r#"to: "a\u202eb\u009b2Jc" "#);
    let sandbox = project(TASK, &pay("sleep 60"), &format!("{PRICE}{script}"));
    let thread = killed_in_the_middle(&sandbox);
    assert_eq!(sandbox.run(&["resume", &thread]).code, Some(7));
    for command in
        [vec!["inbox"], vec!["tree", &thread], vec!["budget", &thread], vec!["state", &thread], vec!["log", &thread]]
    {
        for json in [&[][..], &["--json"]] {
            // A line of the log is shown to programs byte for byte.
            if command[0] == "log" && !json.is_empty() {
                continue;
            }
            let shown = sandbox.run(&[&command[..], json].concat()).stdout;
            assert!(!shown.contains(['\u{202e}', '\u{9b}']), "{command:?} {json:?}: {shown}");
        }
    }
    for json in [&[][..], &["--json"]] {
        let state = sandbox.run(&[&["state", &thread][..], json].concat()).stdout;
        let state: Value = serde_json::from_str(&state).expect("what is spelled out is still JSON");
        assert!(state.to_string().contains("a\u{202e}b\u{9b}2Jc"), "and means the same");
    }
    assert_eq!(sandbox.run(&["settle", "call_1", "--not-done", "--no-run"]).code, Some(0));
}

#[test]
fn help_explains_an_unknown_outcome_and_a_lost_commit_each_by_itself() {
    let sandbox = Sandbox::empty();
    let of_call = sandbox.run(&["help", "outcome_unknown"]).stdout;
    for text in ["The outcome of a tool call is unknown", "--done [RESULT]", "--not-done", "--unknown", "reconcile"] {
        assert!(of_call.contains(text), "{text}: {of_call}");
    }
    let of_commit = sandbox.run(&["help", "commit_outcome_unknown"]).stdout;
    assert!(of_commit.contains("whether the commit happened"), "{of_commit}");
}

/// An answer without usage was called a lost one.
#[test]
fn a_priced_answer_without_usage_is_charged_at_its_bound_and_not_reported_as_lost() {
    let script = format!("{PRICE}turns:\n  - {{ say: Done., repeat: forever }}\n");
    let sandbox = project(TASK, &pay("exit 0"), &script);
    let thread = thread_of(&sandbox.run(&RUN));
    let shown = sandbox.run(&["budget", &thread]).stdout;
    assert!(shown.contains("usage not reported, charged at its bound") && !shown.contains("lost"), "{shown}");
    let held = &sandbox.run(&["budget", &thread, "--json"]).json()["accounts"][0]["reservations"][0];
    assert_eq!(held["at_bound"], "usage_not_reported");
    let log = sandbox.run(&["log", &thread]).stdout;
    assert!(log.contains("usage not reported, charged at its bound"), "{log}");
    let ran = sandbox.run(&RUN[..4]);
    assert!(ran.stderr.contains("without reported usage, charged at their bound"), "{ran:?}");
}

/// The hint was to verify the thread of the same name in the store, which was sound.
#[test]
fn an_error_in_an_archive_names_the_archive() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let archive = sandbox.root().join("a.tar");
    let file = archive.to_str().unwrap();
    assert_eq!(sandbox.run(&["export", &thread, "-o", file]).code, Some(0));
    let sound = fs::read(&archive).unwrap();
    let mut changed = sound.clone();
    let at = changed.windows(5).position(|window| window == b"hello").unwrap();
    changed[at] = b'j';
    for (bytes, code) in [(changed.as_slice(), "log_damaged"), (&sound[..1500], "integrity")] {
        fs::write(&archive, bytes).unwrap();
        let error = sandbox.run(&["import", file, "--json"]).error_beside_data(6, code);
        let message = error["message"].as_str().unwrap();
        let hint = error["hint"].as_str().unwrap();
        assert!(message.contains(&format!("the archive `{file}`")), "{message}");
        assert!(hint.contains(&format!("selvedge verify {file}")) && !hint.contains(&thread), "{hint}");
    }
}

/// Makes the sandbox belong to a user whom modes bind, and runs commands as that user: root may do everything.
fn as_plain_user(sandbox: &Sandbox) -> impl Fn(&[&str]) -> Ran {
    const NOBODY: u32 = 65534;
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        fn give(path: &Path) {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            if path.is_dir() {
                fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path()));
            }
        }
        give(&sandbox.root());
    }
    move |args| {
        let mut command = sandbox.command(args);
        if is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        Ran::of(command.spawn().unwrap())
    }
}

/// It blamed the disk.
#[test]
fn a_key_folder_without_write_access_is_reported_with_mode_and_remedy() {
    let sandbox = Sandbox::new();
    let run = as_plain_user(&sandbox);
    let keys = sandbox.home().join("keys");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (folder, command) in [("", "rotate"), ("signing", "rotate"), ("trusted", "list")] {
        let folder = keys.join(folder);
        let folder = Path::new(folder.to_str().unwrap().trim_end_matches('/'));
        mode(folder, if command == "rotate" { 0o500 } else { 0o000 });
        let error = run(&["keys", command, "--json"]).error(4, "permission_denied");
        let message = error["message"].as_str().unwrap();
        let hint = error["hint"].as_str().unwrap();
        let shown = folder.display().to_string();
        assert!(message.contains(&format!("`{shown}` has mode 0")) && !message.contains("disk"), "{message}");
        assert!(hint.contains(&format!("chmod u+rwx {shown}")), "{hint}");
        mode(folder, 0o700);
    }
    run(&["keys", "rotate", "--json"]).json();
}

/// The hint was to trust one's own key, whose file did not exist.
#[test]
fn without_any_trusted_key_the_hint_names_the_folder_and_the_variable() {
    let (sandbox, thread) = Sandbox::with_thread();
    let elsewhere = |args: &[&str]| {
        let mut command = sandbox.command(args);
        command.env("SELVEDGE_HOME", sandbox.root().join("nowhere"));
        Ran::of(command.spawn().unwrap())
    };
    let is_told = |hint: &str| hint.contains("SELVEDGE_HOME") && hint.contains("nowhere/keys/trusted");
    for args in [vec!["state", &thread, "--json"], vec!["wait", &thread, "--timeout", "1", "--json"]] {
        let error = elsewhere(&args).error_beside_data(6, "untrusted_key");
        assert!(is_told(error["hint"].as_str().unwrap()), "{error}");
    }
    let error = elsewhere(&["backup", "../copy", "--json"]).error_beside_data(6, "threads_skipped");
    assert!(is_told(error["hint"].as_str().unwrap()), "{error}");
    // A new key would not continue the thread.
    put(&sandbox, "hello.json", HELLO);
    let append = ["append", &thread, "--expect", "any", "--file", "hello.json", "--json"];
    let error = elsewhere(&append).error(3, "signing_key_missing");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.starts_with("if you have a key, set SELVEDGE_HOME") && hint.contains("can't continue"), "{error}");
    let ran = elsewhere(&["doctor", "--json"]);
    let closing = ran.error_beside_data(1, "doctor_warnings");
    assert!(closing["hint"].as_str().unwrap().contains("SELVEDGE_HOME"), "{closing}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let missing = findings.iter().find(|found| found["code"] == "no_trusted_keys").unwrap();
    assert!(is_told(missing["help"].as_str().unwrap()), "{missing}");
    assert!(findings.iter().all(|found| found["severity"] != "damage"), "{findings:?}");
    assert!(!report.to_string().contains("failed verification"), "{report}");
    // With the right folder nothing of it is said.
    assert_eq!(sandbox.run(&["doctor"]).code, Some(0));
}

/// The ledger was said to differ.
#[test]
fn an_untrusted_key_is_not_reported_as_a_ledger_difference() {
    let sandbox = project(TASK, &pay("exit 0"), &format!("{PRICE}turns:\n  - {{ say: Done., repeat: forever }}\n"));
    let thread = thread_of(&sandbox.run(&RUN));
    let mut command = sandbox.command(&["budget", &thread, "--verify", "--json"]);
    command.env("SELVEDGE_HOME", sandbox.root().join("nowhere"));
    Ran::of(command.spawn().unwrap()).error(6, "untrusted_key");
}

#[test]
fn a_run_of_another_agent_is_not_appended() {
    let (sandbox, thread) = Sandbox::with_thread();
    let run = |agent: &str| {
        format!(
            r#"{{"reason":"UserMessage","run_id":"r1","run_meta":{{"agent_id":"{agent}","origin":"user","status":"running"}}}}"#
        )
    };
    let append = ["append", &thread, "--expect", "0", "--json"];
    let error = sandbox.run_with(&append, run("painter").as_bytes()).error(2, "wrong_agent");
    assert!(error["message"].as_str().unwrap().contains("`painter`") && error["agent_id"] == "scribe", "{error}");
    assert_eq!(sandbox.run_with(&append, run("scribe").as_bytes()).json()["version"], 1);
}

/// They stayed for ever: a run removes its own, and an idle thread has none.
#[test]
fn prune_removes_the_old_snapshots_of_idle_threads() {
    let sandbox = project(TASK, &pay("sleep 60"), PAY_ONCE);
    put(&sandbox, ".ai/config/state_persistence.yaml", "retention: { cleanup: { enabled: false } }\n");
    let thread = killed_in_the_middle(&sandbox);
    sandbox.run(&["resume", &thread, "--json"]).error_beside_data(7, "outcome_unknown");
    let places = || -> Vec<Value> {
        let listed = sandbox.run(&["snapshots", &thread, "--json"]).json();
        listed["snapshots"].as_array().unwrap().iter().map(|one| one["place"].clone()).collect()
    };
    assert_eq!(places(), ["newest", "older"]);
    assert_eq!(sandbox.run(&["prune", "--yes", "--json"]).records(), Vec::<Value>::new(), "they are kept");
    let rules = "retention: { cleanup: { keep_last_n: 0, delete_older_than_days: 0 } }\n";
    put(&sandbox, ".ai/config/state_persistence.yaml", rules);
    let would = sandbox.run(&["prune", "--dry-run", "--json"]).records();
    assert_eq!((&would[0]["thread_id"], &would[0]["removed"], places().len()), (&json!(thread), &json!(false), 2));
    let ran = sandbox.run(&["prune", "--yes"]);
    assert!(ran.stderr.contains("1 old snapshot of 1 idle thread removed"), "{ran:?}");
    assert_eq!(places(), ["newest"]);
    assert_eq!(sandbox.run(&["doctor"]).code, Some(0));
}

/// A project with one file of each kind that a backup takes along.
fn with_files() -> Sandbox {
    let (sandbox, _) = Sandbox::with_thread();
    for (path, text) in [
        (".ai/agents/scribe.yaml", "name: Scribe\n"),
        (".ai/directives/reports/weekly.md", "---\nname: weekly\n---\nReport.\n"),
        (".ai/tools/pay.sh", "#!/bin/sh\nexit 0\n"),
        (".ai/knowledge/facts.md", "Water is wet.\n"),
        (".ai/config/agent/limits.yaml", "turns: 5\n"),
    ] {
        put(&sandbox, path, text);
    }
    let script = sandbox.project().join(".ai/tools/pay.sh");
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    sandbox
}

#[test]
fn a_backup_lists_what_it_does_not_include() {
    let sandbox = with_files();
    let ran = sandbox.run(&["backup", "../copy"]);
    for text in [
        "your keys",
        "/home",
        "agents, directives, graphs, tools, knowledge, config",
        "`--project`",
        "outside of `.ai`",
    ] {
        assert!(ran.stderr.contains(text), "{text}: {ran:?}");
    }
    let made = sandbox.run(&["backup", "../other", "--json"]).json();
    assert_eq!((&made["project"], made["not_included"].as_array().unwrap().len()), (&Value::Null, 3));
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    let error = sandbox.run(&["-C", "../elsewhere", "restore", "../copy", "--project", "--json"]);
    error.error(3, "file_not_found");
    assert!(!sandbox.root().join("elsewhere/.ai").exists(), "nothing was written");
}

#[test]
fn a_backup_of_the_project_brings_its_items_and_configuration_back() {
    let sandbox = with_files();
    let made = sandbox.run(&["backup", "../copy", "--project", "--json"]).json();
    assert_eq!((&made["project"]["files"], made["not_included"].as_array().unwrap().len()), (&json!(5), 2));
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    let back = sandbox.run(&["-C", "../elsewhere", "restore", "../copy", "--project", "--json"]).json();
    assert_eq!((&back["project"]["files"], &back["threads"]), (&json!(5), &json!(1)));
    let at = |folder: &str, path: &str| sandbox.root().join(folder).join(path);
    for path in [".ai/agents/scribe.yaml", ".ai/directives/reports/weekly.md", ".ai/config/agent/limits.yaml"] {
        assert_eq!(fs::read(at("elsewhere", path)).unwrap(), fs::read(at("project", path)).unwrap(), "{path}");
    }
    let mode = fs::metadata(at("elsewhere", ".ai/tools/pay.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "a script can still be run");
    assert_eq!(sandbox.run(&["-C", "../elsewhere", "directive", "check", "reports/weekly"]).code, Some(0));
    // Without being asked nothing but the threads comes back, and that there is more is said.
    fs::create_dir(sandbox.root().join("bare")).unwrap();
    let ran = sandbox.run(&["-C", "../bare", "restore", "../copy"]);
    assert!(ran.code == Some(0) && ran.stderr.contains("`--project`"), "{ran:?}");
    assert!(!at("bare", ".ai/agents").exists());
}

#[test]
fn a_restore_of_the_project_overwrites_nothing_and_refuses_changed_files() {
    let sandbox = with_files();
    assert_eq!(sandbox.run(&["backup", "../copy", "--project"]).code, Some(0));
    let at = |path: &str| sandbox.root().join(path);
    let restore = |folder: &str| {
        fs::create_dir_all(at(folder)).unwrap();
        sandbox.run(&["-C", &format!("../{folder}"), "restore", "../copy", "--project", "--json"])
    };
    fs::create_dir_all(at("full/.ai/agents")).unwrap();
    fs::write(at("full/.ai/agents/scribe.yaml"), "name: Mine\n").unwrap();
    restore("full").error(5, "file_exists");
    assert_eq!(fs::read_to_string(at("full/.ai/agents/scribe.yaml")).unwrap(), "name: Mine\n");
    assert!(!at("full/.ai/agent").exists() && !at("full/.ai/tools").exists(), "nothing was restored");
    // Identical files are accepted: an interrupted restore can be run again.
    fs::write(at("full/.ai/agents/scribe.yaml"), "name: Scribe\n").unwrap();
    assert_eq!(restore("full").json()["threads"], 1);
    fs::create_dir_all(at("linked/.ai")).unwrap();
    std::os::unix::fs::symlink("/tmp", at("linked/.ai/agents")).unwrap();
    restore("linked").error(4, "symbolic_link");
    let copied = at("copy/project/files/tools/pay.sh");
    let script = fs::read(&copied).unwrap();
    fs::write(&copied, "#!/bin/sh\nrm -rf /\n").unwrap();
    restore("changed").error(6, "integrity");
    assert!(!at("changed/.ai").exists());
    fs::write(&copied, script).unwrap();
    let list = at("copy/project/project.json");
    let signed = fs::read_to_string(&list).unwrap();
    fs::write(&list, signed.replace("tools/pay.sh", "tools/../x.sh")).unwrap();
    assert_eq!(restore("renamed").code, Some(6));
    // A list of another backup does not belong to this one.
    assert_eq!(sandbox.run(&["backup", "../second", "--project"]).code, Some(0));
    fs::copy(at("second/project/project.json"), &list).unwrap();
    restore("mixed").error(6, "integrity");
}

#[test]
fn a_symbolic_link_among_the_files_of_a_project_is_refused() {
    let sandbox = with_files();
    std::os::unix::fs::symlink("/etc/passwd", sandbox.project().join(".ai/knowledge/secret.md")).unwrap();
    let error = sandbox.run(&["backup", "../copy", "--project", "--json"]).error(4, "symbolic_link");
    assert!(error["message"].as_str().unwrap().contains("knowledge/secret.md"), "{error}");
    assert!(!sandbox.root().join("copy").exists(), "nothing was copied");
}

#[test]
fn a_tree_with_an_unknown_outcome_looks_so() {
    let (sandbox, thread) = unknown_outcome();
    let shown = masked(&sandbox.run(&["tree", &thread]).stdout, &sandbox);
    insta::assert_snapshot!(shown);
}
