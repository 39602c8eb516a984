//! Canaries: secrets from every source, which must be nowhere in the store and in no event.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use selvedge::model::{Cancel, Status};
use selvedge::{Input, Redactor};
use selvedge_engine::redact::Pattern;
use serde_json::json;

use crate::support::House;

const TOKEN: &str = "canary-in-the-environment-4711";
const KEY: &str = "sk-canaryInTheOutput00000000000042";

/// Files below a folder that have one of the canaries in them.
fn sung_in(folder: &Path, found: &mut Vec<String>) -> usize {
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            seen += sung_in(&path, found);
            continue;
        }
        seen += 1;
        let bytes = fs::read(&path).unwrap();
        let sings = |canary: &str| bytes.windows(canary.len()).any(|window| window == canary.as_bytes());
        if sings(TOKEN) || sings(KEY) {
            found.push(path.display().to_string());
        }
    }
    seen
}

#[test]
fn secrets_reach_no_log_no_database_no_blob_and_no_subscriber() {
    let mut house = House::new();
    house.environment.insert("API_TOKEN".to_owned(), TOKEN.to_owned());
    house.redactor = Redactor::new([TOKEN.to_owned()], vec![Pattern { prefix: "sk-".to_owned(), length_min: 16 }]);
    let sees = json!({"environment": ["PATH", "API_TOKEN"]});
    house.tool("tell", "pure", &format!("echo \"$API_TOKEN and {KEY}\""), sees.clone());
    house.tool("fail", "at_most_once", "echo \"$API_TOKEN\"; echo \"$API_TOKEN\" >&2; exit 3", sees.clone());
    house.tool("flood", "pure", "yes \"some words and $API_TOKEN\" | head -c 100000", sees);
    house.directive("spy", &["tell", "fail", "flood"], "Tell me {input:x}.");
    let calls = ["tell", "fail", "flood"].map(|tool| json!({"tool": tool}));
    let leaks = json!({"tool": "tell", "arguments": {"a": format!("{TOKEN} {KEY}")}});
    let says = format!("It is {TOKEN}, {KEY}, {{result}}.");
    house.script(&json!([{ "calls": calls }, {"calls": [leaks]}, {"say": says, "repeat": "forever"}]));
    let mut order = house.prepare("spy").unwrap();
    // Also as an input, as the task and as a message, as a person would paste it.
    order.thread.inputs.insert("x".to_owned(), json!(TOKEN));
    order.thread.title = Some(format!("About {KEY}"));
    let engine = house.engine(Arc::new(house.open()));
    let thread = engine.create(order.thread, Vec::new()).unwrap();
    let mut committed = String::new();
    for text in [order.task, format!("my token is {TOKEN}, my key {KEY}")] {
        let ended = engine
            .send(&thread, Input::text(text), &order.run_config, &Cancel::new(), &mut |told| {
                committed.push_str(&format!("{told:?}"));
            })
            .unwrap();
        assert_eq!(ended.status, Status::Completed);
        committed.push_str(&format!("{ended:?}"));
    }
    drop(engine);
    assert!(committed.contains("[redacted]"));
    assert!(!committed.contains(TOKEN) && !committed.contains(KEY), "a subscriber got it");
    let mut found = Vec::new();
    let seen = sung_in(&house.root.join(".ai/agent"), &mut found);
    assert!(seen > 3, "only {seen} files were looked at");
    assert_eq!(found, Vec::<String>::new());
    house.assert_settled();
}

#[test]
fn a_queued_message_contains_no_secret_either() {
    let mut house = House::new();
    house.redactor = Redactor::new([TOKEN.to_owned()], Vec::new());
    house.tool("wait", "pure", "touch begun; while [ ! -e go ]; do sleep 0.01; done", json!({}));
    house.directive("wait", &["wait"], "Wait.");
    house.calls_once("wait", &json!({}));
    let order = house.prepare("wait").unwrap();
    let one = house.engine(Arc::new(house.open()));
    let two = house.engine(Arc::new(house.open()));
    let thread = one.create(order.thread, Vec::new()).unwrap();
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        let work = &order.run_config;
        let task = order.task;
        let one = &one;
        let two = &two;
        let thread = &thread;
        scope.spawn(move || one.send(thread, Input::text(task), work, &Cancel::new(), &mut |_| {}).unwrap());
        crate::support::eventually("the tool runs", || house.root.join("begun").exists());
        let late = Input::text(format!("also {TOKEN}"));
        scope.spawn(move || two.send(thread, late, work, &Cancel::new(), &mut |_| {}).unwrap());
        crate::support::eventually("the message waits", || !one.store().pending(thread).unwrap().is_empty());
        sung_in(&house.root.join(".ai/agent"), &mut found);
        fs::write(house.root.join("go"), "").unwrap();
    });
    sung_in(&house.root.join(".ai/agent"), &mut found);
    assert_eq!(found, Vec::<String>::new());
    house.assert_settled();
}
