//! What is read is exactly what was committed, to the last digit: otherwise the fold of a log is not the state it was made from.

use selvedge_model::event::{Fields, Handoff, ManifestChanged, Snapshot};
use selvedge_model::message::{Block, Visibility};
use selvedge_model::op::{DEPTH_MAX, Op};
use selvedge_model::path::Path;
use selvedge_model::{Batch, Changeset, Digest, Event, Message, NewThread, Role};
use serde_json::{Value, json};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Inbox, Registry, Store};

/// Texts that a careless backend changes or trips over.
const TEXTS: [&str; 9] = [
    "",
    " ",
    "line\nbreak\r\n\ttab",
    "quote \" backslash \\ slash / dollar $1 '; DROP TABLE threads; --",
    "nul \0, bell \u{7}, escape \u{1b}[2J",
    "line separators \u{2028}\u{2029}, a mark \u{feff}, a soft hyphen \u{ad}",
    "é composed, e\u{301} decomposed",
    "Łódź 東京 🧵 \u{202e}right to left",
    "{\"event_type\":\"checkpoint\"}\n{\"seq\":0}",
];

/// Numbers come back exactly.
pub fn numbers_come_back_exactly<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "numbers");
    let chance = SeededIds::new(7);
    let drawn = (0..200).map(|_| f64::from_bits(chance.below(u64::MAX))).filter(|number| number.is_finite());
    let known = [0.1, 0.1 + 0.2, -0.0, 1e23, 5e-324, f64::MAX, f64::MIN_POSITIVE, 9_007_199_254_740_993.0, 1.0, 1e300];
    let mut numbers: Vec<Value> = known.into_iter().chain(drawn).map(|number| json!(number)).collect();
    numbers.extend([json!(u64::MAX), json!(i64::MIN), json!(i64::MAX), json!((1_u64 << 53) + 1), json!(0)]);
    append(&store, &thread, patches([set("numbers", json!(numbers))]));
    let result = Block::tool_result(id("c"), json!(numbers));
    let message = Message { content: vec![result], ..Message::text(Role::Tool, "").with_id(id("m")) };
    append(&store, &thread, Changeset { messages: vec![message.clone()], ..empty() });
    let found = loaded(&store, &harness.trust(), &thread);
    assert_eq!(found.state["numbers"], json!(numbers));
    assert_eq!(found.messages, std::slice::from_ref(&message));
    assert_eq!(append(&harness.open(), &thread, Changeset { messages: vec![message], ..empty() }), 3, "it is known");
    assert_eq!(loaded(&store, &harness.trust(), &thread).messages.len(), 1);
}

/// Texts are read back exactly, in every field.
pub fn texts_come_back_exactly<H: Harness>(harness: &H) {
    let store = harness.open();
    for (number, text) in TEXTS.into_iter().enumerate() {
        let new = NewThread { title: Some(text.to_owned()), ..new_thread() };
        let thread = create_as(&store, &format!("text-{number}"), new);
        append(&store, &thread, says(text));
        append(&store, &thread, patches([Op::Set { path: Path::keys([text, "inner"]), value: json!(text) }]));
        let found = loaded(&store, &harness.trust(), &thread);
        assert_eq!(found.messages[0].plain_text(), text);
        assert_eq!(found.state, json!({text: {"inner": text}}));
        assert_eq!(store.get(&thread).unwrap().manifest.title.as_deref(), Some(text));
    }
}

/// Names that occur only inside a document may be any text without control characters, and stay distinct.
pub fn odd_names_come_back_exactly<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "named");
    let long = "é".repeat(100);
    let names = ["a", "A", " a", "a ", "a.b", "a/b", "../a", "'; --", "%", "_", "é", "e\u{301}", "🧵", &long, "null"];
    for (number, name) in names.into_iter().enumerate() {
        let changeset = Changeset { run_id: Some(id(name)), ..says_as(name, &number.to_string()) };
        commit(&store, Batch::of(part(&thread, changeset)).with_key(id(name)));
        store.post(request(&thread, name, "cancel")).unwrap();
    }
    let found = loaded(&store, &harness.trust(), &thread);
    let pending = store.pending(&thread).unwrap();
    assert_eq!((found.messages.len(), pending.len()), (names.len(), names.len()), "no two names are confused");
    for (number, name) in names.into_iter().enumerate() {
        let message = &found.messages[number];
        assert_eq!((&message.id, &message.run_id), (&Some(id(name)), &Some(id(name))));
        assert_eq!(message.plain_text(), number.to_string());
        let outcome = store.outcome(&id(name)).unwrap().unwrap_or_else(|| panic!("key `{name}` is known"));
        assert_eq!(outcome.version_of(&thread), Some(number as u64 + 1));
        assert_eq!(pending[number].posted, request(&thread, name, "cancel"));
    }
}

/// Every kind of content is read back.
pub fn every_kind_of_content_comes_back<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "content");
    let arguments = json!({"deep": [{"a": null}], "": 1});
    let content = vec![
        Block::Thinking {
            text: "hm".to_owned(),
            signature: Some("seal".to_owned()),
            provider: Some("anthropic".to_owned()),
        },
        Block::thinking(""),
        Block::text("I look."),
        Block::tool_call(id("call.1"), "read", arguments),
        Block::tool_error(id("call.1"), Value::Null),
        Block::Image { blob: Digest([7; 32]), media_type: "image/png".to_owned() },
        Block::Opaque { provider: "openai".to_owned(), data: json!({"encrypted": ["gAAA", null, 1.5]}) },
    ];
    let hidden = Message { visibility: Visibility::Internal, step: Some(4), ..Message::text(Role::System, "hidden") };
    let foreign = Message { run_id: Some(id("another-run")), ..Message::text(Role::User, "from elsewhere") };
    let bare = Message { content: Vec::new(), ..Message::text(Role::Assistant, "") };
    let full = Message { content, ..Message::text(Role::Assistant, "").with_id(id("m1")) };
    let messages = vec![full, hidden, foreign, bare];
    append(&store, &thread, Changeset { messages: messages.clone(), ..empty() });
    assert_eq!(loaded(&store, &harness.trust(), &thread).messages, messages);
}

/// A null that a line can't distinguish from an absent field is absent in the registry, too.
pub fn an_output_of_null_is_the_same_in_registry_and_log<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "null");
    for outputs in [json!({"answer": 42}), Value::Null, json!({"answer": null})] {
        let change = ManifestChanged { outputs: Some(outputs), ..ManifestChanged::default() };
        append(&store, &thread, with_event(Event::ManifestChanged(change)));
        let shown = store.get(&thread).unwrap().manifest;
        assert_eq!(loaded(&store, &harness.trust(), &thread).manifest, shown, "the log has what is shown");
    }
}

/// A state as deep as patches may build it can be committed as a snapshot, too.
pub fn the_deepest_state_is_read_back<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "deep");
    let keys = vec!["k"; DEPTH_MAX];
    append(&store, &thread, patches([Op::Set { path: Path::keys(keys), value: json!(1) }]));
    let state = loaded(&store, &harness.trust(), &thread).state;
    append(&store, &thread, Changeset { snapshot: Some(state.clone()), ..empty() });
    assert_eq!(loaded(&store, &harness.trust(), &thread).state, state);
}

/// What could not be read back is refused: once signed, it would block the thread for ever.
pub fn what_could_not_be_read_back_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let reserved = json!({"$serde_json::private::RawValue": "1"});
    let innocent = json!({"price": "$serde_json::private::RawValue"});
    refused_or_readable(harness, &store, "reserved", Changeset { snapshot: Some(reserved.clone()), ..empty() });
    refused_or_readable(harness, &store, "reserved-patch", patches([set("a", reserved)]));
    refused_or_readable(harness, &store, "innocent", patches([set("a", innocent)]));
    let nested = (0..80).fold(json!(1), |inner, _| json!([inner]));
    refused_or_readable(harness, &store, "nested", Changeset { snapshot: Some(nested), ..empty() });
}

/// A detail with the name of a field would occur twice in the line, and no strict reader accepts such a line.
pub fn a_detail_under_the_name_of_a_field_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let details: Fields = serde_json::from_value(json!({"new_thread_id": "elsewhere"})).unwrap();
    let handoff = Handoff { new_thread_id: id("next"), reason: None, directive: None, trailing_turns: 0, details };
    refused_or_readable(harness, &store, "twice", with_event(Event::ThreadHandoff(handoff)));
}

/// Commits a changeset to a running thread; refused or not, the thread must load.
fn refused_or_readable<H: Harness>(harness: &H, store: &impl Store, name: &str, changeset: Changeset) {
    let thread = create(store, name);
    append(store, &thread, starts("run-1"));
    let expected = changeset.snapshot.clone().map(|state| Event::Snapshot(Snapshot { state }));
    let is_committed = store.commit(Batch::of(part(&thread, changeset))).is_ok();
    let entries = verified(store, &harness.trust(), &thread);
    loaded(store, &harness.trust(), &thread);
    if let Some(expected) = expected.filter(|_| is_committed) {
        assert_eq!(entries[2].lines[0].event, expected, "`{name}` was committed, so it is in the log");
    }
}
