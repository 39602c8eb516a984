//! How answers end, and what they count.

use selvedge_model::ModelError;
use selvedge_model::answer::{End, Usage};
use selvedge_providers::fake::{AnthropicDialogue, Dialogue, FakeAnswer, Reply};
use serde_json::{Value, json};

use super::Talk;

/// The events of an answer with another `message_delta`.
fn ending(said: &FakeAnswer, delta: &Value) -> Vec<String> {
    let mut events = AnthropicDialogue.answer(said);
    let place = events.len() - 2;
    events[place] = format!("event: message_delta\ndata: {delta}\n\n");
    events
}

#[test]
fn every_reason_to_stop_is_an_end() {
    let mut talk = Talk::new();
    talk.user("go");
    let plain = FakeAnswer::text(&["so"]);
    let calling = FakeAnswer::text(&["so"]).call("c1", "now", &["{}"]);
    for (said, reason, end, notes) in [
        (&plain, "end_turn", End::Finished, 0),
        (&plain, "stop_sequence", End::Finished, 0),
        (&plain, "max_tokens", End::Length, 0),
        (&plain, "model_context_window_exceeded", End::Length, 1),
        (&plain, "refusal", End::Refused, 0),
        (&plain, "pause_turn", End::Finished, 1),
        (&plain, "novelty", End::Finished, 0),
        (&calling, "tool_use", End::ToolCalls, 0),
        (&calling, "end_turn", End::ToolCalls, 0),
        (&calling, "max_tokens", End::Length, 0),
    ] {
        let delta = json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}});
        talk.server.push(Reply::events(ending(said, &delta)));
        let answer = talk.answer().unwrap();
        assert_eq!((answer.end, answer.notes.len()), (end, notes), "{reason}");
    }
}

#[test]
fn usage_of_the_last_event_replaces_that_of_the_first() {
    let mut talk = Talk::new();
    talk.user("go");
    let usage = |delta: Value| {
        let delta = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": delta});
        talk.server.push(Reply::events(ending(&FakeAnswer::text(&["so"]), &delta)));
        talk.answer().unwrap().usage.unwrap()
    };
    let all = json!({"input_tokens": 7, "output_tokens": 9, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20});
    let expected =
        Usage { input_tokens: 127, output_tokens: 9, cache_read_tokens: 100, cache_write_tokens: 20, estimated: false };
    assert_eq!(usage(all), expected);
    let expected = Usage { input_tokens: 10, output_tokens: 3, ..Usage::default() };
    assert_eq!(usage(json!({"output_tokens": 3})), expected);
    assert!(usage(Value::Null).estimated, "the provider did not count the answer");
}

#[test]
fn the_answer_names_its_model_only_if_it_is_another() {
    let mut talk = Talk::new();
    talk.user("go");
    let answer = talk.ask(&FakeAnswer::text(&["so"]));
    assert_eq!((answer.provider_id.as_deref(), answer.model), (Some("msg_1"), None));
    let events = AnthropicDialogue.answer(&FakeAnswer::text(&["so"])).concat().replace("claude-fake", "claude-other");
    talk.server.push(Reply::events([events]));
    assert_eq!(talk.answer().unwrap().model.as_deref(), Some("claude-other"));
}

#[test]
fn a_cut_after_the_last_count_knows_its_usage() {
    let mut talk = Talk::new();
    talk.user("go");
    let events = AnthropicDialogue.answer(&FakeAnswer::text(&["so"]));
    for (length, is_estimated) in [(events.len() - 1, false), (events.len() - 2, true)] {
        talk.server.push(Reply::events(&events[..length]));
        let Err(ModelError::Cut { usage: Some(usage), .. }) = talk.answer() else { panic!("it is cut") };
        assert_eq!((usage.estimated, usage.input_tokens), (is_estimated, 10));
        assert_eq!(usage.output_tokens, if is_estimated { 1 } else { 5 });
    }
}
