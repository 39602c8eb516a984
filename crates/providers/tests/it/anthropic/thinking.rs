//! Thinking blocks: kept, sent back unchanged, and left out where they can't be.

use selvedge_model::message::Block;
use selvedge_model::{CallId, Role};
use selvedge_providers::fake::{AnthropicDialogue, Dialogue, FakeAnswer, Reply};
use serde_json::{Value, json};

use super::{Talk, tool};

fn thinker() -> Talk {
    let mut talk = Talk::new();
    talk.dialect.thinking_tokens = Some(2000);
    talk.tools = vec![tool("now")];
    talk.user("What time is it?");
    talk
}

fn signed(provider: &str) -> Block {
    Block::Thinking { text: "hm".to_owned(), signature: Some("sig".to_owned()), provider: Some(provider.to_owned()) }
}

fn call() -> Block {
    Block::tool_call(CallId::new("c1").unwrap(), "now", json!({}))
}

/// The content of the answer in the last request.
fn sent_back(talk: &Talk) -> Value {
    talk.sent()["messages"][1]["content"].clone()
}

#[test]
fn redacted_thinking_and_unknown_blocks_come_back_as_they_were() {
    let mut talk = thinker();
    let secret = json!({"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p/+=="});
    let novel = json!({"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}});
    let mut events = AnthropicDialogue.answer(&FakeAnswer::text(&["hm"]).call("c1", "now", &["{}"]));
    let start = |index: u64, block: &Value| {
        let data = json!({"type": "content_block_start", "index": index, "content_block": block});
        format!("event: content_block_start\ndata: {data}\n\n")
    };
    let delta = json!({"type": "content_block_delta", "index": 11, "delta": {"type": "input_json_delta", "partial_json": "{\"query\":\"x\"}"}});
    events.insert(1, start(10, &secret));
    events.insert(2, start(11, &novel));
    events.insert(3, format!("event: content_block_delta\ndata: {delta}\n\n"));
    talk.server.push(Reply::events(events));
    let answer = talk.answer().unwrap();
    let expected = Block::Opaque { provider: "anthropic".to_owned(), data: secret.clone() };
    assert_eq!(answer.content[0], expected);
    talk.say(Role::Assistant, answer.content);
    talk.result("c1", json!("noon"));
    let answer = talk.ask(&FakeAnswer::text(&["Noon."]));
    assert!(answer.notes.is_empty(), "{:?}", answer.notes);
    assert_eq!(talk.sent()["thinking"]["budget_tokens"], 2000);
    let mut searched = novel;
    searched["input"] = json!({"query": "x"});
    let expected = json!([
        secret,
        searched,
        {"type": "text", "text": "hm"},
        {"type": "tool_use", "id": "c1", "name": "now", "input": {}},
    ]);
    assert_eq!(sent_back(&talk), expected);
}

#[test]
fn an_open_turn_without_its_thinking_is_sent_with_thinking_off_and_a_note() {
    let other = Block::Opaque { provider: "openai".to_owned(), data: json!({"type": "reasoning"}) };
    for first in [Block::thinking("redacted"), signed("elsewhere"), other, Block::text("I look.")] {
        let mut talk = thinker();
        talk.say(Role::Assistant, vec![first.clone(), call()]);
        talk.result("c1", json!("noon"));
        let answer = talk.ask(&FakeAnswer::text(&["Noon."]));
        assert!(answer.notes[0].contains("thinking is off"), "{first:?}: {:?}", answer.notes);
        assert_eq!(talk.sent().get("thinking"), None);
        assert!(!sent_back(&talk).to_string().contains("thinking"));
    }
}

#[test]
fn one_block_that_is_missing_later_in_the_turn_is_enough() {
    let mut talk = thinker();
    talk.say(Role::Assistant, vec![signed("anthropic"), call()]);
    talk.result("c1", json!("noon"));
    talk.say(Role::Assistant, vec![call()]);
    talk.result("c1", json!("noon"));
    let answer = talk.ask(&FakeAnswer::text(&["Noon."]));
    assert!(answer.notes.is_empty(), "only the first answer of a turn must think: {:?}", answer.notes);
    assert_eq!(sent_back(&talk)[0]["type"], "thinking");
    talk.say(Role::Assistant, vec![Block::thinking("redacted"), call()]);
    talk.result("c1", json!("noon"));
    let answer = talk.ask(&FakeAnswer::text(&["Noon."]));
    assert_eq!(answer.notes.len(), 1);
    assert_eq!(sent_back(&talk)[0]["type"], "tool_use", "without thinking no block of it is sent");
}

#[test]
fn a_closed_turn_does_not_matter() {
    let mut talk = thinker();
    talk.say(Role::Assistant, vec![Block::thinking("redacted"), call()]);
    talk.result("c1", json!("noon"));
    talk.say(Role::Assistant, vec![Block::text("Noon.")]);
    talk.user("Thanks.");
    let answer = talk.ask(&FakeAnswer::text(&["Welcome."]));
    assert!(answer.notes.is_empty(), "{:?}", answer.notes);
    assert_eq!(talk.sent()["thinking"], json!({"type": "enabled", "budget_tokens": 2000}));
    assert_eq!(sent_back(&talk)[0]["type"], "tool_use", "what has no signature is not sent");
}

#[test]
fn a_user_who_speaks_after_the_results_does_not_close_the_turn() {
    let mut talk = thinker();
    talk.say(Role::Assistant, vec![Block::thinking("redacted"), call()]);
    talk.result("c1", json!("noon"));
    talk.user("Hurry!");
    assert_eq!(talk.ask(&FakeAnswer::text(&["Noon."])).notes.len(), 1);
}

#[test]
fn thinking_without_a_signature_is_kept_as_text_only() {
    let mut talk = thinker();
    let answer = talk.go_on(&FakeAnswer::text(&["hi"]).thinking("hm", ""));
    assert_eq!(answer.content[0], Block::thinking("hm"));
    let answer = talk.go_on(&FakeAnswer::text(&["hi"]).thinking("hm", "sig"));
    assert_eq!(answer.content[0], signed("anthropic"));
}

#[test]
fn a_budget_leaves_room_for_the_answer() {
    let mut talk = thinker();
    for (most, budget, notes) in [(8000, Some(2000), 0), (2500, Some(2000), 0), (2048, Some(2000), 0)] {
        talk.output_tokens_max = Some(most);
        let answer = talk.ask(&FakeAnswer::text(&["ok"]));
        assert_eq!((talk.sent()["thinking"]["budget_tokens"].as_u64(), answer.notes.len()), (budget, notes), "{most}");
    }
    talk.dialect.thinking_tokens = Some(10_000);
    for (most, budget) in [(8000, Some(4000)), (2048, Some(1024)), (2000, None), (300, None)] {
        talk.output_tokens_max = Some(most);
        let answer = talk.ask(&FakeAnswer::text(&["ok"]));
        assert_eq!(talk.sent()["thinking"]["budget_tokens"].as_u64(), budget, "{most}");
        assert_eq!(answer.notes.len(), 1, "{most}: {:?}", answer.notes);
    }
    talk.dialect.thinking_tokens = Some(1);
    talk.output_tokens_max = None;
    talk.ask(&FakeAnswer::text(&["ok"]));
    assert_eq!(talk.sent()["thinking"]["budget_tokens"], 1024, "the API's minimum");
}
