//! What each provider gets back of a conversation that the engine ran: thinking, two parallel calls, an answer that was cancelled, and a
//! handoff. The bodies of the requests are snapshots; what the APIs insist on is checked by name.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufReader, Read};
use std::process::Command;

use insta::assert_snapshot;
use selvedge_providers::fake::{
    AnthropicDialogue, Dialogue, FakeAnswer, OpenAiChatDialogue, OpenAiResponsesDialogue, Received, Reply, Server,
};
use serde_json::Value;

use crate::running::put;
use crate::support::{Ran, Sandbox, feed, masked};

const DIRECTIVE: &str = "---\nname: look\npermissions: [tool.file.list, tool.file.read, tool.threads.handoff]\n---\n\
                         Look at both files.\n";

/// Runs the conversation; returns the bodies of its requests.
fn bodies(dialogue: &dyn Dialogue, format: &str) -> (Sandbox, Vec<Value>) {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/look.md", DIRECTIVE);
    put(&sandbox, "docs/a.txt", "alpha\n");
    let server = Server::start().unwrap();
    let config = sandbox.home().join("config/agent/models.yaml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let text = format!(
        "providers: [{{id: vendor, format: {format}, base_url: '{}'}}]\n\
         known: [{{id: 'vendor:m', input: 1, output: 1, thinking_tokens: 2000}}]\n",
        dialogue.base_url(&server.url())
    );
    fs::write(config, text).unwrap();
    let answer = |said: &FakeAnswer| Reply::events(dialogue.answer(said));
    let run = |args: &[&str]| {
        let ran = Ran::of(feed(sandbox.command(args).spawn().unwrap(), b""));
        assert_eq!(ran.code, Some(0), "{format}: {ran:?}");
    };

    let calls = FakeAnswer::text(&["Let me ", "look."]).thinking("two files", "signature-1");
    let calls = calls.call("call_a", "file_list", &["{\"path\":", "\"docs\"}"]);
    server.push(answer(&calls.call("call_b", "file_read", &["{\"path\":\"docs/a.txt\"}"])));
    server.push(answer(&FakeAnswer::text(&["Both are there."]).thinking("done", "signature-2")));
    run(&["run", "look", "--model", "vendor:m"]);

    let events = dialogue.answer(&FakeAnswer::text(&["half an answer", "never"]));
    let half = events.iter().position(|event| event.contains("half an answer")).unwrap() + 1;
    // The last word of a draft is held back until the next: it might be the beginning of a secret.
    server.push(Reply::stream().pieces(&events[..half]).stall());
    let mut child = sandbox.command(&["send", "@", "And the rest?", "--quiet"]).spawn().unwrap();
    let mut begun = [0; 4];
    BufReader::new(child.stdout.take().unwrap()).read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"half");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(Ran::of_rest(child).code, Some(130), "{format}");

    server.push(answer(&FakeAnswer::text(&["I hand it off."]).call("call_c", "handoff_thread", &["{}"])));
    server.push(answer(&FakeAnswer::text(&["I continue."])));
    run(&["send", "@", "Go on elsewhere."]);
    run(&["verify", "--all"]);
    let bodies = server.received().iter().map(Received::json).collect();
    (sandbox, bodies)
}

/// The conversation in a request.
fn conversation(body: &Value) -> &Value {
    if body["input"].is_array() { &body["input"] } else { &body["messages"] }
}

/// The values of a key, wherever it stands.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| all(item, key, found)),
        Value::Object(fields) => {
            found.extend(fields.get(key).and_then(Value::as_str));
            fields.values().for_each(|field| all(field, key, found));
        }
        _ => {}
    }
}

/// The ids of calls and of results in a request.
fn ids(body: &Value) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let conversation = conversation(body);
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for item in conversation.as_array().unwrap() {
        // Responses.
        let found = if item["type"] == "function_call" { &mut calls } else { &mut results };
        found.extend(item["call_id"].as_str());
        // Chat completions.
        all(&item["tool_calls"], "id", &mut calls);
        results.extend(item["tool_call_id"].as_str());
        // Messages.
        all(&item["content"], "tool_use_id", &mut results);
        for block in item["content"].as_array().into_iter().flatten() {
            calls.extend(block["id"].as_str().filter(|_| block["type"] == "tool_use"));
        }
    }
    (calls.into_iter().collect(), results.into_iter().collect())
}

fn sent_back(name: &str, dialogue: &dyn Dialogue, format: &str, signature: Option<&str>) {
    let (sandbox, bodies) = bodies(dialogue, format);
    let [first, after_calls, second, after_cancel, successor] = &bodies[..] else { panic!("{}", bodies.len()) };
    for body in &bodies {
        let (calls, results) = ids(body);
        assert_eq!(calls, results, "{format}: every call has its result, and every result its call: {body}");
    }
    assert_eq!(ids(after_calls).0, BTreeSet::from(["call_a", "call_b"]), "{format}");
    // Everything that was sent before is sent again unchanged: the provider's cache and its signatures depend on it.
    let items = |body: &Value| conversation(body).as_array().unwrap().clone();
    assert!(items(after_calls).starts_with(&items(first)[..]), "{format}");
    for body in [after_calls, second, after_cancel] {
        let text = body.to_string();
        assert_eq!(text.contains("signature-1"), signature.is_some(), "{format}: {text}");
        assert!(!text.contains("half an answer"), "{format}: a cancelled answer is never sent back: {text}");
    }
    assert!(!conversation(successor).to_string().contains("half an answer"), "{format}");
    let shown =
        [("after the calls", after_calls), ("after the cancelled answer", after_cancel), ("the successor", successor)];
    let shown = shown.map(|(what, body)| {
        let text = serde_json::to_string_pretty(conversation(body)).unwrap();
        format!("{what}:\n{text}\n")
    });
    assert_snapshot!(name, masked(&shown.join("\n"), &sandbox));
}

#[test]
fn messages_get_thinking_calls_and_results_back_exactly() {
    sent_back("messages", &AnthropicDialogue, "anthropic", Some("signature-1"));
}

#[test]
fn chat_completions_get_calls_and_results_back_exactly() {
    sent_back("chat_completions", &OpenAiChatDialogue, "openai", None);
}

#[test]
fn responses_get_sealed_reasoning_calls_and_results_back_exactly() {
    sent_back("responses", &OpenAiResponsesDialogue, "openai-responses", Some("signature-1"));
}
