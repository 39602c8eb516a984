//! The inbox: commands that can be pasted, and everything needed to decide.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::approvals::{ASK, PAY_TWO, asking, busy, ended, inbox, paid, signal, until, waiting};
use crate::running::{RUN, TASK, killed_in_the_middle, pay, project, put, thread_of};
use crate::support::{Ran, Sandbox};

/// Names of calls that a shell would make something else of.
const NASTY: [&str; 8] =
    ["x;touch pwned #", "döner 1", "--all", "-h", "$(touch pwned)", "it's `touch pwned`", "a\u{202e}b", "~"];

/// A script that asks for one payment under each of these names.
fn script(calls: &[&str], to: &Value) -> String {
    let calls: Vec<Value> = calls.iter().map(|id| json!({"tool": "pay", "id": id, "arguments": {"to": to}})).collect();
    json!({"turns": [{"calls": calls}, {"say": "Done.", "repeat": "forever"}]}).to_string()
}

/// The words of a pasted command, as a shell splits them.
fn pasted(sandbox: &Sandbox, command: &str) -> Ran {
    let folder = Path::new(env!("CARGO_BIN_EXE_selvedge")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", command]).current_dir(sandbox.project()).env("PATH", path).env_remove("SELVEDGE_DIR");
    shell.env("SELVEDGE_HOME", sandbox.home()).env("HOME", sandbox.root()).env("SELVEDGE_JSON", "1");
    let output = shell.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The commands that a text names between backticks.
fn named(hint: &Value) -> Vec<String> {
    let hint = hint.as_str().unwrap();
    let begins = hint.match_indices("`selvedge ").map(|(at, _)| &hint[at + 1..]);
    // A name may have backticks of its own; those of the text are followed by a space, or by nothing that goes on.
    let end = |rest: &str| ["` or ", "`;", "`)"].iter().filter_map(|end| rest.find(end)).min();
    begins.filter_map(|rest| Some(rest[..end(rest)?].to_owned())).collect()
}

/// A model names its calls, and what it named `x;touch pwned #` ran when the command of the inbox was pasted.
#[test]
fn commands_can_be_pasted_for_any_call_id() {
    let sandbox = asking(&script(&NASTY, &json!("anna")));
    waiting(&sandbox);
    for (index, call) in NASTY.iter().enumerate() {
        let needs = inbox(&sandbox);
        assert_eq!((needs.len(), needs[0]["call_id"].as_str()), (NASTY.len() - index, Some(*call)));
        let shown = sandbox.run(&["inbox"]).stdout;
        let command = needs[0]["commands"][index % 2].as_str().unwrap();
        assert!(shown.contains(&format!("  {command}\n")), "people are shown the same: {command} {shown}");
        assert!(!shown.contains('\u{202e}'), "{shown}");
        let ran = pasted(&sandbox, command);
        let word = ["approve", "deny"][index % 2];
        assert_eq!(
            (&ran.records()[0]["call_id"], &ran.records()[0]["decision"]),
            (&json!(call), &json!(word)),
            "{ran:?}"
        );
    }
    assert_eq!((paid(&sandbox).len(), inbox(&sandbox).len()), (NASTY.len() / 2, 0));
    assert!(!sandbox.project().join("pwned").exists());
}

#[test]
fn hints_can_be_pasted_for_any_call_id() {
    for call in NASTY {
        let sandbox = asking(&script(&[call], &json!("anna")));
        let error = sandbox.run(&RUN).error_beside_data(7, "needs_decision");
        let commands = named(&error["hint"]);
        assert!(commands.len() >= 2 && commands[1].starts_with("selvedge deny "), "{error}");
        let ran = pasted(&sandbox, &commands[0]);
        assert_eq!((&ran.records()[0]["call_id"], paid(&sandbox).len()), (&json!(call), 1), "{error} {ran:?}");
        ended(&ran);
        assert!(!sandbox.project().join("pwned").exists());
    }
}

#[test]
fn commands_that_resolve_an_unknown_outcome_can_be_pasted() {
    for (call, verdict) in NASTY.into_iter().zip([0, 1, 0, 1, 2, 0, 2, 1]) {
        let sandbox = project(TASK, &pay("[ -e fast ] || sleep 60"), &script(&[call], &json!("anna")));
        let thread = killed_in_the_middle(&sandbox);
        let error = sandbox.run(&["resume", &thread, "--json"]).error_beside_data(7, "outcome_unknown");
        let commands = inbox(&sandbox)[0]["commands"].clone();
        assert_eq!(json!(named(&error["hint"])), json!([commands[0], commands[1], commands[2]]), "{error}");
        put(&sandbox, "fast", "");
        let ran = pasted(&sandbox, commands[verdict].as_str().unwrap());
        let word = ["done", "not_done", "unknown"][verdict];
        assert_eq!(
            (&ran.records()[0]["call_id"], &ran.records()[0]["decision"]),
            (&json!(call), &json!(word)),
            "{ran:?}"
        );
        ended(&ran);
        assert!(!sandbox.project().join("pwned").exists());
    }
}

/// An approval of a call that had been made was answered with "the thread has no call whose outcome is open".
#[test]
fn a_decision_of_the_wrong_kind_is_answered_with_the_right_command() {
    let sandbox = project(TASK, &pay("[ -e fast ] || sleep 60"), &script(&["a call"], &json!("anna")));
    let thread = killed_in_the_middle(&sandbox);
    sandbox.run(&["resume", &thread, "--json"]).error_beside_data(7, "outcome_unknown");
    for word in ["approve", "deny"] {
        let error = sandbox.run(&[word, "a call", "--json"]).error(3, "call_not_open");
        assert_eq!(named(&error["hint"]).len(), 3, "{error}");
        assert!(named(&error["hint"])[1].contains("settle 'a call'"), "{error}");
    }
    put(&sandbox, "fast", "");
    put(&sandbox, ".ai/config/agent/approvals.yaml", ASK);
    let error = sandbox.run(&["approve", "a call", "--json"]).error(3, "call_not_open");
    ended(&pasted(&sandbox, &named(&error["hint"])[0]));

    let thread = waiting(&sandbox);
    let error = sandbox.run(&["settle", "a call", "--done", "--json"]).error(3, "call_not_open");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains(&format!("`selvedge approve 'a call' --thread {thread}`")), "{error}");
    assert_eq!(sandbox.run(&["cancel", &thread]).code, Some(0));
    let error = sandbox.run(&["deny", "a call", "--thread", &thread, "--json"]).error(3, "call_not_open");
    assert!(error["hint"].as_str().unwrap().contains(&format!("`selvedge log {thread}`")), "{error}");
}

/// `--with false` was taken for a plain yes.
#[test]
fn an_approval_with_false_is_refused_with_the_deny_command() {
    let sandbox = asking(&script(&["call_1"], &json!("anna")));
    let rule = ASK.replace("action: ask", "action: ask, resume_mode: pass_decision_to_tool");
    put(&sandbox, ".ai/config/agent/approvals.yaml", &rule);
    let thread = waiting(&sandbox);
    let error = sandbox.run(&["approve", "call_1", "--with", "false", "--json"]).error(2, "edit_refused");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains(&format!("`selvedge deny call_1 --thread {thread}` denies it")), "{error}");
    assert_eq!((paid(&sandbox).len(), inbox(&sandbox).len()), (0, 1));
    ended(&sandbox.run(&["approve", "call_1", "--with", "true", "--json"]));
    assert_eq!(paid(&sandbox).len(), 1);
}

fn shown(sandbox: &Sandbox, args: &[&str]) -> String {
    let ran = sandbox.run(args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.stdout
}

/// Arguments ended in `…` after a hundred characters, and those of more than 2 KiB stood in no command that was named.
#[test]
fn the_inbox_can_show_whole_arguments() {
    let text = |words: usize| (0..words).map(|word| format!("w{word}")).collect::<Vec<_>>().join(" ");
    for words in [100, 1_000, 5_000] {
        let to = text(words);
        let sandbox = asking(&script(&["call_1"], &json!(to)));
        let thread = waiting(&sandbox);
        assert_eq!(inbox(&sandbox)[0]["arguments"], json!({"to": to}), "programs get all of it");
        let said = shown(&sandbox, &["inbox"]);
        assert_eq!(said.contains(&to), words < 5_000, "{said}");
        if !said.contains(&to) {
            let more = format!("`selvedge inbox {thread}` shows all of it");
            assert!(said.contains(&text(1_000)) && said.contains(&more), "{said}");
        }
        assert!(shown(&sandbox, &["inbox", &thread]).contains(&to));
        ended(&sandbox.run(&["deny", "call_1", "--json"]));
    }
}

#[test]
fn the_inbox_of_one_thread_shows_nothing_of_others() {
    let sandbox = asking(PAY_TWO);
    let first = waiting(&sandbox);
    let _ = waiting(&sandbox);
    let needs = sandbox.run(&["inbox", &first[..first.len() - 2], "--json"]).records();
    let of: Vec<&Value> = needs.iter().map(|need| &need["thread_id"]).collect();
    assert_eq!(of, [&json!(first), &json!(first)]);
    sandbox.run(&["inbox", "missing", "--json"]).error(3, "thread_not_found");
}

/// A word that was left with a running process seemed not to have been said: the inbox went on to ask for it.
#[test]
fn a_call_whose_decision_is_queued_is_shown_as_answered() {
    let sandbox = busy();
    let (mut child, told) = until(&sandbox, &RUN, |record| record["type"] == "calling");
    let thread = told[0]["thread_id"].as_str().unwrap();
    assert_eq!(inbox(&sandbox)[0]["answered"], Value::Null);
    // A process that is stopped applies nothing.
    signal(&child, "STOP");
    assert_eq!(sandbox.run(&["deny", "call_2", "--json"]).json()["recorded"], "queued");
    let need = inbox(&sandbox).remove(0);
    assert_eq!((&need["answered"], &need["commands"]), (&json!("deny"), &json!([])), "{need}");
    let said = shown(&sandbox, &["inbox"]);
    assert!(said.contains("answered (deny)") && !said.contains("selvedge approve"), "{said}");
    child.kill().unwrap();
    child.wait().unwrap();
    let need = inbox(&sandbox).into_iter().find(|need| need["call_id"] == "call_2").unwrap();
    assert_eq!(need["commands"], json!([format!("selvedge resume {thread}")]), "no process is left to apply it");
    put(&sandbox, "fast", "");
    ended(&sandbox.run(&["resume", thread, "--json"]));
    assert_eq!((paid(&sandbox).len(), inbox(&sandbox).len()), (0, 0));
}

/// Whatever was said about one call of a thread made its other, older one the newest need.
#[test]
fn needs_date_from_their_request() {
    let sandbox = asking(PAY_TWO);
    let older = waiting(&sandbox);
    let newer = waiting(&sandbox);
    let since =
        |thread: &str| inbox(&sandbox).iter().find(|need| need["thread_id"] == thread).unwrap()["since"].clone();
    let before = since(&older);
    sandbox.run(&["approve", "call_1", "--thread", &older, "--no-run", "--json"]).json();
    sandbox.run(&["thread", "rename", &older, "still the same"]);
    let order: Vec<_> =
        inbox(&sandbox).iter().map(|need| (need["thread_id"].clone(), need["call_id"].clone())).collect();
    let expected = [(&newer, "call_1"), (&newer, "call_2"), (&older, "call_2")];
    assert_eq!(order, expected.map(|(thread, call)| (json!(thread), json!(call))));
    assert_eq!(since(&older), before);
}

#[test]
fn a_need_without_an_approval_dates_from_the_end_of_the_run() {
    let sandbox = project(TASK, &pay("echo ok"), &script(&["a"], &json!("anna")));
    let limited = || {
        let ran = sandbox.run(&[&RUN[..], &["--limit", "turns=1"]].concat());
        ran.error_beside_data(8, "limit_reached");
        thread_of(&ran)
    };
    let older = limited();
    let newer = limited();
    let order = || inbox(&sandbox).iter().map(|need| need["thread_id"].clone()).collect::<Vec<_>>();
    assert_eq!(order(), [json!(newer), json!(older)]);
    assert_eq!(sandbox.run(&["thread", "rename", &older, "another name"]).code, Some(0));
    assert_eq!(order(), [json!(newer), json!(older)], "a new name does not make it wait anew");
}

/// `inbox --follow` showed the calls of a thread backwards.
#[test]
fn a_followed_inbox_shows_calls_in_their_order() {
    let sandbox = asking(PAY_TWO);
    let first = waiting(&sandbox);
    let mut child = sandbox.command(&["inbox", "--follow", "--json"]).stdin(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let mut both = |thread: &str| {
        for call in ["call_1", "call_2"] {
            let need = next();
            assert_eq!((&need["thread_id"], &need["call_id"]), (&json!(thread), &json!(call)));
        }
    };
    both(&first);
    let second = waiting(&sandbox);
    both(&second);
    // Between the last decision and its run, nothing is pending.
    assert_eq!(sandbox.run(&["approve", "--all", &second]).code, Some(0));
    both(&waiting(&sandbox));
    child.kill().unwrap();
    child.wait().unwrap();
}
