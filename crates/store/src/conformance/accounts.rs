//! Accounts that are closed, reopened, raised, stopped and corrected; and parent and child account, which change together or not at all.

use selvedge_model::account::replay::{AccountFlaw, LocatedRecord, replay};
use selvedge_model::account::{Account, AccountId, AccountStatus, Posting, PostingError, ReservationState};
use selvedge_model::{Batch, ThreadId};

use super::Harness;
use super::ledger::{close, issue, money, open, posts, release, reserve, settle};
use super::support::*;
use crate::contract::{Commit, Ledger, Logs, Store};
use crate::error::Error;

/// A parent that reserves 60 of 100 for a child, and the child.
fn family(store: &impl Store) -> (ThreadId, ThreadId) {
    let parent = create(store, "parent");
    let child = create(store, "child");
    let hold = Posting::Reserve {
        account: parent.clone(),
        reservation: id("for-child"),
        amount: money(60),
        child: Some(child.clone()),
    };
    let opened = Posting::Open { account: child.clone(), parent: Some(parent.clone()), max: Some(money(60)) };
    commit(store, Batch::of(posts(&parent, [open(&parent, Some(100)), hold, opened])));
    commit(
        store,
        Batch::of(posts(&child, [reserve(&child, "call", 50), issue(&child, "call"), settle(&child, "call", 20)])),
    );
    (parent, child)
}

fn account(store: &impl Store, id: &AccountId) -> Account {
    store.account(id).unwrap().unwrap()
}

fn figures(store: &impl Store, id: &AccountId) -> (i64, i64, i64, AccountStatus) {
    let Account { settled, settled_children, reserved, status, .. } = account(store, id);
    (settled.nanos(), settled_children.nanos(), reserved.nanos(), status)
}

/// Replaying the postings in the logs of some threads gives the accounts of the store, without a flaw.
fn logs_agree(store: &impl Store, threads: &[&ThreadId]) {
    let seen = threads.iter().flat_map(|thread| {
        let lines = store.read(thread, 0, usize::MAX).unwrap();
        lines.into_iter().filter_map(|line| {
            let (event_type, record) = line.event.posting()?;
            Some(LocatedRecord { thread: (*thread).clone(), line: line.seq, event_type, record: record.clone() })
        })
    });
    let replayed = replay(seen.collect::<Vec<_>>());
    assert_eq!(replayed.flaws, [], "the records are consistent");
    for (id, history) in &replayed.accounts {
        assert_eq!(history.account, account(store, id));
        let held: Vec<_> = history.reservations.values().cloned().collect();
        assert_eq!(held, store.reservations(id).unwrap());
    }
}

/// A child account is closed together with its reservation and with the amount that it spent, or not at all.
pub fn a_child_account_closes_together_with_its_reservation<H: Harness>(harness: &H) {
    let store = harness.open();
    let (parent, child) = family(&store);
    let refused = [
        vec![close(&child)],
        vec![settle(&parent, "for-child", 20)],
        vec![release(&parent, "for-child")],
        vec![close(&child), settle(&parent, "for-child", 19)],
        vec![close(&child), settle(&parent, "for-child", 21)],
        vec![close(&child), release(&parent, "for-child")],
    ];
    leaves_no_trace(&store, &[&parent, &child], || {
        for postings in refused {
            let answer = store.commit(Batch::of(posts(&child, postings.clone())));
            assert_refused!(answer, Error::AccountBusy(_), "{postings:?}");
        }
    });
    commit(&store, Batch::of(posts(&child, [close(&child), settle(&parent, "for-child", 20)])));
    assert_eq!(figures(&store, &child), (20, 0, 0, AccountStatus::Closed));
    assert_eq!(figures(&store, &parent), (0, 20, 0, AccountStatus::Active));
    logs_agree(&store, &[&parent, &child]);
}

/// An account that ends before its children is closing, and closed with the last of them.
pub fn an_account_that_ends_before_its_children_is_closing<H: Harness>(harness: &H) {
    let store = harness.open();
    let (parent, child) = family(&store);
    commit(&store, Batch::of(posts(&parent, [close(&parent)])));
    assert_eq!(account(&store, &parent).status, AccountStatus::Closing);
    let answer = store.commit(Batch::of(posts(&parent, [reserve(&parent, "late", 1)])));
    assert_refused!(answer, Error::Posting(PostingError::AccountClosed { .. }), "a call of a chain that has ended");
    commit(&store, Batch::of(posts(&child, [close(&child), settle(&parent, "for-child", 20)])));
    assert_eq!(figures(&store, &parent), (0, 20, 0, AccountStatus::Closed));
    assert_eq!(harness.open().account(&parent).unwrap(), store.account(&parent).unwrap());
    logs_agree(&store, &[&parent, &child]);
}

/// A closed account is reopened: a root directly, a child with an amount that its parent reserves again.
pub fn a_closed_account_is_reopened_with_an_amount_of_its_parent<H: Harness>(harness: &H) {
    let store = harness.open();
    let (parent, child) = family(&store);
    commit(&store, Batch::of(posts(&child, [close(&child), settle(&parent, "for-child", 20)])));
    commit(&store, Batch::of(posts(&parent, [close(&parent)])));
    let reopen = |account: &AccountId| Posting::Reopen { account: account.clone() };
    let again = |returned: i64, amount: i64| Posting::ReserveAgain {
        account: parent.clone(),
        reservation: id("again"),
        amount: money(amount),
        child: child.clone(),
        returned: money(returned),
    };
    leaves_no_trace(&store, &[&parent, &child], || {
        for postings in [vec![reopen(&child)], vec![again(20, 60)], vec![again(19, 60), reopen(&child)]] {
            let answer = store.commit(Batch::of(posts(&child, postings.clone())));
            assert_refused!(answer, Error::AccountBusy(_), "{postings:?}");
        }
        let answer = store.commit(Batch::of(posts(&child, [again(20, 101), reopen(&child)])));
        assert_refused!(answer, Error::Posting(PostingError::Insufficient { .. }), "more than its parent has");
    });
    commit(&store, Batch::of(posts(&child, [again(20, 60), reopen(&child)])));
    assert_eq!(figures(&store, &parent), (0, 0, 60, AccountStatus::Closing));
    assert_eq!(figures(&store, &child), (20, 0, 0, AccountStatus::Active));
    commit(&store, Batch::of(posts(&child, [reserve(&child, "more", 40), issue(&child, "more")])));
    let ends = [settle(&child, "more", 5), close(&child), settle(&parent, "again", 25)];
    commit(&store, Batch::of(posts(&child, ends)));
    assert_eq!(figures(&store, &parent), (0, 25, 0, AccountStatus::Closed), "nothing is charged twice");
    commit(&store, Batch::of(posts(&parent, [reopen(&parent), reserve(&parent, "own", 75)])));
    logs_agree(&store, &[&parent, &child]);
}

/// A raise, a stop, an unknown settlement and its correction are stored, and recorded in the log.
pub fn a_raise_a_stop_and_a_correction_are_kept<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "kept");
    let unknown =
        Posting::Settle { account: thread.clone(), reservation: id("lost"), amount: money(40), unknown: true };
    let lost = [open(&thread, Some(50)), reserve(&thread, "lost", 40), issue(&thread, "lost"), unknown];
    commit(&store, Batch::of(posts(&thread, lost)));
    let held = harness.open().reservations(&thread).unwrap();
    assert_eq!((held.len(), held[0].state, held[0].amount), (1, ReservationState::Unknown, money(40)));
    let correct = |amount: i64| Posting::Correct {
        account: thread.clone(),
        reservation: id("lost"),
        amount: money(amount),
        evidence: "the provider's page".to_owned(),
    };
    let answer = store.commit(Batch::of(posts(&thread, [correct(41)])));
    assert_refused!(answer, Error::Posting(PostingError::NotCorrected { .. }), "upward");
    let raise = Posting::Raise { account: thread.clone(), max: money(70) };
    commit(&store, Batch::of(posts(&thread, [correct(15), raise])));
    assert_eq!(account(&store, &thread).remaining(), Some(money(55)));
    assert_eq!(store.reservations(&thread).unwrap(), []);
    commit(&store, Batch::of(posts(&thread, [Posting::Stop { account: thread.clone() }])));
    let answer = store.commit(Batch::of(posts(&thread, [reserve(&thread, "more", 1)])));
    assert_refused!(answer, Error::Posting(PostingError::Insufficient { .. }), "a stopped account");
    logs_agree(&store, &[&thread]);
}

/// Sixty-four workers that reserve at once, each as often as it can, reach the ceiling and not more, and every log has the same records.
pub fn sixty_four_reserve_at_once_and_none_beyond_the_ceiling<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let account_id = create(&stores[0], "crowded");
    commit(&stores[0], Batch::of(posts(&account_id, [open(&account_id, Some(100))])));
    let threads: Vec<_> = (0..64).map(|worker| create(&stores[0], &format!("worker-{worker}"))).collect();
    let granted: Vec<i64> = at_once(64, |worker| {
        let store = &stores[worker % 2];
        let thread = &threads[worker];
        let amount = i64::try_from(worker % 3).unwrap() + 1;
        let mut granted = 0;
        for attempt in 0..2 {
            let name = format!("{worker}.{attempt}");
            let reserved = posts(thread, [reserve(&account_id, &name, amount), issue(&account_id, &name)]);
            match with_retries(|| store.commit(Batch::of(reserved.clone()))) {
                Ok(_) => granted += amount,
                Err(Error::Posting(PostingError::Insufficient { .. })) => {}
                Err(error) => panic!("worker {worker}: {error}"),
            }
        }
        granted
    });
    let after = account(&stores[0], &account_id);
    assert_eq!(after.reserved.nanos(), granted.iter().sum::<i64>(), "the granted amounts are reserved");
    assert!(after.used() <= money(100), "{after:?}");
    assert!(after.remaining() < Some(money(3)), "no worker was refused an available amount: {after:?}");
    let logs: Vec<_> = threads.iter().chain([&account_id]).collect();
    logs_agree(&stores[1], &logs);
}

/// A record that is missing in the logs is reported, and the account is not computed past it.
pub fn a_missing_record_is_reported<H: Harness>(harness: &H) {
    let store = harness.open();
    let (parent, child) = family(&store);
    let lines = store.read(&parent, 0, usize::MAX).unwrap();
    let seen = lines.into_iter().filter_map(|line| {
        let (event_type, record) = line.event.posting()?;
        Some(LocatedRecord { thread: parent.clone(), line: line.seq, event_type, record: record.clone() })
    });
    // The child's log is not read: its account ends with its opening, which is not a flaw.
    let alone = replay(seen.clone());
    assert_eq!((alone.flaws.len(), alone.accounts[&child].account.version), (0, 1));
    let gap = replay(seen.filter(|one| one.record.account_version != 1));
    let missing = |account: &ThreadId| AccountFlaw::Missing { account: account.clone(), from: 1, to: 1 };
    assert!(gap.flaws.contains(&missing(&parent)), "{:?}", gap.flaws);
    assert_eq!(gap.accounts.get(&parent), None);
}
