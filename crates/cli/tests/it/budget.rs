//! Money over real processes: reserved before each call, conserved through kills, and recomputed from the signed logs alone.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::account::Posting;
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, Batch, Changeset, Expect, NewThread, Part, Reason, RunId, RunMeta, RunStatus, ThreadId};
use selvedge_store::Commit;
use serde_json::Value;

use crate::running::{RUN, put, thread_of};
use crate::support::{Ran, Sandbox};

const TASK: &str = "---\nname: task\nversion: 1.0.0\n---\nDo it.\n";

/// A model that costs a dollar for a million tokens sent, two for a million received, and answers so.
fn script(turns: &str) -> String {
    format!("price: {{input_per_million_tokens: 1, output_per_million_tokens: 2}}\nturns:\n{turns}")
}

pub(crate) const SAYS: &str = "  - {say: Done., usage: {input_tokens: 1000, output_tokens: 500}, repeat: forever}\n";

pub(crate) fn project(turns: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/task.md", TASK);
    put(&sandbox, "script.yaml", &script(turns));
    sandbox
}

fn budget(sandbox: &Sandbox, thread: &str) -> Value {
    sandbox.run(&["budget", thread, "--verify", "--json"]).json()
}

#[test]
fn a_run_pays_from_its_account_and_the_signed_logs_alone_give_the_same_result() {
    let sandbox = project(SAYS);
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let thread = thread_of(&ran);
    let shown = budget(&sandbox, &thread);
    let account = &shown["accounts"][0];
    assert_eq!((account["own_nanos"].as_i64(), account["reserved_nanos"].as_i64()), (Some(2_000_000), Some(0)));
    assert_eq!((account["status"].as_str(), account["max_nanos"].as_i64()), (Some("closed"), Some(1_000_000_000)));
    assert_eq!((shown["verified"]["holds"].as_bool(), shown["verified"]["postings"].as_u64()), (Some(true), Some(5)));
    assert!(shown["verified"]["peaks"][&thread].as_i64() > Some(16_000_000), "the bound of 8,192 tokens was reserved");
    let text = sandbox.run(&["budget", &thread, "--verify"]);
    assert!(text.stdout.contains("$0.002 spent, $0.998 left of $1.00"), "{text:?}");
    assert!(text.stdout.contains("no ceiling was exceeded at any posting"), "{text:?}");
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

#[test]
fn a_call_above_the_budget_is_not_made_until_the_limit_is_raised() {
    let sandbox = project(SAYS);
    let ran = sandbox.run(&[&RUN[..], &["--limit", "spend=0.0005"]].concat());
    let error = ran.error_beside_data(8, "limit_reached");
    assert!(error["message"].as_str().unwrap().contains("has 0.0005 dollars left"), "{error}");
    let thread = thread_of(&ran);
    assert_eq!(budget(&sandbox, &thread)["accounts"][0]["own_nanos"], 0);
    let ran = sandbox.run(&["resume", &thread, "--raise", "spend=2", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let shown = budget(&sandbox, &thread);
    assert_eq!(
        (shown["accounts"][0]["max_nanos"].as_i64(), shown["verified"]["holds"].as_bool()),
        (Some(2_000_000_000), Some(true))
    );
}

#[test]
fn a_process_that_is_killed_in_the_middle_of_a_call_has_spent_its_bound_and_evidence_corrects_it() {
    let sandbox =
        project("  - {say: [Slowly, {text: now, delay_ms: 60000}], usage: {input_tokens: 10, output_tokens: 5}}\n");
    let mut child = sandbox.command(&RUN).stdin(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let thread = loop {
        assert!(Instant::now() < deadline, "the call was never made");
        thread::sleep(Duration::from_millis(20));
        let list = sandbox.run(&["thread", "list", "--json"]).json();
        let Some(thread) = list["threads"][0]["thread_id"].as_str() else { continue };
        if fs::read_to_string(sandbox.transcript(thread)).unwrap_or_default().contains("\"issued\"") {
            break thread.to_owned();
        }
    };
    let before = budget(&sandbox, &thread);
    let bound = before["accounts"][0]["reserved_nanos"].as_i64().unwrap();
    assert!(bound > 16_000_000, "{before}");
    child.kill().unwrap();
    Ran::of(child);
    // Looking settles nothing; it names the command that does.
    let found = budget(&sandbox, &thread);
    let amounts = ["own_nanos", "reserved_nanos"].map(|name| found["accounts"][0][name].as_i64().unwrap());
    assert_eq!((amounts, &found["verified"]["holds"]), ([0, bound], &true.into()), "{found}");
    let take_up = serde_json::json!([format!("selvedge resume {thread}")]);
    assert_eq!(found["accounts"][0]["needs"]["commands"], take_up, "{found}");
    put(&sandbox, "script.yaml", &script(SAYS));
    let ran = sandbox.run(&["resume", &thread, "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let after = budget(&sandbox, &thread);
    assert_eq!(after["accounts"][0]["own_nanos"].as_i64(), Some(bound + 2_000_000), "{after}");
    assert_eq!(
        (after["accounts"][0]["reserved_nanos"].as_i64(), after["verified"]["holds"].as_bool()),
        (Some(0), Some(true))
    );
    let lost = after["accounts"][0]["reservations"][0]["reservation"].as_str().unwrap().to_owned();
    assert_eq!(after["accounts"][0]["reservations"][0]["state"], "unknown");
    // The log says the same as the budget: nothing was answered.
    let log = sandbox.run(&["log", &thread]).stdout;
    assert!(log.contains("answer lost, charged at its bound") && !log.contains("usage not reported"), "{log}");

    let correct = |amount: &str| format!("{lost}={amount}");
    let corrected =
        sandbox.run(&["budget", &thread, "--correct", &correct("0.001"), "--evidence", "invoice 7", "--json"]);
    assert_eq!((corrected.code, &corrected.json()["spent_nanos"]), (Some(0), &3_000_000.into()), "{corrected:?}");
    let shown = budget(&sandbox, &thread);
    assert_eq!((&shown["verified"]["holds"], &shown["accounts"][0]["status"]), (&true.into(), &"closed".into()));
}

#[test]
fn the_cost_of_a_lost_call_of_a_suspended_thread_is_corrected_downwards_in_the_log() {
    let sandbox = project("  - {error: {transient: no route}, repeat: forever}\n");
    let ran = sandbox.run(&[&RUN[..], &["--limit", "spend=0.02"]].concat());
    // The first two attempts may have been charged, the second with a shorter answer; a third is not affordable.
    ran.error_beside_data(8, "limit_reached");
    let thread = thread_of(&ran);
    let shown = budget(&sandbox, &thread);
    let reservations = shown["accounts"][0]["reservations"].as_array().unwrap();
    assert_eq!(reservations.len(), 2, "{shown}");
    let lost = reservations[0]["reservation"].as_str().unwrap().to_owned();
    let other = reservations[1]["amount_nanos"].as_i64().unwrap();
    let correct = |amount: &str, evidence: &str| {
        sandbox.run(&["budget", &thread, "--correct", &format!("{lost}={amount}"), "--evidence", evidence, "--json"])
    };
    correct("0.5", "a guess").error(2, "correction_refused");
    let corrected = correct("0.001", "invoice 7").json();
    assert_eq!(corrected["spent_nanos"], 1_000_000 + other, "{corrected}");
    assert!(fs::read_to_string(sandbox.transcript(&thread)).unwrap().contains("invoice 7"));
    assert_eq!(budget(&sandbox, &thread)["verified"]["holds"], true);
    let again = correct("0.0001", "invoice 8").error(5, "already_corrected");
    let message = again["message"].as_str().unwrap();
    assert!(message.contains("to $0.001") && message.contains("invoice 7") && message.contains(&thread), "{message}");
    let other = sandbox.run(&["budget", &thread, "--correct", "missing.1=0", "--evidence", "x", "--json"]);
    other.error(3, "reservation_not_found");
}

/// The budget of a parent shows what its children lost too, and could not correct it.
#[test]
fn a_correction_at_the_parent_of_a_childs_call_names_the_child() {
    let sandbox = project(FAILS);
    let (parent, children) = family(&sandbox, "0.5", "0.017", 1);
    sandbox.run(&["send", &children[0], "go", "--json"]).error_beside_data(8, "limit_reached");
    let shown = budget(&sandbox, &parent);
    let lost = shown["accounts"][1]["reservations"][0]["reservation"].as_str().unwrap();
    let correct = |thread: &str, lost: &str| {
        sandbox.run(&["budget", thread, "--correct", &format!("{lost}=0.001"), "--evidence", "invoice", "--json"])
    };
    let error = correct(&parent, lost).error(3, "reservation_not_found");
    let hint = error["hint"].as_str().unwrap();
    let command = hint.split('`').find(|word| word.starts_with("selvedge ")).unwrap();
    assert!(command.starts_with(&format!("selvedge budget {} --correct {lost}=0.001", children[0])), "{hint}");
    assert_eq!(follow(&sandbox, command).code, Some(0), "{command}");
    // For an unknown reservation the hint names the command that lists them.
    let error = correct(&parent, "missing.1").error(3, "reservation_not_found");
    assert!(error["hint"].as_str().unwrap().contains(&format!("`selvedge budget {parent}`")), "{error}");
}

const FAILS: &str = "  - {error: {transient: no route}, repeat: forever}\n";

/// A thread that has ended, with one call that was lost on the way and one of two thousandths of a dollar.
fn with_a_lost_call() -> (Sandbox, String) {
    let sandbox = project(FAILS);
    // Nothing is left for a second try.
    let ran = sandbox.run(&[&RUN[..], &["--limit", "spend=0.017"]].concat());
    ran.error_beside_data(8, "limit_reached");
    let thread = thread_of(&ran);
    put(&sandbox, "script.yaml", &script(SAYS));
    let resumed = sandbox.run(&["resume", &thread, "--raise", "spend=1", "--json"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    (sandbox, thread)
}

/// The reservation of the one lost call of an account, and what was put down for it.
fn lost_call(sandbox: &Sandbox, thread: &str) -> (String, i64) {
    let shown = budget(sandbox, thread);
    let reservations = shown["accounts"][0]["reservations"].as_array().unwrap();
    assert_eq!(reservations.len(), 1, "{shown}");
    let lost = &reservations[0];
    (lost["reservation"].as_str().unwrap().to_owned(), lost["amount_nanos"].as_i64().unwrap())
}

fn manifest(sandbox: &Sandbox, thread: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(sandbox.threads().join(thread).join("thread.json")).unwrap()).unwrap()
}

#[test]
fn a_correction_is_shown_by_every_command() {
    let (sandbox, thread) = with_a_lost_call();
    let (lost, bound) = lost_call(&sandbox, &thread);
    let before = manifest(&sandbox, &thread);
    assert_eq!(before["cost"]["spend"].as_f64(), Some((bound + 2_000_000) as f64 / 1e9), "{before}");

    let correction = format!("{lost}=0.001");
    let corrected = sandbox.run(&["budget", &thread, "--correct", &correction, "--evidence", "invoice 7", "--json"]);
    assert_eq!((corrected.code, &corrected.json()["spent_nanos"]), (Some(0), &3_000_000.into()), "{corrected:?}");

    // Read before anything else opens the store for writing.
    let shown = manifest(&sandbox, &thread);
    assert_eq!(shown["cost"]["spend"], 0.003, "{shown}");
    assert!(shown["cost"]["spend_unknown"].is_null(), "{shown}");
    let show = sandbox.run(&["thread", "show", &thread, "--json"]).json();
    assert_eq!(shown["log_version"], show["version"], "{show}");
    assert_eq!(show["cost"]["spend"], 0.003, "{show}");
    assert!(sandbox.run(&["thread", "show", &thread]).stdout.contains("spent     $0.003\n"));
    let tree = sandbox.run(&["tree", &thread, "--json"]).json();
    assert_eq!((&tree["cost"]["spend"], &tree["chain"][0]["cost"]["spend"]), (&0.003.into(), &0.003.into()), "{tree}");
    let chain = sandbox.run(&["chain", &thread, "--json"]).json();
    assert_eq!(chain["chain"][0]["cost"]["spend"], 0.003, "{chain}");
    let waited = sandbox.run(&["wait", &thread, "--json"]).json();
    assert_eq!(waited["results"][&thread]["cost"]["spend"], 0.003, "{waited}");

    // The log alone tells the same.
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    sandbox.run(&["reindex", "--json"]).json();
    let show = sandbox.run(&["thread", "show", &thread, "--json"]).json();
    assert_eq!(show["cost"]["spend"], 0.003, "{show}");
}

#[test]
fn a_correction_at_the_end_of_a_continued_chain_counts_for_the_chain() {
    let (sandbox, first) = with_a_lost_call();
    let (lost, bound) = lost_call(&sandbox, &first);
    let resumed = sandbox.run(&["resume", &first, "And now?", "--json"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let last = resumed.records().last().unwrap()["thread_id"].as_str().unwrap().to_owned();
    assert_ne!(first, last);
    let chain = |field: &str| {
        let tree = sandbox.run(&["tree", &first, "--json"]).json();
        tree["cost"][field].as_f64().map(|dollars| (dollars * 1e9).round() as i64)
    };
    assert_eq!((chain("spend"), chain("spend_unknown")), (Some(bound + 4_000_000), Some(bound)));

    // Asked of the thread that made the call, said in the log of the one that goes on.
    let correction = format!("{lost}=0.001");
    let corrected = sandbox.run(&["budget", &first, "--correct", &correction, "--evidence", "invoice 7", "--json"]);
    assert_eq!((corrected.code, &corrected.json()["spent_nanos"]), (Some(0), &5_000_000.into()), "{corrected:?}");
    assert!(fs::read_to_string(sandbox.transcript(&last)).unwrap().contains("invoice 7"));
    assert_eq!((chain("spend"), chain("spend_unknown")), (Some(5_000_000), None));
    for thread in [&first, &last] {
        let waited = sandbox.run(&["wait", thread, "--json"]).json();
        assert_eq!(waited["results"][thread]["cost"]["spend"], 0.005, "{waited}");
    }
    let shown = manifest(&sandbox, &last);
    assert_eq!((&shown["cost"]["spend"], &shown["cost"]["corrected"]["to"]), (&0.002.into(), &0.001.into()), "{shown}");
    let less = sandbox.run(&["thread", "show", &last]);
    assert!(less.stdout.contains("$0.002, less $") && less.stdout.contains("of earlier threads"), "{less:?}");
    assert_eq!(budget(&sandbox, &last)["verified"]["holds"], true);
    // Named by whichever thread of the chain, it was said before.
    let again = ["budget", &last, "--correct", &correction, "--evidence", "invoice 8", "--json"];
    sandbox.run(&again).error(5, "already_corrected");
}

#[test]
fn a_spend_limit_counts_the_corrected_cost_and_not_the_bound() {
    let sandbox = project(FAILS);
    let ran = sandbox.run(&[&RUN[..], &["--limit", "spend=0.02"]].concat());
    ran.error_beside_data(8, "limit_reached");
    let thread = thread_of(&ran);
    let shown = budget(&sandbox, &thread);
    for lost in shown["accounts"][0]["reservations"].as_array().unwrap() {
        let correction = format!("{}=0", lost["reservation"].as_str().unwrap());
        sandbox.run(&["budget", &thread, "--correct", &correction, "--evidence", "no invoice", "--json"]).json();
    }
    put(&sandbox, "script.yaml", &script(SAYS));
    let resumed = sandbox.run(&["resume", &thread, "--json"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert_eq!(budget(&sandbox, &thread)["accounts"][0]["own_nanos"], 2_000_000);
}

#[test]
fn verify_finds_a_posting_that_was_edited_and_one_that_was_removed() {
    let sandbox = project(SAYS);
    let thread = thread_of(&sandbox.run(&RUN));
    let path = sandbox.transcript(&thread);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"amount_nanos\":2000000", "\"amount_nanos\":1000000", 1)).unwrap();
    sandbox.run(&["budget", &thread, "--verify", "--json"]).error_beside_data(6, "ledger_differs");
    let without: String =
        text.lines().filter(|line| !line.contains("\"settled\",\"payload\"")).map(|line| format!("{line}\n")).collect();
    assert_eq!(without.lines().count() + 1, text.lines().count());
    fs::write(&path, without).unwrap();
    sandbox.run(&["budget", &thread, "--verify", "--json"]).error_beside_data(6, "ledger_differs");
    fs::write(&path, text).unwrap();
    assert_eq!(budget(&sandbox, &thread)["verified"]["holds"], true);
}

#[test]
fn a_cut_log_is_not_repaired_by_reindex_and_no_hint_suggests_it() {
    let sandbox = project(SAYS);
    let thread = thread_of(&sandbox.run(&RUN));
    let path = sandbox.transcript(&thread);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    fs::write(&path, lines[..lines.len() - 4].iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let error = sandbox.run(&["budget", &thread, "--verify", "--json"]).error_beside_data(6, "ledger_differs");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains(&format!("selvedge verify {thread}")) && hint.contains("repair"), "{hint}");
    assert!(!hint.contains("reindex"), "{hint}");
}

/// A child that overcharged stops its tree; the raise that was named then could not be paid.
#[test]
fn the_hint_for_a_stopped_tree_names_the_account_to_raise() {
    let turns = "  - {calls: [{tool: pay, arguments: {}}], usage: {input_tokens: 10, output_tokens: 90000}}\n";
    let sandbox = project(&format!("{turns}{SAYS}"));
    let (parent, children) = family(&sandbox, "0.5", "0.3", 1);
    let child = &children[0];
    let error = sandbox.run(&["send", child, "go", "--json"]).error_beside_data(8, "limit_reached");
    let hint = error["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains(&format!("first `selvedge resume {parent} \"…\" --raise spend=…`")), "{hint}");
    let shown = sandbox.run(&["budget", &parent]);
    assert!(shown.stdout.contains("$0.30 reserved for 1 child, stopped at $0.00: nothing more"), "{shown:?}");
    // Other commands say the same.
    let waited = sandbox.run(&["wait", child, "--json"]).error_beside_data(8, "limit_reached");
    assert_eq!(waited["hint"].as_str(), Some(hint.as_str()));
    let need = sandbox.run(&["inbox", "--json"]).records().pop().unwrap();
    let commands: Vec<String> =
        need["commands"].as_array().unwrap().iter().map(|command| command.as_str().unwrap().to_owned()).collect();
    let raise = |thread: &str| format!("selvedge resume {thread} --raise spend=…");
    assert_eq!(commands, [raise(&format!("{parent} \"…\"")), raise(child)], "{need}");
    // In another order it does not help.
    let error = sandbox.run(&["resume", child, "--raise", "spend=0.4", "--json"]).error(8, "budget_exceeded");
    assert!(error["hint"].as_str().unwrap().contains(&commands[0]), "{error}");
    put(&sandbox, "script.yaml", &script(SAYS));
    for (command, dollars) in commands.iter().zip(["2", "1"]) {
        let ran = follow(&sandbox, &command.replace('…', dollars));
        assert_eq!(ran.code, Some(0), "{command}: {ran:?}");
    }
}

/// The log of the parent was named, which has nothing of the call.
#[test]
fn an_audit_of_a_tree_in_which_a_child_was_overcharged_names_the_childs_log() {
    let turns = "  - {say: Done., usage: {input_tokens: 10, output_tokens: 200000}, repeat: forever}\n";
    let sandbox = project(turns);
    let (parent, children) = family(&sandbox, "0.35", "0.3", 1);
    assert_eq!(sandbox.run(&["send", &children[0], "go", "--json"]).code, Some(0));
    let ran = sandbox.run(&["budget", &parent, "--verify", "--json"]);
    assert_eq!(ran.records()[0]["verified"]["differences"].as_array().unwrap().len(), 2, "both are crossed: {ran:?}");
    let error = ran.error_beside_data(8, "ceiling_exceeded");
    assert!(error["hint"].as_str().unwrap().contains(&format!("`selvedge log {}`", children[0])), "{error}");
}

/// After a folder was deleted by hand, the hint named a log that does not exist.
#[test]
fn an_audit_of_a_tree_with_a_removed_log_names_the_remedy() {
    let sandbox = project(SAYS);
    let thread = thread_of(&sandbox.run(&RUN));
    let backup = sandbox.root().join("copy");
    assert_eq!(sandbox.run(&["backup", backup.to_str().unwrap()]).code, Some(0));
    fs::remove_dir_all(sandbox.threads().join(&thread)).unwrap();
    let ran = sandbox.run(&["budget", &thread, "--verify", "--json"]);
    let error = ran.error_beside_data(6, "ledger_differs");
    assert!(error["message"].as_str().unwrap().starts_with(&format!("the log of `{thread}` is missing")), "{error}");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains(&format!("`selvedge verify {thread}`")), "{hint}");
    sandbox.run(&["verify", &thread, "--json"]).error_beside_data(6, "truncated");
    // A copy is laid out elsewhere, and the folder taken from there.
    assert!(hint.contains("`selvedge -C DIR restore BACKUP`"), "{hint}");
    let elsewhere = sandbox.root().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let restored = sandbox.run(&["-C", elsewhere.to_str().unwrap(), "restore", backup.to_str().unwrap()]);
    assert_eq!(restored.code, Some(0), "{restored:?}");
    crate::support::copy(&elsewhere.join(".ai/agent/threads").join(&thread), &sandbox.threads().join(&thread));
    assert_eq!(budget(&sandbox, &thread)["verified"]["holds"], true);
}

/// Types what a hint says.
pub(crate) fn follow(sandbox: &Sandbox, command: &str) -> Ran {
    let words: Vec<&str> = command.split(' ').skip(1).map(|word| word.trim_matches('"')).collect();
    sandbox.run(&[&words[..], &["--json"]].concat())
}

#[test]
fn children_are_counted_instead_of_their_reservations_and_amounts_are_decimals() {
    let sandbox = project(SAYS);
    let (parent, children) = family(&sandbox, "0.5", "0.00000001", 2);
    for child in &children {
        let error = sandbox.run(&["send", child, "go", "--json"]).error_beside_data(8, "limit_reached");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("$0.00 of $0.00000001"), "{message}");
    }
    sandbox.run(&["resume", &children[0], "--raise", "spend=0.0001", "--json"]).error_beside_data(8, "limit_reached");
    let shown = sandbox.run(&["budget", &parent]);
    assert!(shown.stdout.contains("reserved for 2 children"), "{shown:?}");
}

#[test]
fn a_thread_that_pays_for_nothing_has_no_account() {
    let (sandbox, thread) = Sandbox::with_thread();
    let shown = budget(&sandbox, &thread);
    assert_eq!((&shown["root"], &shown["accounts"]), (&Value::Null, &Value::Array(Vec::new())));
    assert!(sandbox.run(&["budget", &thread]).stdout.contains("has no account"));
}

/// An account that may spend this much, and threads that its thread started and that were given no account of their own.
pub(crate) fn family(sandbox: &Sandbox, most: &str, limit: &str, children: usize) -> (String, Vec<String>) {
    let store = sandbox.open();
    let scribe = || NewThread {
        model: Some("scripted:script.yaml".to_owned()),
        ..NewThread::of(AgentId::new("scribe").unwrap())
    };
    let born = |name: String, new: NewThread, postings: Vec<Posting>| {
        let thread = ThreadId::new(name).unwrap();
        let part = Part::new(thread.clone(), Expect::Absent, Changeset::creating(new));
        store.commit(Batch::of(Part { postings, ..part })).unwrap();
        thread
    };
    let parent = ThreadId::new("parent-0123456789ab").unwrap();
    let open = Posting::Open { account: parent.clone(), parent: None, max: Some(most.parse().unwrap()) };
    born(parent.to_string(), scribe(), vec![open]);
    let limits = Limits { spend: Some(limit.parse().unwrap()), ..Limits::default() };
    let child = |number: usize| {
        let new = NewThread { parent_id: Some(parent.clone()), limits: Some(limits.clone()), ..scribe() };
        born(format!("child-00000000000{number}"), new, Vec::new()).to_string()
    };
    let children = (0..children).map(child).collect();
    store.close().unwrap();
    (parent.to_string(), children)
}

#[test]
fn of_two_processes_that_reserve_the_last_money_one_is_refused_with_the_remaining_amount() {
    let sandbox =
        project("  - {say: [Slowly, {text: now, delay_ms: 3000}], usage: {input_tokens: 10, output_tokens: 5}}\n");
    let (parent, children) = family(&sandbox, "0.5", "0.3", 2);
    let start =
        |thread: &String| sandbox.command(&["send", thread, "go", "--json"]).stdin(Stdio::null()).spawn().unwrap();
    let running: Vec<_> = children.iter().map(start).collect();
    let ran: Vec<_> = running.into_iter().map(Ran::of).collect();
    let winners = ran.iter().filter(|ran| ran.code == Some(0)).count();
    assert_eq!(winners, 1, "{ran:?}");
    let loser = ran.iter().find(|ran| ran.code != Some(0)).unwrap();
    let error = loser.error_beside_data(8, "budget_exceeded");
    assert!(error["message"].as_str().unwrap().contains("has 0.20 dollars left, and 0.30 are needed"), "{error}");
    let shown = budget(&sandbox, &parent);
    assert_eq!(shown["verified"]["holds"], true, "{shown}");
    assert_eq!(shown["accounts"][0]["children_nanos"], 20_000, "what the winner did not spend is given back: {shown}");
    assert_eq!(shown["accounts"][0]["reserved_nanos"], 0);
}

#[test]
fn a_thread_with_reserved_money_is_not_deleted_before_it_has_ended() {
    let sandbox = project(SAYS);
    let (parent, children) = family(&sandbox, "0.5", "0.0001", 1);
    sandbox.run(&["send", &children[0], "go", "--json"]).error_beside_data(8, "limit_reached");
    let error = sandbox.run(&["thread", "delete", &children[0], "--yes", "--json"]).error(4, "account_in_use");
    assert!(error["hint"].as_str().unwrap().contains(&format!("`selvedge cancel {}`", children[0])), "{error}");
    assert_eq!(sandbox.run(&["cancel", &children[0]]).code, Some(0));
    assert_eq!(sandbox.run(&["thread", "delete", &children[0], "--yes"]).code, Some(0));
    let shown = sandbox.run(&["budget", &parent, "--json"]).json();
    assert_eq!((&shown["accounts"][0]["reserved_nanos"], shown["accounts"].as_array().unwrap().len()), (&0.into(), 2));
}

/// Threads that can't be deleted are not pruned, and the others are.
#[test]
fn a_thread_with_reserved_money_is_not_pruned_with_a_notice() {
    let sandbox = project(SAYS);
    let (parent, children) = family(&sandbox, "0.5", "0.0001", 1);
    sandbox.run(&["send", &children[0], "go", "--json"]).error_beside_data(8, "limit_reached");
    // The parent has ended, and holds what its child waits with.
    let store = sandbox.open();
    let run = |status, reason| Changeset {
        run_id: Some(RunId::new("r1").unwrap()),
        run_meta: Some(RunMeta { status, ..RunMeta::started(AgentId::new("scribe").unwrap(), "user") }),
        ..Changeset::empty(reason)
    };
    for change in [run(RunStatus::Running, Reason::UserMessage), run(RunStatus::Done, Reason::RunFinished)] {
        store.commit(Batch::of(Part::new(ThreadId::new(&*parent).unwrap(), Expect::Any, change))).unwrap();
    }
    store.close().unwrap();
    let free = thread_of(&sandbox.run(&RUN));
    let ran = sandbox.run(&["prune", "--older-than", "0h", "--yes", "--json"]);
    let pruned: Vec<_> = ran.records().iter().map(|one| one["thread_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!((ran.code, pruned), (Some(0), vec![free]), "{ran:?}");
    assert!(ran.stderr.contains(&format!("`selvedge cancel {parent}`")), "{ran:?}");
    assert_eq!(budget(&sandbox, &parent)["verified"]["holds"], true);
}

/// What was deleted is gone and not forged: `budget --verify` says so, and stays red for what is really wrong.
#[test]
fn postings_of_a_deleted_thread_are_reported_as_gone_and_not_as_a_difference() {
    let sandbox = project(SAYS);
    let (parent, children) = family(&sandbox, "0.5", "0.2", 2);
    for child in &children {
        assert_eq!(sandbox.run(&["send", child, "go", "--json"]).code, Some(0));
    }
    assert_eq!(budget(&sandbox, &parent)["verified"]["unavailable"], Value::Array(Vec::new()));
    assert_eq!(sandbox.run(&["thread", "delete", &children[0], "--yes"]).code, Some(0));
    let ran = sandbox.run(&["budget", &parent, "--verify", "--json"]);
    let verified = &ran.json()["verified"];
    assert_eq!(
        (ran.code, &verified["verdict"], &verified["differences"]),
        (Some(0), &"incomplete".into(), &Value::Array(Vec::new()))
    );
    let gone: Vec<_> = verified["unavailable"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(gone.len() >= 2 && gone.iter().all(|text| text.contains(&children[0])), "{gone:?}");
    assert!(gone.iter().any(|text| text.contains(&format!("account `{parent}`"))), "it had closed the parent's side");
    let text = sandbox.run(&["budget", &parent, "--verify"]);
    assert!(text.stdout.contains("which was deleted") && !text.stdout.contains('✓'), "{text:?}");
    // A log that is gone without a word is a breach as before.
    let folder = sandbox.threads().join(&children[1]);
    let away = sandbox.root().join("away");
    fs::rename(&folder, &away).unwrap();
    let ran = sandbox.run(&["budget", &parent, "--verify", "--json"]);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    fs::rename(&away, &folder).unwrap();
    assert_eq!(budget(&sandbox, &parent)["verified"]["verdict"], "incomplete");
}
