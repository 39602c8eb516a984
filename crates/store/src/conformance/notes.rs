//! Requests from those without the lease: posted once, answered once.

use std::time::Duration;

use selvedge_model::{Batch, Note, NoteKey, ThreadId};
use serde_json::json;

use super::Harness;
use super::support::*;
use crate::contract::{Acquire, Commit, Leases, Notes, Registry};
use crate::error::Error;

const AT_ONCE: Acquire = Acquire { wait: Duration::ZERO, take_over: false };

fn keys(store: &impl Notes, thread: &ThreadId) -> Vec<NoteKey> {
    store.pending(thread).unwrap().into_iter().map(|note| note.key).collect()
}

fn consuming(thread: &ThreadId, key: &str) -> Batch {
    Batch { consumed: vec![(thread.clone(), id(key))], ..Batch::of(part(thread, says("answered"))) }
}

/// A posted note waits for its thread, seen by everybody, until it is answered; its sender may die.
pub fn a_posted_note_is_pending<H: Harness>(harness: &H) {
    let (sender, store) = (harness.open(), harness.open());
    let thread = create(&sender, "asked");
    assert_eq!(store.pending(&thread).unwrap(), []);
    let sent = Note { body: json!({"text": "go", "n": [1, null]}), ..note(&thread, "n1", "send") };
    sender.post(sent.clone()).unwrap();
    assert_eq!(store.pending(&thread).unwrap(), std::slice::from_ref(&sent));
    drop(sender);
    assert_eq!(store.pending(&thread).unwrap(), [sent]);
    assert_eq!(store.get(&thread).unwrap().version, 0, "a note is no version");
}

/// A note posted twice is one note.
pub fn a_note_posted_twice_is_one<H: Harness>(harness: &H) {
    let (store, other) = (harness.open(), harness.open());
    let thread = create(&store, "asked");
    for handle in [&store, &other, &store] {
        handle.post(note(&thread, "n1", "send")).unwrap();
    }
    assert_eq!(keys(&store, &thread), [id("n1")]);
}

/// Another content under a known key is refused.
pub fn another_note_under_a_known_key_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "asked");
    let first = note(&thread, "n1", "send");
    store.post(first.clone()).unwrap();
    let other_body = Note { body: json!("else"), ..first.clone() };
    for changed in [other_body, note(&thread, "n1", "cancel")] {
        let answer = store.post(changed.clone());
        assert_refused!(answer, Error::NoteReused { key, .. } if key.as_str() == "n1", "{changed:?}");
        let posting = Batch { posted: vec![changed.clone()], ..Batch::of(part(&thread, empty())) };
        leaves_no_trace(&store, &[&thread], || {
            assert_refused!(store.commit(posting), Error::NoteReused { .. }, "a batch that posts {changed:?}");
        });
    }
    assert_eq!(store.pending(&thread).unwrap(), [first]);
}

/// A batch can't post two notes under one key: one of them would be lost.
pub fn a_batch_cannot_post_two_notes_under_one_key<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "asked");
    let two = vec![note(&thread, "n1", "send"), note(&thread, "n1", "cancel")];
    leaves_no_trace(&store, &[&thread], || {
        let posting = Batch { posted: two, ..Batch::of(part(&thread, empty())) };
        assert_refused!(store.commit(posting), Error::NoteReused { .. }, "two notes under one key");
    });
    let same = vec![note(&thread, "n2", "send"), note(&thread, "n2", "send")];
    commit(&store, Batch { posted: same, ..Batch::of(part(&thread, empty())) });
    assert_eq!(keys(&store, &thread), [id("n2")], "the same note twice is one");
}

/// A key is its thread's: the same one to two threads is two notes.
pub fn the_same_key_to_two_threads_is_two_notes<H: Harness>(harness: &H) {
    let store = harness.open();
    let (one, two) = (create(&store, "one"), create(&store, "two"));
    store.post(note(&one, "n1", "send")).unwrap();
    store.post(note(&two, "n1", "cancel")).unwrap();
    commit(&store, consuming(&one, "n1"));
    assert_eq!((keys(&store, &one), keys(&store, &two)), (vec![], vec![id("n1")]));
}

/// Notes wait in the order they came, whoever posted them and however they are named.
pub fn notes_wait_in_the_order_they_came<H: Harness>(harness: &H) {
    let (one, two) = (harness.open(), harness.open());
    let (thread, other) = (create(&one, "asked"), create(&one, "other"));
    let names = ["z", "a", "m", "10", "9", "b"];
    for (number, name) in names.into_iter().enumerate() {
        let handle = if number % 2 == 0 { &one } else { &two };
        match number {
            3 => {
                let posting = Batch { posted: vec![note(&thread, name, "cancel")], ..Batch::of(part(&other, empty())) };
                commit(handle, posting);
            }
            _ => handle.post(note(&thread, name, "cancel")).unwrap(),
        }
    }
    one.post(note(&thread, "z", "cancel")).unwrap();
    assert_eq!(keys(&two, &thread), names.map(id), "a note posted again keeps its place");
    commit(&one, consuming(&thread, "m"));
    assert_eq!(keys(&two, &thread), ["z", "a", "10", "9", "b"].map(id));
}

/// A note is answered by one batch; the second one is refused whole.
pub fn a_note_is_answered_once<H: Harness>(harness: &H) {
    let (store, other) = (harness.open(), harness.open());
    let thread = create(&store, "asked");
    store.post(note(&thread, "n1", "send")).unwrap();
    store.post(note(&thread, "n2", "send")).unwrap();
    commit(&store, consuming(&thread, "n1"));
    assert_eq!(keys(&other, &thread), [id("n2")]);
    leaves_no_trace(&other, &[&thread], || {
        let answer = other.commit(consuming(&thread, "n1"));
        assert_refused!(answer, Error::NoteGone { key, .. } if key.as_str() == "n1", "a second answer");
        let mut both = consuming(&thread, "n2");
        both.consumed.push((thread.clone(), id("never-posted")));
        assert_refused!(other.commit(both), Error::NoteGone { .. }, "an answer to what was never asked");
    });
    assert_eq!(append(&store, &thread, empty()), 2);
}

/// Of two who answer at once, one does.
pub fn of_two_answers_at_once_one_counts<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "asked");
    for round in 1..=5 {
        let key = format!("n{round}");
        stores[0].post(note(&thread, &key, "send")).unwrap();
        let answers = at_once(2, |worker| stubbornly(|| stores[worker].commit(consuming(&thread, &key))));
        let winner = answers.iter().position(Result::is_ok).expect("one must answer");
        assert_refused!(&answers[1 - winner], Error::NoteGone { .. }, "the other answer");
        assert_eq!(stores[1].get(&thread).unwrap().version, round, "nothing of the other is visible");
    }
}

/// A batch that is refused answers nothing and posts nothing; one that is committed does both.
pub fn notes_go_with_their_batch<H: Harness>(harness: &H) {
    let store = harness.open();
    let (thread, parent, child) = (create(&store, "asked"), create(&store, "parent"), id("child"));
    store.post(note(&thread, "n1", "send")).unwrap();
    let answering = |version| Batch {
        consumed: vec![(thread.clone(), id("n1"))],
        posted: vec![
            note(&parent, "told", "child_settled"),
            note(&child, "hello", "send"),
            note(&thread, "n2", "cancel"),
        ],
        ..batch([part_at(&thread, version, says("done")), birth(&child, new_thread())])
    };
    leaves_no_trace(&store, &[&thread, &parent, &child], || {
        assert_refused!(store.commit(answering(7)), Error::Conflict { .. }, "a batch at the wrong version");
    });
    commit(&store, answering(0));
    assert_eq!(keys(&store, &thread), [id("n2")]);
    assert_eq!(keys(&store, &parent), [id("told")], "a thread that is no part of the batch may be told");
    assert_eq!(keys(&store, &child), [id("hello")], "and one that the batch creates");
}

/// Nobody is asked who is not there.
pub fn a_note_to_nobody_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "asker");
    assert_refused!(store.post(note(&id("nobody"), "n1", "send")), Error::NoThread(_), "a note to nobody");
    leaves_no_trace(&store, &[&thread], || {
        let posting = Batch { posted: vec![note(&id("nobody"), "n1", "send")], ..Batch::of(part(&thread, empty())) };
        assert_refused!(store.commit(posting), Error::NoThread(_), "a batch that posts to nobody");
        let answering = Batch { consumed: vec![(id("nobody"), id("n1"))], ..Batch::of(part(&thread, empty())) };
        assert!(store.commit(answering).is_err(), "a batch that answers for nobody");
    });
}

/// Whoever holds a thread can't go while a message waits that only the holder can answer; other requests do not hold it.
pub fn a_lease_stays_while_a_message_waits<H: Harness>(harness: &H) {
    let (holder, sender) = (harness.open(), harness.open());
    let thread = create(&holder, "owed");
    let lease = holder.acquire(&thread, AT_ONCE).unwrap();
    for kind in ["cancel", "rename", "send", "send"] {
        let key = format!("{kind}-{}", keys(&sender, &thread).len());
        sender.post(note(&thread, &key, kind)).unwrap();
    }
    assert_refused!(holder.release(&lease), Error::NotesPending { count: 2, .. }, "a release while two messages wait");
    holder.renew(&lease).unwrap();
    assert_refused!(sender.acquire(&thread, AT_ONCE), Error::LeaseHeld { .. }, "a lease that was not given back");
    for key in ["send-2", "send-3"] {
        let mut answer = consuming(&thread, key);
        answer.parts[0] = answer.parts[0].clone().under(lease.epoch);
        commit(&holder, answer);
    }
    holder.release(&lease).unwrap();
    assert_eq!(keys(&sender, &thread).len(), 2, "what else was asked still waits");
    sender.acquire(&thread, AT_ONCE).unwrap();
}

/// A message that comes while its holder goes is either answered by the holder or finds the thread free.
pub fn no_message_falls_between_two_holders<H: Harness>(harness: &H) {
    let (holder, sender) = (harness.open(), harness.open());
    for round in 0..20 {
        let thread = create(&holder, &format!("between-{round}"));
        let lease = holder.acquire(&thread, AT_ONCE).unwrap();
        let results = at_once(2, |worker| match worker {
            0 => stubbornly(|| holder.release(&lease)),
            _ => stubbornly(|| sender.post(note(&thread, "n1", "send"))),
        });
        results[1].as_ref().unwrap_or_else(|error| panic!("round {round}: {error}"));
        match &results[0] {
            Ok(()) => drop(sender.acquire(&thread, AT_ONCE).unwrap_or_else(|error| panic!("it is free: {error}"))),
            Err(Error::NotesPending { .. }) => {
                holder.renew(&lease).unwrap_or_else(|error| panic!("it is held: {error}"))
            }
            Err(error) => panic!("round {round}: {error}"),
        }
        assert_eq!(keys(&sender, &thread), [id("n1")]);
    }
}
