//! A message with an id is stored once, however often it is sent.

use selvedge_model::message::Visibility;
use selvedge_model::{Batch, Changeset, Event, Message, Role, ThreadId};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Logs};
use crate::error::Error;

fn stored(store: &impl Logs, thread: &ThreadId) -> Vec<String> {
    let text = |event| match event {
        Event::Message(message) => Some(message.plain_text()),
        _ => None,
    };
    lines_of(store, thread).into_iter().filter_map(|line| text(line.event)).collect()
}

fn message(name: &str, text: &str) -> Message {
    Message::text(Role::User, text).with_id(id(name))
}

fn say_all(messages: impl IntoIterator<Item = Message>) -> Changeset {
    Changeset { messages: messages.into_iter().collect(), ..empty() }
}

/// A message that is sent again is stored once, and its changeset is a version all the same.
pub fn a_resubmitted_message_is_stored_once<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "repeated");
    for (version, handle) in [(1, &store), (2, &store), (3, &other)] {
        assert_eq!(append(handle, &thread, says_as("m1", "hello")), version, "each append is a version");
    }
    assert_eq!(stored(&store, &thread), ["hello"], "the log has it once");
    assert_eq!(loaded(&store, &harness.trust(), &thread).messages.len(), 1);
    drop((store, other));
    let store = harness.open();
    assert_eq!(append(&store, &thread, says_as("m1", "hello")), 4);
    assert_eq!(stored(&store, &thread), ["hello"], "a later handle knows it");
}

/// Different content under a known id is refused.
pub fn a_changed_message_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "changed");
    append(&store, &thread, says_as("m1", "hello"));
    let by_another = Message { role: Role::Assistant, ..message("m1", "hello") };
    let hidden = Message { visibility: Visibility::Internal, ..message("m1", "hello") };
    leaves_no_trace(&store, &[&thread], || {
        for changed in [message("m1", "hello!"), by_another, hidden] {
            let answer = store.commit(Batch::of(part(&thread, say_all([message("m2", "new"), changed]))));
            assert_refused!(answer, Error::MessageChanged { message, .. } if message.as_str() == "m1", "another content");
        }
    });
    append(&store, &thread, says_as("m2", "the id of a refused message is free"));
}

/// Run and step are not part of a message's content.
pub fn run_and_step_do_not_make_another_message<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "moved");
    let first = Message { step: Some(1), run_id: Some(id("run-1")), ..message("m1", "hello") };
    let again = Message { step: Some(2), run_id: Some(id("run-2")), ..message("m1", "hello") };
    append(&store, &thread, say_all([first.clone()]));
    append(&store, &thread, say_all([again]));
    assert_eq!(loaded(&store, &harness.trust(), &thread).messages, [first], "the first one stays");
}

/// A message without an id is always new.
pub fn a_message_without_an_id_always_appends<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "nameless");
    append(&store, &thread, say_all([Message::text(Role::User, "hi"), Message::text(Role::User, "hi")]));
    append(&store, &thread, says("hi"));
    assert_eq!(stored(&store, &thread), ["hi", "hi", "hi"]);
    assert_eq!(loaded(&store, &harness.trust(), &thread).messages.len(), 3);
}

/// An id is unique within its thread, not across threads.
pub fn the_same_id_in_two_threads_is_two_messages<H: Harness>(harness: &H) {
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    append(&store, &one, says_as("m1", "to one"));
    append(&store, &two, says_as("m1", "to two"));
    commit(&store, batch([part(&one, says_as("m2", "both, one")), part(&two, says_as("m2", "both, two"))]));
    assert_eq!(stored(&store, &one), ["to one", "both, one"]);
    assert_eq!(stored(&store, &two), ["to two", "both, two"]);
}

/// Within one changeset, too, an id names one message.
pub fn the_same_id_twice_in_one_changeset_is_one_message<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "doubled");
    append(&store, &thread, say_all([message("m1", "hello"), message("m1", "hello")]));
    assert_eq!(stored(&store, &thread), ["hello"]);
    leaves_no_trace(&store, &[&thread], || {
        let torn = say_all([message("m2", "this"), message("m2", "or that")]);
        let answer = store.commit(Batch::of(part(&thread, torn)));
        assert_refused!(answer, Error::MessageChanged { message, .. } if message.as_str() == "m2", "two contents of one id");
    });
}

/// New messages among known ones are stored, in the order they were sent.
pub fn new_messages_among_known_ones_keep_their_order<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "mixed");
    append(&store, &thread, say_all([message("a", "a"), message("b", "b")]));
    let history = ["c", "b", "d", "a", "e"].map(|name| message(name, name));
    append(&store, &thread, say_all(history));
    assert_eq!(stored(&store, &thread), ["a", "b", "c", "d", "e"]);
    let texts: Vec<_> = loaded(&store, &harness.trust(), &thread).messages.iter().map(Message::plain_text).collect();
    assert_eq!(texts, ["a", "b", "c", "d", "e"]);
}

/// A message belongs to the run of the changeset that first had it.
pub fn a_message_belongs_to_the_run_that_brought_it<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "owned");
    for run in ["run-1", "run-2"] {
        append(&store, &thread, Changeset { run_id: Some(id(run)), ..says_as("m1", "hello") });
    }
    let found = loaded(&store, &harness.trust(), &thread);
    assert_eq!((found.messages.len(), &found.messages[0].run_id), (1, &Some(id("run-1"))));
}

/// A message sent by two handles at once is stored once.
pub fn a_message_sent_by_two_at_once_is_stored_once<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "echoed");
    for round in 0..5 {
        let name = format!("m{round}");
        at_once(4, |worker| {
            let same = part(&thread, says_as(&name, "hello"));
            with_retries(|| stores[worker % 2].commit(Batch::of(same.clone())))
                .unwrap_or_else(|error| panic!("{error}"));
        });
    }
    assert_eq!(stored(&stores[0], &thread).len(), 5);
    assert_eq!(stores[1].head(&thread).unwrap().version, 20, "each append is a version all the same");
}

/// Many ids of a long thread are all known.
pub fn ids_of_a_long_thread_are_all_known<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "long");
    let all = || say_all((0..500).map(|number| message(&format!("m{number}"), &format!("text {number}"))));
    append(&store, &thread, all());
    append(&store, &thread, all());
    assert_eq!(stored(&store, &thread).len(), 500);
}
