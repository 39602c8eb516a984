//! Effects of runs: usage, titles, and what `selvedge usage` and `doctor` say about them.

use std::fs;

use serde_json::{Value, json};

use crate::running::{RUN, project, put, status, thread_of};
use crate::support::Sandbox;

const TASK: &str = "---\nname: task\n---\nDo it.\n";
const SAYS: &str = "turns:\n  - { say: Done., usage: { input_tokens: 1000, output_tokens: 20, cache_read_tokens: 300 }, repeat: forever }\n";
const FAILS: &str = "turns:\n  - { error: { permanent: no }, repeat: forever }\n";

/// A project whose model answers by a script.
fn answering(script: &str) -> Sandbox {
    let sandbox = project(TASK, "", script);
    fs::remove_file(sandbox.project().join(".ai/tools/pay.yaml")).unwrap();
    sandbox
}

/// A tier `fast` whose model answers this.
fn with_titles(sandbox: &Sandbox, answer: &str) {
    let config = sandbox.home().join("config/agent");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("models.yaml"), "tiers: { fast: \"scripted:title.yaml\" }\n").unwrap();
    put(sandbox, "title.yaml", answer);
}

const TITLE: &str =
    "turns:\n  - { say: \"The Rain In Bern\", usage: { input_tokens: 50, output_tokens: 5 }, repeat: forever }\n";

fn records(sandbox: &Sandbox) -> Vec<Value> {
    let text = fs::read_to_string(sandbox.project().join(".ai/usage.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn title(sandbox: &Sandbox, thread: &str) -> Value {
    sandbox.run(&["thread", "show", thread, "--json"]).json()["title"].clone()
}

fn send(sandbox: &Sandbox, thread: &str) {
    assert_eq!(sandbox.run(&["send", thread, "And then?", "--json"]).code, Some(0));
}

#[test]
fn every_run_is_in_the_usage_and_is_added_up() {
    let sandbox = answering(SAYS);
    let thread = thread_of(&sandbox.run(&RUN));
    send(&sandbox, &thread);
    let found = records(&sandbox);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        (&found[0]["thread_id"], &found[0]["status"], &found[0]["origin"]),
        (&json!(thread), &json!("completed"), &json!("user"))
    );
    assert_eq!((&found[0]["input_tokens"], &found[0]["cache_read_tokens"]), (&json!(1000), &json!(300)));
    put(&sandbox, "script.yaml", FAILS);
    let failed = thread_of(&sandbox.run(&RUN));
    assert_eq!(status(&sandbox, &failed), "error");
    let by = |group: &str| sandbox.run(&["usage", "--by", group, "--json"]).json();
    let all = by("thread");
    assert_eq!((&all["total"]["runs"], &all["total"]["input_tokens"]), (&json!(3), &json!(2000)), "{all}");
    assert_eq!(all["groups"].as_array().unwrap().len(), 2, "the failed one, too");
    assert_eq!(by("agent")["groups"][0]["name"], "agent");
    assert_eq!(by("day")["groups"].as_array().unwrap().len(), 1);
    let models = by("model");
    assert_eq!(models["groups"][0]["name"], "scripted:script.yaml", "{models}");
    assert_eq!(sandbox.run(&["usage", "--since", "2w", "--json"]).json()["total"]["runs"], 3);
    assert_eq!(sandbox.run(&["usage", "--since", "2099-01-01", "--json"]).json()["total"]["runs"], 0);
    let csv = sandbox.run(&["usage", "--by", "thread", "--csv"]).stdout;
    assert!(csv.starts_with("thread,runs,turns,input_tokens,") && csv.lines().count() == 3, "{csv}");
    assert!(csv.contains(&format!("{thread},2,2,2000,40,600,0,0")), "{csv}");
    // It is derived: removed, it is there again; with its thread deleted, it stays.
    fs::remove_file(sandbox.project().join(".ai/usage.jsonl")).unwrap();
    assert_eq!(by("thread")["total"]["runs"], 3);
    assert_eq!(sandbox.run(&["thread", "delete", &thread, "--yes"]).code, Some(0));
    assert_eq!(by("thread")["total"]["runs"], 3);
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    assert_eq!(by("thread")["total"]["runs"], 3, "no record is doubled after the feed began anew");
}

#[test]
fn a_thread_gets_a_title_after_two_messages_and_its_cost_is_the_system_s() {
    let sandbox = answering(SAYS);
    with_titles(&sandbox, TITLE);
    let thread = thread_of(&sandbox.run(&RUN));
    assert_eq!(title(&sandbox, &thread), Value::Null, "one message may be a greeting");
    send(&sandbox, &thread);
    assert_eq!(title(&sandbox, &thread), "The Rain In Bern");
    let all = sandbox.run(&["usage", "--by", "agent", "--json"]).json();
    assert_eq!(
        (&all["groups"][0]["name"], &all["groups"][0]["input_tokens"]),
        (&json!("_system"), &json!(50)),
        "{all}"
    );
    assert_eq!((&all["total"]["runs"], &all["total"]["turns"]), (&json!(2), &json!(3)), "a title is no run");
    // Once: later runs ask for none.
    put(&sandbox, "title.yaml", &TITLE.replace("Rain", "Snow"));
    send(&sandbox, &thread);
    assert_eq!(title(&sandbox, &thread), "The Rain In Bern");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["doctor", "--json"]).code, Some(0));
}

/// What a call for a title cost was only on record if its answer was a title.
#[test]
fn a_call_that_gave_no_title_is_booked_and_made_again_only_after_the_next_run() {
    let sandbox = answering(SAYS);
    let thread = thread_of(&sandbox.run(&RUN));
    let usage = "usage: { input_tokens: 50, output_tokens: 5 }";
    let system = || {
        let all = sandbox.run(&["usage", "--by", "agent", "--json"]).json();
        let found = all["groups"].as_array().unwrap().iter().find(|group| group["name"] == "_system").cloned();
        let found = found.unwrap_or_default();
        (found["turns"].as_u64(), found["input_tokens"].as_u64())
    };
    with_titles(&sandbox, &format!("turns: [{{ say: No, {usage}, repeat: forever }}]\n"));
    send(&sandbox, &thread);
    assert_eq!((title(&sandbox, &thread), system()), (Value::Null, (Some(1), Some(50))));
    assert!(sandbox.run(&["doctor", "--json"]).stdout.contains("no title of three to six words"));
    // Runs of other threads ask nothing about this one.
    assert_eq!(sandbox.run(&RUN).code, Some(0));
    assert_eq!(system(), (Some(1), Some(50)));
    with_titles(
        &sandbox,
        &format!("turns: [{{ error: {{ cut: {{ why: gone, say: The Rain, {usage} }} }}, repeat: forever }}]\n"),
    );
    send(&sandbox, &thread);
    assert_eq!((title(&sandbox, &thread), system()), (Value::Null, (Some(2), Some(100))));
    with_titles(&sandbox, TITLE);
    send(&sandbox, &thread);
    assert_eq!((title(&sandbox, &thread), system()), (json!("The Rain In Bern"), (Some(3), Some(150))));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["replay", &thread, "--json"]).json()["identical"], true);
    let log = sandbox.run(&["log", &thread]).stdout;
    assert!(log.contains("no title for this call"), "{log}");
}

/// A conversation was named after its first words for ever.
#[test]
fn a_conversation_gets_a_title_in_place_of_its_first_words_but_not_of_a_name() {
    let sandbox = answering(SAYS);
    with_titles(&sandbox, TITLE);
    let chat = |lines: &str, new: &[&str]| {
        let args = [&["chat", "--model", "scripted:script.yaml"], new].concat();
        assert_eq!(sandbox.run_with(&args, lines.as_bytes()).code, Some(0));
        sandbox.run(&["thread", "show", "@", "--json"]).json()["title"].clone()
    };
    assert_eq!(chat("Hello there,\\\nhow are you?\n", &["--new"]), "Hello there, how are you?");
    assert_eq!(chat("And the rain?\n", &[]), "The Rain In Bern");
    put(&sandbox, "title.yaml", &TITLE.replace("Rain", "Snow"));
    assert_eq!(chat("And now?\n", &[]), "The Rain In Bern");
    // A person gives it a name; also one that it had before.
    assert_eq!(chat("Good morning\n", &["--new"]), "Good morning");
    for name in ["Mine", "Good morning"] {
        assert_eq!(sandbox.run(&["thread", "rename", "@", name]).code, Some(0));
        assert_eq!(chat("And the rain?\n", &[]), name);
    }
}

#[test]
fn a_name_that_a_person_gave_is_kept() {
    let sandbox = answering(SAYS);
    with_titles(&sandbox, TITLE);
    let thread = thread_of(&sandbox.run(&RUN));
    assert_eq!(sandbox.run(&["thread", "rename", &thread, "Mine"]).code, Some(0));
    send(&sandbox, &thread);
    send(&sandbox, &thread);
    assert_eq!(title(&sandbox, &thread), "Mine");
}

#[test]
fn an_effect_that_fails_disturbs_nothing_and_shows_in_doctor() {
    let sandbox = answering(SAYS);
    with_titles(&sandbox, FAILS);
    let thread = thread_of(&sandbox.run(&RUN));
    send(&sandbox, &thread);
    assert_eq!((title(&sandbox, &thread), status(&sandbox, &thread)), (Value::Null, "completed".to_owned()));
    assert_eq!(records(&sandbox).len(), 2, "usage does not depend on titles");
    let said = sandbox.run(&["doctor", "--json"]);
    assert!(said.stdout.contains("effect_failed"), "{said:?}");
    // The next run tries again.
    put(&sandbox, "title.yaml", TITLE);
    send(&sandbox, &thread);
    assert_eq!(title(&sandbox, &thread), "The Rain In Bern");
    assert!(!sandbox.run(&["doctor", "--json"]).stdout.contains("effect_failed"));
}
