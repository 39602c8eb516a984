//! Running directives with real processes: what is shown, how it ends, and what a kill leaves behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Ran, Sandbox};

pub(crate) const TASK: &str = "---\nname: task\nversion: 1.0.0\npermissions: [tool.pay]\n---\nDo it.\n";
pub(crate) const PAY_ONCE: &str = "turns:\n  - { say: One moment., calls: [{ tool: pay, arguments: { to: anna } }] }\n  - say: Done.\n    repeat: forever\n";

/// A tool that writes a line and then does this.
pub(crate) fn pay(and_then: &str) -> String {
    let script = format!("echo $$ > pid.txt; echo paid $1 >> paid.txt; {and_then}");
    let schema = json!({"type": "object", "properties": {"to": {"type": "string"}}});
    let tool = json!({
        "name": "pay", "description": "Pays.", "class": "at_most_once", "input_schema": schema, "environment": ["PATH"],
        "command": ["sh", "-c", script, "pay", "{input:to}"],
    });
    tool.to_string()
}

/// A project with a directive `task`, a tool `pay` and a script.
pub(crate) fn project(directive: &str, tool: &str, script: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/task.md", directive);
    put(&sandbox, ".ai/tools/pay.yaml", tool);
    put(&sandbox, "script.yaml", script);
    sandbox
}

pub(crate) fn put(sandbox: &Sandbox, name: &str, text: &str) {
    let file = sandbox.project().join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

pub(crate) const RUN: [&str; 5] = ["run", "task", "--model", "scripted:script.yaml", "--json"];

pub(crate) fn paid(sandbox: &Sandbox) -> usize {
    fs::read_to_string(sandbox.project().join("paid.txt")).unwrap_or_default().lines().count()
}

/// Starts the task and waits until its tool has written so many lines.
pub(crate) fn start_and_await(sandbox: &Sandbox, lines: usize) -> Child {
    let mut command = sandbox.command(&RUN);
    let child = command.stdin(std::process::Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while paid(sandbox) < lines {
        assert!(Instant::now() < deadline, "the tool never ran");
        thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Runs the task until its tool has run, and kills it there; gives its thread.
pub(crate) fn killed_in_the_middle(sandbox: &Sandbox) -> String {
    let mut child = start_and_await(sandbox, paid(sandbox) + 1);
    // What is told may come later than what was done: the first record names the thread.
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    child.kill().unwrap();
    let ran = Ran::of(child);
    assert_eq!(ran.code, None, "{ran:?}");
    serde_json::from_str::<Value>(&first).unwrap()["thread_id"].as_str().unwrap().to_owned()
}

/// Whether the process of the tool that ran last is still there.
pub(crate) fn is_orphaned(sandbox: &Sandbox) -> bool {
    let pid = fs::read_to_string(sandbox.project().join("pid.txt")).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

pub(crate) fn thread_of(ran: &Ran) -> String {
    let first = ran.stdout.lines().next().unwrap_or_else(|| panic!("{ran:?}"));
    serde_json::from_str::<Value>(first).unwrap()["thread_id"].as_str().unwrap().to_owned()
}

pub(crate) fn status(sandbox: &Sandbox, thread: &str) -> String {
    sandbox.run(&["thread", "show", thread, "--json"]).json()["status"].as_str().unwrap().to_owned()
}

#[test]
fn a_run_is_shown_as_it_is_committed_and_exits_with_0() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let ran = sandbox.run(&RUN);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let records = ran.records();
    let told = |kind: &str| records.iter().filter(|record| record["type"] == kind).collect::<Vec<_>>();
    let seqs: Vec<u64> = told("committed").iter().map(|record| record["seq"].as_u64().unwrap()).collect();
    assert!(seqs.is_sorted_by(|one, next| one < next), "{seqs:?}");
    for name in ["thread_id", "version", "reason", "event_type"] {
        assert!(told("committed").iter().all(|record| !record[name].is_null()), "{name}: {records:?}");
    }
    assert_eq!(told("calling").len(), 1);
    assert!(!told("draft").is_empty() && told("draft").iter().all(|record| record["seq"].is_null()));
    let ended = records.last().unwrap();
    assert_eq!(
        (&ended["type"], &ended["status"], &ended["run_cost"]["turns"]),
        (&json!("ended"), &json!("completed"), &json!(2))
    );
    assert!(
        ["spend", "duration_ms", "output_tokens"].iter().all(|name| ended["run_cost"][name].is_number()),
        "{ended}"
    );
    assert_eq!((&ended["result"], paid(&sandbox)), (&json!("Done."), 1));
    // What was told is what the log says.
    let log = sandbox.run(&["log", &thread_of(&ran), "--json"]).records();
    let logged: Vec<u64> =
        log.iter().filter(|line| line["event_type"] != "checkpoint").filter_map(|line| line["seq"].as_u64()).collect();
    assert!(seqs.iter().all(|seq| logged.contains(seq)), "{seqs:?} {logged:?}");
}

#[test]
fn text_output_has_text_calls_results_and_the_end() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let ran = sandbox.run(&RUN[..4]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for shown in ["One moment.", "→ pay {\"to\":\"anna\"}", "✓ ok", "Done."] {
        assert!(ran.stdout.contains(shown), "{shown}: {ran:?}");
    }
    // What it took stands at the end: turns, tokens, money, time.
    let end =
        ran.stderr.lines().find(|line| line.contains("is completed: 2 turns, ")).unwrap_or_else(|| panic!("{ran:?}"));
    assert!(end.contains(" tokens, $") && end.ends_with(" s"), "{end}");
}

#[test]
fn a_message_starts_another_run_also_from_stdin() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let thread = thread_of(&sandbox.run(&RUN));
    let last = |ran: &Ran| ran.records().last().unwrap().clone();
    let typed = last(&sandbox.run(&["send", &thread, "again", "--json"]));
    let piped = last(&sandbox.run_with(&["send", &thread, "--json"], b"and again\n"));
    assert_eq!((&typed["status"], &piped["status"]), (&json!("completed"), &json!("completed")));
    let log = sandbox.run(&["log", &thread, "--json"]).stdout;
    assert!(log.contains("and again") && log.matches("\"run_finished\"").count() >= 3, "{log}");
    sandbox.run(&["send", &thread, "--json"]).error(2, "usage");
    assert_eq!(paid(&sandbox), 1);
}

#[test]
fn a_thread_killed_in_the_middle_needs_a_decision_and_continues_with_it() {
    let sandbox = project(TASK, &pay("sleep 60"), PAY_ONCE);
    let thread = killed_in_the_middle(&sandbox);
    let refused = sandbox.run(&["resume", &thread, "--json"]);
    let error = refused.error_beside_data(7, "outcome_unknown");
    let hint = error["hint"].as_str().unwrap();
    for word in ["--done", "--not-done", "--unknown"] {
        assert!(hint.contains(&format!("`selvedge settle call_1 --thread {thread} {word}`")), "{hint}");
    }
    assert_eq!(status(&sandbox, &thread), "suspended");
    sandbox.run(&["settle", "call_9", "--done", "--json"]).error(3, "call_not_open");
    // The call is known by its name alone, and the thread goes on at once.
    let settled = sandbox.run(&["settle", "call_1", "--done", "paid by hand", "--json"]);
    let records = settled.records();
    assert_eq!(settled.code, Some(0), "{settled:?}");
    let said = json!({
        "thread_id": thread, "call_id": "call_1", "decision": "done", "resume_mode": null, "arguments": null,
        "recorded": "now", "undecided": [],
    });
    assert_eq!(records[0], said);
    assert_eq!(records.last().unwrap()["status"], "completed");
    assert!(settled.stdout.contains("paid by hand"));
    assert_eq!(paid(&sandbox), 1, "nothing is paid twice");
}

#[test]
fn a_call_resolved_as_not_done_is_repeated_and_one_resolved_as_unknown_is_not() {
    let sandbox = project(TASK, &pay("[ -e fast ] || sleep 60"), PAY_ONCE);
    let first = killed_in_the_middle(&sandbox);
    let second = killed_in_the_middle(&sandbox);
    put(&sandbox, "fast", "");
    assert!(is_orphaned(&sandbox));
    let asked = sandbox.run(&["settle", "call_1", "--not-done", "--json"]);
    let mut candidates = asked.error(3, "ambiguous")["candidates"].as_array().unwrap().clone();
    candidates.sort_by_key(ToString::to_string);
    let mut both = vec![json!(first), json!(second)];
    both.sort_by_key(ToString::to_string);
    assert_eq!(candidates, both);
    assert!(!is_orphaned(&sandbox), "no decision is needed while it runs");
    let made = sandbox.run(&["settle", "call_1", "--thread", &first, "--not-done", "--json"]);
    assert_eq!((made.code, paid(&sandbox)), (Some(0), 3), "{made:?}");
    let recorded = sandbox.run(&["settle", "call_1", "--thread", &second, "--unknown", "--no-run", "--json"]);
    assert_eq!((recorded.records().len(), status(&sandbox, &second).as_str()), (1, "suspended"), "{recorded:?}");
    assert_eq!((sandbox.run(&["resume", &second]).code, paid(&sandbox)), (Some(0), 3));
}

#[test]
fn a_limit_exits_with_8_and_the_thread_can_be_resumed() {
    let directive = TASK.replace("permissions", "limits: { turns: 1 }\npermissions");
    let sandbox = project(&directive, &pay("echo ok"), PAY_ONCE);
    let ran = sandbox.run(&RUN);
    let error = ran.error_beside_data(8, "limit_reached");
    assert!(error["hint"].as_str().unwrap().contains("--raise turns="), "{error}");
    // Without a user message the turns still count.
    assert_eq!(sandbox.run(&["resume", &thread_of(&ran), "--json"]).code, Some(8));
    let sent = sandbox.run(&["send", &thread_of(&ran), "go on", "--json"]);
    assert_eq!((sent.code, paid(&sandbox)), (Some(0), 1), "{sent:?}");
}

#[test]
fn a_model_that_fails_ends_with_1() {
    let sandbox =
        project(TASK, &pay("echo ok"), "turns:\n  - error: { permanent: no such key }\n    repeat: forever\n");
    let ran = sandbox.run(&RUN);
    let error = ran.error_beside_data(1, "run_failed");
    assert!(error["message"].as_str().unwrap().contains("no such key"), "{error}");
    assert_eq!(ran.records().last().unwrap()["status"], "error");
}

#[test]
fn interrupting_once_cancels_the_run_and_keeps_the_thread() {
    let sandbox = project(TASK, &pay("sleep 60"), PAY_ONCE);
    let child = start_and_await(&sandbox, 1);
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    let ran = Ran::of(child);
    let error = ran.error_beside_data(130, "run_cancelled");
    let thread = thread_of(&ran);
    assert!(error["hint"].as_str().unwrap().contains(&format!("selvedge send {thread}")), "{error}");
    assert_eq!(status(&sandbox, &thread), "cancelled");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    // It can be talked to again, and what was stopped is not made again.
    assert_eq!((sandbox.run(&["send", &thread, "go on"]).code, paid(&sandbox)), (Some(0), 1));
}

#[test]
fn a_run_is_cancelled_from_another_process() {
    let sandbox = project(TASK, &pay("sleep 60"), PAY_ONCE);
    let child = start_and_await(&sandbox, 1);
    let asked = sandbox.run(&["cancel", "task", "--json"]).json();
    assert_eq!(asked["status"], "running");
    Ran::of(child).error_beside_data(130, "run_cancelled");
    assert_eq!(status(&sandbox, "task"), "cancelled");
}

#[test]
fn a_suspended_thread_is_cancelled_at_once() {
    let sandbox = project(TASK, &pay("sleep 60"), PAY_ONCE);
    let thread = killed_in_the_middle(&sandbox);
    assert!(is_orphaned(&sandbox), "a tool that may run at most once outlives its engine");
    assert_eq!(sandbox.run(&["cancel", &thread, "--json"]).json()["status"], "cancelled");
    assert!(!is_orphaned(&sandbox), "nothing goes on behind a thread that has ended");
    sandbox.run(&["resume", &thread, "--json"]).error(4, "not_runnable");
}

#[test]
fn a_bad_directive_is_named_with_file_and_line_and_runs_nothing() {
    let sandbox = project("---\nname: task\nversion: 1.0.0\npermisions: []\n---\nDo it.\n", &pay("echo ok"), PAY_ONCE);
    let error = sandbox.run(&RUN).error(2, "item_invalid");
    assert_eq!(
        (&error["line"], error["file"].as_str().unwrap().ends_with(".ai/directives/task.md")),
        (&json!(4), true),
        "{error}"
    );
    assert!(error["message"].as_str().unwrap().contains("line 4"), "{error}");
    sandbox.run(&["run", "tsk", "--json"]).error(3, "item_not_found");
    assert_eq!(sandbox.run(&["thread", "list", "--json"]).json()["threads"], json!([]));
}

pub(crate) fn capabilities(sandbox: &Sandbox, thread: &str) -> PathBuf {
    sandbox.threads().join(thread).join("capabilities.md")
}

#[test]
fn the_capabilities_page_is_written_once_and_signed() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let thread = thread_of(&sandbox.run(&RUN));
    let file = capabilities(&sandbox, &thread);
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.starts_with("<!-- selvedge:signed:1:capabilities:"), "{written}");
    let fence = written.split("## Tool Definitions\n\n```json\n").nth(1).unwrap().split("\n```").next().unwrap();
    let tools: Value = serde_json::from_str(fence).unwrap();
    assert_eq!(
        (&tools[0]["name"], tools.as_array().unwrap().len()),
        (&json!("pay"), 1),
        "only what is allowed: {tools}"
    );
    assert!(written.ends_with("## Capabilities\n\n- `selvedge.execute.tool.pay`\n"), "{written}");
    let verified = sandbox.run(&["verify", "--document", file.to_str().unwrap(), "--json"]).json();
    assert_eq!((&verified["kind"], &verified["id"]), (&json!("capabilities"), &json!(thread)));
    // A later run offers other tools, and what was written stays.
    put(&sandbox, ".ai/tools/pay.yaml", &pay("echo better"));
    sandbox.run(&["send", &thread, "again"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    // A deleted page is written again, with one notice.
    fs::remove_file(&file).unwrap();
    let word = format!("`capabilities.md` of `{thread}` was missing");
    let ran = sandbox.run(&["send", &thread, "and again"]);
    assert_eq!((ran.code, ran.stderr.matches(&word).count()), (Some(0), 1), "{ran:?}");
    assert!(!sandbox.run(&["send", &thread, "once more"]).stderr.contains(&word));
    let written = fs::read_to_string(&file).unwrap();
    fs::write(&file, written.replace("tool.pay`", "tool.*`")).unwrap();
    assert_eq!(sandbox.run(&["verify", "--document", file.to_str().unwrap()]).code, Some(6));
}

#[test]
fn an_invalid_tool_does_not_affect_the_others() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    put(&sandbox, ".ai/tools/broken.yaml", "name: [\n");
    let ran = sandbox.run(&RUN);
    assert_eq!((ran.code, paid(&sandbox)), (Some(0), 1), "{ran:?}");
    assert!(ran.stderr.contains("broken"), "it is said: {ran:?}");
}

#[test]
fn a_secret_in_the_wrong_place_of_the_command_line_is_not_repeated() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let key = "sk-live-0123456789abcdef0123";
    for args in [
        vec!["run", "task", "--task", &format!("Bad {key}")],
        vec!["run", "task", "--task", &format!("Bad {key}"), "--json"],
        vec!["run", "task", "--limit", key],
        vec!["run", "task", key],
        vec!["send", key, "hello"],
    ] {
        let ran = sandbox.run(&args);
        assert!(ran.code != Some(0) && !ran.stderr.contains("0123456789abcdef"), "{args:?}: {ran:?}");
    }
    let mut command = sandbox.command(&["run", "task", "--task", "Hunter2 hunter2"]);
    let ran = Ran::of(command.env("PAY_TOKEN", "Hunter2 hunter2").stdin(std::process::Stdio::null()).spawn().unwrap());
    assert!(ran.code == Some(2) && ran.stderr.contains("[redacted]") && !ran.stderr.contains("hunter2"), "{ran:?}");
}

#[test]
fn a_thread_outlives_its_directive() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    let thread = thread_of(&sandbox.run(&RUN));
    fs::remove_file(sandbox.project().join(".ai/directives/task.md")).unwrap();
    let sent = sandbox.run(&["send", &thread, "still there?", "--json"]);
    assert_eq!(sent.code, Some(0), "{sent:?}");
}

#[test]
fn a_call_that_is_not_allowed_is_denied_and_recorded() {
    let sandbox = project(&TASK.replace("tool.pay", "tool.other"), &pay("echo ok"), PAY_ONCE);
    let ran = sandbox.run(&RUN);
    assert_eq!((ran.code, paid(&sandbox)), (Some(0), 0), "{ran:?}");
    assert!(ran.stdout.contains("capability_denied"), "{ran:?}");
}

#[test]
fn a_run_without_its_required_outputs_is_completed_with_errors() {
    let directive = TASK.replace("permissions", "outputs: [{ name: receipt, required: true }]\npermissions");
    let sandbox = project(&directive, &pay("echo ok"), PAY_ONCE);
    let ran = sandbox.run(&RUN);
    ran.error_beside_data(1, "run_failed");
    assert_eq!(status(&sandbox, &thread_of(&ran)), "completed_with_errors");
}

#[test]
fn a_script_outside_the_project_is_refused_also_through_a_link() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    fs::write(sandbox.project().parent().unwrap().join("out.yaml"), PAY_ONCE).unwrap();
    std::os::unix::fs::symlink("../out.yaml", sandbox.project().join("link.yaml")).unwrap();
    for model in ["scripted:../out.yaml", "scripted:link.yaml"] {
        sandbox.run(&["run", "task", "--model", model, "--json"]).error(3, "script_not_found");
    }
}

#[test]
fn a_project_can_ask_for_signatures_and_a_bad_setting_is_named() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONCE);
    put(&sandbox, ".ai/config/agent/run.yaml", "unsigned: refuse\n");
    sandbox.run(&RUN).error(4, "item_not_trusted");
    put(&sandbox, ".ai/config/agent/run.yaml", "unsignd: refuse\n");
    sandbox.run(&RUN).error(2, "config_invalid");
    assert_eq!(paid(&sandbox), 0);
}

/// Nothing was said of it until the thread ran again.
#[test]
fn doctor_reports_a_missing_capabilities_page() {
    let sandbox = project(TASK, &pay("echo ok"), "turns:\n  - { say: Done., repeat: forever }\n");
    let thread = thread_of(&sandbox.run(&RUN));
    assert_eq!(sandbox.run(&["doctor", "--json"]).code, Some(0));
    fs::remove_file(capabilities(&sandbox, &thread)).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    let found = found["findings"].as_array().unwrap().iter().find(|one| one["code"] == "capabilities_missing").cloned();
    let found = found.unwrap_or_else(|| panic!("{ran:?}"));
    assert_eq!((&found["subject"], &found["severity"]), (&thread.as_str().into(), &"warning".into()), "{found}");
    // The next run writes it, as is said.
    assert_eq!(sandbox.run(&["send", &thread, "again", "--json"]).code, Some(0));
    assert_eq!(sandbox.run(&["doctor", "--json"]).code, Some(0));
}

/// How a thread ended had seven forms: each command and each tool of an agent had names and fields of its own.
#[test]
fn an_outcome_is_the_same_object_in_every_command() {
    let sandbox = project(TASK, &pay("true"), PAY_ONCE);
    let ran = sandbox.run(&RUN);
    let mut ended = ran.records().pop().unwrap();
    assert_eq!(ended.as_object_mut().unwrap().remove("type"), Some(json!("ended")));
    assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!("Done.")), "{ended}");
    let thread = thread_of(&ran);
    let waited = sandbox.run(&["wait", &thread, "--json"]).json();
    assert_eq!(waited["results"][&thread], ended);
    assert_eq!(sandbox.run(&["thread", "show", &thread, "--json"]).json()["outcome"], ended);
    let tree = sandbox.run(&["tree", &thread, "--json"]).json();
    let mut shown = tree.as_object().unwrap().clone();
    for more in ["chain", "children", "truncated", "unknown_calls"] {
        shown.remove(more);
    }
    assert_eq!(Value::Object(shown), ended);
}

/// A program that did not hear the answer of a run could only run it again.
#[test]
fn a_run_with_a_used_key_creates_no_second_thread_and_returns_the_first_outcome() {
    let sandbox = project(TASK, &pay("true"), PAY_ONCE);
    let run = |key: &str| sandbox.run(&[&RUN[..], &["--key", key]].concat());
    let first = run("today");
    let again = run("today");
    assert_eq!((first.code, again.code), (Some(0), Some(0)), "{again:?}");
    assert_eq!(again.records().pop(), first.records().pop(), "the same outcome");
    let threads = || sandbox.run(&["thread", "list", "--json"]).json()["threads"].as_array().unwrap().len();
    assert_eq!((threads(), paid(&sandbox)), (1, 1));
    let thread = thread_of(&first);
    let detached = sandbox.run(&[&RUN[..], &["--key", "today", "--detach"]].concat());
    assert_eq!((detached.json()["thread_id"].as_str(), threads()), (Some(&*thread), 1), "{detached:?}");
    assert_eq!(run("tomorrow").code, Some(0));
    assert_eq!((threads(), paid(&sandbox)), (2, 2));
    put(&sandbox, ".ai/directives/other.md", &TASK.replace("name: task", "name: other"));
    sandbox.run(&["run", "other", "--key", "today", "--json"]).error(2, "usage");
}
