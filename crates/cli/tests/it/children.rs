//! Child threads: sync or async, in this process or in one of their own, killed and stopped.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::budget::follow;
use crate::kills::{Chance, Stand, killed_until_done};
use crate::running::{paid, pay, put, status, thread_of};
use crate::support::{Ran, Sandbox};

pub(crate) const PARENT: &str = "---\nname: parent\nversion: 1.0.0\nmodel: scripted:script.yaml\npermissions: [tool.threads.*, tool.pay]\n---\nLet a child pay.\n";
const CHILD: &str =
    "---\nname: child\nversion: 1.0.0\nmodel: scripted:child.yaml\npermissions: [tool.pay, tool.slow]\n---\nPay.\n";
pub(crate) const PAYS: &str = "turns:\n  - { calls: [{ tool: pay, arguments: { to: anna } }] }\n  - { say: The child is done., repeat: forever }\n";
const RUN: [&str; 3] = ["run", "parent", "--json"];

/// A tool that waits for a file, and is made again after a crash.
fn slow() -> String {
    let script = "echo begun >> begun.txt; while [ ! -e fast ]; do sleep 0.02; done; echo slept";
    let tool = json!({
        "name": "slow", "description": "Takes its time.", "class": "pure", "input_schema": {"type": "object"},
        "environment": ["PATH"], "command": ["sh", "-c", script],
    });
    tool.to_string()
}

/// A project with a parent that starts children by its script, and a child.
pub(crate) fn family(script: &str, child: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/parent.md", PARENT);
    put(&sandbox, ".ai/directives/child.md", CHILD);
    put(&sandbox, ".ai/tools/pay.yaml", &pay("echo ok"));
    put(&sandbox, ".ai/tools/slow.yaml", &slow());
    put(&sandbox, "script.yaml", script);
    put(&sandbox, "child.yaml", child);
    sandbox
}

/// A script that makes these calls and then says what came of the last.
pub(crate) fn calling(calls: &str) -> String {
    format!("turns:\n  - {{ calls: [{calls}] }}\n  - {{ say: \"Heard: {{result}}\", repeat: forever }}\n")
}

pub(crate) const SPAWN: &str = "{ tool: spawn_thread, arguments: { directive: child } }";
pub(crate) const SPAWN_ASYNC: &str = "{ tool: spawn_thread, arguments: { directive: child, async: true } }";
pub(crate) const SLEEPS: &str =
    "turns:\n  - { calls: [{ tool: slow, arguments: {} }] }\n  - { say: The child is done., repeat: forever }\n";

fn of_status(sandbox: &Sandbox, prefix: &str) -> Vec<Value> {
    let listed = sandbox.run(&["thread", "list", "--json"]).json();
    let ours = |found: &&Value| found["thread_id"].as_str().unwrap().starts_with(prefix);
    listed["threads"].as_array().unwrap().iter().filter(ours).cloned().collect()
}

fn id(thread: &Value) -> String {
    thread["thread_id"].as_str().unwrap().to_owned()
}

#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "it never came to this: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn has(sandbox: &Sandbox, name: &str) -> bool {
    sandbox.project().join(name).exists()
}

#[test]
fn a_child_returns_its_last_answer_to_its_waiting_parent() {
    let sandbox = family(&calling(SPAWN), PAYS);
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let heard = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
    let answer: Value = serde_json::from_str(heard.strip_prefix("Heard: ").unwrap()).unwrap();
    assert_eq!((&answer["success"], &answer["result"]), (&json!(true), &json!("The child is done.")));
    assert_eq!(paid(&sandbox), 1);
    let parent = thread_of(&ran);
    let child = answer["thread_id"].as_str().unwrap().to_owned();
    let tree = sandbox.run(&["tree", &parent, "--json"]).json();
    assert_eq!((&tree["thread_id"], &tree["children"][0]["thread_id"]), (&json!(parent), &json!(child)));
    assert_eq!(tree["cost"]["turns"], 4, "what is below is counted: {tree}");
    let shown = sandbox.run(&["tree", &parent]).stdout;
    assert!(shown.contains(&format!("└─ {child} completed")), "{shown}");
    for thread in [&parent, &child] {
        assert_eq!(sandbox.run(&["verify", thread]).code, Some(0));
        assert!(sandbox.threads().join(thread).join("capabilities.md").is_file());
    }
    let log = sandbox.run(&["log", &parent, "--json"]).records();
    let count = |kind: &str| log.iter().filter(|line| line["event_type"] == kind).count();
    assert_eq!((count("child_spawned"), count("child_settled")), (1, 1));
}

/// What a thread used was nothing, wherever one looked, until its run had ended.
#[test]
fn the_usage_of_a_running_thread_is_shown_before_its_run_ends() {
    let sandbox = family(SLEEPS, PAYS);
    put(&sandbox, ".ai/directives/parent.md", &PARENT.replace("tool.pay", "tool.pay, tool.slow"));
    let running = sandbox.command(&RUN).stdin(Stdio::null()).spawn().unwrap();
    eventually("it calls its tool", || has(&sandbox, "begun.txt"));
    let thread = id(&of_status(&sandbox, "parent")[0]);
    assert_eq!(of_status(&sandbox, "parent")[0]["cost"]["turns"], 1);
    assert_eq!(sandbox.run(&["tree", &thread, "--json"]).json()["cost"]["turns"], 1);
    assert_eq!(sandbox.run(&["chain", &thread, "--json"]).json()["chain"][0]["cost"]["turns"], 1);
    put(&sandbox, "fast", "");
    let ended = Ran::of(running).records().pop().unwrap();
    assert_eq!((&ended["cost"]["turns"], &ended["run_cost"]["turns"]), (&json!(2), &json!(2)), "{ended}");
    assert_eq!(of_status(&sandbox, "parent")[0]["cost"]["turns"], 2, "counted once");
}

#[test]
fn a_child_may_do_no_more_than_its_parent() {
    let sandbox = family(&calling(SPAWN), SLEEPS);
    put(&sandbox, "fast", "");
    let ran = sandbox.run(&[&RUN[..], &["--limit", "turns=7", "--limit", "depth=3"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let child = of_status(&sandbox, "child").remove(0);
    // The child asks for `tool.slow`, which its parent has not.
    assert_eq!(child["capabilities"], json!(["selvedge.execute.tool.pay"]), "{child}");
    assert_eq!((&child["limits"]["turns"], &child["limits"]["depth"]), (&json!(7), &json!(2)));
    assert!(!has(&sandbox, "begun.txt"), "it was called without a capability");
    let log = sandbox.run(&["log", &id(&child), "--json"]).records();
    assert!(log.iter().any(|line| line["event_type"] == "capability_denied"), "{log:?}");
    // By itself it may.
    assert_eq!(sandbox.run(&["run", "child"]).code, Some(0));
    assert!(has(&sandbox, "begun.txt"));
}

#[test]
fn children_are_limited_in_number_and_depth() {
    let sandbox = family(&calling(&format!("{SPAWN}, {SPAWN}")), PAYS);
    for (limit, code) in [("depth=0", "depth_exceeded"), ("spawns=0", "spawns_exceeded")] {
        let ran = sandbox.run(&[&RUN[..], &["--limit", limit]].concat());
        ran.error_beside_data(8, "limit_reached");
        assert_eq!(ran.records().pop().unwrap()["code"], code);
    }
    assert_eq!(of_status(&sandbox, "child").len(), 0);
    let ran = sandbox.run(&[&RUN[..], &["--limit", "spawns=1"]].concat());
    ran.error_beside_data(8, "limit_reached");
    assert_eq!(of_status(&sandbox, "child").len(), 1, "one child is within the limit");
    let parent = thread_of(&ran);
    let ran = sandbox.run(&["resume", &parent, "--raise", "spawns=2", "--json"]);
    assert_eq!((ran.code, of_status(&sandbox, "child").len(), paid(&sandbox)), (Some(0), 2, 2), "{ran:?}");
}

#[test]
fn a_parent_with_a_forged_manifest_starts_no_child() {
    let script = "turns:\n  - { calls: [{ tool: pay, arguments: { to: anna } }] }\n  - { calls: [{ tool: spawn_thread, arguments: { directive: child } }] }\n  - { say: \"Heard: {result}\", repeat: forever }\n";
    let sandbox = family(script, PAYS);
    let forge = "sed -i 's/\"depth\": *10/\"depth\":90/' .ai/agent/threads/parent-*/thread.json";
    put(&sandbox, ".ai/tools/pay.yaml", &pay(forge));
    let ran = sandbox.run(&RUN);
    let heard = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
    assert!(heard.contains("can't spawn a child"), "{heard}");
    assert_eq!(of_status(&sandbox, "child").len(), 0);
    // What was forged is kept, and told of, when the end of the run writes another one.
    let folder = sandbox.threads().join(thread_of(&ran));
    let kept = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = kept.filter(|path| path.to_string_lossy().contains("thread.json.aside-")).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(std::fs::read_to_string(&kept[0]).unwrap().replace(' ', "").contains("\"depth\":90"));
    assert!(ran.stderr.contains("thread.json.aside-"), "{}", ran.stderr);
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

/// `thread.json` is a projection of the log: one that was taken away is there again, signed, before the child is.
#[test]
fn a_parent_without_its_manifest_gets_a_new_one_before_it_starts_a_child() {
    let script = "turns:\n  - { calls: [{ tool: pay, arguments: { to: anna } }] }\n  - { calls: [{ tool: spawn_thread, arguments: { directive: child } }] }\n  - { say: \"Heard: {result}\", repeat: forever }\n";
    let sandbox = family(script, PAYS);
    let papers = ".ai/agent/threads/parent-*/thread.json";
    let takes = format!("if [ -e once ]; then ls {papers} > seen.txt; else touch once; rm {papers}; fi");
    put(&sandbox, ".ai/tools/pay.yaml", &pay(&takes));
    let ran = sandbox.run(&RUN);
    let heard = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
    assert!(heard.contains("The child is done."), "{heard}");
    assert!(std::fs::read_to_string(sandbox.project().join("seen.txt")).unwrap().contains("thread.json"));
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
    let word = "`thread.json` of `parent-";
    assert!(ran.stderr.contains(word) && ran.stderr.contains("written again"), "{}", ran.stderr);
    // And when it is gone before the thread goes on.
    let parent = thread_of(&ran);
    std::fs::remove_file(sandbox.threads().join(&parent).join("thread.json")).unwrap();
    let ran = sandbox.run(&["resume", &parent, "go on", "--json"]);
    assert!(ran.stderr.contains(word) && ran.stderr.contains("written again"), "{}", ran.stderr);
    assert!(sandbox.threads().join(&parent).join("thread.json").is_file());
}

#[test]
fn an_async_child_is_a_process_of_its_own_and_outlives_its_parent() {
    let sandbox = family(&calling(SPAWN_ASYNC), PAYS);
    put(&sandbox, ".ai/tools/pay.yaml", &pay("while [ ! -e fast ]; do sleep 0.02; done; echo ok"));
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let child = id(&of_status(&sandbox, "child")[0]);
    eventually("the child runs", || paid(&sandbox) == 1);
    assert_eq!(status(&sandbox, &child), "running");
    let error = sandbox.run(&["wait", &child, "--timeout", "0.1", "--json"]).error_beside_data(1, "wait_timeout");
    assert_eq!(error["retryable"], true);
    put(&sandbox, "fast", "");
    let waited = sandbox.run(&["wait", &child, "--json"]).json();
    assert_eq!((&waited["results"][&child]["status"], paid(&sandbox)), (&json!("completed"), 1));
    let log = sandbox.run(&["log", &thread_of(&ran), "--json"]).records();
    let intent = log.iter().find(|line| line["event_type"] == "tool_intent").unwrap();
    assert!(intent["payload"]["process"].is_object(), "who runs it stands in the intent: {intent}");
}

#[test]
fn stopping_a_parent_stops_its_children_in_other_processes() {
    let sandbox = family(&calling(&format!("{SPAWN_ASYNC}, {{ tool: pay, arguments: {{ to: me }} }}")), PAYS);
    put(&sandbox, ".ai/tools/pay.yaml", &pay("while [ ! -e fast ]; do sleep 0.02; done"));
    let child = sandbox.command(&RUN).stdin(Stdio::null()).spawn().unwrap();
    eventually("both run", || paid(&sandbox) == 2);
    let parent = id(&of_status(&sandbox, "parent")[0]);
    let below = id(&of_status(&sandbox, "child")[0]);
    assert_eq!(sandbox.run(&["cancel", &parent, "--json"]).code, Some(0));
    let ran = Ran::of(child);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    eventually("the child is cancelled", || status(&sandbox, &below) == "cancelled");
    sandbox.run(&["wait", &parent, &below, "--json"]).error_beside_data(130, "run_cancelled");
    for thread in [&parent, &below] {
        assert_eq!(sandbox.run(&["verify", thread]).code, Some(0));
    }
}

/// Ctrl-C means the same as `selvedge cancel`.
#[test]
fn ctrl_c_on_a_parent_stops_its_children_in_other_processes() {
    let sandbox = family(&calling(&format!("{SPAWN_ASYNC}, {{ tool: pay, arguments: {{ to: me }} }}")), PAYS);
    put(&sandbox, ".ai/tools/pay.yaml", &pay("while [ ! -e fast ]; do sleep 0.02; done"));
    let child = sandbox.command(&RUN).stdin(Stdio::null()).spawn().unwrap();
    eventually("both run", || paid(&sandbox) == 2);
    let below = id(&of_status(&sandbox, "child")[0]);
    let interrupted = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let ran = Ran::of(child);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    eventually("the child is cancelled", || status(&sandbox, &below) == "cancelled");
}

/// Its parent was told that it runs, and no other process would ever start it.
#[test]
fn a_child_whose_process_died_before_it_started_is_settled_when_its_parent_resumes() {
    let script = format!(
        "turns:\n  - {{ calls: [{{ tool: pay, arguments: {{ to: anna }} }}] }}\n  - {{ calls: [{SPAWN_ASYNC}] }}\n  - {{ say: \"Heard: {{result}}\", repeat: forever }}\n"
    );
    let sandbox = family(&script, PAYS);
    // The configuration is broken when the child's process reads it.
    let config = ".ai/config/agent/coordination.yaml";
    let breaks = format!("mkdir -p .ai/config/agent; echo 'coordination: [' > {config}");
    put(&sandbox, ".ai/tools/pay.yaml", &pay(&breaks));
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let parent = thread_of(&ran);
    let child = id(&of_status(&sandbox, "child")[0]);
    let waited = sandbox.run(&["wait", &child, "--timeout", "60", "--json"]);
    // A process that died before its parent's run had ended was settled by that.
    if status(&sandbox, &child) != "error" {
        waited.error_beside_data(1, "thread_stalled");
        assert_eq!(status(&sandbox, &child), "created");
    }
    std::fs::remove_file(sandbox.project().join(config)).unwrap();
    let calls = format!("{{ tool: wait_threads, arguments: {{ thread_ids: [{child}, {parent}] }} }}");
    let script = calling(&calls).replacen("- { ", "- { when: { user: { equals: wait } }, ", 1);
    put(&sandbox, "script.yaml", &script);
    let ran = sandbox.run(&["send", &parent, "wait", "--json"]);
    let heard = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
    assert!(heard.contains("died before it began"), "{heard}");
    assert!(heard.contains("a thread can't wait for itself") && heard.contains("__failed_1"), "{heard}");
    assert_eq!(status(&sandbox, &child), "error");
    let books = sandbox.run(&["budget", &parent, "--verify", "--json"]).json();
    assert_eq!(books["accounts"][0]["reserved_nanos"].as_u64().unwrap_or_default(), 0, "{books}");
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

/// `spawn_thread` said `running`, and `list_active` right after it did not list the child: its process had not begun the run yet.
#[test]
fn a_child_is_listed_as_active_from_its_start_on() {
    let script = format!(
        "turns:\n  - {{ calls: [{SPAWN_ASYNC}] }}\n  - {{ calls: [{{ tool: list_active }}] }}\n  - {{ say: \"Heard: {{result}}\", repeat: forever }}\n"
    );
    let sandbox = family(&script, SLEEPS);
    let ran = sandbox.run(&RUN);
    let child = id(&of_status(&sandbox, "child")[0]);
    let heard = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
    assert!(heard.contains(&child) && heard.contains("\"count\":2"), "{heard}");
    put(&sandbox, "fast", "");
    assert_eq!(sandbox.run(&["wait", &child]).code, Some(0));
}

#[test]
fn an_agent_sees_threads_of_other_processes_and_stops_only_its_descendants() {
    let sandbox = family(&calling(SPAWN_ASYNC), PAYS);
    put(&sandbox, ".ai/tools/pay.yaml", &pay("while [ ! -e fast ]; do sleep 0.02; done"));
    let parent = thread_of(&sandbox.run(&RUN));
    let own = id(&of_status(&sandbox, "child")[0]);
    let stranger =
        sandbox.run(&["run", "child", "--detach", "--json"]).json()["thread_id"].as_str().unwrap().to_owned();
    eventually("both run", || paid(&sandbox) == 2);
    let say = |word: &str, calls: &str| {
        let script = calling(calls).replacen("- { ", &format!("- {{ when: {{ user: {{ equals: {word} }} }}, "), 1);
        put(&sandbox, "script.yaml", &script);
        let ran = sandbox.run(&["send", &parent, word, "--json"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned()
    };
    let heard = say("look", "{ tool: list_active, arguments: {} }");
    assert!(heard.contains(&own) && heard.contains(&stranger), "{heard}");
    let heard = say("stop", &format!("{{ tool: cancel_thread, arguments: {{ thread_id: {stranger} }} }}"));
    assert!(heard.contains("is not a descendant of this thread"), "{heard}");
    assert_eq!(status(&sandbox, &stranger), "running");
    let log = sandbox.run(&["log", &parent, "--json"]).records();
    let intent = log.iter().find(|line| line["event_type"] == "tool_intent").unwrap();
    let heard = say("end", &format!("{{ tool: kill_thread, arguments: {{ thread_id: {own} }} }}"));
    assert!(heard.contains("\"killed\":true"), "{heard}");
    assert!(heard.contains(&format!("\"pid\":{}", intent["payload"]["process"]["pid"])), "{heard}");
    let heard = say("wait", &format!("{{ tool: wait_threads, arguments: {{ thread_ids: [{own}] }} }}"));
    assert!(heard.contains("\"status\":\"killed\""), "{heard}");
    put(&sandbox, "fast", "");
    sandbox.run(&["wait", &stranger, "--json"]).json();
}

#[test]
fn a_detached_run_can_be_waited_for() {
    let sandbox = family(&calling(SPAWN), PAYS);
    let shown = sandbox.run(&["run", "child", "--detach"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let thread = shown.stdout.trim().to_owned();
    assert!(shown.stderr.contains(&format!("`selvedge wait {thread}`")), "{shown:?}");
    let ran = sandbox.run(&["wait", &thread, "--json"]);
    assert_eq!(ran.json()["results"][&thread]["result"], "The child is done.");
    assert_eq!(paid(&sandbox), 1);
    assert!(sandbox.threads().join(&thread).join("capabilities.md").is_file());
    // How it ends is how the wait ends.
    put(&sandbox, "child.yaml", "turns:\n  - { error: { permanent: no } }\n");
    let thread = sandbox.run(&["run", "child", "--detach", "--json"]).json()["thread_id"].as_str().unwrap().to_owned();
    sandbox.run(&["wait", &thread, "--json"]).error_beside_data(1, "run_failed");
}

#[test]
fn a_killed_parent_continues_with_the_same_child() {
    let sandbox = family(&calling(SPAWN), SLEEPS);
    put(&sandbox, ".ai/directives/parent.md", &PARENT.replace("tool.pay", "tool.pay, tool.slow"));
    let mut child = sandbox.command(&RUN).stdin(Stdio::null()).spawn().unwrap();
    eventually("the child runs", || has(&sandbox, "begun.txt"));
    child.kill().unwrap();
    let parent = thread_of(&Ran::of(child));
    let before = id(&of_status(&sandbox, "child")[0]);
    put(&sandbox, "fast", "");
    let ran = sandbox.run(&["resume", &parent, "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let heard = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
    assert!(heard.contains("The child is done.") && heard.contains(&before), "{heard}");
    assert_eq!(of_status(&sandbox, "child").len(), 1, "not a second one");
    assert_eq!(status(&sandbox, &before), "completed");
    for thread in [&parent, &before] {
        assert_eq!(sandbox.run(&["verify", thread]).code, Some(0));
    }
}

#[test]
fn children_in_several_processes_have_no_more_together_than_their_parent() {
    let spawn = "{ tool: spawn_thread, arguments: { directive: child, async: true, limits: { spend: 0.02 } } }";
    let price = "price: { input_per_million_tokens: 1, output_per_million_tokens: 1 }\n";
    let used = "usage: { input_tokens: 1000, output_tokens: 500 }, ";
    let script = format!(
        "{price}turns:\n  - {{ {used}calls: [{spawn}, {spawn}, {spawn}] }}\n  - {{ {used}say: \"Heard: {{result}}\", repeat: forever }}\n"
    );
    let sandbox = family(&script, &format!("{price}{}", PAYS.replace("- { ", &format!("- {{ {used}"))));
    let ran = sandbox.run(&[&RUN[..], &["--limit", "spend=0.05"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // Three times two cents are more than five: the third is refused before it is made.
    let log = sandbox.run(&["log", &thread_of(&ran), "--json"]).records();
    let refused: Vec<_> = log.iter().filter(|line| line.to_string().contains("the budget does not allow it")).collect();
    assert!(!refused.is_empty(), "{log:?}");
    let children: Vec<String> = of_status(&sandbox, "child").iter().map(id).collect();
    assert_eq!(children.len(), 2);
    for child in &children {
        sandbox.run(&["wait", child, "--json"]).json();
    }
    let books = sandbox.run(&["budget", &thread_of(&ran), "--verify", "--json"]).json();
    assert_eq!(
        (&books["verified"]["holds"], &books["accounts"][0]["status"]),
        (&json!(true), &json!("closed")),
        "{books}"
    );
    // Six answers of 1,500 tokens at a millionth of a dollar each.
    let root = &books["accounts"][0];
    let spent = root["own_nanos"].as_u64().unwrap() + root["children_nanos"].as_u64().unwrap();
    assert_eq!((spent, &root["reserved_nanos"]), (6 * 1_500_000, &json!(0)), "{books}");
}

/// A tool that writes a line with its key, and knows afterwards whether it did.
pub(crate) fn keyed() -> String {
    let tool = json!({
        "name": "pay", "description": "Pays.", "class": "at_most_once", "environment": ["PATH"],
        "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}},
        "command": ["sh", "-c", "sleep 0.02; echo \"$SELVEDGE_CALL_KEY\" >> paid.txt; echo ok"],
        "reconcile": ["sh", "-c", "if grep -q \"^$SELVEDGE_CALL_KEY$\" paid.txt; then echo '{\"done\": true, \"result\": \"ok\"}'; else echo '{\"done\": false}'; fi"],
    });
    tool.to_string()
}

/// Runs the parent and kills it again and again, until it has come to an end.
fn killed_until_it_ends(sandbox: &Sandbox) -> (String, u32) {
    let next = || match of_status(sandbox, "parent").first() {
        None => RUN.map(str::to_owned).to_vec(),
        Some(parent) => vec!["resume".to_owned(), id(parent), "--json".to_owned()],
    };
    let look = || match of_status(sandbox, "parent").first() {
        None => Stand::Unborn,
        Some(parent) if parent["status"] == "completed" => Stand::Done(id(parent)),
        Some(_) => Stand::Going,
    };
    killed_until_done(sandbox, &mut Chance::new(0xfeed), next, look)
}

/// Everything that was paid, by key; each once.
#[track_caller]
pub(crate) fn keys_are_unique(sandbox: &Sandbox, number: usize) {
    let text = std::fs::read_to_string(sandbox.project().join("paid.txt")).unwrap_or_default();
    let keys: std::collections::HashSet<&str> = text.lines().collect();
    assert_eq!((text.lines().count(), keys.len()), (number, number), "{text}");
}

#[test]
fn killed_again_and_again_a_parent_has_every_child_once_and_every_child_pays_once() {
    let spawn = format!("  - {{ calls: [{SPAWN}] }}\n").repeat(3);
    // So cheap that what a killed call may have cost never matters, and yet every nano-dollar of it is in the books.
    let price = "price: { input_per_million_tokens: 0.1, output_per_million_tokens: 0.1 }\n";
    let script = format!("{price}turns:\n{spawn}  - {{ say: All three are done., repeat: forever }}\n");
    let sandbox = family(&script, &format!("{price}{PAYS}"));
    put(&sandbox, ".ai/tools/pay.yaml", &keyed());
    let (parent, kills) = killed_until_it_ends(&sandbox);
    let children = of_status(&sandbox, "child");
    assert_eq!(children.len(), 3, "after {kills} kills: {children:?}");
    assert!(
        children.iter().all(|child| child["status"] == "completed" && child["parent_id"] == json!(parent)),
        "{children:?}"
    );
    keys_are_unique(&sandbox, 3);
    let log = sandbox.run(&["log", &parent, "--json"]).records();
    assert_eq!(log.iter().filter(|line| line["event_type"] == "child_spawned").count(), 3);
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
    let books = sandbox.run(&["budget", &parent, "--verify", "--json"]).json();
    assert_eq!(books["verified"]["holds"], true, "after {kills} kills: {books}");
    let accounts = books["accounts"].as_array().unwrap();
    assert_eq!(accounts.len(), 4, "{books}");
    assert!(accounts.iter().all(|account| account["reserved_nanos"] == 0), "nothing is held any more: {books}");
}

#[test]
fn killed_again_and_again_a_parent_loses_no_detached_child() {
    let spawn = format!("  - {{ calls: [{SPAWN_ASYNC}] }}\n").repeat(3);
    let sandbox =
        family(&format!("turns:\n{spawn}  - {{ say: All three are on their way., repeat: forever }}\n"), PAYS);
    put(&sandbox, ".ai/tools/pay.yaml", &keyed());
    let (_, kills) = killed_until_it_ends(&sandbox);
    let children: Vec<String> = of_status(&sandbox, "child").iter().map(id).collect();
    assert_eq!(children.len(), 3, "after {kills} kills: {children:?}");
    for child in &children {
        let ran = sandbox.run(&["wait", child, "--timeout", "100", "--json"]);
        if ran.code != Some(0) {
            // Killed between its creation and the opening of its gate: it is reported as not running, and the hint works.
            let error = ran.error_beside_data(1, "thread_stalled");
            assert!(error["hint"].as_str().unwrap().contains(&format!("`selvedge resume {child}`")), "{error}");
            let ran = sandbox.run(&["resume", child, "--json"]);
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
    }
    keys_are_unique(&sandbox, 3);
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

#[test]
fn a_child_whose_process_was_killed_is_stalled_and_can_be_resumed() {
    let sandbox = family(&calling(SPAWN_ASYNC), SLEEPS);
    put(&sandbox, ".ai/directives/parent.md", &PARENT.replace("tool.pay", "tool.pay, tool.slow"));
    let parent = thread_of(&sandbox.run(&RUN));
    eventually("the child runs", || has(&sandbox, "begun.txt"));
    let child = id(&of_status(&sandbox, "child")[0]);
    let log = sandbox.run(&["log", &parent, "--json"]).records();
    let intent = log.iter().find(|line| line["event_type"] == "tool_intent").unwrap();
    let pid = intent["payload"]["process"]["pid"].as_u64().unwrap();
    assert!(std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    sandbox.run(&["wait", &child, "--json"]).error_beside_data(1, "thread_stalled");
    assert!(sandbox.run(&["tree", &parent]).stdout.contains(&format!("{child} stalled")));
    put(&sandbox, "fast", "");
    let ran = sandbox.run(&["resume", &child, "--json"]);
    assert_eq!((ran.code, status(&sandbox, &child).as_str()), (Some(0), "completed"), "{ran:?}");
}

/// A process that hears nothing is ended by the identity that stands in its parent's log.
#[test]
fn an_unresponsive_child_is_killed_by_its_recorded_process_identity() {
    let sandbox = family(&calling(SPAWN_ASYNC), SLEEPS);
    put(&sandbox, ".ai/directives/parent.md", &PARENT.replace("tool.pay", "tool.pay, tool.slow"));
    let parent = thread_of(&sandbox.run(&RUN));
    eventually("the child runs", || has(&sandbox, "begun.txt"));
    let child = id(&of_status(&sandbox, "child")[0]);
    let log = sandbox.run(&["log", &parent, "--json"]).records();
    let intent = log.iter().find(|line| line["event_type"] == "tool_intent").unwrap();
    let pid = intent["payload"]["process"]["pid"].as_u64().unwrap();
    assert!(std::process::Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap().success());
    let ran = sandbox.run(&["kill", &child, "--json"]);
    assert_eq!((ran.code, &ran.json()["status"]), (Some(0), &json!("killed")), "{ran:?}");
    assert_eq!(status(&sandbox, &child), "killed");
}

#[test]
fn an_agent_reads_resumes_and_hands_off_threads_with_tools() {
    let sandbox = family(&calling(SPAWN), PAYS);
    let parent = thread_of(&sandbox.run(&RUN));
    let child = id(&of_status(&sandbox, "child")[0]);
    let say = |word: &str, call: &str| -> Value {
        let script = calling(call).replacen("- { ", &format!("- {{ when: {{ user: {{ equals: {word} }} }}, "), 1);
        put(&sandbox, "script.yaml", &script);
        let ran = sandbox.run(&["send", &parent, word, "--json"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let heard = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
        serde_json::from_str(heard.strip_prefix("Heard: ").unwrap()).unwrap_or_else(|error| panic!("{error}: {heard}"))
    };
    let one = |tool: &str| format!("{{ tool: {tool}, arguments: {{ thread_id: {child} }} }}");
    let many = |tool: &str| format!("{{ tool: {tool}, arguments: {{ thread_ids: [{child}] }} }}");
    assert_eq!(say("status", &one("get_status"))["status"], "completed");
    assert_eq!(say("chain", &one("get_chain"))["chain_length"], 1);
    assert!(say("read", &one("read_transcript")).to_string().contains("The child is done."));
    assert!(say("results", &many("aggregate_results")).to_string().contains("The child is done."));
    assert!(say("wait", &many("wait_threads")).to_string().contains("The child is done."));
    // An invalid id is reported, and does not affect the others.
    for tool in ["wait_threads", "aggregate_results"] {
        let mixed = format!("{{ tool: {tool}, arguments: {{ thread_ids: [{child}, \"No Such\", 7, missing] }} }}");
        let told = say(&format!("mixed-{tool}"), &mixed);
        let results = &told["results"];
        assert_eq!((&told["success"], results.as_object().unwrap().len()), (&json!(false), 4), "{told}");
        assert_eq!(results[&child]["status"], "completed");
        assert_eq!(results["missing"]["status"], "not_found");
        for failed in ["__failed_1", "__failed_2"] {
            assert!(results[failed]["error"].is_string() && results[failed]["status"] == "error", "{told}");
        }
    }
    let unknown = say("unknown", "{ tool: get_status, arguments: { thread_id: missing } }");
    assert_eq!((&unknown["success"], &unknown["status"]), (&json!(false), &json!("not_found")), "{unknown}");
    assert!(unknown["error"].as_str().unwrap().contains("missing"), "{unknown}");
    let told = say("late", &format!("{{ tool: wait_threads, arguments: {{ thread_ids: [{child}], timeout: soon }} }}"));
    assert!(told["error"].as_str().unwrap().contains("timeout"), "{told}");
    let search =
        format!("{{ tool: chain_search, arguments: {{ thread_id: {child}, query: \"d.ne\", search_type: regex }} }}");
    assert!(!say("search", &search)["results"].as_array().unwrap().is_empty());
    let resume = format!("{{ tool: resume_thread, arguments: {{ thread_id: {child}, message: once more }} }}");
    for nothing in ["''", "\" \""] {
        let told = say(&format!("say {nothing}"), &resume.replace("once more", nothing));
        assert!(told["error"].as_str().unwrap().contains("`message` is empty"), "{told}");
    }
    assert_eq!(say("still", &one("get_chain"))["chain_length"], 1);
    let resumed = say("resume", &resume);
    assert_eq!(resumed["resumed"]["old_thread_id"], json!(child), "{resumed}");
    assert_eq!(say("again", &one("get_chain"))["chain_length"], 2);
    // It hands its own work over, and its successor says the last word.
    put(
        &sandbox,
        "script.yaml",
        "turns:\n  - { when: { user: { equals: enough } }, calls: [{ tool: handoff_thread, arguments: {} }] }\n  - { say: I took over., repeat: forever }\n",
    );
    let ran = sandbox.run(&["send", &parent, "enough", "--json"]);
    let ended = ran.records().pop().unwrap();
    assert_eq!((ran.code, &ended["result"]), (Some(0), &json!("I took over.")), "{ran:?}");
    assert_ne!(ended["thread_id"], json!(parent));
    assert_eq!(status(&sandbox, &parent), "continued");
}

/// A child that waits is resumed on its own thread, and the answer has the same fields as that of one that went on in a successor.
#[test]
fn an_agent_that_resumes_a_suspended_child_gets_the_same_thread() {
    let spawn = "{ tool: spawn_thread, arguments: { directive: child, limits: { turns: 1 } } }";
    let sandbox = family(&calling(spawn), PAYS);
    let parent = thread_of(&sandbox.run(&RUN));
    let child = id(&of_status(&sandbox, "child")[0]);
    assert_eq!(status(&sandbox, &child), "suspended");
    let resume = format!("{{ tool: resume_thread, arguments: {{ thread_id: {child}, message: once more }} }}");
    let script = calling(&resume).replacen("- { ", "- { when: { user: { equals: go } }, ", 1);
    put(&sandbox, "script.yaml", &script);
    let ran = sandbox.run(&["send", &parent, "go", "--json"]);
    let heard = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
    let told: Value = serde_json::from_str(heard.strip_prefix("Heard: ").unwrap()).unwrap();
    for field in ["old_thread_id", "new_thread_id", "resolved_thread_id"] {
        assert_eq!(told["resumed"][field], json!(child), "{field}: {told}");
    }
    let fields = ["original_thread_id", "directive", "reconstructed_turns"];
    assert!(fields.iter().all(|field| told["resumed"].get(*field).is_some()), "{told}");
    assert_eq!((&told["resumed"]["original_thread_id"], &told["directive"]), (&Value::Null, &json!("child")));
}

/// The hint was to resume the parent, which had ended and can't be resumed without a message.
#[test]
fn a_raise_above_an_ended_parent_is_refused_with_a_hint() {
    let spawn = "{ tool: spawn_thread, arguments: { directive: child, limits: { turns: 1 } } }";
    let sandbox = family(&calling(spawn), PAYS);
    let parent = thread_of(&sandbox.run(&RUN));
    let child = id(&of_status(&sandbox, "child")[0]);
    assert_eq!((status(&sandbox, &parent).as_str(), status(&sandbox, &child).as_str()), ("completed", "suspended"));
    let raise = ["resume", &child, "--raise", "turns=30", "--json"];
    let error = sandbox.run(&raise).error(4, "limit_above_parent");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains(&format!("`selvedge resume {parent} \"…\" --raise turns=30`")), "{hint}");
    let ran = follow(&sandbox, hint.split('`').nth(1).unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = sandbox.run(&raise);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn an_audit_while_children_spend_in_their_own_processes_finds_nothing() {
    let price = "price: { input_per_million_tokens: 1, output_per_million_tokens: 1 }\n";
    let used = "usage: { input_tokens: 1000, output_tokens: 500 }, ";
    let script = format!("{price}{}", calling(&[SPAWN_ASYNC; 3].join(", ")).replace("- { ", &format!("- {{ {used}")));
    // They take a while, so that they still spend while the audits are made.
    let turns =
        format!("  - {{ {used}delay_ms: 100, calls: [{{ tool: pay, arguments: {{ to: anna }} }}] }}\n").repeat(6);
    let sandbox = family(&script, &format!("{price}turns:\n{turns}  - {{ {used}say: Done., repeat: forever }}\n"));
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let parent = thread_of(&ran);
    let mut audits = 0;
    let mut postings = 0;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let books = sandbox.run(&["budget", &parent, "--verify", "--json"]);
        assert_eq!((books.code, &books.json()["verified"]["holds"]), (Some(0), &json!(true)), "{books:?}");
        let now = books.json()["verified"]["postings"].as_u64().unwrap();
        audits += usize::from(now > postings);
        postings = now;
        if books.json()["accounts"].as_array().unwrap().iter().all(|account| account["status"] == "closed") {
            break;
        }
        assert!(Instant::now() < until, "{books:?}");
    }
    assert!(audits > 2, "the books moved between {audits} audits");
    assert_eq!(of_status(&sandbox, "child").len(), 3);
}

/// The second command was told that the old thread, or its successor, is held, and by which process; not what to do.
#[test]
fn a_second_resume_of_an_ended_thread_names_the_successor() {
    let sandbox = family("turns:\n  - { say: Done., repeat: forever }\n", PAYS);
    let thread = thread_of(&sandbox.run(&RUN));
    put(&sandbox, "script.yaml", "turns:\n  - { say: [Slowly, { text: now, delay_ms: 60000 }], repeat: forever }\n");
    let mut winner = sandbox.command(&["resume", &thread, "first", "--json"]).stdin(Stdio::null()).spawn().unwrap();
    let successor = || {
        let chain = sandbox.run(&["chain", &thread, "--json"]).json();
        let end = chain["chain"].as_array().unwrap().last().unwrap().clone();
        (end["thread_id"] != json!(thread) && end["status"] == "running").then(|| id(&end))
    };
    eventually("the first goes on", || successor().is_some());
    let successor = successor().unwrap();
    let error = sandbox.run(&["resume", &thread, "second", "--json"]).error(4, "lease_held");
    assert_eq!(error["thread_id"], json!(successor), "{error}");
    let send = format!("selvedge send {successor} \"…\"");
    assert!(error["hint"].as_str().unwrap().contains(&send), "{error}");
    winner.kill().unwrap();
    winner.wait().unwrap();
    put(&sandbox, "script.yaml", "turns:\n  - { say: Done., repeat: forever }\n");
    let ran = follow(&sandbox, &send);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// A child that waits for its parent, which waits for the child, once waited until its time was over.
#[test]
fn a_deadlock_of_child_and_parent_is_refused_at_once() {
    let sandbox = family("turns:\n  - { say: Hello., repeat: forever }\n", "");
    let parent = thread_of(&sandbox.run(&["run", "parent", "--json"]));
    put(
        &sandbox,
        ".ai/directives/child.md",
        "---\nname: child\nversion: 1.0.0\nmodel: scripted:child.yaml\npermissions: [tool.threads.*]\n---\nWait.\n",
    );
    put(
        &sandbox,
        "child.yaml",
        &calling(&format!("{{ tool: wait_threads, arguments: {{ thread_ids: [missing-000000000000, {parent}] }} }}")),
    );
    put(&sandbox, "script.yaml", &calling(SPAWN).replacen("- { ", "- { when: { user: { equals: go } }, ", 1));
    let began = Instant::now();
    let ran = sandbox.run(&["send", &parent, "go", "--json"]);
    assert_eq!((ran.code, status(&sandbox, &parent).as_str()), (Some(0), "completed"), "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(60));
    let heard = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
    assert!(heard.contains("__failed_1") && heard.contains("it waits for this thread"), "{heard}");
    assert!(heard.contains("not_found"), "the others are waited for: {heard}");
}
