//! Streams: whole, in pieces, broken.

use std::time::Duration;

use selvedge_model::answer::{End, Usage};
use selvedge_model::message::Block;
use selvedge_model::{Cancel, Draft, ModelError};
use selvedge_providers::fake::{Dialogue, FakeAnswer, Reply};
use serde_json::{Value, json};

use super::{Stage, ask_drafting, drafted, text};

const UTF8: &str = "Grüße 🙂 «ok»";

fn cut(error: Result<selvedge_model::Answer, ModelError>) -> (String, Vec<Block>, Option<Usage>) {
    match error {
        Err(ModelError::Cut { why, partial, usage }) => (why, partial, usage),
        other => panic!("it should be cut: {other:?}"),
    }
}

pub(crate) fn an_answer_is_the_same_however_its_stream_is_cut_into_pieces(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let stream = dialogue.answer(&FakeAnswer::text(&["Grüße ", "🙂 «ok»"])).concat();
    let crlf = stream.replace('\n', "\r\n");
    for (stream, size) in [(&stream, 1), (&stream, 3), (&stream, 7), (&stream, 1 << 20), (&crlf, 1), (&crlf, 5)] {
        stage.server.push(Reply::stream().pieces(stream.as_bytes().chunks(size)).end());
        let (answer, drafts) = ask_drafting(&stage.host, &Cancel::new());
        let answer = answer.unwrap();
        assert_eq!(answer.content, [Block::text(UTF8)], "pieces of {size}");
        assert_eq!(drafted(&drafts), UTF8);
        assert_eq!(answer.end, End::Finished);
        assert_eq!(answer.usage, Some(Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() }));
    }
}

pub(crate) fn pings_comments_and_unknown_events_are_ignored(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let mut stream = String::new();
    for event in dialogue.answer(&FakeAnswer::text(&["a", "b"])) {
        stream.push_str(&dialogue.noise().concat());
        stream.push_str(&event);
    }
    stage.server.push(Reply::events([stream]));
    assert_eq!(stage.ask().unwrap().content, [Block::text("ab")]);
}

pub(crate) fn two_tool_calls_arrive_whole_and_are_drafted(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let said = FakeAnswer::text(&["Let me see."]).call("call_a", "read_file", &["{\"path\":", " \"a.txt\"}"]).call(
        "call_b",
        "read_file",
        &["{\"path\": \"ä\"", ", \"lines\": 3}"],
    );
    stage.server.push(Reply::events(dialogue.answer(&said)));
    let (answer, drafts) = ask_drafting(&stage.host, &Cancel::new());
    let answer = answer.unwrap();
    let calls: Vec<(&str, &str, &Value)> = answer.content.iter().filter_map(call).collect();
    let expected = [
        ("call_a", "read_file", &json!({"path": "a.txt"})),
        ("call_b", "read_file", &json!({"path": "ä", "lines": 3})),
    ];
    assert_eq!(calls, expected);
    assert_eq!(answer.end, End::ToolCalls);
    assert_eq!(text(&answer.content), "Let me see.");
    let begun = drafts.iter().filter(|draft| matches!(draft, Draft::ToolCall { name, .. } if name == "read_file"));
    assert_eq!(begun.count(), 2);
    let arguments = drafts.iter().filter_map(|draft| match draft {
        Draft::Arguments { text, .. } => Some(text.as_str()),
        _ => None,
    });
    assert_eq!(arguments.collect::<String>(), r#"{"path": "a.txt"}{"path": "ä", "lines": 3}"#);
}

fn call(block: &Block) -> Option<(&str, &str, &Value)> {
    match block {
        Block::ToolCall { id, name, arguments, .. } => Some((id.as_str(), name.as_str(), arguments)),
        _ => None,
    }
}

pub(crate) fn arguments_that_are_not_json_are_kept_as_text(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    for raw in ["{\"path\": ", "[1]", "nonsense"] {
        let said = FakeAnswer::text(&[]).call("call_a", "read_file", &[raw]);
        stage.server.push(Reply::events(dialogue.answer(&said)));
        let answer = stage.ask().unwrap();
        let calls: Vec<_> = answer.content.iter().filter_map(call).collect();
        assert_eq!(calls, [("call_a", "read_file", &json!(raw))]);
    }
}

pub(crate) fn a_call_without_arguments_has_an_empty_object(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    stage.server.push(Reply::events(dialogue.answer(&FakeAnswer::text(&[]).call("call_a", "now", &[]))));
    let answer = stage.ask().unwrap();
    assert_eq!(answer.content.iter().filter_map(call).collect::<Vec<_>>(), [("call_a", "now", &json!({}))]);
}

pub(crate) fn a_cut_in_a_tool_call_keeps_what_was_received(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let said = FakeAnswer::text(&["Let me see."]).call("call_a", "read_file", &["{\"path\":", " \"a.txt\"}"]);
    let events = dialogue.answer(&said);
    let within = events.iter().position(|event| event.contains("a.txt")).unwrap();
    for reply in [
        Reply::stream().pieces(&events[..within]).cut(),
        Reply::stream().pieces(&events[..within]).reset(),
        Reply::stream().pieces(&events[..within]).piece(&events[within][..9]).cut(),
        Reply::stream().pieces(&events[..within]).end(),
    ] {
        stage.server.push(reply);
        let (_, partial, usage) = cut(stage.ask());
        assert_eq!(text(&partial), "Let me see.");
        let calls: Vec<_> = partial.iter().filter_map(call).collect();
        assert_eq!(calls, [("call_a", "read_file", &json!("{\"path\":"))]);
        assert!(usage.is_none_or(|usage| usage.estimated), "the provider has not counted all: {usage:?}");
    }
}

pub(crate) fn a_stream_without_its_end_event_is_cut_at_every_place(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let events = dialogue.answer(&FakeAnswer::text(&["one ", "two"]));
    let needed = events.len() - dialogue.optional_events();
    for length in 0..needed {
        stage.server.push(Reply::events(&events[..length]));
        let (_, partial, _) = cut(stage.ask());
        assert!("one two".starts_with(&text(&partial)), "{partial:?}");
    }
    for length in needed..events.len() {
        stage.server.push(Reply::events(&events[..length]));
        assert_eq!(text(&stage.ask().unwrap().content), "one two");
        // Only if the body has its own end.
        stage.server.push(Reply::stream().pieces(&events[..length]).cut());
        assert_eq!(text(&cut(stage.ask()).1), "one two");
    }
    stage.server.push(Reply::events(&events));
    assert_eq!(text(&stage.ask().unwrap().content), "one two");
}

pub(crate) fn the_answer_is_complete_at_its_end_event(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let events = dialogue.answer(&FakeAnswer::text(&["done"]));
    // The body has no end, or a bad one: the answer has one.
    for reply in [
        Reply::stream().pieces(&events).cut(),
        Reply::stream().pieces(&events).stall(),
        Reply::stream().pieces(&events).piece("data: garbage\n\n").end(),
    ] {
        stage.server.push(reply);
        assert_eq!(text(&stage.ask().unwrap().content), "done");
    }
    assert!(stage.server.saw_hangups(1, Duration::from_secs(5)), "a connection without an end is closed");
}

pub(crate) fn garbage_is_cut_and_never_an_answer(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let events = dialogue.answer(&FakeAnswer::text(&["half"]));
    let half = events.iter().position(|event| event.contains("half")).unwrap() + 1;
    let garbage: [&[u8]; 6] = [
        b"data: {\"type\": \n\n",
        b"data: \xff\xfe\n\n",
        b"\x00\x01\x02 binary \n\n",
        b"<html>hello</html>",
        b"data: 7\n\n",
        b"data: [1, 2]\n\n",
    ];
    for bytes in garbage {
        stage.server.push(Reply::stream().piece(bytes).end());
        let (why, partial, usage) = cut(stage.ask());
        assert!(partial.is_empty() && usage.is_none() && !why.is_empty(), "{why}");
        stage.server.push(Reply::stream().pieces(&events[..half]).piece(bytes).end());
        let (_, partial, _) = cut(stage.ask());
        assert_eq!(text(&partial), "half");
    }
    // The framing of the body itself is broken.
    stage.server.push(Reply::stream().pieces(&events[..half]).raw("zz\r\n").cut());
    assert_eq!(text(&cut(stage.ask()).1), "half");
    // What is no HTTP at all.
    stage.server.push(Reply::nothing().raw("220 mail.example ESMTP\r\n").cut());
    assert!(cut(stage.ask()).1.is_empty());
}

pub(crate) fn an_error_event_after_the_head_is_an_overload(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    stage.server.push(Reply::events([dialogue.overloaded_event()]));
    let error = stage.error();
    assert!(matches!(error.status(), Some(503 | 529)), "{error:?}");
    assert!(selvedge_model::Classify::retryable(&error));
}

pub(crate) fn an_error_event_within_an_answer_cuts_it(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let events = dialogue.answer(&FakeAnswer::text(&["half"]));
    let half = events.iter().position(|event| event.contains("half")).unwrap() + 1;
    stage.server.push(Reply::stream().pieces(&events[..half]).piece(dialogue.overloaded_event()).end());
    let (why, partial, _) = cut(stage.ask());
    assert_eq!(text(&partial), "half");
    assert!(why.to_lowercase().contains("overloaded"), "{why}");
}

pub(crate) fn usage_with_the_cache_is_counted(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let mut said = FakeAnswer::text(&["cached"]);
    said.usage = Usage { input_tokens: 1000, output_tokens: 7, cache_read_tokens: 600, ..Usage::default() };
    stage.server.push(Reply::events(dialogue.answer(&said)));
    assert_eq!(stage.ask().unwrap().usage, Some(said.usage));
}

pub(crate) fn an_answer_at_its_length_limit_says_so(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let mut said = FakeAnswer::text(&["and so"]);
    said.end = End::Length;
    stage.server.push(Reply::events(dialogue.answer(&said)));
    assert_eq!(stage.ask().unwrap().end, End::Length);
}
