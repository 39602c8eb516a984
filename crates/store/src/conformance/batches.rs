//! A batch is committed completely or not at all, over all its threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use selvedge_model::event::Fields;
use selvedge_model::{Batch, Changeset, Event, NewThread, Part, ThreadId};
use serde_json::json;

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Feed, Logs, Registry, Store};
use crate::error::Error;

fn two_threads(store: &impl Store) -> (ThreadId, ThreadId) {
    let one = create(store, "one");
    let two = create(store, "two");
    append(store, &two, patches([set("n", json!(1))]));
    (one, two)
}

/// A part at the wrong version keeps the other from being committed, in either order.
pub fn a_conflict_in_one_part_leaves_nothing_of_the_other<H: Harness>(harness: &H) {
    let store = harness.open();
    let (one, two) = two_threads(&store);
    leaves_no_trace(&store, &[&one, &two], || {
        let right = part_at(&one, 0, says_as("m1", "hello"));
        let wrong = part_at(&two, 7, says("never"));
        for parts in [[right.clone(), wrong.clone()], [wrong, right]] {
            let refused = store.commit(batch(parts));
            assert_refused!(refused, Error::Conflict { thread, .. } if thread == two, "a batch with a part at the wrong version");
        }
    });
    commit(&store, batch([part_at(&one, 0, says_as("m1", "other")), part_at(&two, 1, empty())]));
    assert_eq!(loaded(&store, &harness.trust(), &one).messages[0].plain_text(), "other", "the id was not used");
}

/// If any part is refused, nothing of the others is committed.
pub fn any_refused_part_leaves_nothing_of_the_others<H: Harness>(harness: &H) {
    let store = harness.open();
    let (one, two) = two_threads(&store);
    append(&store, &two, says_as("m1", "first"));
    let unborn: ThreadId = id("unborn");
    let refused: [(&str, Part); 6] = [
        ("a patch that does not apply", part(&two, patches([push("n", json!(1))]))),
        ("a message that changed", part(&two, says_as("m1", "second"))),
        ("an invalid status transition", part(&two, with_event(Event::ThreadHandoff(super::chains::handoff(&one))))),
        ("a missing thread", part(&id("missing"), empty())),
        ("an existing thread", birth(&two, new_thread())),
        ("a stale lease", part(&two, empty()).under(3)),
    ];
    leaves_no_trace(&store, &[&one, &two, &unborn], || {
        for (what, bad) in refused {
            let parts = [birth(&unborn, new_thread()), part(&one, says("hello")), bad];
            let answer = store.commit(batch(parts));
            assert!(answer.is_err(), "{what}: {answer:?}");
        }
    });
}

/// Every checkpoint names the other threads of its batch and their new versions.
pub fn each_checkpoint_names_its_mates<H: Harness>(harness: &H) {
    let store = harness.open();
    let (one, two) = two_threads(&store);
    let three: ThreadId = id("three");
    let parts = [part(&two, says("b")), birth(&three, new_thread()), part(&one, says("a"))];
    let committed = commit(&store, batch(parts));
    let versions = vec![(two.clone(), 2), (three.clone(), 0), (one.clone(), 1)];
    assert_eq!(committed.versions, versions, "the answer has the order of the parts");
    for (thread, version) in &versions {
        let entries = verified(&store, &harness.trust(), thread);
        let others = entries[entries.len() - 1].checkpoint().unwrap().with.clone();
        let expected = sorted(versions.iter().filter(|(other, _)| other != thread).cloned());
        assert_eq!(sorted(others), expected, "`{thread}` at version {version}");
    }
    append(&store, &one, empty());
    let entries = verified(&store, &harness.trust(), &one);
    assert_eq!(entries[2].checkpoint().unwrap().with, [], "a batch of one thread names no other thread");
}

/// A child and its parent's record of it are committed together.
pub fn a_birth_and_an_append_are_one<H: Harness>(harness: &H) {
    let store = harness.open();
    let parent = create(&store, "parent");
    let child: ThreadId = id("child");
    let spawned: Fields = serde_json::from_value(json!({"child_thread_id": "child"})).unwrap();
    let new = NewThread { parent_id: Some(parent.clone()), ..new_thread() };
    let spawn = |version| {
        batch([part_at(&parent, version, with_event(Event::ChildSpawned(spawned.clone()))), birth(&child, new.clone())])
    };
    leaves_no_trace(&store, &[&parent, &child], || {
        assert_refused!(store.commit(spawn(4)), Error::Conflict { .. }, "a spawn at the wrong version");
    });
    commit(&store, spawn(0));
    assert_eq!((store.get(&parent).unwrap().version, store.get(&child).unwrap().version), (1, 0));
    leaves_no_trace(&store, &[&parent, &child], || {
        assert_refused!(store.commit(spawn(1)), Error::Exists(_), "a second birth of the child");
    });
}

/// A batch needs at least one part, and at most one for each thread.
pub fn an_empty_batch_and_a_thread_twice_are_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let (one, two) = two_threads(&store);
    leaves_no_trace(&store, &[&one, &two], || {
        assert_refused!(store.commit(batch([])), Error::BadBatch, "a batch without a part");
        let twice = batch([part(&one, empty()), part(&two, empty()), part(&one, empty())]);
        assert_refused!(store.commit(twice), Error::BadBatch, "a thread twice");
        let born_twice = batch([birth(&id("new"), new_thread()), birth(&id("new"), new_thread())]);
        assert_refused!(store.commit(born_twice), Error::BadBatch, "a birth twice");
    });
}

/// No reader ever sees half a batch.
pub fn no_reader_sees_half_a_batch<H: Harness>(harness: &H) {
    let writer = harness.open();
    let reader = harness.open();
    let one = create(&writer, "one");
    let two = create(&writer, "two");
    let done = AtomicBool::new(false);
    at_once(2, |worker| {
        if worker == 0 {
            for number in 0..60 {
                let both = if number % 2 == 0 { [&one, &two] } else { [&two, &one] };
                commit(&writer, batch(both.map(|thread| part(thread, says("both")))));
            }
            done.store(true, Ordering::SeqCst);
            return;
        }
        let head = |thread| reader.head(thread).unwrap().version;
        let lines = |thread| lines_of(&reader, thread).len();
        let began = Instant::now();
        while !done.load(Ordering::SeqCst) && began.elapsed() < TIMEOUT {
            // Both grow together, so a later read is never behind an earlier one.
            let first = head(&one);
            let second = head(&two);
            let third = head(&one);
            assert!(first <= second && second <= third, "versions {first}, {second}, {third}");
            let first = lines(&one);
            let second = lines(&two);
            let third = lines(&one);
            assert!(first <= second && second <= third, "{first}, {second}, {third} lines");
        }
    });
    assert_eq!((reader.head(&one).unwrap().version, reader.head(&two).unwrap().version), (60, 60));
}

/// Batches over the same threads in different orders neither deadlock nor interleave.
pub fn crossing_batches_are_all_committed<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let threads = [create(&stores[0], "one"), create(&stores[0], "two"), create(&stores[0], "three")];
    at_once(2, |worker| {
        for round in 0..15 {
            let mut parts: Vec<_> =
                threads.iter().map(|thread| part(thread, says(&format!("{worker}.{round}")))).collect();
            if worker == 1 {
                parts.reverse();
            }
            let both: Batch = batch(parts);
            with_retries(|| stores[worker].commit(both.clone()))
                .unwrap_or_else(|error| panic!("{worker}.{round}: {error}"));
        }
    });
    let texts = |thread| -> Vec<String> {
        let found = loaded(&stores[0], &harness.trust(), thread);
        found.messages.iter().map(selvedge_model::Message::plain_text).collect()
    };
    assert_eq!(texts(&threads[0]).len(), 30);
    assert_eq!(texts(&threads[0]), texts(&threads[1]), "every log has the batches in one order");
    assert_eq!(texts(&threads[0]), texts(&threads[2]), "every log has the batches in one order");
    for entry in verified(&stores[1], &harness.trust(), &threads[0]).iter().skip(1) {
        let checkpoint = entry.checkpoint().unwrap();
        assert!(checkpoint.with.iter().all(|(_, version)| *version == checkpoint.version), "{checkpoint:?}");
    }
    assert_eq!(stores[0].position().unwrap(), stores[1].position().unwrap());
}

/// A batch may have changesets of every reason.
pub fn a_batch_may_mix_reasons<H: Harness>(harness: &H) {
    use selvedge_model::Reason::*;
    let store = harness.open();
    let reasons = [
        UserMessage,
        AssistantTurnCommitted,
        ToolResultsCommitted,
        RunFinished,
        Reserved,
        ToolIntentCommitted,
        Lifecycle,
    ];
    let threads: Vec<_> = reasons.iter().map(|reason| create(&store, &reason.as_str().to_lowercase())).collect();
    commit(&store, batch(threads.iter().zip(reasons).map(|(thread, reason)| part(thread, Changeset::empty(reason)))));
    for (thread, reason) in threads.iter().zip(reasons) {
        let entries = verified(&store, &harness.trust(), thread);
        let checkpoint = entries[1].checkpoint().unwrap();
        assert_eq!((checkpoint.reason, checkpoint.with.len()), (reason, reasons.len() - 1));
    }
}
