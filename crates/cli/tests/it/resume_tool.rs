//! An agent that resumes a thread it started, and is killed on the way.
//!
//! The outcome of such a call was unknown, and a person had to resolve it; but the other thread's log shows whether it was delivered.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::children::{PARENT, SPAWN, calling, eventually, family, has, keyed, keys_are_unique};
use crate::kills::{Chance, Stand, killed_until_done};
use crate::running::{put, status, thread_of};
use crate::support::{Ran, Sandbox};

const GO: &str = "go on with it";
const MORE: &str = "once more";

/// A parent whose child has ended or waits, and which goes on with it as soon as it is told to.
fn with_child(spawn: &str, child: &str) -> (Sandbox, String, String) {
    let sandbox = family(&calling(spawn), child);
    put(&sandbox, ".ai/tools/pay.yaml", &keyed());
    put(&sandbox, ".ai/directives/parent.md", &PARENT.replace("tool.pay", "tool.pay, tool.slow"));
    let ran = sandbox.run(&["run", "parent", "--json"]);
    let parent = thread_of(&ran);
    let child = heard(&ran)["thread_id"].as_str().unwrap().to_owned();
    let resume = format!("{{ tool: resume_thread, arguments: {{ thread_id: {child}, message: {MORE} }} }}");
    let when = format!("- {{ when: {{ user: {{ equals: {GO} }} }}, ");
    put(&sandbox, "script.yaml", &calling(&resume).replacen("- { ", &when, 1));
    (sandbox, parent, child)
}

fn heard(ran: &Ran) -> Value {
    let text = ran.records().pop().unwrap()["result"].as_str().unwrap().to_owned();
    serde_json::from_str(text.strip_prefix("Heard: ").unwrap()).unwrap()
}

/// How often something was said to a thread.
fn said(sandbox: &Sandbox, thread: &str, text: &str) -> usize {
    let log = sandbox.run(&["log", thread, "--json"]).records();
    let is_it =
        |line: &&Value| line["event_type"] == "message" && line["payload"]["content"].to_string().contains(text);
    log.iter().filter(is_it).filter(|line| line["payload"]["role"] == "user").count()
}

fn chain(sandbox: &Sandbox, thread: &str) -> Vec<String> {
    let chain = sandbox.run(&["chain", thread, "--json"]).json();
    chain["chain"].as_array().unwrap().iter().map(|link| link["thread_id"].as_str().unwrap().to_owned()).collect()
}

const PAYS_TWICE: &str = "turns:
  - { calls: [{ tool: pay, arguments: { to: anna } }] }
  - { say: Paid. }
  - { calls: [{ tool: pay, arguments: { to: anna } }] }
  - { say: Paid again., repeat: forever }
";

/// Kills an agent again and again that goes on with its child; the child has these many threads afterwards, and has paid so often.
fn goes_on_once(spawn: &str, links: usize, paid: usize) {
    let (sandbox, parent, child) = with_child(spawn, PAYS_TWICE);
    let was_told = || said(&sandbox, &parent, GO) > 0;
    let next = || {
        if was_told() {
            ["resume", &parent, "--json"].map(str::to_owned).to_vec()
        } else {
            ["send", &parent, GO, "--json"].map(str::to_owned).to_vec()
        }
    };
    let look = || match (was_told(), status(&sandbox, &parent).as_str()) {
        (false, _) => Stand::Unborn,
        (true, "completed") => Stand::Done(()),
        _ => Stand::Going,
    };
    let (_, kills) = killed_until_done(&sandbox, &mut Chance::new(0xd00f), next, look);
    let chain = chain(&sandbox, &child);
    let told = chain.last().unwrap();
    assert_eq!((chain.len(), said(&sandbox, told, MORE)), (links, 1), "after {kills} kills: {chain:?}");
    keys_are_unique(&sandbox, paid);
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

#[test]
fn killed_again_and_again_an_agent_resumes_an_ended_child_once() {
    goes_on_once(SPAWN, 2, 2);
}

#[test]
fn killed_again_and_again_an_agent_resumes_a_suspended_child_once() {
    goes_on_once("{ tool: spawn_thread, arguments: { directive: child, limits: { turns: 1 } } }", 1, 1);
}

#[test]
fn an_agent_killed_while_its_resumed_child_runs_gets_the_childs_outcome() {
    let child = "turns:\n  - { say: One. }\n  - { calls: [{ tool: slow, arguments: {} }] }\n  - { say: Two., repeat: forever }\n";
    let (sandbox, parent, child) = with_child(SPAWN, child);
    let mut running = sandbox.command(&["send", &parent, GO, "--json"]).stdin(Stdio::null()).spawn().unwrap();
    eventually("the child works", || has(&sandbox, "begun.txt"));
    running.kill().unwrap();
    running.wait().unwrap();
    put(&sandbox, "fast", "");
    let ran = sandbox.run(&["resume", &parent, "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = heard(&ran);
    let chain = chain(&sandbox, &child);
    assert_eq!((chain.len(), said(&sandbox, &chain[1], MORE)), (2, 1), "{told}");
    let resumed = &told["resumed"];
    assert_eq!((&resumed["old_thread_id"], &resumed["new_thread_id"]), (&json!(child), &json!(chain[1])), "{told}");
    assert_eq!((&told["result"], &resumed["reconstructed_turns"]), (&json!("Two."), &json!(1)));
}

/// A stop of a child that its parent had resumed once ended the parent with it.
#[test]
fn stopping_a_child_that_its_parent_resumes_stops_the_child_alone() {
    for (verb, ended_as) in [("cancel", "cancelled"), ("kill", "killed")] {
        let twice = "turns:\n  - { say: The child is done. }\n  - { calls: [{ tool: slow, arguments: {} }], repeat: forever }\n";
        let (sandbox, parent, child) = with_child(SPAWN, twice);
        let mut command = sandbox.command(&["send", &parent, GO, "--json"]);
        let running = command.stdin(Stdio::null()).spawn().unwrap();
        eventually("the child runs", || has(&sandbox, "begun.txt"));
        let next = chain(&sandbox, &child).pop().unwrap();
        assert_eq!(sandbox.run(&[verb, &next]).code, Some(0));
        let ran = Ran::of(running);
        assert_eq!((ran.code, status(&sandbox, &next).as_str()), (Some(0), ended_as), "{ran:?}");
        assert_eq!(status(&sandbox, &parent), "completed");
        assert_eq!(heard(&ran)["status"], ended_as, "the parent is told");
    }
}
