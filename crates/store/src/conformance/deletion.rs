//! Deletion: for good, with a tombstone, and no writer can undo it.

use selvedge_model::account::replay::DeletedPostings;
use selvedge_model::{Batch, Expect, Part, ThreadId};
use serde_json::json;

use super::Harness;
use super::chains::hands_off;
use super::ledger::{open, posts, release, reserve};
use super::support::*;
use crate::contract::{Acquire, Commit, Filter, Inbox, Leases, Ledger, Logs, Registry, Summary};
use crate::error::{Error, Result};

/// A deleted thread is deleted for every reader, and its tombstone has its last state.
pub fn a_deleted_thread_leaves_a_tombstone<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "gone");
    append(&store, &thread, says("soon gone"));
    let blob = store.put_blob(&thread, b"gone too").unwrap();
    store.post(request(&thread, "n1", "send")).unwrap();
    let summary = store.get(&thread).unwrap();
    let head = store.head(&thread).unwrap();
    assert_eq!(store.tombstone(&thread).unwrap(), None, "an existing thread has none");
    let tombstone = store.delete(&thread).unwrap();
    assert_eq!((&tombstone.manifest, &tombstone.head), (&summary.manifest, &head));
    for handle in [&store, &other] {
        assert_eq!(handle.tombstone(&thread).unwrap().as_ref(), Some(&tombstone));
        let answers: [(&str, Result<()>); 9] = [
            ("get", handle.get(&thread).map(drop)),
            ("head", handle.head(&thread).map(drop)),
            ("read", handle.read(&thread, 0, 1).map(drop)),
            ("transcript", handle.transcript(&thread).map(drop)),
            ("runs", handle.runs(&thread).map(drop)),
            ("blob", handle.blob(&thread, &blob).map(drop)),
            ("pending", handle.pending(&thread).map(drop)),
            ("post", handle.post(request(&thread, "n2", "send")).map(drop)),
            ("delete", handle.delete(&thread).map(drop)),
        ];
        for (question, answer) in answers {
            assert_refused!(answer, Error::Deleted(found) if found == thread, "{question} of a deleted thread");
        }
    }
}

/// Lists, prefixes and parents don't show a deleted thread.
pub fn a_deleted_thread_is_listed_no_more<H: Harness>(harness: &H) {
    let store = harness.open();
    let parent = create(&store, "parent");
    let child =
        create_as(&store, "child", selvedge_model::NewThread { parent_id: Some(parent.clone()), ..new_thread() });
    store.delete(&child).unwrap();
    let listed = store.list(&Filter::default(), None, 10).unwrap().items;
    assert_eq!(listed.iter().map(|summary| &summary.manifest.thread_id).collect::<Vec<_>>(), [&parent]);
    assert_eq!(store.children(&parent).unwrap(), []);
    assert_refused!(store.resolve("chil"), Error::NoThread(_), "a prefix of a deleted thread");
}

/// A running thread is not deleted.
pub fn a_running_thread_is_not_deleted<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "running");
    append(&store, &thread, starts("run-1"));
    leaves_no_trace(&store, &[&thread], || {
        assert_refused!(store.delete(&thread), Error::Running(found) if found == thread, "deleting a running thread");
    });
    assert_eq!(store.tombstone(&thread).unwrap(), None);
    append(&store, &thread, finishes("run-1", "natural"));
    store.delete(&thread).unwrap();
}

/// A thread whose chain has an amount reserved is not deleted; once nothing is reserved it is, and its tombstone has its postings.
pub fn a_thread_with_a_reservation_is_not_deleted<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "rich");
    commit(&store, Batch::of(posts(&thread, [open(&thread, Some(10)), reserve(&thread, "r", 5)])));
    leaves_no_trace(&store, &[&thread], || {
        assert_refused!(store.delete(&thread), Error::AccountInUse { account, .. } if account == thread, "deleting a thread with a reservation");
    });
    assert_eq!(store.tombstone(&thread).unwrap(), None);
    commit(&store, Batch::of(posts(&thread, [release(&thread, "r")])));
    let buried = DeletedPostings { account: thread.clone(), from: 1, to: 3 };
    assert_eq!(store.delete(&thread).unwrap().postings, Some(vec![buried]));
}

/// A thread that another handle has leased is not deleted; once the holder is dead it is.
pub fn a_leased_thread_is_not_deleted<H: Harness>(harness: &H) {
    let holder = harness.open();
    let store = harness.open();
    let thread = create(&holder, "held");
    let lease = holder.acquire(&thread, Acquire::default()).unwrap();
    leaves_no_trace(&store, &[&thread], || {
        assert_refused!(store.delete(&thread), Error::LeaseHeld { holder, .. } if holder == lease.owner, "deleting a leased thread");
    });
    commit(&holder, Batch::of(part(&thread, empty()).under(lease.epoch)));
    drop(holder);
    store.delete(&thread).unwrap();
    assert_refused!(store.renew(&lease), Error::Deleted(_) | Error::StaleEpoch { .. }, "a lease on a deleted thread");
    assert_eq!(store.expired().unwrap(), [], "a deleted thread has no lease");
}

/// An id is never reused.
pub fn an_id_is_never_used_again<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "once");
    store.delete(&thread).unwrap();
    for handle in [&store, &other, &harness.open()] {
        let again = Batch::of(birth(&thread, new_thread()));
        assert_refused!(handle.commit(again), Error::Deleted(_), "a creation with the id of a deleted thread");
    }
    assert_refused!(store.get(&thread), Error::Deleted(_), "it stays deleted");
}

/// A late writer does not bring a deleted thread back, nor does a batch that includes one.
pub fn a_late_writer_does_not_bring_a_deleted_thread_back<H: Harness>(harness: &H) {
    let store = harness.open();
    let late = harness.open();
    let thread = create(&store, "gone");
    let other = create(&store, "other");
    let lease = late.acquire(&thread, Acquire::default()).unwrap();
    commit(&late, Batch::of(part(&thread, patches([set("n", json!(1))])).under(lease.epoch)));
    late.release(&lease).unwrap();
    store.delete(&thread).unwrap();
    leaves_no_trace(&store, &[&thread, &other], || {
        for expect in [Expect::Exact(1), Expect::Exact(0), Expect::Any] {
            let write = Part::new(thread.clone(), expect, patches([set("n", json!(2))]));
            assert_refused!(late.commit(Batch::of(write.clone())), Error::Deleted(_), "an append with {expect:?}");
            let leased = write.clone().under(lease.epoch);
            assert_refused!(late.commit(Batch::of(leased)), Error::Deleted(_), "an append under an old lease");
            let together = batch([part(&other, says("never")), write]);
            assert_refused!(late.commit(together), Error::Deleted(_), "a batch with a deleted thread");
        }
        assert_refused!(late.put_blob(&thread, b"late"), Error::Deleted(_), "a late blob");
        let telling = Batch { posted: vec![request(&thread, "n1", "send")], ..Batch::of(part(&other, empty())) };
        assert_refused!(late.commit(telling), Error::Deleted(_), "a batch that posts to a deleted thread");
    });
}

/// The walk along a chain passes through deleted threads.
pub fn a_chain_passes_through_deleted_threads<H: Harness>(harness: &H) {
    let store = harness.open();
    let threads: Vec<ThreadId> = ["one", "two", "three", "four"].map(id).to_vec();
    create(&store, "one");
    for pair in threads.windows(2) {
        append(&store, &pair[0], starts("run-1"));
        commit(&store, hands_off(&store, &pair[0], &pair[1]));
    }
    let ids = |found: Vec<Summary>| found.into_iter().map(|summary| summary.manifest.thread_id).collect::<Vec<_>>();
    store.delete(&threads[1]).unwrap();
    store.delete(&threads[2]).unwrap();
    let ends = [threads[0].clone(), threads[3].clone()];
    for end in &ends {
        assert_eq!(ids(store.chain(end).unwrap()), ends, "from `{end}`");
    }
    assert_refused!(store.chain(&threads[1]), Error::Deleted(_), "the chain of a deleted thread");
    store.delete(&threads[0]).unwrap();
    assert_eq!(ids(store.chain(&threads[3]).unwrap()), [threads[3].clone()], "the root may be deleted, too");
}

/// What was spent stays spent.
pub fn what_was_spent_outlives_the_thread<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "spender");
    commit(&store, Batch::of(posts(&thread, [open(&thread, Some(10))])));
    let account = store.account(&thread).unwrap();
    store.delete(&thread).unwrap();
    assert_eq!(store.account(&thread).unwrap(), account);
}

/// Only an existing thread can be deleted.
pub fn a_missing_thread_cannot_be_deleted<H: Harness>(harness: &H) {
    let store = harness.open();
    assert_refused!(store.delete(&id("missing")), Error::NoThread(_), "deleting a missing thread");
    assert_eq!(store.tombstone(&id("missing")).unwrap(), None);
    create(&store, "missing");
}

/// Of two deletions at once, one wins, and both agree on the tombstone.
pub fn of_two_deletions_at_once_one_wins<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    for round in 0..5 {
        let thread = create(&stores[0], &format!("twice-{round}"));
        let answers = at_once(2, |worker| with_retries(|| stores[worker].delete(&thread)));
        let winner = answers.iter().position(Result::is_ok).expect("one must win");
        assert_refused!(&answers[1 - winner], Error::Deleted(_), "the other deletion");
        assert_eq!(stores[1 - winner].tombstone(&thread).unwrap(), answers[winner].as_ref().ok().cloned());
    }
}

/// Of a deletion and an append at once, either the append is in the tombstone or it is refused.
pub fn a_deletion_and_an_append_at_once_agree<H: Harness>(harness: &H) {
    let store = harness.open();
    let writer = harness.open();
    for round in 0..20 {
        let thread = create(&store, &format!("crossed-{round}"));
        let answers = at_once(2, |worker| match worker {
            0 => with_retries(|| store.delete(&thread)).map(|tombstone| tombstone.head.version),
            _ => with_retries(|| writer.commit(Batch::of(part(&thread, says("now"))))).map(|_| 1),
        });
        match (&answers[0], &answers[1]) {
            (Ok(version), Ok(_)) => assert_eq!(*version, 1, "an acknowledged append is in the tombstone"),
            (Ok(version), Err(Error::Deleted(_))) => assert_eq!(*version, 0, "a refused one is not"),
            other => panic!("round {round}: {other:?}"),
        }
        assert_refused!(writer.get(&thread), Error::Deleted(_), "it is deleted either way");
    }
}
