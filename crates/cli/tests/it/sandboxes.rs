//! Sandboxes through the program: what is enforced is in the log before the call is dispatched, and in the lists.

use std::fs;

use crate::support::Sandbox;

fn with_tool(class: &str, level: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let tool = format!(
        "name: look\ndescription: Looks.\ncommand: [sh, -c, echo seen]\nenvironment: [PATH]\nclass: {class}\n\
         sandbox: {{ level: {level}, network: no }}\n"
    );
    for (path, text) in [
        (".ai/tools/look.yaml", tool.as_str()),
        (".ai/directives/go.md", "---\nname: go\npermissions: [tool.look]\n---\nGo.\n"),
        ("script.yaml", "turns:\n  - calls: [{ tool: look }]\n  - say: Done.\n"),
    ] {
        let path = sandbox.project().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    sandbox
}

#[test]
fn the_level_is_committed_before_the_intent_or_with_the_result() {
    for (class, next) in [("at_most_once", "tool_intent"), ("pure", "tool_outcome")] {
        let sandbox = with_tool(class, "best");
        let ran = sandbox.run(&["run", "go", "--model", "scripted:script.yaml"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let log = fs::read_to_string(sandbox.transcript(
            sandbox.run(&["thread", "list", "--json"]).json()["threads"][0]["thread_id"].as_str().unwrap(),
        ));
        let log = log.unwrap();
        let place = |word: &str| log.find(&format!("\"event_type\":\"{word}\""));
        let (level, next) = (place("sandboxed").expect("it is recorded"), place(next));
        assert!(next.is_none_or(|next| level < next), "{class}");
        assert!(log.contains("\"requested\":\"best\""), "{log}");
    }
}

#[test]
fn what_is_enforced_is_tried_and_listed() {
    let sandbox = with_tool("pure", "best");
    let checked = sandbox.run(&["sandbox", "check", "--json"]).json();
    let attempts = checked["attempts"].as_array().unwrap();
    let stopped = attempts.iter().filter(|attempt| attempt["stopped"] == true).count();
    let is_full = checked["reached"]["level"] == "full" && checked["reached"]["temporary"] == "tmpfs";
    assert!(attempts.len() == 6 && (!is_full || stopped == 6), "{checked}");
    let listed = sandbox.run(&["tool", "list", "--json"]).records();
    let look = listed.iter().find(|line| line["id"] == "look").unwrap();
    assert_eq!(look["sandbox"]["level"], checked["reached"]["level"], "{look}");
}
