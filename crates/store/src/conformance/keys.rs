//! A key makes a commit idempotent: a lost answer is looked up, never guessed.

use selvedge_model::{Batch, CommitKey, Expect};
use serde_json::json;

use super::Harness;
use super::ledger::{open, posts, reserve};
use super::support::*;
use crate::contract::{Acquire, Commit, Inbox, Leases, Ledger, Registry};
use crate::error::Error;
use crate::prepare::request_hash;

/// The same request under the same key gets the first answer, and nothing is committed again.
pub fn the_same_request_gets_the_first_answer<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "retried");
    let request = Batch::of(part(&thread, says("once"))).with_key(id("k1"));
    let first = commit(&store, request.clone());
    assert!(!first.replayed);
    for _ in 0..3 {
        append(&store, &thread, says("something else"));
        leaves_no_trace(&store, &[&thread], || {
            for handle in [&store, &other] {
                let again = commit(handle, request.clone());
                assert_eq!((again.versions, again.replayed), (first.versions.clone(), true));
            }
        });
    }
}

/// Another request under a known key is refused.
pub fn another_request_under_the_key_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "keyed");
    let other = create(&store, "other");
    commit(&store, Batch::of(part(&thread, says("first"))).with_key(id("k1")));
    let mut posting = part(&thread, says("first"));
    posting.postings = vec![open(&thread, None)];
    let wrong = [
        batch([posting]),
        batch([part(&thread, says("second"))]),
        batch([part(&other, says("first"))]),
        batch([part(&thread, says("first")), part(&other, empty())]),
        batch([part(&thread, says_as("m1", "first"))]),
    ];
    leaves_no_trace(&store, &[&thread, &other], || {
        for request in wrong {
            let answer = store.commit(request.clone().with_key(id("k1")));
            assert_refused!(answer, Error::KeyReused(found) if found.as_str() == "k1", "{request:?}");
        }
    });
}

/// A retry may have another expected version or another right: it is still the same request.
pub fn a_retry_may_expect_another_version<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "relaxed");
    let request = |expect, right| {
        let mut part = part(&thread, says("once"));
        part.expect = expect;
        part.right = right;
        Batch::of(part).with_key(id("k1"))
    };
    use selvedge_model::Right::{Brief, Lease};
    let first = commit(&store, request(Expect::Exact(0), Brief));
    let _lease = other.acquire(&thread, Acquire::default()).unwrap();
    let rights = [Brief, Lease(0), Lease(99)];
    for (expect, right) in
        [Expect::Exact(0), Expect::Exact(1), Expect::Exact(42), Expect::Any].into_iter().zip(rights.into_iter().cycle())
    {
        let again = commit(&store, request(expect, right));
        assert_eq!((again.versions, again.replayed), (first.versions.clone(), true), "{expect:?}, {right:?}");
    }
    assert_eq!(store.get(&thread).unwrap().version, 1);
}

/// The outcome of a commit is found by its key, also by another handle and after the committer's death.
pub fn an_outcome_is_found_by_its_key<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "asked");
    assert_eq!(store.outcome(&id("k1")).unwrap(), None);
    let late = Batch::of(part_at(&thread, 9, empty())).with_key(id("k1"));
    assert_refused!(store.commit(late), Error::Conflict { .. }, "a commit at the wrong version");
    assert_eq!(store.outcome(&id("k1")).unwrap(), None, "a refused commit has no outcome");
    let first = commit(&store, Batch::of(part(&thread, empty())).with_key(id("k1")));
    assert_eq!(other.outcome(&id("k1")).unwrap().unwrap().versions, first.versions);
    drop(store);
    assert_eq!(other.outcome(&id("k1")).unwrap().unwrap().versions, first.versions);
    assert_eq!(other.outcome(&id("k2")).unwrap(), None);
}

/// Every checkpoint of a batch has its key and request, so that they survive the loss of the index.
pub fn checkpoints_have_key_and_request<H: Harness>(harness: &H) {
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    let request = batch([part(&one, says("a")), posts(&two, [open(&two, None)])]).with_key(id("k1"));
    let hash = request_hash(&request);
    commit(&store, request);
    append(&store, &one, empty());
    for thread in [&one, &two] {
        let entries = verified(&store, &harness.trust(), thread);
        let checkpoint = entries[1].checkpoint().unwrap();
        assert_eq!((&checkpoint.key, checkpoint.request), (&Some(id::<CommitKey>("k1")), Some(hash)), "`{thread}`");
    }
    let entries = verified(&store, &harness.trust(), &one);
    let without = entries[2].checkpoint().unwrap();
    assert_eq!((&without.key, without.request), (&None, None), "a commit without a key has none");
}

/// A refused commit leaves its key unused.
pub fn a_refused_commit_leaves_its_key_free<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "patient");
    let request = |expect| {
        let mut part = part(&thread, says("at last"));
        part.expect = expect;
        Batch::of(part).with_key(id("k1"))
    };
    assert_refused!(store.commit(request(Expect::Exact(5))), Error::Conflict { .. }, "a commit at the wrong version");
    let committed = commit(&store, request(Expect::Exact(0)));
    assert_eq!((committed.version_of(&thread), committed.replayed), (Some(1), false));
    let refused = Batch::of(part(&thread, patches([count("nothing")]))).with_key(id("k2"));
    assert_refused!(store.commit(refused), Error::Fold { .. }, "a patch that does not apply");
    let other = commit(&store, Batch::of(part(&thread, empty())).with_key(id("k2")));
    assert!(!other.replayed, "another request may use the key of a refused one");
}

/// A retried creation is not refused as a second one.
pub fn a_retried_birth_is_the_first_one<H: Harness>(harness: &H) {
    let store = harness.open();
    let request = Batch::of(birth(&id("born"), new_thread())).with_key(id("k1"));
    commit(&store, request.clone());
    append(&store, &id("born"), empty());
    let again = commit(&store, request);
    assert_eq!((again.versions, again.replayed), (vec![(id("born"), 0)], true));
}

/// Retries that come at once are committed once.
pub fn retries_at_once_are_committed_once<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "hasty");
    for version in 1..=5 {
        let request = Batch::of(part(&thread, says("once"))).with_key(id(&format!("k{version}")));
        let answers = at_once(4, |worker| with_retries(|| stores[worker % 2].commit(request.clone())).unwrap());
        assert!(answers.iter().all(|answer| answer.versions == [(thread.clone(), version)]), "one answer: {answers:?}");
        let fresh = answers.iter().filter(|answer| !answer.replayed).count();
        assert_eq!(fresh, 1, "one of them was the first: {answers:?}");
    }
    assert_eq!(verified(&stores[0], &harness.trust(), &thread).len(), 6);
}

/// A retry posts, consumes and counts nothing again.
pub fn a_retry_repeats_no_side_effect<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "side-effects");
    let other = create(&store, "other");
    append(&store, &thread, patches([set("n", json!(0))]));
    store.post(request(&thread, "asked", "send")).unwrap();
    let mut part = posts(&thread, [open(&thread, Some(10)), reserve(&thread, "a", 10)]);
    part.changeset =
        selvedge_model::Changeset { events: vec![super::inbox::verdict("asked")], ..patches([count("n")]) };
    let request = Batch {
        consumed: vec![(thread.clone(), id("asked"))],
        posted: vec![request(&other, "told", "child_settled")],
        ..Batch::of(part).with_key(id("k1"))
    };
    commit(&store, request.clone());
    leaves_no_trace(&store, &[&thread, &other], || {
        assert!(commit(&store, request.clone()).replayed);
    });
    assert_eq!(store.account(&thread).unwrap().unwrap().version, 2);
    assert_eq!(store.pending(&thread).unwrap(), []);
    assert_eq!(store.pending(&other).unwrap().len(), 1);
    assert_eq!(loaded(&store, &harness.trust(), &thread).state, json!({"n": 1}));
}

/// A batch over several threads is answered again as a whole.
pub fn a_retried_batch_is_answered_as_a_whole<H: Harness>(harness: &H) {
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    append(&store, &two, empty());
    let request = batch([part(&two, says("b")), part(&one, says("a"))]).with_key(id("k1"));
    let first = commit(&store, request.clone());
    assert_eq!(first.versions, [(two.clone(), 2), (one.clone(), 1)]);
    append(&store, &one, empty());
    assert_eq!(commit(&store, request).versions, first.versions, "in the order of the parts, as it was then");
}
