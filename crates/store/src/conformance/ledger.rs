//! The effect of postings on accounts, and their records in the logs.

use selvedge_model::account::{self, Account, AccountId, AccountStatus, Posting, PostingError, Record, Reservation};
use selvedge_model::{Batch, Changeset, Event, Money, Part, Reason, ThreadId};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Ledger, Logs, Store};
use crate::error::Error;

/// This many nano-dollars.
pub(super) fn money(nanos: i64) -> Money {
    Money::from_nanos(nanos).unwrap()
}

/// Opens an account.
pub(super) fn open(account: &AccountId, max: Option<i64>) -> Posting {
    Posting::Open { account: account.clone(), parent: None, max: max.map(money) }
}

/// Reserves an amount.
pub(super) fn reserve(account: &AccountId, name: &str, amount: i64) -> Posting {
    Posting::Reserve { account: account.clone(), reservation: id(name), amount: money(amount), child: None }
}

/// Records that a call is about to be sent.
pub(super) fn issue(account: &AccountId, name: &str) -> Posting {
    Posting::Issue { account: account.clone(), reservation: id(name) }
}

/// Records what was spent.
pub(super) fn settle(account: &AccountId, name: &str, amount: i64) -> Posting {
    Posting::Settle { account: account.clone(), reservation: id(name), amount: money(amount), unknown: false }
}

/// Releases a reservation.
pub(super) fn release(account: &AccountId, name: &str) -> Posting {
    Posting::Release { account: account.clone(), reservation: id(name) }
}

/// Closes an account.
pub(super) fn close(account: &AccountId) -> Posting {
    Posting::Close { account: account.clone() }
}

/// The part that posts from a thread.
pub(super) fn posts(thread: &ThreadId, postings: impl IntoIterator<Item = Posting>) -> Part {
    Part { postings: postings.into_iter().collect(), ..part(thread, Changeset::empty(Reason::Reserved)) }
}

/// The records of postings in a log, with the type of their events.
pub(super) fn records_in(store: &impl Logs, thread: &ThreadId) -> Vec<(&'static str, Record)> {
    let record = |event: Event| event.posting().map(|(name, record)| (name, record.clone()));
    lines_of(store, thread).into_iter().filter_map(|line| record(line.event)).collect()
}

fn balance(store: &impl Store, account: &AccountId) -> (i64, i64, i64, u64, u64) {
    let Account { settled, settled_children, reserved, open, version, .. } = store.account(account).unwrap().unwrap();
    (settled.nanos(), settled_children.nanos(), reserved.nanos(), open, version)
}

/// An account from opening to closing, posting by posting.
pub fn an_account_goes_through_its_life<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "spender");
    assert_eq!(store.account(&thread).unwrap(), None, "a thread has no account before one is opened");
    let steps = [
        (open(&thread, Some(100)), (0, 0, 0, 0, 1)),
        (reserve(&thread, "call-1", 30), (0, 0, 30, 1, 2)),
        (issue(&thread, "call-1"), (0, 0, 30, 1, 3)),
        (reserve(&thread, "call-2", 70), (0, 0, 100, 2, 4)),
        (settle(&thread, "call-1", 10), (10, 0, 70, 1, 5)),
        (release(&thread, "call-2"), (10, 0, 0, 0, 6)),
        (reserve(&thread, "call-1", 90), (10, 0, 90, 1, 7)),
        (release(&thread, "call-1"), (10, 0, 0, 0, 8)),
        (close(&thread), (10, 0, 0, 0, 9)),
    ];
    for (step, (posting, after)) in steps.into_iter().enumerate() {
        let version = commit(&store, Batch::of(posts(&thread, [posting.clone()]))).version_of(&thread);
        assert_eq!(version, Some(step as u64 + 1), "a posting is part of a changeset");
        assert_eq!(balance(&other, &thread), after, "after {posting:?}");
    }
    let account = store.account(&thread).unwrap().unwrap();
    assert_eq!((account.max, account.parent, account.status), (Some(money(100)), None, AccountStatus::Closed));
}

/// Each posting is in the log with the account's version and the remaining amount, and the log replays to the account.
pub fn the_log_replays_to_the_account<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "told");
    commit(
        &store,
        Batch::of(posts(&thread, [open(&thread, Some(100)), reserve(&thread, "a", 30), issue(&thread, "a")])),
    );
    commit(&store, Batch::of(posts(&thread, [settle(&thread, "a", 25), reserve(&thread, "b", 75)])));
    commit(&store, Batch::of(posts(&thread, [release(&thread, "b"), close(&thread)])));
    let told: Vec<_> = records_in(&store, &thread);
    let figures: Vec<_> = told
        .iter()
        .map(|(kind, record)| {
            (*kind, record.account_version, record.remaining.map(Money::nanos), record.amount.map(Money::nanos))
        })
        .collect();
    let expected = [
        ("account_opened", 1, Some(100), None),
        ("reserved", 2, Some(70), Some(30)),
        ("issued", 3, Some(70), Some(30)),
        ("settled", 4, Some(75), Some(25)),
        ("reserved", 5, Some(0), Some(75)),
        ("released", 6, Some(75), Some(75)),
        ("account_closed", 7, Some(75), None),
    ];
    assert_eq!(figures, expected);
    let mut account: Option<Account> = None;
    let mut held: Vec<Reservation> = Vec::new();
    for (kind, record) in told {
        let posting = Posting::from_record(kind, &record).unwrap();
        let named = posting.reservation().and_then(|name| held.iter().find(|known| known.id == *name)).cloned();
        let posted = account::post(account.as_ref(), named.as_ref(), &posting).unwrap();
        assert_eq!(posted.record, record, "replayed, the posting is recorded the same");
        held.retain(|known| Some(&known.id) != posting.reservation());
        held.extend(posted.reservation);
        account = Some(posted.account);
    }
    assert_eq!(account, store.account(&thread).unwrap(), "the log's account is the ledger's");
    verified(&store, &harness.trust(), &thread);
}

/// A child spends from its own account and settles its parent's reservation from its own log.
pub fn a_child_account_is_settled_from_the_childs_log<H: Harness>(harness: &H) {
    let store = harness.open();
    let parent: ThreadId = create(&store, "parent");
    let child: ThreadId = id("child");
    commit(&store, Batch::of(posts(&parent, [open(&parent, Some(100))])));
    let hold = Posting::Reserve {
        account: parent.clone(),
        reservation: id("child"),
        amount: money(60),
        child: Some(child.clone()),
    };
    let opened = Posting::Open { account: child.clone(), parent: Some(parent.clone()), max: Some(money(60)) };
    let born = Part { postings: vec![opened], ..birth(&child, new_thread()) };
    commit(&store, batch([posts(&parent, [hold]), born]));
    assert_eq!(balance(&store, &parent), (0, 0, 60, 1, 2));
    let ids = |account: &AccountId| -> Vec<AccountId> {
        store.tree(account).unwrap().into_iter().map(|found| found.id).collect()
    };
    assert_eq!(ids(&parent), [parent.clone(), child.clone()], "a tree is parents first");
    assert_eq!(ids(&child), std::slice::from_ref(&child));
    assert_eq!(ids(&id("missing")), []);

    commit(&store, Batch::of(posts(&child, [reserve(&child, "call", 60), issue(&child, "call")])));
    commit(&store, Batch::of(posts(&child, [settle(&child, "call", 20), close(&child), settle(&parent, "child", 20)])));
    assert_eq!(balance(&store, &child), (20, 0, 0, 0, 5));
    assert_eq!(balance(&store, &parent), (0, 20, 0, 0, 3), "the child's spending is counted for the parent");
    let from_child = records_in(&store, &child);
    let on_parent: Vec<_> = from_child.iter().filter(|(_, record)| record.account == parent).collect();
    assert_eq!((on_parent.len(), on_parent[0].1.account_version), (1, 3), "it is in the child's log");
    assert_eq!(on_parent[0].1.child, Some(child));
}

/// A tree has an account and all its descendants, parents first, each once, even if the parents form a cycle.
pub fn a_tree_of_accounts_is_parents_first<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "tree");
    let below = |name: &str, parent: &str| Posting::Open { account: id(name), parent: Some(id(parent)), max: None };
    let accounts = [
        below("leaf", "z-branch"),
        below("a-branch", "root"),
        below("z-branch", "root"),
        open(&id("root"), Some(10)),
        below("hen", "egg"),
        below("egg", "hen"),
    ];
    commit(&store, Batch::of(posts(&thread, accounts)));
    let tree = |name: &str| -> Vec<String> {
        store.tree(&id(name)).unwrap().into_iter().map(|account| account.id.to_string()).collect()
    };
    let found = tree("root");
    assert_eq!(sorted(found.clone()), ["a-branch", "leaf", "root", "z-branch"], "all below, each once");
    let place = |name: &str| found.iter().position(|other| other == name);
    assert!(place("root") == Some(0) && place("z-branch") < place("leaf"), "parents first: {found:?}");
    assert_eq!(
        (tree("z-branch"), tree("leaf")),
        (vec!["z-branch".to_owned(), "leaf".to_owned()], vec!["leaf".to_owned()])
    );
    assert_eq!(sorted(tree("hen")), ["egg", "hen"], "a cycle ends");
}

/// Postings of one batch build on each other, over all its parts.
pub fn postings_of_one_batch_build_on_each_other<H: Harness>(harness: &H) {
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    let first = posts(&one, [open(&one, Some(10)), reserve(&one, "a", 6)]);
    let second = posts(&two, [issue(&one, "a"), settle(&one, "a", 4), reserve(&one, "b", 6)]);
    commit(&store, batch([first, second]));
    assert_eq!(balance(&store, &one), (4, 0, 6, 1, 5));
    let versions =
        |thread| -> Vec<u64> { records_in(&store, thread).iter().map(|(_, record)| record.account_version).collect() };
    assert_eq!((versions(&one), versions(&two)), (vec![1, 2], vec![3, 4, 5]), "one order over both logs");
}

/// An account without a maximum has no remainder and refuses nothing.
pub fn an_account_without_a_maximum_has_no_remainder<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "unlimited");
    commit(&store, Batch::of(posts(&thread, [open(&thread, None), reserve(&thread, "a", i64::MAX)])));
    assert!(records_in(&store, &thread).iter().all(|(_, record)| record.remaining.is_none()));
    let too_large = Batch::of(posts(&thread, [reserve(&thread, "b", 1)]));
    assert_refused!(store.commit(too_large), Error::Posting(PostingError::TooLarge { .. }), "more than a sum can hold");
    assert_eq!(store.account(&thread).unwrap().unwrap().remaining(), None);
}

/// A posting that breaks the rules is refused and changes nothing.
pub fn a_posting_against_the_rules_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "strict");
    let closed = create(&store, "closed");
    commit(&store, Batch::of(posts(&closed, [open(&closed, None), close(&closed)])));
    commit(
        &store,
        Batch::of(posts(&thread, [open(&thread, Some(10)), reserve(&thread, "sent", 3), issue(&thread, "sent")])),
    );
    commit(&store, Batch::of(posts(&thread, [reserve(&thread, "kept", 3)])));
    let missing: AccountId = id("missing");
    let own = Posting::Reserve {
        account: thread.clone(),
        reservation: id("own"),
        amount: money(1),
        child: Some(thread.clone()),
    };
    let refused = [
        (reserve(&missing, "a", 1), "account_not_found"),
        (open(&thread, None), "account_exists"),
        (open(&closed, None), "account_exists"),
        (reserve(&closed, "a", 1), "account_closed"),
        (own, "account_own_child"),
        (Posting::Reopen { account: thread.clone() }, "account_not_closed"),
        (reserve(&thread, "kept", 1), "reservation_exists"),
        (issue(&thread, "never"), "reservation_not_found"),
        (settle(&thread, "never", 1), "reservation_not_found"),
        (release(&thread, "never"), "reservation_not_found"),
        (issue(&thread, "sent"), "reservation_issued"),
        (release(&thread, "sent"), "reservation_issued"),
        (settle(&thread, "kept", 1), "reservation_not_issued"),
        (reserve(&thread, "more", 5), "budget_exceeded"),
    ];
    leaves_no_trace(&store, &[&thread, &closed], || {
        for (posting, code) in refused {
            let answer = store.commit(Batch::of(posts(&thread, [posting.clone()])));
            let Err(error) = answer else { panic!("{posting:?} must be refused: {answer:?}") };
            assert_eq!(selvedge_model::Classify::code(&error), code, "{posting:?}");
        }
    });
}

/// Only a posting writes the record of a posting: a forged one would be replayed as history.
pub fn a_caller_cannot_append_the_record_of_a_posting<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "forger");
    commit(&store, Batch::of(posts(&thread, [open(&thread, Some(10))])));
    let record = records_in(&store, &thread).remove(0).1;
    let forged = Record { account_version: 2, remaining: Some(money(1_000)), ..record };
    let events =
        [Event::AccountOpened, Event::Reserved, Event::Issued, Event::Settled, Event::Released, Event::AccountClosed];
    leaves_no_trace(&store, &[&thread], || {
        for event in events.map(|event| event(forged.clone())) {
            let answer = store.commit(Batch::of(part(&thread, with_event(event.clone()))));
            assert_refused!(answer, Error::Changeset(_), "{event:?}");
        }
    });
}
