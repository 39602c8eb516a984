//! `selvedge state`.

use serde_json::{Value, json};

use crate::support::Sandbox;

#[test]
fn the_state_of_every_version_can_be_shown() {
    let (sandbox, thread) = Sandbox::with_thread();
    let set = |value: u64| {
        format!(
            r#"{{"reason":"UserMessage","messages":[{{"role":"user","content":"m{value}"}}],"patches":[{{"ops":[{{"op":"set","path":["n"],"value":{value}}}]}}]}}"#
        )
    };
    sandbox.append(&thread, "0", &set(1));
    sandbox.append(&thread, "1", &set(2));
    sandbox.append(&thread, "2", r#"{"reason":"Lifecycle","snapshot":{"fresh":true}}"#);
    let at = |version: &str| sandbox.run(&["state", &thread, "--at", version, "--json"]).json();
    let seen: Vec<Value> = ["0", "1", "2", "3"].map(|version| at(version)["state"].clone()).to_vec();
    assert_eq!(seen, [json!({}), json!({ "n": 1 }), json!({ "n": 2 }), json!({ "fresh": true })]);
    let now = sandbox.run(&["state", &thread, "--json"]).json();
    assert_eq!(
        (&now["version"], &now["state"], &now["latest_version"]),
        (&3.into(), &json!({ "fresh": true }), &3.into())
    );
    assert_eq!((at("1")["messages"].as_array().unwrap().len(), &at("1")["latest_version"]), (1, &3.into()));
    let people: Value = serde_json::from_str(&sandbox.run(&["state", &thread]).stdout).unwrap();
    assert_eq!(people, now);
}

#[test]
fn a_version_that_is_not_there_is_not_found() {
    let (sandbox, thread) = Sandbox::with_thread();
    let error = sandbox.run(&["state", &thread, "--at", "7", "--json"]).error(3, "version_not_found");
    assert_eq!(error["latest_version"], 0);
}
