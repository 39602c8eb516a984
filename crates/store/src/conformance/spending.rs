//! Nothing is spent without a reservation: the ceiling holds for every caller, and for many at once.

use selvedge_model::account::{AccountId, Posting, PostingError};
use selvedge_model::{Batch, Changeset, Kind, Reason, ThreadId};

use super::Harness;
use super::ledger::{close, issue, money, open, posts, records_in, release, reserve, settle};
use super::support::*;
use crate::contract::{Commit, Ledger, Registry, Store};
use crate::error::Error;

fn remaining(store: &impl Store, account: &AccountId) -> i64 {
    store.account(account).unwrap().unwrap().remaining().unwrap().nanos()
}

/// The budget refuses the next reservation, and the error has the remaining amount.
pub fn the_budget_refuses_the_next_reservation<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "tight");
    commit(&store, Batch::of(posts(&thread, [open(&thread, Some(10)), reserve(&thread, "a", 7)])));
    leaves_no_trace(&store, &[&thread], || {
        let answer = store.commit(Batch::of(posts(&thread, [reserve(&thread, "b", 4)])));
        let Err(error) = answer else { panic!("4 of 3 can't be reserved: {answer:?}") };
        assert_eq!(selvedge_model::Classify::kind(&error), Kind::Exhausted);
        let expected = PostingError::Insufficient { account: thread.clone(), remaining: money(3), requested: money(4) };
        assert_refused!(Err::<(), _>(error), Error::Posting(found) if found == expected, "4 of 3");
    });
    commit(&store, Batch::of(posts(&thread, [reserve(&thread, "b", 3)])));
    commit(&store, Batch::of(posts(&thread, [release(&thread, "a"), reserve(&thread, "c", 7)])));
    assert_eq!(remaining(&store, &thread), 0, "a released amount can be reserved again");
}

/// A refused posting leaves nothing of its batch: no version, no message, no other posting.
pub fn a_refused_posting_leaves_nothing_of_its_batch<H: Harness>(harness: &H) {
    let store = harness.open();
    let (one, two, unborn): (ThreadId, ThreadId, ThreadId) =
        (create(&store, "one"), create(&store, "two"), id("unborn"));
    commit(&store, Batch::of(posts(&one, [open(&one, Some(10))])));
    leaves_no_trace(&store, &[&one, &two, &unborn], || {
        let good = posts(&one, [reserve(&one, "a", 6), open(&two, None)]);
        let mut bad = posts(&two, [reserve(&one, "b", 6)]);
        bad.changeset = says("never");
        for parts in
            [[good.clone(), bad.clone(), birth(&unborn, new_thread())], [birth(&unborn, new_thread()), bad, good]]
        {
            let answer = store.commit(batch(parts));
            assert_refused!(answer, Error::Posting(PostingError::Insufficient { .. }), "6 and 6 of 10");
        }
    });
    commit(&store, Batch::of(posts(&one, [reserve(&one, "a", 6)])));
}

/// A valid posting in a batch that is refused for another reason is not posted.
pub fn a_conflict_discards_its_postings<H: Harness>(harness: &H) {
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    commit(&store, Batch::of(posts(&one, [open(&one, Some(10))])));
    leaves_no_trace(&store, &[&one, &two], || {
        let late = batch([posts(&one, [reserve(&one, "a", 6)]), part_at(&two, 5, empty())]);
        assert_refused!(store.commit(late), Error::Conflict { .. }, "a batch at the wrong version");
    });
    commit(&store, Batch::of(posts(&two, [reserve(&one, "a", 10)])));
}

/// Of two that reserve the last of an account at once, one gets it.
pub fn the_last_of_an_account_is_reserved_once<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    for round in 0..5 {
        let account = create(&stores[0], &format!("account-{round}"));
        let threads = [create(&stores[0], &format!("one-{round}")), create(&stores[1], &format!("two-{round}"))];
        commit(&stores[0], Batch::of(posts(&account, [open(&account, Some(10))])));
        let answers = at_once(2, |worker| {
            let last = posts(&threads[worker], [reserve(&account, &format!("by-{worker}"), 10)]);
            with_retries(|| stores[worker].commit(Batch::of(last.clone())))
        });
        let winner = answers.iter().position(Result::is_ok).expect("one must get it");
        let refused = &answers[1 - winner];
        assert_refused!(
            refused,
            Error::Posting(PostingError::Insufficient { .. }),
            "the second reservation of the last amount"
        );
        assert_eq!(remaining(&stores[0], &account), 0);
        assert_eq!(stores[0].get(&threads[1 - winner]).unwrap().version, 0, "nothing of the loser is visible");
        assert_eq!(records_in(&stores[0], &threads[winner]).len(), 1);
    }
}

/// However many reserve at once, the ceiling holds, and the logs have one order.
pub fn the_ceiling_holds_under_a_crowd<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let account = create(&stores[0], "ceiling");
    commit(&stores[0], Batch::of(posts(&account, [open(&account, Some(10))])));
    let threads: Vec<_> = (0..4).map(|worker| create(&stores[0], &format!("worker-{worker}"))).collect();
    let granted: usize = at_once(4, |worker| {
        let attempts =
            (0..6).map(|attempt| posts(&threads[worker], [reserve(&account, &format!("{worker}.{attempt}"), 1)]));
        let answers = attempts.map(|attempt| with_retries(|| stores[worker % 2].commit(Batch::of(attempt.clone()))));
        let granted = |answer: &Result<_, Error>| match answer {
            Ok(_) => true,
            Err(Error::Posting(PostingError::Insufficient { .. })) => false,
            Err(error) => panic!("worker {worker}: {error}"),
        };
        answers.filter(granted).count()
    })
    .into_iter()
    .sum();
    assert_eq!((granted, remaining(&stores[1], &account)), (10, 0), "ten of ten are granted");
    let records = threads.iter().flat_map(|thread| records_in(&stores[1], thread));
    let told = sorted(records.map(|(_, record)| (record.account_version, record.remaining.unwrap().nanos())));
    assert_eq!(
        told,
        (2..=11).zip((0..10).rev()).collect::<Vec<_>>(),
        "each version once, and the remaining amount falls by one"
    );
}

/// An overcharge by a provider is recorded as it is, and nothing can be reserved afterwards.
pub fn an_overcharge_is_recorded_and_stops_the_account<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "overcharged");
    commit(&store, Batch::of(posts(&thread, [open(&thread, Some(10)), reserve(&thread, "a", 5), issue(&thread, "a")])));
    commit(&store, Batch::of(posts(&thread, [settle(&thread, "a", 25)])));
    let account = store.account(&thread).unwrap().unwrap();
    assert_eq!((account.settled, account.remaining()), (money(25), Some(money(0))));
    let next = Batch::of(posts(&thread, [reserve(&thread, "b", 1)]));
    assert_refused!(
        store.commit(next),
        Error::Posting(PostingError::Insufficient { .. }),
        "the call after an overcharge"
    );
}

/// An unknown cost is settled at its bound, and marked as unknown.
pub fn an_unknown_outcome_is_settled_at_its_bound<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "unknown");
    commit(&store, Batch::of(posts(&thread, [open(&thread, Some(10)), reserve(&thread, "a", 5), issue(&thread, "a")])));
    let bound = Posting::Settle { account: thread.clone(), reservation: id("a"), amount: money(5), unknown: true };
    commit(&store, Batch::of(posts(&thread, [bound])));
    let (kind, record) = records_in(&store, &thread).pop().unwrap();
    assert_eq!((kind, record.amount, record.unknown), ("settled", Some(money(5)), true));
    assert_eq!(remaining(&store, &thread), 5);
}

/// A reservation outlives the process that made it; another one settles it.
pub fn a_reservation_outlives_its_maker<H: Harness>(harness: &H) {
    let maker = harness.open();
    let thread = create(&maker, "maker");
    let other = create(&maker, "other");
    commit(&maker, Batch::of(posts(&thread, [open(&thread, Some(10)), reserve(&thread, "a", 5), issue(&thread, "a")])));
    drop(maker);
    let store = harness.open();
    assert_eq!(remaining(&store, &thread), 5);
    commit(&store, Batch::of(posts(&other, [settle(&thread, "a", 2)])));
    commit(&store, Batch::of(posts(&other, [close(&thread)])));
    assert_eq!(remaining(&store, &thread), 8);
}

/// Reserving, issuing and a message are one commit, and each record is signed with the rest.
pub fn postings_are_committed_with_what_they_pay_for<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "riding");
    commit(&store, Batch::of(posts(&thread, [open(&thread, Some(10))])));
    commit(&store, Batch::of(posts(&thread, [reserve(&thread, "a", 5), issue(&thread, "a")])));
    let mut turn = posts(&thread, [settle(&thread, "a", 4)]);
    turn.changeset = Changeset { reason: Reason::AssistantTurnCommitted, ..says("the answer") };
    commit(&store, Batch::of(turn));
    let entries = verified(&store, &harness.trust(), &thread);
    assert_eq!(entries.len(), 4);
    assert_eq!(entries[3].lines.len(), 3, "message, settled, checkpoint");
    assert_eq!(remaining(&store, &thread), 6);
}
