//! A parent and its child, each with an account, that post to each other's accounts.

use selvedge_model::account::{AccountId, Posting};
use selvedge_model::id::ReservationId;
use selvedge_model::{Batch, Changeset, Expect, Money, Part, Reason, ThreadId};
use selvedge_store::Commit;
use selvedge_store_local::LocalStore;

use crate::support::{Home, thread_with};

fn posts(store: &LocalStore, thread: &ThreadId, postings: Vec<Posting>) {
    let part = Part::new(thread.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
    store.commit(Batch::of(Part { postings, ..part })).unwrap();
}

fn name(text: &str) -> ReservationId {
    ReservationId::new(text).unwrap()
}

/// A closed store with a parent that reserved an amount for its child, and what both spent.
pub(crate) fn with_budgets() -> (Home, Vec<ThreadId>) {
    let home = Home::new();
    let store = home.open();
    let parent = thread_with(&store, "parent-0123456789ab", &["one"]);
    let child = thread_with(&store, "child-0123456789ab", &["one"]);
    let money = |nanos| Money::from_nanos(nanos).unwrap();
    let call = |account: &AccountId, call: &str, bound: i64, cost: i64| {
        let account = account.clone();
        let reservation = name(call);
        vec![
            Posting::Reserve {
                account: account.clone(),
                reservation: reservation.clone(),
                amount: money(bound),
                child: None,
            },
            Posting::Issue { account: account.clone(), reservation: reservation.clone() },
            Posting::Settle { account, reservation, amount: money(cost), unknown: false },
        ]
    };
    let open = Posting::Open { account: parent.clone(), parent: None, max: Some(money(100)) };
    let hold = Posting::Reserve {
        account: parent.clone(),
        reservation: name("for-child"),
        amount: money(60),
        child: Some(child.clone()),
    };
    let given = Posting::Open { account: child.clone(), parent: Some(parent.clone()), max: Some(money(60)) };
    posts(&store, &parent, vec![open, hold, given]);
    posts(&store, &parent, call(&parent, "own", 30, 7));
    posts(&store, &child, call(&child, "call", 50, 20));
    let ended =
        Posting::Settle { account: parent.clone(), reservation: name("for-child"), amount: money(20), unknown: false };
    posts(&store, &child, vec![Posting::Close { account: child.clone() }, ended]);
    posts(&store, &parent, call(&parent, "last", 30, 9));
    store.close().unwrap();
    (home, vec![parent, child])
}
