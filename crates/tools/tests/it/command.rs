//! A command gets the right environment, and its output is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use selvedge_model::tool::{CommandSpec, Reconciled, Stdin};
use selvedge_model::{Cancel, Classify, Output, Tool, ToolError};
use selvedge_tools::{CommandEnvironment, CommandTool};
use serde_json::json;

use crate::support::{around, at_most_once, call, project, script, text, tool, tool_in, use_tool};

#[test]
fn an_argument_stays_one_argument_whatever_is_in_it() {
    let tool = tool(script("printf '%s|' \"$#\" \"$1\""));
    for nasty in ["$(touch /tmp/x)", "a b", "'; rm -rf / #", "\n", "{input:a}", "-n", "*", ""] {
        let output = use_tool(&tool, json!({"a": nasty})).unwrap();
        assert_eq!(text(&output), format!("1|{nasty}|"));
    }
    assert_eq!(text(&use_tool(&tool, json!({})).unwrap()), "0||");
}

#[test]
fn arguments_that_the_schema_refuses_start_nothing() {
    let (_folder, root) = project();
    let mut spec = script("touch started");
    spec.input_schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let tool = tool_in(&root, spec);
    let error = use_tool(&tool, json!({"a": "seven"})).unwrap_err();
    assert!(matches!(&error, ToolError::NotStarted { why, .. } if why.contains("/a: ")), "{error}");
    assert!(use_tool(&tool, json!({})).unwrap_err().to_string().contains("\"a\" is a required property"));
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
}

#[test]
fn a_command_sees_what_is_allowed_and_nothing_else() {
    let mut spec = script("");
    spec.command = vec!["env".to_owned()];
    spec.environment = ["PATH", "ALLOWED", "ABSENT"].map(str::to_owned).to_vec();
    let names = ["PATH", "ALLOWED", "CANARY", "HOME", "LD_PRELOAD_OF_NO_USE"];
    let mut environment: BTreeMap<_, _> = names.map(|name| (name.to_owned(), "canary-7".to_owned())).into();
    environment.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    environment.insert("ALLOWED".to_owned(), "as it is".to_owned());
    let tool = CommandTool::new(spec, &CommandEnvironment { root: "/".into(), environment, sandbox: None }).unwrap();
    let output = use_tool(&tool, json!({})).unwrap();
    let seen: BTreeSet<_> = text(&output).lines().collect();
    let expected = BTreeSet::from([
        "ALLOWED=as it is",
        "PATH=/usr/bin:/bin",
        "SELVEDGE_CALL=call_1",
        "SELVEDGE_CALL_KEY=key1",
        "SELVEDGE_RUN=run1",
        "SELVEDGE_THREAD=scribe-0123456789ab",
    ]);
    assert_eq!(seen, expected);
}

#[test]
fn a_command_gets_no_descriptor_of_ours_and_no_child() {
    let mut spec = script("");
    spec.command = ["ls", "/proc/self/fd"].map(str::to_owned).to_vec();
    // A gate or a pipe of ours would be in addition to what these tests themselves were started with.
    let plain = std::process::Command::new("ls").arg("/proc/self/fd").output().unwrap();
    let listed = use_tool(&tool(spec.clone()), json!({})).unwrap();
    assert_eq!(text(&listed), String::from_utf8(plain.stdout).unwrap());
    spec.command = ["cat", "/proc/thread-self/children"].map(str::to_owned).to_vec();
    let output = use_tool(&tool(spec), json!({})).unwrap();
    assert!(output.is_error || text(&output).is_empty(), "{output:?}");
}

#[test]
fn a_command_reads_its_arguments_or_nothing() {
    let mut spec = script("cat");
    assert_eq!(text(&use_tool(&tool(spec.clone()), json!({"a": 1})).unwrap()), "");
    spec.stdin = Stdin::Json;
    assert_eq!(text(&use_tool(&tool(spec.clone()), json!({"a": "ü\n"})).unwrap()), "{\"a\":\"ü\\n\"}\n");
    spec.command[2] = "wc -c".to_owned();
    spec.command.pop();
    let long = json!({"a": "x".repeat(1_000_000)});
    assert_eq!(text(&use_tool(&tool(spec.clone()), long.clone()).unwrap()).trim(), "1000009");
    // The command need not read it.
    spec.command[2] = "echo done".to_owned();
    assert_eq!(text(&use_tool(&tool(spec), long).unwrap()), "done\n");
}

#[test]
fn an_exit_status_is_a_result_that_has_the_end_of_stderr() {
    for class in [script, at_most_once] {
        let said = "echo out; i=0; while [ $i -lt 2000 ]; do echo line $i >&2; i=$((i+1)); done; exit 3";
        let output = use_tool(&tool(class(said)), json!({})).unwrap();
        let text = text(&output);
        assert!(output.is_error);
        assert!(text.starts_with("`tool` failed: it exited with status 3\nstderr:\n"), "{text}");
        assert!(text.contains("line 1999\nstdout:\nout") && !text.contains("line 12\n") && text.len() < 5000, "{text}");
    }
}

#[test]
fn output_above_the_bound_is_dropped_and_counted() {
    let mut spec = script("printf 0123456789; printf abcdefghij");
    spec.output_bytes_max = 12;
    assert_eq!(text(&use_tool(&tool(spec), json!({})).unwrap()), "0123456789ab\n[8 more bytes were dropped]");
}

#[test]
fn a_command_runs_in_its_folder_and_a_missing_one_is_reported() {
    let (_folder, root) = project();
    fs::create_dir(root.join("work")).unwrap();
    let mut spec = script("pwd");
    spec.working_folder = Some("work".to_owned());
    let there = root.join("work").canonicalize().unwrap();
    assert_eq!(text(&use_tool(&tool_in(&root, spec.clone()), json!({})).unwrap()).trim(), there.to_str().unwrap());
    spec.working_folder = Some("nowhere".to_owned());
    let error = use_tool(&tool_in(&root, spec), json!({})).unwrap_err();
    assert!(error.to_string().contains("nowhere` does not exist"), "{error}");
    for missing in ["no-such-program", "./no-such-program", "/etc/passwd"] {
        let mut spec = script("");
        spec.command = vec![missing.to_owned()];
        let error = use_tool(&tool_in(&root, spec), json!({})).unwrap_err();
        assert!(matches!(&error, ToolError::NotStarted { why, .. } if why.contains("there is no program")), "{error}");
    }
}

#[test]
fn a_working_folder_outside_the_project_is_refused_however_it_is_reached() {
    let (_folder, root) = project();
    let (_other, elsewhere) = project();
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::create_dir(elsewhere.join("inner")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, root.join("out")).unwrap();
    std::os::unix::fs::symlink("a/b", root.join("in")).unwrap();
    let at = |folder: &str| {
        let spec = CommandSpec { working_folder: Some(folder.to_owned()), ..script("pwd; touch effect") };
        use_tool(&tool_in(&root, spec), json!({}))
    };
    for folder in ["out", "out/inner", "..", "a/../..", "/"] {
        let error = at(folder).unwrap_err().to_string();
        assert!(error.contains("lies outside the project"), "{folder}: {error}");
    }
    assert!(!elsewhere.join("effect").exists() && !elsewhere.join("inner/effect").exists());
    let there = root.join("a/b").canonicalize().unwrap();
    assert!(text(&at("in").unwrap()).starts_with(there.to_str().unwrap()), "a link within the project is fine");
}

#[test]
fn a_reconciling_command_says_done_not_done_or_unknown() {
    let ask = |text: &str| {
        let mut spec = at_most_once("exit 1");
        spec.reconcile =
            Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), text.to_owned(), "r".to_owned(), "{input:a}".to_owned()]);
        spec.output_bytes_max = 200;
        tool(spec).reconcile(&call("tool", json!({"a": "seven"})), &Cancel::new())
    };
    let done = |content| Reconciled::Done(Output { content, ..Output::default() });
    let echo = r#"printf '{"done":true,"result":{"key":"%s","a":"%s"}}' "$SELVEDGE_CALL_KEY" "$1""#;
    assert_eq!(ask(echo), done(json!({"key": "key1", "a": "seven"})));
    assert_eq!(ask(r#"echo '{"done":true}'"#), done(json!("done")));
    assert_eq!(ask(r#"echo '{"done":true,"error":"no money"}'"#), Reconciled::Done(Output::error("no money")));
    assert_eq!(ask(r#"echo '{"done":false}'"#), Reconciled::NotDone);
    for unclear in [
        r#"echo '{"done":null}'"#,
        r#"echo '{}'; exit 0"#,
        r#"echo '{"done":false}'; exit 1"#,
        r#"echo '{"done":false,"result":1}'"#,
        r#"echo '{"done":false,"perhaps":true}'"#,
        r#"echo '{"done":false} and more'"#,
        r#"echo '{"done":"false"}'"#,
        "echo not done",
        r#"printf '%300s' ''; echo '{"done":false}'"#,
        r#"echo '{"done":false}'; kill -9 $$"#,
        "",
    ] {
        assert_eq!(ask(unclear), Reconciled::Unknown, "{unclear}");
    }
    let without = tool(at_most_once("exit 0")).reconcile(&call("tool", json!({})), &Cancel::new());
    assert_eq!(without, Reconciled::Unsupported, "a tool without the command can't be asked");
}

#[test]
fn a_bad_definition_is_refused_and_says_why() {
    let change = |change: &dyn Fn(&mut CommandSpec), why: &str| {
        let mut spec = script("true");
        change(&mut spec);
        let error = CommandTool::new(spec, &around("/".as_ref())).unwrap_err();
        assert!(error.why.contains(why), "{error}");
        assert_eq!(error.code(), "tool_invalid");
    };
    change(&|spec| spec.name = "a b".to_owned(), "name");
    change(&|spec| spec.name = String::new(), "name");
    change(&|spec| spec.command.clear(), "no program");
    change(&|spec| spec.command.push("{input:z}".to_owned()), "no property");
    change(&|spec| spec.reconcile = Some(Vec::new()), "as `reconcile`");
    change(&|spec| spec.timeout_seconds = 0, "above 0");
    change(&|spec| spec.output_bytes_max = 0, "above 0");
    change(&|spec| spec.input_schema = json!(true), "not an object");
    change(&|spec| spec.input_schema["type"] = json!("thing"), "not a valid JSON Schema");
    change(
        &|spec| spec.input_schema = json!({"$ref": "http://example.com/x", "properties": {"a": {}}}),
        "not a valid JSON Schema",
    );
    change(&|spec| spec.environment.push("A=B".to_owned()), "A=B");
    change(&|spec| spec.environment.push("SELVEDGE_CALL_KEY".to_owned()), "SELVEDGE_CALL_KEY");
}

#[test]
fn a_changed_definition_has_another_hash() {
    let hash = |spec| tool(spec).spec().hash;
    assert_eq!(hash(script("true")), hash(script("true")));
    assert_ne!(hash(script("true")), hash(script("false")));
    assert_ne!(hash(script("true")), hash(at_most_once("true")));
}
