//! What the inbox tells people: commands that can be pasted, and all of what they decide about.

use std::path::Path;

use serde_json::{Value, json};

use crate::approvals::{asking, ended, inbox, paid, waiting};
use crate::running::{TASK, pay, project, put};
use crate::support::{Ran, Sandbox};

/// Names of calls that a shell would make something else of.
const NASTY: [&str; 8] =
    ["x;touch pwned #", "döner 1", "--all", "-h", "$(touch pwned)", "it's `touch pwned`", "a\u{202e}b", "~"];

/// A script that asks for one payment under each of these names.
fn script(calls: &[&str], to: &Value) -> String {
    let calls: Vec<Value> = calls.iter().map(|id| json!({"tool": "pay", "id": id, "arguments": {"to": to}})).collect();
    json!({"turns": [{"calls": calls}, {"say": "Done.", "repeat": "forever"}]}).to_string()
}

/// What a shell does with a command that somebody pasted.
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
    begins.filter_map(|rest| Some(rest.split_once("` or ").or(rest.split_once("`;"))?.0.to_owned())).collect()
}

/// A model names its calls, and what it named `x;touch pwned #` ran when the command of the inbox was pasted.
#[test]
fn commands_can_be_pasted_whatever_a_model_named_its_call() {
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
fn hints_can_be_pasted_whatever_a_model_named_its_call() {
    for call in NASTY {
        let sandbox = asking(&script(&[call], &json!("anna")));
        let error = sandbox.run(&crate::running::RUN).error_beside_data(7, "needs_decision");
        let commands = named(&error["hint"]);
        assert!(commands.len() >= 2 && commands[1].starts_with("selvedge deny "), "{error}");
        let ran = pasted(&sandbox, &commands[0]);
        assert_eq!((&ran.records()[0]["call_id"], paid(&sandbox).len()), (&json!(call), 1), "{error} {ran:?}");
        ended(&ran);
        assert!(!sandbox.project().join("pwned").exists());
    }
}

#[test]
fn what_to_say_of_a_call_that_nobody_saw_end_can_be_pasted_too() {
    for (call, verdict) in NASTY.into_iter().zip([0, 1, 0, 1, 2, 0, 2, 1]) {
        let sandbox = project(TASK, &pay("[ -e fast ] || sleep 60"), &script(&[call], &json!("anna")));
        let thread = crate::running::killed_in_the_middle(&sandbox);
        let error = sandbox.run(&["resume", &thread, "--json"]).error_beside_data(7, "needs_decision");
        let commands = inbox(&sandbox)[0]["commands"].clone();
        assert_eq!(json!(named(&error["hint"])), json!([commands[0], commands[1]]), "{error}");
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
