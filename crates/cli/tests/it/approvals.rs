//! Calls that need approval: requested, decided, killed in between, by real processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use selvedge_store::Registry;
use serde_json::{Value, json};

use crate::running::{TASK, killed_in_the_middle, pay, project, put, start_and_await, status, thread_of};
use crate::support::{Ran, Sandbox};

pub(crate) const ASK: &str = "rules:\n  - { id: money, tool: pay, action: ask, reason: money leaves the house }\n";
pub(crate) const PAY_TWO: &str = "turns:\n  - { say: One moment., calls: [{ tool: pay, arguments: { to: anna } }, { tool: pay, arguments: { to: ben } }] }\n  - { say: Done., repeat: forever }\n";
const PAY_ONE: &str = "turns:\n  - { calls: [{ tool: pay, arguments: { to: anna } }] }\n  - { say: \"Heard: {result}\", repeat: forever }\n";
const RUN: [&str; 5] = ["run", "task", "--model", "scripted:script.yaml", "--json"];

/// A project in which every payment needs approval.
pub(crate) fn asking(script: &str) -> Sandbox {
    let sandbox = project(TASK, &pay("echo ok"), script);
    put(&sandbox, ".ai/config/agent/approvals.yaml", ASK);
    sandbox
}

/// Sends a signal to a process.
pub(crate) fn signal(child: &std::process::Child, name: &str) {
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
    assert!(sent.success(), "{name} to {pid}");
}

/// Runs the task until it waits; gives its thread.
pub(crate) fn waiting(sandbox: &Sandbox) -> String {
    let ran = sandbox.run(&RUN);
    ran.error_beside_data(7, "needs_decision");
    thread_of(&ran)
}

pub(crate) fn paid(sandbox: &Sandbox) -> Vec<String> {
    let text = fs::read_to_string(sandbox.project().join("paid.txt")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

pub(crate) fn inbox(sandbox: &Sandbox) -> Vec<Value> {
    sandbox.run(&["inbox", "--json"]).records()
}

/// The thread that has the newest need.
fn inbox_thread(sandbox: &Sandbox) -> String {
    inbox(sandbox)[0]["thread_id"].as_str().unwrap().to_owned()
}

/// The last object of a command that ran a thread to its end.
#[track_caller]
pub(crate) fn ended(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let last = ran.records().pop().unwrap();
    assert_eq!((&last["type"], &last["status"]), (&json!("ended"), &json!("completed")), "{ran:?}");
    last
}

/// Starts a command and reads what it tells until something fits.
pub(crate) fn until(sandbox: &Sandbox, args: &[&str], fits: impl Fn(&Value) -> bool) -> (Child, Vec<Value>) {
    let mut child = sandbox.command(args).stdin(Stdio::null()).spawn().unwrap();
    let mut told = Vec::new();
    for line in BufReader::new(child.stdout.as_mut().unwrap()).lines() {
        let record: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let is_it = fits(&record);
        told.push(record);
        if is_it {
            return (child, told);
        }
    }
    panic!("it was never told: {told:?} {:?}", Ran::of(child));
}

#[test]
fn two_pending_calls_survive_a_sigkill_and_are_made_once_each_when_approved() {
    let sandbox = asking(PAY_TWO);
    let (mut child, told) = until(&sandbox, &RUN, |record| record["event_type"] == "suspended");
    child.kill().unwrap();
    child.wait().unwrap();
    let thread = told[0]["thread_id"].as_str().unwrap();
    let calls: Vec<Value> = inbox(&sandbox).iter().map(|need| need["call_id"].clone()).collect();
    assert_eq!(calls, [json!("call_1"), json!("call_2")]);
    let ran = sandbox.run(&["approve", "call_1", "--json"]);
    let error = ran.error_beside_data(7, "needs_decision");
    assert!(error["message"].as_str().unwrap().contains("`call_2`"), "{error}");
    assert_eq!(ran.records()[0]["undecided"], json!(["call_2"]), "{ran:?}");
    assert_eq!((paid(&sandbox), inbox(&sandbox).len()), (Vec::<String>::new(), 1));
    ended(&sandbox.run(&["approve", "call_2", "--json"]));
    let mut paid = paid(&sandbox);
    paid.sort();
    assert_eq!(paid, ["paid anna", "paid ben"]);
    assert_eq!((status(&sandbox, thread).as_str(), inbox(&sandbox).len()), ("completed", 0));
    assert_eq!(sandbox.run(&["verify", thread]).code, Some(0));
}

#[test]
fn with_wait_each_approved_calls_do_not_wait_for_one_another() {
    let sandbox = asking(PAY_TWO);
    put(&sandbox, ".ai/config/agent/approvals.yaml", &format!("wait: each\n{ASK}"));
    let thread = waiting(&sandbox);
    sandbox.run(&["approve", "call_2", "--json"]).error_beside_data(7, "needs_decision");
    assert_eq!(paid(&sandbox), ["paid ben"]);
    ended(&sandbox.run(&["deny", "call_1", "--json"]));
    assert_eq!((paid(&sandbox).len(), status(&sandbox, &thread).as_str()), (1, "completed"));
}

#[test]
fn text_output_has_the_decision_the_pending_calls_and_the_next_command() {
    let sandbox = asking(PAY_TWO);
    let ran = sandbox.run(&RUN[..4]);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.stdout.contains("suspended: approval, call_1, call_2"), "{ran:?}");
    assert!(ran.stderr.contains("waits for approval of `call_1` (pay), `call_2` (pay)"), "{ran:?}");
    assert!(ran.stderr.contains("`selvedge approve --all task-"), "{ran:?}");
    let shown = sandbox.run(&["inbox"]).stdout;
    assert!(shown.contains("approval pay {\"to\":\"anna\"}"), "{shown}");
    assert!(shown.contains("money leaves the house (`approvals.rules.money`)"), "{shown}");
    assert!(!shown.lines().any(|line| line.ends_with(' ')), "{shown:?}");
    let ran = sandbox.run(&["approve", "call_1"]);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.stdout.contains("call call_1 of task-") && ran.stdout.contains("is approved"), "{ran:?}");
    let hint = ran.stderr.lines().find(|line| line.starts_with("hint: ")).unwrap();
    // What it says to type helps as it stands.
    let command = hint.split('`').nth(1).unwrap().strip_prefix("selvedge ").unwrap();
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(sandbox.run(&words).code, Some(0), "{command}");
    assert_eq!(paid(&sandbox).len(), 2);
    assert!(sandbox.run(&["inbox"]).stderr.contains("no pending decisions"));
}

#[test]
fn a_decision_is_queued_for_the_process_that_runs_the_thread_and_applied_in_that_run() {
    let sandbox = busy();
    let (child, told) = until(&sandbox, &RUN, |record| record["type"] == "calling");
    let thread = told[0]["thread_id"].as_str().unwrap();
    // The inbox shows it at once, and names its thread.
    let needs = inbox(&sandbox);
    assert_eq!((needs.len(), &needs[0]["call_id"], &needs[0]["reason"]), (1, &json!("call_2"), &json!("approval")));
    assert_eq!(needs[0]["thread_id"], thread);
    // A process that is stopped applies nothing.
    signal(&child, "STOP");
    for _ in 0..2 {
        let left = sandbox.run(&["approve", "call_2", "--json"]).json();
        assert_eq!((&left["recorded"], &left["decision"]), (&json!("queued"), &json!("approve")));
    }
    assert_eq!(paid(&sandbox).len(), 0);
    signal(&child, "CONT");
    put(&sandbox, "fast", "");
    let ran = Ran::of(child);
    assert_eq!((ran.code, paid(&sandbox)), (Some(0), vec!["paid anna".to_owned()]), "{ran:?}");
    let log = sandbox.run(&["log", thread, "--json"]).records();
    let count = |kind: &str| log.iter().filter(|line| line["event_type"] == kind).count();
    assert_eq!((count("asked"), count("decision"), count("suspended")), (1, 1, 0), "{log:?}");
    assert_eq!(count("run_started"), 1, "{log:?}");
}

/// Each of them found the other's call undecided and exited, and the thread stayed suspended.
#[test]
fn concurrent_decisions_never_leave_the_thread_suspended() {
    let sandbox = asking(PAY_TWO);
    for round in 1..=6 {
        let thread = waiting(&sandbox);
        let answer = |call| {
            sandbox.command(&["approve", call, "--thread", &thread, "--json"]).stdin(Stdio::null()).spawn().unwrap()
        };
        let one = answer("call_1");
        let other = answer("call_2");
        let mut codes = [Ran::of(one).code, Ran::of(other).code];
        codes.sort_unstable();
        assert!([[Some(0), Some(7)], [Some(0), Some(0)]].contains(&codes), "{codes:?}");
        assert_eq!((status(&sandbox, &thread).as_str(), paid(&sandbox).len()), ("completed", 2 * round));
    }
}

/// The approving process may be killed as well.
#[test]
fn killed_again_and_again_during_its_approval_a_call_is_made_once() {
    let sandbox = asking(PAY_TWO);
    let tool = json!({
        "name": "pay", "description": "Pays.", "class": "at_most_once", "environment": ["PATH"],
        "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}},
        "command": ["sh", "-c", "sleep 0.05; echo paid $1 >> paid.txt; echo ok", "pay", "{input:to}"],
        "reconcile": ["sh", "-c", "if grep -q \"paid $1\" paid.txt; then echo '{\"done\": true}'; else echo '{\"done\": false}'; fi", "was", "{input:to}"],
    });
    put(&sandbox, ".ai/tools/pay.yaml", &tool.to_string());
    let thread = waiting(&sandbox);
    let mut retries = 1;
    for _ in 0..60 {
        // Recorded decisions are not requested again; then the thread has to be resumed.
        let is_asked = |need: &Value| need["reason"] == "approval" && need["call_id"].is_string();
        let verb: &[&str] = if inbox(&sandbox).iter().any(is_asked) { &["approve", "--all"] } else { &["resume"] };
        let mut child = sandbox.command(&[verb, &[&thread]].concat()).stdin(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(retries));
        retries += 4 + retries / 8;
        child.kill().unwrap();
        child.wait().unwrap();
        if status(&sandbox, &thread) == "completed" {
            break;
        }
    }
    let mut paid = paid(&sandbox);
    paid.sort();
    assert_eq!(
        (paid, status(&sandbox, &thread).as_str()),
        (vec!["paid anna".to_owned(), "paid ben".to_owned()], "completed")
    );
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
}

#[test]
fn the_first_decision_counts_also_when_it_is_repeated() {
    let sandbox = asking(PAY_TWO);
    let thread = waiting(&sandbox);
    let say = |args: &[&str]| sandbox.run(&[args, &["call_1", "--thread", &thread, "--no-run", "--json"]].concat());
    assert_eq!(say(&["approve"]).json()["recorded"], "now");
    assert_eq!(say(&["approve"]).json()["recorded"], "before");
    let error = say(&["deny"]).error(5, "already_decided");
    assert!(error["hint"].as_str().unwrap().contains(&format!("`selvedge resume {thread}`")), "{error}");
    put(&sandbox, "other.json", "{\"to\": \"cara\"}");
    say(&["approve", "--edit", "other.json"]).error(5, "already_decided");
    // Nothing ran, and nothing was decided about the other call.
    assert_eq!((paid(&sandbox).len(), inbox(&sandbox).len()), (0, 1));
    ended(&sandbox.run(&["approve", "--all", &thread, "--json"]));
    assert_eq!(paid(&sandbox).len(), 2);
    sandbox.run(&["approve", "--all", &thread, "--json"]).error(3, "call_not_open");
    sandbox.run(&["approve", "call_1", "--json"]).error(3, "call_not_open");
}

#[test]
fn a_call_of_a_cancelled_or_continued_thread_can_not_be_approved() {
    let sandbox = asking(PAY_ONE);
    let thread = waiting(&sandbox);
    assert_eq!(sandbox.run(&["cancel", &thread]).code, Some(0));
    for verb in ["approve", "deny"] {
        sandbox.run(&[verb, "call_1", "--thread", &thread, "--json"]).error(3, "call_not_open");
    }
    let thread = waiting(&sandbox);
    let told = ended(&sandbox.run(&["send", &thread, "never mind", "--json"]));
    assert!(told["result"].as_str().unwrap().starts_with("Heard: "), "{told}");
    sandbox.run(&["approve", "call_1", "--thread", &thread, "--json"]).error(3, "call_not_open");
    assert_eq!((paid(&sandbox).len(), inbox(&sandbox).len()), (0, 0));
}

#[test]
fn a_call_id_that_is_pending_in_two_threads_needs_the_thread() {
    let sandbox = asking(PAY_ONE);
    let one = waiting(&sandbox);
    let other = waiting(&sandbox);
    let error = sandbox.run(&["approve", "call_1", "--json"]).error(3, "ambiguous");
    assert_eq!(error["candidates"].as_array().unwrap().len(), 2, "{error}");
    ended(&sandbox.run(&["deny", "call_1", "--thread", &one, "--reason", "too much", "--json"]));
    let left: Vec<Value> = inbox(&sandbox).iter().map(|need| need["thread_id"].clone()).collect();
    assert_eq!(left, [json!(other)]);
    // A call of another thread is none of this one's.
    sandbox.run(&["approve", "call_1", "call_2", "--thread", &other, "--no-run", "--json"]);
    sandbox.run(&["approve", "call_7", "--thread", &other, "--json"]).error(3, "call_not_open");
    assert_eq!(paid(&sandbox).len(), 0);
}

#[test]
fn the_model_gets_the_reason_of_a_denial_and_edited_arguments() {
    let sandbox = asking(PAY_ONE);
    let thread = waiting(&sandbox);
    let denied = ended(&sandbox.run(&["deny", "--all", &thread, "--reason", "too much", "--json"]));
    let heard = denied["result"].as_str().unwrap();
    assert!(heard.contains("denied by ") && heard.ends_with(": too much"), "{heard}");
    assert_eq!(paid(&sandbox).len(), 0);

    let thread = waiting(&sandbox);
    put(&sandbox, "other.json", "{\"to\": \"cara\"}");
    let edited = ended(&sandbox.run(&["approve", "call_1", "--edit", "other.json", "--json"]));
    let heard = edited["result"].as_str().unwrap();
    assert!(heard.contains("changed the arguments") && heard.contains("{\"to\":\"cara\"}"), "{heard}");
    assert_eq!(paid(&sandbox), ["paid cara"]);
    let log = sandbox.run(&["log", &thread, "--json"]).records();
    let decision = log.iter().find(|line| line["event_type"] == "decision").unwrap();
    assert_eq!(decision["payload"]["action"], "edit");
    assert!(sandbox.run(&["log", &thread]).stdout.contains("decided edit for call call_1, with {\"to\":\"cara\"}"));

    waiting(&sandbox);
    let ran = sandbox.run(&["approve", "call_1", "--edit", "other.json", "--no-run"]);
    assert!(ran.stdout.contains("is approved with the arguments {\"to\":\"cara\"}"), "{ran:?}");
    let again =
        sandbox.run(&["approve", "call_1", "--thread", &inbox_thread(&sandbox), "--edit", "other.json", "--json"]);
    let told = again.records();
    let called: Vec<_> = told.iter().filter(|record| record["type"] == "calling").collect();
    assert_eq!((&told[0]["arguments"], &called[0]["arguments"]), (&json!({"to": "cara"}), &json!({"to": "cara"})));
    fs::remove_file(sandbox.project().join("paid.txt")).unwrap();
    put(&sandbox, "paid.txt", "paid cara\n");

    waiting(&sandbox);
    put(&sandbox, "broken.json", "to cara");
    sandbox.run(&["approve", "call_1", "--edit", "broken.json", "--json"]).error(2, "usage");
    sandbox.run(&["approve", "call_1", "call_2", "--edit", "other.json", "--json"]).error(2, "usage");
    let through_stdin = sandbox.run_with(&["approve", "call_1", "--edit", "-", "--json"], b"{\"to\": \"dora\"}");
    ended(&through_stdin);
    assert_eq!(paid(&sandbox), ["paid cara", "paid dora"]);
}

#[test]
fn a_tool_that_was_redefined_after_the_request_needs_approval_again() {
    let sandbox = asking(PAY_ONE);
    let thread = waiting(&sandbox);
    put(&sandbox, ".ai/tools/pay.yaml", &pay("echo gone >> paid.txt"));
    let ran = sandbox.run(&["approve", "call_1", "--json"]);
    let error = ran.error_beside_data(7, "needs_decision");
    assert!(
        error["message"].as_str().unwrap().ends_with("tool `pay` changed after approval of `call_1` was requested"),
        "{error}"
    );
    let needs = inbox(&sandbox);
    assert_eq!((paid(&sandbox).len(), needs.len()), (0, 1), "what was allowed is not what would be done");
    let why = needs[0]["why"].as_str().unwrap();
    assert!(why.starts_with("the tool `pay` changed after approval was requested"), "{why}");
    ended(&sandbox.run(&["approve", "call_1", "--thread", &thread, "--json"]));
    assert_eq!(paid(&sandbox), ["paid anna", "gone"]);
}

#[test]
fn a_decision_with_no_run_waits_for_a_resume() {
    let sandbox = asking(PAY_ONE);
    let thread = waiting(&sandbox);
    let ran = sandbox.run(&["approve", "call_1", "--no-run"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains(&format!("`selvedge resume {thread}` continues")), "{ran:?}");
    assert_eq!((paid(&sandbox).len(), status(&sandbox, &thread).as_str()), (0, "suspended"));
    // It is decided, but the thread does not resume by itself.
    let needs = inbox(&sandbox);
    assert_eq!(needs[0]["commands"], json!([format!("selvedge resume {thread}")]), "{needs:?}");
    let shown = sandbox.run(&["inbox"]).stdout;
    assert_eq!(shown.matches("approval").count(), 1, "{shown}");
    ended(&sandbox.run(&["resume", &thread, "--json"]));
    assert_eq!(paid(&sandbox), ["paid anna"]);
}

#[test]
fn no_decision_counts_after_the_request_has_expired() {
    let sandbox = asking(PAY_ONE);
    put(
        &sandbox,
        ".ai/config/agent/approvals.yaml",
        &ASK.replace("action: ask", "action: ask, expires_after_seconds: 1"),
    );
    let thread = waiting(&sandbox);
    let waits = &inbox(&sandbox)[0];
    assert_eq!((waits["expires_at"].is_string(), &waits["expired"]), (true, &json!(false)));
    thread::sleep(Duration::from_millis(1100));
    let need = &inbox(&sandbox)[0];
    let resume = format!("selvedge resume {thread}");
    assert_eq!((&need["expired"], &need["commands"]), (&json!(true), &json!([resume])));
    let shown = sandbox.run(&["inbox"]).stdout;
    assert!(
        shown.contains("  expired 20") && shown.contains(&resume) && !shown.contains("selvedge approve"),
        "{shown}"
    );
    let waited = sandbox.run(&["wait", &thread, "--json"]).error_beside_data(7, "approval_expired");
    assert!(waited["hint"].as_str().unwrap().contains(&format!("`selvedge resume {thread}`")), "{waited}");
    let error = sandbox.run(&["approve", "call_1", "--thread", &thread, "--json"]).error(4, "decision_too_late");
    assert!(error["hint"].as_str().unwrap().contains(&format!("`selvedge resume {thread}`")), "{error}");
    let told = ended(&sandbox.run(&["resume", &thread, "--json"]));
    assert!(told["result"].as_str().unwrap().contains("the approval request for this call expired"), "{told}");
    assert_eq!(paid(&sandbox).len(), 0);
}

#[test]
fn a_project_can_not_allow_calls_that_its_user_wants_to_approve() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_ONE);
    let own = sandbox.home().join("config/agent/approvals.yaml");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, ASK).unwrap();
    let allow = "default: allow\nrules:\n  - { id: ours, tool: pay, action: allow }\n";
    put(&sandbox, ".ai/config/agent/approvals.yaml", allow);
    waiting(&sandbox);
    assert_eq!(paid(&sandbox).len(), 0);
    // It may be stricter.
    put(&sandbox, ".ai/config/agent/approvals.yaml", &allow.replace("action: allow", "action: deny, reason: not here"));
    let told = ended(&sandbox.run(&RUN));
    assert!(told["result"].as_str().unwrap().contains("not here"), "{told}");
    assert_eq!(paid(&sandbox).len(), 0);
}

#[test]
fn the_inbox_shows_the_newest_thread_first_and_its_calls_in_order() {
    let sandbox = asking(PAY_TWO);
    let older = waiting(&sandbox);
    let newer = waiting(&sandbox);
    let needs = inbox(&sandbox);
    let order: Vec<_> = needs.iter().map(|need| (need["thread_id"].clone(), need["call_id"].clone())).collect();
    let expected = [(&newer, "call_1"), (&newer, "call_2"), (&older, "call_1"), (&older, "call_2")];
    assert_eq!(order, expected.map(|(thread, call)| (json!(thread), json!(call))));
    let mut fields: Vec<&str> = needs[0].as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let documented = [
        "action_hash",
        "answered",
        "arguments",
        "call_id",
        "code",
        "commands",
        "dispatched_at",
        "expired",
        "expires_at",
        "probed",
        "reason",
        "resume_mode",
        "since",
        "thread_id",
        "title",
        "tool",
        "why",
    ];
    assert_eq!(fields, documented);
    let help = sandbox.run(&["inbox", "--help"]).stdout;
    assert!(documented.iter().all(|field| help.contains(&format!("\"{field}\""))), "{help}");
    assert_eq!((&needs[0]["tool"], &needs[0]["arguments"]), (&json!("pay"), &json!({"to": "anna"})));
    let commands =
        [format!("selvedge approve call_1 --thread {newer}"), format!("selvedge deny call_1 --thread {newer}")];
    assert_eq!(needs[0]["commands"], json!(commands));
}

/// A run whose process had died was not in the inbox until another command that writes was run.
#[test]
fn a_run_whose_process_died_is_in_the_inbox_at_once_and_one_that_runs_is_not() {
    let sandbox = project(TASK, &pay("[ -e fast ] || sleep 60"), PAY_ONE);
    let mut child = start_and_await(&sandbox, 1);
    assert_eq!(inbox(&sandbox), Vec::<Value>::new(), "it runs");
    child.kill().unwrap();
    let thread = thread_of(&Ran::of(child));
    let needs = inbox(&sandbox);
    assert_eq!((needs.len(), &needs[0]["thread_id"]), (1, &json!(thread)), "{needs:?}");
    assert_eq!((&needs[0]["reason"], &needs[0]["code"]), (&json!("error"), &json!("process_lost")));
    assert_eq!(needs[0]["commands"], json!([format!("selvedge resume {thread}")]));
    // What it says to type brings up what there is to decide.
    assert_eq!(sandbox.run(&["resume", &thread]).code, Some(7));
    let needs = inbox(&sandbox);
    assert_eq!((&needs[0]["reason"], &needs[0]["call_id"]), (&json!("outcome_unknown"), &json!("call_1")), "{needs:?}");
    assert_eq!(needs[0]["commands"].as_array().unwrap().len(), 3);
}

#[test]
fn a_followed_inbox_shows_new_needs() {
    let sandbox = asking(PAY_ONE);
    let first = waiting(&sandbox);
    let mut child = sandbox.command(&["inbox", "--follow", "--json"]).stdin(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["thread_id"], json!(first));
    let second = waiting(&sandbox);
    assert_eq!(next()["thread_id"], json!(second));
    // A process that dies commits nothing, and is heard of all the same.
    put(&sandbox, ".ai/config/agent/approvals.yaml", "rules: []\n");
    put(&sandbox, ".ai/tools/pay.yaml", &pay("sleep 60"));
    let third = killed_in_the_middle(&sandbox);
    assert_eq!((next()["thread_id"].clone(), paid(&sandbox).len()), (json!(third), 1));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A project whose payments need approval, and in which a slow tool keeps the run busy until there is a file `fast`.
pub(crate) fn busy() -> Sandbox {
    let script = "turns:\n  - { calls: [{ tool: slow, arguments: {} }, { tool: pay, arguments: { to: anna } }] }\n  - { say: Done., repeat: forever }\n";
    let sandbox = asking(script);
    put(&sandbox, ".ai/directives/task.md", &TASK.replace("[tool.pay]", "[tool.pay, tool.slow]"));
    let tool = json!({
        "name": "slow", "description": "Takes its time.", "class": "pure", "input_schema": {"type": "object"},
        "environment": ["PATH"], "command": ["sh", "-c", "while [ ! -e fast ]; do sleep 0.02; done"],
    });
    put(&sandbox, ".ai/tools/slow.yaml", &tool.to_string());
    sandbox
}

/// The process that recovered the thread dropped the queued decision, and approval was requested again.
#[test]
fn a_decision_queued_for_a_killed_process_is_not_lost() {
    let sandbox = busy();
    let (mut child, told) = until(&sandbox, &RUN, |record| record["type"] == "calling");
    let thread = told[0]["thread_id"].as_str().unwrap();
    signal(&child, "STOP");
    let left = sandbox.run(&["approve", "call_2", "--thread", thread, "--json"]).json();
    assert_eq!(left["recorded"], "queued");
    // A different decision is refused also while the first is queued.
    let error = sandbox.run(&["deny", "call_2", "--thread", thread, "--json"]).error(5, "already_decided");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains(&format!("`selvedge log {thread} --follow`")) && !hint.contains("resume"), "{hint}");
    child.kill().unwrap();
    child.wait().unwrap();
    put(&sandbox, "fast", "");
    ended(&sandbox.run(&["resume", thread, "--json"]));
    assert_eq!(paid(&sandbox), ["paid anna"]);
}

#[test]
fn the_resume_mode_of_a_call_is_shown_and_not_changed_by_a_later_rule() {
    let sandbox = asking(PAY_ONE);
    let rule = ASK.replace("action: ask", "action: ask, resume_mode: use_decision_as_tool_result");
    put(&sandbox, ".ai/config/agent/approvals.yaml", &rule);
    let thread = waiting(&sandbox);
    assert_eq!(inbox(&sandbox)[0]["resume_mode"], "use_decision_as_tool_result");
    let shown = sandbox.run(&["inbox"]).stdout;
    assert!(shown.contains("if approved, the call is not made: the value of `--with` is its result"), "{shown}");
    put(&sandbox, ".ai/config/agent/approvals.yaml", ASK);
    let ran = sandbox.run(&["approve", "call_1", "--with", "paid by hand", "--no-run"]);
    assert!(ran.stdout.contains("is not made; its result is \"paid by hand\""), "{ran:?}");
    assert_eq!(ended(&sandbox.run(&["resume", &thread, "--json"]))["result"], "Heard: paid by hand");
    assert_eq!(paid(&sandbox).len(), 0);

    let thread = waiting(&sandbox);
    let error = sandbox
        .run(&["approve", "call_1", "--with", "5", "--thread", &thread, "--json"])
        .error(2, "decision_value_unused");
    assert!(error["hint"].as_str().unwrap().contains("selvedge approve call_1"), "{error}");
    assert_eq!((paid(&sandbox).len(), inbox(&sandbox).len()), (0, 1));
    ended(&sandbox.run(&["approve", "call_1", "--thread", &thread, "--json"]));
    assert_eq!(paid(&sandbox), ["paid anna"]);
}

#[test]
fn a_call_that_another_program_answered_is_not_pending() {
    let sandbox = asking(PAY_ONE);
    let thread = waiting(&sandbox);
    let result = json!({"type": "tool_result", "call_id": "call_1", "content": "paid by hand"});
    let changeset =
        json!({"reason": "ToolResultsCommitted", "messages": [{"role": "tool", "content": [result]}]}).to_string();
    let version = sandbox.run(&["thread", "show", &thread, "--json"]).json()["version"].to_string();
    let appended = sandbox.run_with(&["append", &thread, "--expect", &version, "--json"], changeset.as_bytes());
    assert_eq!(appended.code, Some(0), "{appended:?}");
    let needs = inbox(&sandbox);
    assert_eq!((needs.len(), &needs[0]["call_id"]), (1, &json!(null)), "{needs:?}");
    assert_eq!(needs[0]["commands"], json!([format!("selvedge resume {thread}")]));
    assert_eq!(ended(&sandbox.run(&["resume", &thread, "--json"]))["result"], "Heard: paid by hand");
    assert_eq!((paid(&sandbox).len(), inbox(&sandbox).len()), (0, 0));
}

#[test]
fn an_expired_call_does_not_block_the_others() {
    let script = "turns:\n  - { calls: [{ tool: gift, arguments: {} }, { tool: pay, arguments: { to: anna } }, { tool: pay, arguments: { to: ben } }] }\n  - { say: Done., repeat: forever }\n";
    let sandbox = asking(script);
    put(&sandbox, ".ai/directives/task.md", &TASK.replace("[tool.pay]", "[tool.pay, tool.gift]"));
    let tool = json!({
        "name": "gift", "description": "Gives.", "class": "pure", "input_schema": {"type": "object"},
        "environment": ["PATH"], "command": ["sh", "-c", "echo gave >> paid.txt"],
    });
    put(&sandbox, ".ai/tools/gift.yaml", &tool.to_string());
    let rules = format!("{ASK}  - {{ id: gifts, tool: gift, action: ask, expires_after_seconds: 1 }}\n");
    put(&sandbox, ".ai/config/agent/approvals.yaml", &rules);
    let one = waiting(&sandbox);
    let all = waiting(&sandbox);
    thread::sleep(Duration::from_millis(1100));
    // What it says to type is about the call that can still be decided about.
    let ran = sandbox.run(&["approve", "call_2", "--thread", &one, "--json"]);
    let error = ran.error_beside_data(7, "needs_decision");
    assert!(error["hint"].as_str().unwrap().starts_with("`selvedge approve call_3 --thread"), "{error}");
    assert_eq!(ran.records()[0]["undecided"], json!(["call_3"]));
    ended(&sandbox.run(&["approve", "call_3", "--thread", &one, "--json"]));
    assert_eq!(paid(&sandbox).len(), 2);
    ended(&sandbox.run(&["approve", "--all", &all, "--json"]));
    let paid = paid(&sandbox);
    assert_eq!((paid.len(), paid.contains(&"gave".to_owned())), (4, false), "{paid:?}");
}

/// A row that was written into the database by hand was executed as an approval, and signed.
#[test]
fn a_decision_that_was_written_into_the_database_is_dropped_and_reported() {
    let sandbox = asking(PAY_ONE);
    let thread = waiting(&sandbox);
    let store = sandbox.open();
    let thread_id = selvedge_model::ThreadId::new(&thread).unwrap();
    let ask = store.get(&thread_id).unwrap().manifest.asks.remove(0);
    drop(store);
    let body = json!({"kind": "decide", "call_id": "call_1", "action": "approve", "who": "you", "action_hash": ask.action_hash});
    let forge = "INSERT INTO requests (thread, request_id, kind, posted_at, body, mark) \
                 SELECT id, 'forged', 'decide', 7, ?, zeroblob(32) FROM threads";
    let database = rusqlite::Connection::open(sandbox.threads().join("registry.db")).unwrap();
    database.execute(forge, [body.to_string()]).unwrap();
    drop(database);
    let ran = sandbox.run(&["resume", &thread, "--json"]);
    ran.error_beside_data(7, "needs_decision");
    let told = ran.records();
    let dropped: Vec<_> = told.iter().filter(|record| record["type"] == "dropped").collect();
    assert_eq!((dropped.len(), paid(&sandbox).len()), (1, 0), "{ran:?}");
    ended(&sandbox.run(&["approve", "call_1", "--json"]));
    assert_eq!(paid(&sandbox).len(), 1);
}

/// An approval that was planted among what the next changeset leads with was signed by `deny`, which then executed the call.
#[test]
fn a_planted_approval_is_not_signed_when_the_call_is_denied() {
    let sandbox = asking(PAY_ONE);
    let thread = waiting(&sandbox);
    let store = sandbox.open();
    let ask = store.get(&selvedge_model::ThreadId::new(&thread).unwrap()).unwrap().manifest.asks.remove(0);
    drop(store);
    let decision = json!({"call_id": "call_1", "action": "approve", "who": "mallory", "action_hash": ask.action_hash});
    let event = json!({"event_type": "decision", "payload": decision});
    let database = rusqlite::Connection::open(sandbox.threads().join("registry.db")).unwrap();
    let plant = "INSERT INTO leads (thread, event, mark) SELECT id, ?, zeroblob(32) FROM threads";
    database.execute(plant, [event.to_string()]).unwrap();
    drop(database);
    let denied = sandbox.run(&["deny", "call_1", "--json"]);
    assert!(denied.stderr.contains("not sealed with your key"), "{denied:?}");
    assert_eq!(paid(&sandbox).len(), 0, "{denied:?}");
    assert!(!sandbox.run(&["log", &thread, "--json"]).stdout.contains("mallory"));
}

/// It was dropped as forged.
#[test]
fn a_decision_that_was_queued_before_a_key_rotation_counts() {
    for is_kept in [true, false] {
        let sandbox = busy();
        let (mut child, told) = until(&sandbox, &RUN, |record| record["type"] == "calling");
        let thread = told[0]["thread_id"].as_str().unwrap();
        signal(&child, "STOP");
        let left = sandbox.run(&["approve", "call_2", "--thread", thread, "--json"]).json();
        assert_eq!(left["recorded"], "queued");
        child.kill().unwrap();
        child.wait().unwrap();
        put(&sandbox, "fast", "");
        let rotated = sandbox.run(&["keys", "rotate", "--json"]).json();
        if is_kept {
            ended(&sandbox.run(&["resume", thread, "--json"]));
        } else {
            // It can't be verified any more: the drop is reported, and approval is requested again.
            fs::remove_file(rotated["retired"].as_str().unwrap()).unwrap();
            let error = sandbox.run(&["resume", thread, "--json"]).error_beside_data(6, "row_unsealed");
            assert!(error["hint"].as_str().unwrap().contains("selvedge reindex"), "{error}");
            let rebuilt = sandbox.run(&["reindex", "--json"]).json();
            assert!(rebuilt["notices"].to_string().contains("must be sent again"), "{rebuilt}");
            let ran = sandbox.run(&["resume", thread, "--json"]);
            ran.error_beside_data(7, "needs_decision");
            ended(&sandbox.run(&["approve", "call_2", "--thread", thread, "--json"]));
        }
        assert_eq!(paid(&sandbox), ["paid anna"]);
    }
}
