//! What an append does: one version, complete, in order.

use selvedge_log::strict::MAX_LINE_BYTES;
use selvedge_model::event::{Fields, ToolOutcome};
use selvedge_model::{Batch, Changeset, Event, Message, Patch, Reason, Role, RunMeta};
use serde_json::json;

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Logs, Registry};
use crate::error::Error;

/// Each append adds one version, even an empty one.
pub fn each_append_adds_one_version_even_when_empty<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "counted");
    for version in 1..=5 {
        let changeset = if version % 2 == 0 { says("hello") } else { empty() };
        assert_eq!(append(&store, &thread, changeset), version);
        assert_eq!(store.head(&thread).unwrap().version, version);
        assert_eq!(store.get(&thread).unwrap().version, version);
    }
    let checkpoints = lines_of(&store, &thread).into_iter().filter_map(|line| match line.event {
        Event::Checkpoint(checkpoint) => Some(checkpoint.version),
        _ => None,
    });
    assert_eq!(checkpoints.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5], "each version has its checkpoint");
}

/// An append that expects the current version is committed.
pub fn an_append_at_its_expected_version_is_committed<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "exact");
    for version in 0..4 {
        let committed = commit(&store, Batch::of(part_at(&thread, version, says("next"))));
        assert_eq!(committed.versions, [(thread.clone(), version + 1)]);
    }
}

/// The lines of a changeset have a fixed order, and reading them gives the changeset back.
pub fn a_changeset_is_read_back_as_it_was_handed_in<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "whole");
    let fields: Fields = serde_json::from_value(json!({"hook": "after_step", "n": 1})).unwrap();
    let outcome =
        ToolOutcome { call_id: id("call.1"), result: Some(json!([1, "two"])), error: None, failure: None, blob: None };
    let given = Changeset {
        run_id: Some(id("run-1")),
        parent_run_id: Some(id("run-0")),
        run_meta: Some(RunMeta::started(id("scribe"), "user")),
        turn: Some(3),
        snapshot: Some(json!({"base": true})),
        messages: vec![Message::text(Role::User, "a").with_id(id("m1")), Message::text(Role::Assistant, "b")],
        patches: vec![Patch::new(vec![set("x", json!(1))]).from_source("tool:search"), Patch::new(vec![count("x")])],
        state_actions: vec![fields.clone()],
        events: vec![Event::ToolOutcome(outcome), Event::HookFired(fields)],
        ..Changeset::empty(Reason::ToolResultsCommitted)
    };
    append(&store, &thread, given.clone());
    let entries = verified(&store, &harness.trust(), &thread);
    let events: Vec<_> = entries[1].lines.iter().map(|line| line.event.clone()).collect();
    let order: Vec<_> = events.iter().map(Event::place).collect();
    assert!(order.is_sorted(), "the lines are in the order of their kinds: {order:?}");
    let mut found = Changeset::from_events(events).unwrap();
    for message in &mut found.messages {
        assert_eq!(message.run_id.take(), given.run_id, "a message belongs to the run of its changeset");
    }
    assert_eq!(found, given);
}

/// What one process commits, another reads and continues.
pub fn handles_take_turns_on_one_thread<H: Harness>(harness: &H) {
    let one = harness.open();
    let two = harness.open();
    let thread = create(&one, "shared");
    for round in 0..4 {
        assert_eq!(append(&one, &thread, says("one")), 2 * round + 1);
        assert_eq!(two.head(&thread).unwrap(), one.head(&thread).unwrap());
        assert_eq!(append(&two, &thread, says("two")), 2 * round + 2);
    }
    assert_eq!(bytes_of(&one, &thread), bytes_of(&two, &thread));
    assert_eq!(loaded(&two, &harness.trust(), &thread).messages.len(), 8);
    verified(&one, &harness.trust(), &thread);
}

/// Committed data outlives the process that committed it.
pub fn a_thread_outlives_its_writer<H: Harness>(harness: &H) {
    let writer = harness.open();
    let thread = create(&writer, "left");
    append(&writer, &thread, says("the last word"));
    let before = bytes_of(&writer, &thread);
    drop(writer);
    let store = harness.open();
    assert_eq!(bytes_of(&store, &thread), before);
    assert_eq!(append(&store, &thread, empty()), 2);
    verified(&store, &harness.trust(), &thread);
}

/// An event that does not fit on a line is refused before anything is written, and the thread can continue.
pub fn an_event_too_long_for_a_line_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "long");
    leaves_no_trace(&store, &[&thread], || {
        let mut changeset = says("before");
        changeset.messages.push(Message::text(Role::User, "x".repeat(MAX_LINE_BYTES)));
        assert_refused!(store.commit(Batch::of(part(&thread, changeset))), Error::Line(_), "a line of more than 8 MiB");
    });
    let large = "y".repeat(1024 * 1024);
    assert_eq!(append(&store, &thread, says(&large)), 1, "a megabyte fits");
    assert_eq!(loaded(&store, &harness.trust(), &thread).messages[0].plain_text(), large);
}

/// A changeset that contradicts itself is refused whole.
pub fn a_changeset_that_contradicts_itself_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "contradicted");
    let nameless_run = Changeset { run_id: None, ..starts("run-1") };
    let smuggled = with_event(Event::Message(Message::text(Role::User, "smuggled")));
    leaves_no_trace(&store, &[&thread], || {
        for odd in [nameless_run, smuggled] {
            assert_refused!(store.commit(Batch::of(part(&thread, odd))), Error::Changeset(_), "a contradiction");
        }
    });
}

/// Threads that are written at the same time do not get into each other's logs.
pub fn threads_grow_in_parallel<H: Harness>(harness: &H) {
    let one = harness.open();
    let two = harness.open();
    let threads: Vec<_> = (0..4).map(|number| create(&one, &format!("side-{number}"))).collect();
    at_once(4, |worker| {
        let store = if worker % 2 == 0 { &one } else { &two };
        for version in 1..=10 {
            let next = part_at(&threads[worker], version - 1, says(&format!("{worker}.{version}")));
            with_retries(|| store.commit(Batch::of(next.clone()))).unwrap_or_else(|error| panic!("{worker}: {error}"));
        }
    });
    for (worker, thread) in threads.iter().enumerate() {
        verified(&two, &harness.trust(), thread);
        let texts: Vec<_> = loaded(&one, &harness.trust(), thread).messages.iter().map(Message::plain_text).collect();
        assert_eq!(texts, (1..=10).map(|version| format!("{worker}.{version}")).collect::<Vec<_>>());
    }
}
