//! Two writers never both win a version, and nothing of the loser is visible.

use std::time::Instant;

use selvedge_model::{Batch, Changeset, Classify, Kind, Message};
use serde_json::json;

use super::Harness;
use super::ledger::{open, posts};
use super::support::*;
use crate::contract::{Commit, Inbox, Logs, Registry};
use crate::error::Error;

/// A conflict has the expected and the actual version.
pub fn a_conflict_names_both_versions<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "contended");
    append(&store, &thread, empty());
    append(&store, &thread, empty());
    for expected in [0, 1, 3, 99, u64::MAX] {
        let refused = store.commit(Batch::of(part_at(&thread, expected, says("late"))));
        let Err(error) = refused else { panic!("version {expected} is not the current one") };
        assert_eq!((error.kind(), error.retryable()), (Kind::Conflict, false), "the same request can't succeed later");
        assert_refused!(
            Err::<(), _>(error),
            Error::Conflict { thread: found, expected: said, actual: 2 } if found == thread && said == expected,
            "an append at version {expected}"
        );
    }
}

/// Nothing of the loser is visible: no byte, message, state, run, request, posting, key or feed position.
pub fn nothing_of_the_loser_is_visible<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "won");
    let other = create(&store, "other");
    append(&store, &thread, patches([set("n", json!(1))]));
    store.post(request(&thread, "asked", "cancel")).unwrap();
    let lost = Changeset { snapshot: Some(json!({"n": 100})), ..says_as("m1", "lost") };
    let lost = Changeset { run_id: starts("run-9").run_id, run_meta: starts("run-9").run_meta, ..lost };
    let lost = Changeset { patches: patches([set("n", json!(101))]).patches, ..lost };
    let lost = Changeset { events: vec![super::inbox::verdict("asked")], ..lost };
    leaves_no_trace(&store, &[&thread, &other], || {
        let mut part = part_at(&thread, 0, lost.clone());
        part.postings = vec![open(&thread, None)];
        let mut batch = batch([part, posts(&other, [open(&other, None)])]).with_key(id("key-of-the-loser"));
        batch.consumed = vec![(thread.clone(), id("asked"))];
        batch.posted = vec![request(&other, "posted", "send")];
        assert_refused!(store.commit(batch), Error::Conflict { expected: 0, actual: 1, .. }, "a batch that comes late");
    });
    assert_eq!(store.outcome(&id("key-of-the-loser")).unwrap(), None, "the key was not used");
    append(&store, &thread, says_as("m1", "won"));
    append(&store, &thread, starts("run-9"));
    append(&store, &thread, patches([count("n")]));
    let found = loaded(&store, &harness.trust(), &thread);
    assert_eq!(found.messages.iter().map(Message::plain_text).collect::<Vec<_>>(), ["won"], "the id was not used");
    assert_eq!((found.state, found.runs.len()), (json!({"n": 2}), 1), "the state was never replaced");
}

/// OS threads that race for versions win each version once.
pub fn racing_writers_win_each_version_once<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "raced");
    let won = at_once(4, |worker| {
        let store = &stores[worker % 2];
        let mut won = Vec::new();
        let began = Instant::now();
        while won.len() < 8 {
            assert!(began.elapsed() < TIMEOUT, "worker {worker} wins nothing more after {won:?}");
            let version = store.head(&thread).unwrap().version;
            let next = part_at(&thread, version, says(&format!("{worker}.{}", won.len())));
            match with_retries(|| store.commit(Batch::of(next.clone()))) {
                Ok(committed) => won.push(committed.version_of(&thread).unwrap()),
                Err(Error::Conflict { expected, actual, .. }) => {
                    assert!(
                        expected == version && actual > expected,
                        "{expected} was expected, {actual} is the actual version"
                    );
                }
                Err(error) => panic!("worker {worker}: {error}"),
            }
        }
        assert!(won.is_sorted(), "a writer's versions rise");
        won
    });
    assert_eq!(sorted(won.into_iter().flatten()), (1..=32).collect::<Vec<_>>(), "each version is won once");
    assert_eq!(verified(&stores[0], &harness.trust(), &thread).len(), 33);
    let texts = loaded(&stores[1], &harness.trust(), &thread).messages.into_iter().map(|message| message.plain_text());
    let expected = sorted((0..4).flat_map(|worker| (0..8).map(move |number| format!("{worker}.{number}"))));
    assert_eq!(sorted(texts), expected, "each winner's message is there once, no loser's is");
}

/// Of the writers that race for one version, one wins, and the others get a conflict.
pub fn one_version_has_one_winner<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "single");
    for version in 0..5 {
        let answers = at_once(4, |worker| {
            let next = part_at(&thread, version, says(&format!("{worker}")));
            with_retries(|| stores[worker % 2].commit(Batch::of(next.clone())))
        });
        let winners: Vec<_> = (0..4).filter(|worker| answers[*worker].is_ok()).collect();
        assert_eq!(winners.len(), 1, "version {} has one winner: {answers:?}", version + 1);
        for answer in answers.iter().filter(|answer| answer.is_err()) {
            let next = version + 1;
            assert_refused!(answer, Error::Conflict { actual, .. } if *actual == next, "a loser of version {next}");
        }
        let last = loaded(&stores[0], &harness.trust(), &thread).messages.pop().unwrap();
        assert_eq!(last.plain_text(), winners[0].to_string());
    }
    assert_eq!(stores[1].get(&thread).unwrap().version, 5);
}

/// Appends that expect no version are all committed.
pub fn appends_at_any_version_are_all_committed<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "welcoming");
    let versions = at_once(4, |worker| {
        let arrive = |number| {
            let next = part(&thread, says(&format!("{worker}.{number}")));
            let committed = with_retries(|| stores[worker % 2].commit(Batch::of(next.clone())));
            committed.unwrap_or_else(|error| panic!("{worker}.{number}: {error}")).version_of(&thread).unwrap()
        };
        (0..8).map(arrive).collect::<Vec<_>>()
    });
    assert_eq!(sorted(versions.into_iter().flatten()), (1..=32).collect::<Vec<_>>(), "each gets a version of its own");
    verified(&stores[0], &harness.trust(), &thread);
    assert_eq!(loaded(&stores[1], &harness.trust(), &thread).messages.len(), 32);
}

/// Increments of racing writers are all counted.
pub fn patches_of_racing_writers_are_all_counted<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "counter");
    append(&stores[0], &thread, patches([set("n", json!(0))]));
    at_once(4, |worker| {
        for _ in 0..8 {
            let next = part(&thread, patches([count("n")]));
            with_retries(|| stores[worker % 2].commit(Batch::of(next.clone())))
                .unwrap_or_else(|error| panic!("{error}"));
        }
    });
    assert_eq!(loaded(&stores[0], &harness.trust(), &thread).state, json!({"n": 32}));
}
