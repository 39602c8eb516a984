//! The exact form of requests.

use selvedge_model::message::{Block, Marker};
use selvedge_model::{CallId, Cancel, Digest, Draft, Message, ModelError, Role, Stop};
use selvedge_providers::fake::{AnthropicDialogue, Dialogue, FakeAnswer, Reply};
use serde_json::json;

use super::{Talk, tool};

#[test]
fn a_conversation_with_thinking_and_two_parallel_tools_is_sent_back_exactly() {
    let mut talk = Talk::new();
    talk.system = "You are terse.";
    talk.dialect.thinking_tokens = Some(2048);
    talk.dialect.cache = true;
    talk.tools = vec![tool("files/read"), tool("now")];
    talk.user("What is in a.txt, and what time is it?");
    let said = FakeAnswer::text(&["Let me look."])
        .thinking("I need the file\nand the time.", "c2lnbmF0dXJl+/==")
        .call("toolu_1", "files_read", &["{\"path\": ", "\"a.txt\"}"])
        .call("toolu_2", "now", &[]);
    let answer = talk.go_on(&said);
    assert!(matches!(&answer.content[2], Block::ToolCall { name, .. } if name == "files/read"), "its own name is back");
    talk.result("toolu_1", json!({"lines": ["ä", "b"]}));
    let failed = Block::tool_error(CallId::new("toolu_2").unwrap(), json!("no clock"));
    talk.say(Role::Tool, vec![failed]);
    talk.user("Hurry!");
    talk.ask(&FakeAnswer::text(&["done"]));
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    let mark = json!({"type": "ephemeral"});
    let expected = json!({
        "model": "claude-fake",
        "max_tokens": 8192,
        "stream": true,
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "system": [{"type": "text", "text": "You are terse.", "cache_control": mark}],
        "tools": [
            {"name": "files_read", "description": "Does files/read.", "input_schema": schema},
            {"name": "now", "description": "Does now.", "input_schema": schema, "cache_control": mark},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "What is in a.txt, and what time is it?", "cache_control": mark},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I need the file\nand the time.", "signature": "c2lnbmF0dXJl+/=="},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_1", "name": "files_read", "input": {"path": "a.txt"}},
                {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "{\"lines\":[\"ä\",\"b\"]}"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no clock", "is_error": true},
                {"type": "text", "text": "Hurry!", "cache_control": mark},
            ]},
        ],
    });
    assert_eq!(talk.sent(), expected);
    let received = talk.server.received();
    assert_eq!(received[1].path, "/v1/messages");
    assert_eq!(received[1].header("anthropic-version"), Some("2023-06-01"));
}

#[test]
fn a_cancelled_answer_is_not_sent_back_and_a_successor_gets_what_it_carries() {
    let mut talk = Talk::new();
    talk.dialect.thinking_tokens = Some(2048);
    talk.tools = vec![tool("now")];
    talk.user("What time is it?");
    let said = FakeAnswer::text(&[]).thinking("hm", "sig").call("toolu_1", "now", &[]).call("toolu_2", "now", &[]);
    let answer = talk.go_on(&said);
    talk.result("toolu_1", json!("noon"));
    talk.result("toolu_2", json!("late"));
    let events = AnthropicDialogue.answer(&FakeAnswer::text(&["It is "]).thinking("cut thought", "sig2"));
    talk.server.push(Reply::stream().pieces(&events[..7]).stall());
    let cancel = Cancel::new();
    let mut draft = |draft| {
        if matches!(draft, Draft::Text { .. }) {
            cancel.say(Stop::Cancelled);
        }
    };
    let stopped = talk.answer_drafting(&mut draft, &cancel);
    let Err(ModelError::Stopped { partial, .. }) = stopped else { panic!("it was stopped: {stopped:?}") };
    assert_eq!(partial.last(), Some(&Block::text("It is ")));
    let marker = Message::marker(Marker::Stopped, "(stopped by user)");
    // A handoff carries the task, the newest whole exchange and a message that begins the successor.
    let mut successor = Talk { messages: Vec::new(), tools: vec![tool("now")], ..Talk::new() };
    successor.dialect.thinking_tokens = Some(2048);
    successor.messages = talk.messages.clone();
    successor.messages.push(marker.into());
    successor.user("This continues the thread before.");
    let next = successor.ask(&FakeAnswer::text(&["Noon."]));
    assert!(next.notes.is_empty(), "the turn is closed: {:?}", next.notes);
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}},
            {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon"},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "late"},
        ]},
        {"role": "assistant", "content": [{"type": "text", "text": "(stopped by user)"}]},
        {"role": "user", "content": [{"type": "text", "text": "This continues the thread before."}]},
    ]);
    assert_eq!(successor.sent()["messages"], expected);
    assert_eq!(answer.content.len(), 3);
}

#[test]
fn neighbours_of_a_role_are_joined_and_results_stand_first() {
    let mut talk = Talk::new();
    talk.user("one");
    talk.user("two");
    talk.say(Role::Assistant, vec![Block::text("let me"), Block::tool_call(id("c.1"), "now", json!({}))]);
    talk.user("also this");
    talk.result("c.1", json!("noon"));
    talk.messages.push(Message::marker(Marker::Stopped, "(stopped by user)").into());
    talk.user("again");
    talk.say(Role::System, vec![Block::text("Be brief.")]);
    talk.say(Role::User, vec![Block::text(" \n")]);
    talk.ask(&FakeAnswer::text(&["ok"]));
    let sent = talk.sent();
    let wire_id = &sent["messages"][1]["content"][1]["id"];
    assert!(wire_id.as_str().unwrap().chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{wire_id}");
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "let me"},
            {"type": "tool_use", "id": wire_id, "name": "now", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": wire_id, "content": "noon"},
            {"type": "text", "text": "also this"},
        ]},
        {"role": "assistant", "content": [{"type": "text", "text": "(stopped by user)"}]},
        {"role": "user", "content": [{"type": "text", "text": "again"}]},
    ]);
    assert_eq!(sent["messages"], expected);
    assert_eq!(sent["system"], json!([{"type": "text", "text": "Be brief."}]));
    assert_eq!((sent.get("tools"), sent.get("thinking")), (None, None));
}

#[test]
fn a_conversation_begins_and_ends_with_the_user() {
    let mut talk = Talk::new();
    talk.say(Role::Assistant, vec![Block::text("where we left off")]);
    talk.ask(&FakeAnswer::text(&["ok"]));
    let roles: Vec<_> = talk.sent()["messages"].as_array().unwrap().iter().map(|turn| turn["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
}

#[test]
fn images_are_sent_with_their_bytes() {
    let mut talk = Talk::new();
    let blob = Digest([3; 32]);
    talk.images.0.insert(blob, b"\x89PNG\x00\xff".to_vec());
    let image = Block::Image { blob, media_type: "image/png".to_owned() };
    talk.say(Role::User, vec![image.clone(), Block::text("What is this?")]);
    talk.ask(&FakeAnswer::text(&["a picture"]));
    let source = json!({"type": "base64", "media_type": "image/png", "data": "iVBORwD/"});
    let expected = json!([{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]);
    assert_eq!(talk.sent()["messages"][0]["content"], expected);
    talk.images.0.clear();
    let error = talk.answer().unwrap_err();
    assert!(matches!(&error, ModelError::Permanent { why } if why.contains(&blob.to_string())), "{error:?}");
}

#[test]
fn arguments_that_are_no_object_are_sent_as_one() {
    let mut talk = Talk::new();
    talk.user("go");
    let calls = [json!("{\"path\": "), json!([1, 2]), json!(null)];
    let calls = calls.into_iter().enumerate().map(|(at, value)| Block::tool_call(id(&format!("c{at}")), "now", value));
    talk.say(Role::Assistant, calls.collect());
    for at in 0..3 {
        talk.result(&format!("c{at}"), json!("bad arguments"));
    }
    talk.ask(&FakeAnswer::text(&["ok"]));
    let sent = talk.sent();
    let inputs: Vec<_> = (0..3).map(|at| &sent["messages"][1]["content"][at]["input"]).collect();
    assert_eq!(inputs, [&json!({"invalid_json": "{\"path\": "}), &json!({"invalid_json": "[1,2]"}), &json!({})]);
}

#[test]
fn the_output_limit_is_the_prompts_else_the_configured_else_a_default() {
    let mut talk = Talk::new();
    talk.user("go");
    talk.ask(&FakeAnswer::text(&["ok"]));
    assert_eq!(talk.sent()["max_tokens"], 8192);
    talk.dialect.output_tokens_max = Some(64_000);
    talk.ask(&FakeAnswer::text(&["ok"]));
    assert_eq!(talk.sent()["max_tokens"], 64_000);
    talk.output_tokens_max = Some(300);
    talk.ask(&FakeAnswer::text(&["ok"]));
    assert_eq!(talk.sent()["max_tokens"], 300);
}

#[test]
fn configured_fields_are_added_replaced_and_removed() {
    let mut talk = Talk::new();
    talk.user("go");
    let extra = json!({"temperature": 0.5, "max_tokens": 7, "stream": null});
    talk.dialect.extra = extra.as_object().cloned().unwrap();
    talk.ask(&FakeAnswer::text(&["ok"]));
    let sent = talk.sent();
    assert_eq!((&sent["temperature"], &sent["max_tokens"], sent.get("stream")), (&json!(0.5), &json!(7), None));
}

#[test]
fn tools_whose_names_collide_on_the_wire_are_refused_before_anything_is_sent() {
    let mut talk = Talk::new();
    talk.user("go");
    talk.tools = vec![tool("a/b"), tool("a.b")];
    let error = talk.answer().unwrap_err().to_string();
    assert!(error.contains("`a/b`") && error.contains("`a.b`"), "{error}");
    assert!(talk.server.received().is_empty());
}

#[test]
fn at_most_four_places_are_marked_for_the_cache() {
    let mut talk = Talk::new();
    talk.system = "system";
    talk.dialect.cache = true;
    talk.tools = vec![tool("a"), tool("b")];
    for _ in 0..4 {
        talk.user("more");
        talk.go_on(&FakeAnswer::text(&["ok"]));
    }
    assert_eq!(talk.sent().to_string().matches("cache_control").count(), 4);
    talk.dialect.cache = false;
    talk.user("more");
    talk.ask(&FakeAnswer::text(&["ok"]));
    assert_eq!(talk.sent().to_string().matches("cache_control").count(), 0);
}

fn id(text: &str) -> CallId {
    CallId::new(text).unwrap()
}
