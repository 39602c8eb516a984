//! The posting rules one by one, and what holds after any postings in any order.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::error::{Classify, Kind};

/// A ledger as a store keeps it.
#[derive(Default)]
struct Ledger {
    accounts: BTreeMap<AccountId, Account>,
    reservations: BTreeMap<ReservationId, Reservation>,
    log: Vec<(&'static str, Record)>,
}

impl Ledger {
    fn post(&mut self, posting: &Posting) -> Result<Record, PostingError> {
        let id = posting.reservation();
        let known_account = self.accounts.get(posting.account());
        let known_reservation = id.and_then(|id| self.reservations.get(id));
        let Posted { account, reservation, record } = post(known_account, known_reservation, posting)?;
        assert_eq!(account.version, self.accounts.get(&account.id).map_or(0, |account| account.version) + 1);
        match (id, reservation) {
            (Some(id), Some(reservation)) => drop(self.reservations.insert(id.clone(), reservation)),
            (Some(id), None) => drop(self.reservations.remove(id)),
            (None, reservation) => assert_eq!(reservation, None),
        }
        self.accounts.insert(account.id.clone(), account);
        self.log.push((posting.event_type(), record.clone()));
        Ok(record)
    }

    fn ask(&mut self, posting: Value) -> Result<Record, PostingError> {
        self.post(&serde_json::from_value(posting).unwrap())
    }

    fn account(&self, id: &str) -> &Account {
        &self.accounts[&AccountId::new(id).unwrap()]
    }
}

fn nanos(nanos: i64) -> Money {
    Money::from_nanos(nanos).unwrap()
}

fn opened(max: i64) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.ask(json!({"kind": "open", "account": "a", "max": max})).unwrap();
    ledger
}

fn reserve(reservation: &str, amount: i64) -> Value {
    json!({"kind": "reserve", "account": "a", "reservation": reservation, "amount": amount})
}

fn settle(reservation: &str, amount: i64) -> Value {
    json!({"kind": "settle", "account": "a", "reservation": reservation, "amount": amount})
}

fn on(kind: &str, reservation: &str) -> Value {
    json!({"kind": kind, "account": "a", "reservation": reservation})
}

#[track_caller]
fn refused(ledger: &mut Ledger, posting: Value, kind: Kind, code: &str) -> PostingError {
    let error = ledger.ask(posting).unwrap_err();
    assert_eq!((error.kind(), error.code()), (kind, code), "{error}");
    error
}

#[test]
fn a_call_is_reserved_issued_and_settled_at_what_it_cost() {
    let mut ledger = opened(100);
    ledger.ask(reserve("r", 60)).unwrap();
    assert_eq!(ledger.account("a").remaining(), Some(nanos(40)));
    ledger.ask(on("issue", "r")).unwrap();
    ledger.ask(settle("r", 10)).unwrap();
    let account = ledger.account("a");
    assert_eq!((account.settled, account.reserved, account.remaining()), (nanos(10), nanos(0), Some(nanos(90))));
    ledger.ask(json!({"kind": "close", "account": "a"})).unwrap();
    assert_eq!(ledger.account("a").status, AccountStatus::Closed);
}

#[test]
fn more_than_remains_is_refused() {
    let mut ledger = opened(100);
    ledger.ask(reserve("r1", 60)).unwrap();
    let error = refused(&mut ledger, reserve("r2", 41), Kind::Exhausted, "budget_exceeded");
    let account = AccountId::new("a").unwrap();
    assert_eq!(error, PostingError::Insufficient { account, remaining: nanos(40), requested: nanos(41) });
    assert_eq!(error.to_string(), "account `a` has 0.00000004 dollars left, and 0.000000041 are needed");
    ledger.ask(reserve("r2", 40)).unwrap();
}

#[test]
fn an_overcharge_is_recorded_and_stops_the_account() {
    let mut ledger = opened(100);
    ledger.ask(reserve("r", 60)).unwrap();
    ledger.ask(on("issue", "r")).unwrap();
    let record = ledger.ask(settle("r", 130)).unwrap();
    assert_eq!((record.amount, record.remaining), (Some(nanos(130)), Some(nanos(0))));
    assert_eq!(ledger.account("a").settled, nanos(130));
    refused(&mut ledger, reserve("r2", 1), Kind::Exhausted, "budget_exceeded");
}

#[test]
fn a_call_without_an_answer_is_settled_at_its_bound_and_marked_unknown() {
    let mut ledger = opened(100);
    ledger.ask(reserve("r", 60)).unwrap();
    ledger.ask(on("issue", "r")).unwrap();
    refused(&mut ledger, on("release", "r"), Kind::Denied, "reservation_issued");
    let mut posting = settle("r", 60);
    posting["unknown"] = json!(true);
    assert!(ledger.ask(posting).unwrap().unknown);
}

#[test]
fn a_call_that_was_never_sent_is_released_and_not_settled() {
    let mut ledger = opened(100);
    ledger.ask(reserve("r", 60)).unwrap();
    refused(&mut ledger, settle("r", 10), Kind::Denied, "reservation_not_issued");
    ledger.ask(on("release", "r")).unwrap();
    assert_eq!(ledger.account("a").remaining(), Some(nanos(100)));
}

#[test]
fn no_posting_is_accepted_twice() {
    let mut ledger = opened(100);
    let open = json!({"kind": "open", "account": "a"});
    refused(&mut ledger, open.clone(), Kind::Conflict, "account_exists");
    ledger.ask(reserve("r", 10)).unwrap();
    refused(&mut ledger, reserve("r", 10), Kind::Conflict, "reservation_exists");
    ledger.ask(on("issue", "r")).unwrap();
    refused(&mut ledger, on("issue", "r"), Kind::Denied, "reservation_issued");
    ledger.ask(settle("r", 10)).unwrap();
    for late in [settle("r", 10), on("issue", "r"), on("release", "r")] {
        refused(&mut ledger, late, Kind::Absent, "reservation_not_found");
    }
    ledger.ask(json!({"kind": "close", "account": "a"})).unwrap();
    for late in [reserve("s", 1), on("issue", "r"), settle("r", 1), json!({"kind": "close", "account": "a"})] {
        refused(&mut ledger, late, Kind::Denied, "account_closed");
    }
    refused(&mut ledger, open, Kind::Conflict, "account_exists");
}

#[test]
fn an_account_that_was_never_opened_accepts_no_posting() {
    for posting in [reserve("r", 0), on("issue", "r"), settle("r", 0), on("release", "r")] {
        refused(&mut Ledger::default(), posting, Kind::Absent, "account_not_found");
    }
}

fn close() -> Value {
    json!({"kind": "close", "account": "a"})
}

fn reopen() -> Value {
    json!({"kind": "reopen", "account": "a"})
}

#[test]
fn an_account_is_closing_while_even_a_free_call_is_open_and_accepts_no_new_reservation() {
    let mut ledger = opened(10);
    ledger.ask(reserve("free", 0)).unwrap();
    ledger.ask(close()).unwrap();
    assert_eq!(ledger.account("a").status, AccountStatus::Closing);
    refused(&mut ledger, reserve("late", 1), Kind::Denied, "account_closed");
    refused(&mut ledger, close(), Kind::Denied, "account_closed");
    ledger.ask(on("release", "free")).unwrap();
    assert_eq!(ledger.account("a").status, AccountStatus::Closed);
}

#[test]
fn a_closed_account_can_be_reopened_and_an_open_one_can_not() {
    let mut ledger = opened(10);
    refused(&mut ledger, reopen(), Kind::Denied, "account_not_closed");
    ledger.ask(close()).unwrap();
    ledger.ask(reopen()).unwrap();
    ledger.ask(reserve("r", 10)).unwrap();
    ledger.ask(close()).unwrap();
    ledger.ask(reopen()).unwrap();
    assert_eq!(ledger.account("a").status, AccountStatus::Active, "a closing account can be reopened too");
}

#[test]
fn a_raise_only_sets_a_higher_limit() {
    let raise = |max: i64| json!({"kind": "raise", "account": "a", "max": max});
    let mut ledger = opened(10);
    ledger.ask(reserve("r", 10)).unwrap();
    for max in [9, 10] {
        refused(&mut ledger, raise(max), Kind::Invalid, "account_not_raised");
    }
    let record = ledger.ask(raise(15)).unwrap();
    assert_eq!((record.amount, record.remaining), (Some(nanos(15)), Some(nanos(5))));
    let mut unlimited = Ledger::default();
    unlimited.ask(json!({"kind": "open", "account": "a"})).unwrap();
    refused(&mut unlimited, raise(15), Kind::Invalid, "account_not_raised");
}

#[test]
fn a_stopped_account_reserves_nothing_until_it_is_raised() {
    let mut ledger = opened(100);
    ledger.ask(reserve("r", 30)).unwrap();
    let record = ledger.ask(json!({"kind": "stop", "account": "a"})).unwrap();
    assert_eq!((record.amount, record.remaining), (Some(nanos(0)), Some(nanos(0))));
    ledger.ask(on("issue", "r")).unwrap();
    ledger.ask(settle("r", 20)).unwrap();
    refused(&mut ledger, reserve("s", 1), Kind::Exhausted, "budget_exceeded");
    assert_eq!(ledger.account("a").remaining(), Some(nanos(0)), "released money can't be reserved either");
    ledger.ask(json!({"kind": "raise", "account": "a", "max": 100})).unwrap();
    ledger.ask(reserve("s", 80)).unwrap();
}

#[test]
fn an_unknown_cost_is_corrected_once_downward_and_with_evidence() {
    let mut ledger = opened(100);
    ledger.ask(reserve("r", 60)).unwrap();
    ledger.ask(on("issue", "r")).unwrap();
    let correct = |amount: i64, evidence: &str| json!({"kind": "correct", "account": "a", "reservation": "r", "amount": amount, "evidence": evidence});
    refused(&mut ledger, correct(10, "invoice"), Kind::Absent, "reservation_not_found");
    let mut posting = settle("r", 60);
    posting["unknown"] = json!(true);
    ledger.ask(posting).unwrap();
    for late in [settle("r", 10), on("issue", "r"), on("release", "r")] {
        refused(&mut ledger, late, Kind::Absent, "reservation_not_found");
    }
    refused(&mut ledger, correct(61, "invoice"), Kind::Invalid, "correction_refused");
    refused(&mut ledger, correct(10, " "), Kind::Invalid, "correction_refused");
    let record = ledger.ask(correct(10, "invoice 7")).unwrap();
    assert_eq!((record.amount, record.evidence.as_deref()), (Some(nanos(10)), Some("invoice 7")));
    assert_eq!((ledger.account("a").settled, ledger.account("a").remaining()), (nanos(10), Some(nanos(90))));
    refused(&mut ledger, correct(9, "invoice"), Kind::Absent, "reservation_not_found");
}

#[test]
fn a_child_that_continues_is_reserved_for_again_and_not_charged_twice() {
    let mut ledger = opened(100);
    let mut hold = reserve("for-b", 40);
    hold["child"] = json!("b");
    ledger.ask(hold).unwrap();
    ledger.ask(settle("for-b", 15)).unwrap();
    ledger.ask(close()).unwrap();
    let again = |returned: i64, amount: i64| {
        json!({"kind": "reserve_again", "account": "a", "reservation": "again", "amount": amount, "child": "b",
               "returned": returned})
    };
    refused(&mut ledger, again(16, 40), Kind::Integrity, "account_inconsistent");
    refused(&mut ledger, again(15, 101), Kind::Exhausted, "budget_exceeded");
    let record = ledger.ask(again(15, 40)).unwrap();
    assert_eq!((record.returned, record.remaining), (Some(nanos(15)), Some(nanos(60))));
    let account = ledger.account("a");
    assert_eq!(
        (account.settled_children, account.status),
        (nanos(0), AccountStatus::Closing),
        "it waits for its child"
    );
    ledger.ask(settle("again", 22)).unwrap();
    let account = ledger.account("a");
    assert_eq!((account.settled_children, account.status), (nanos(22), AccountStatus::Closed));
}

#[test]
fn a_reservation_of_another_account_is_unknown_here_but_its_id_is_taken() {
    let mut ledger = opened(100);
    ledger.ask(json!({"kind": "open", "account": "b", "max": 100})).unwrap();
    ledger.ask(json!({"kind": "reserve", "account": "b", "reservation": "r", "amount": 1})).unwrap();
    refused(&mut ledger, on("release", "r"), Kind::Absent, "reservation_not_found");
    refused(&mut ledger, reserve("r", 1), Kind::Conflict, "reservation_exists");
}

#[test]
fn an_account_is_never_its_own_child() {
    let mut ledger = opened(100);
    let mut posting = reserve("r", 1);
    posting["child"] = json!("a");
    refused(&mut ledger, posting, Kind::Invalid, "account_own_child");
    let own_parent = json!({"kind": "open", "account": "b", "parent": "b"});
    refused(&mut ledger, own_parent, Kind::Invalid, "account_own_child");
}

#[test]
fn an_account_without_limit_still_counts_and_never_overflows() {
    let mut ledger = Ledger::default();
    let record = ledger.ask(json!({"kind": "open", "account": "a"})).unwrap();
    assert_eq!(record.remaining, None);
    ledger.ask(reserve("r", i64::MAX)).unwrap();
    refused(&mut ledger, reserve("s", 1), Kind::Invalid, "account_too_large");
    ledger.ask(on("issue", "r")).unwrap();
    ledger.ask(settle("r", 5)).unwrap();
    assert_eq!((ledger.account("a").settled, ledger.account("a").remaining()), (nanos(5), None));
}

#[test]
fn rows_that_contradict_each_other_are_refused() {
    let mut ledger = opened(100);
    ledger.ask(reserve("r", 60)).unwrap();
    for account in ledger.accounts.values_mut() {
        account.reserved = nanos(59);
    }
    refused(&mut ledger, on("release", "r"), Kind::Integrity, "account_inconsistent");
}

#[test]
fn a_child_spends_what_its_parent_has_reserved_for_it() {
    let mut ledger = opened(100);
    let mut posting = reserve("for-b", 40);
    posting["child"] = json!("b");
    ledger.ask(posting).unwrap();
    ledger.ask(json!({"kind": "open", "account": "b", "parent": "a", "max": 40})).unwrap();
    ledger.ask(json!({"kind": "reserve", "account": "b", "reservation": "r", "amount": 40})).unwrap();
    ledger.ask(json!({"kind": "issue", "account": "b", "reservation": "r"})).unwrap();
    ledger.ask(json!({"kind": "settle", "account": "b", "reservation": "r", "amount": 15})).unwrap();
    assert_eq!(
        ledger.account("a").remaining(),
        Some(nanos(60)),
        "the parent holds the whole reservation while the child is active"
    );
    ledger.ask(json!({"kind": "close", "account": "b"})).unwrap();
    let record = ledger.ask(settle("for-b", 15)).unwrap();
    assert_eq!(record.child, Some(AccountId::new("b").unwrap()));
    let account = ledger.account("a");
    assert_eq!((account.settled, account.settled_children), (nanos(0), nanos(15)));
    assert_eq!(account.remaining(), Some(nanos(85)));
}

#[test]
fn a_record_gives_amounts_in_nanos_and_omits_what_is_absent() {
    let mut ledger = opened(100);
    let mut posting = reserve("r", 60);
    posting["child"] = json!("b");
    ledger.ask(posting).unwrap();
    let written: Vec<_> = ledger.log.iter().map(|(kind, record)| json!([kind, record])).collect();
    let expected = json!([
        ["account_opened", {"account": "a", "account_version": 1, "remaining_nanos": 100}],
        ["reserved", {
            "account": "a", "account_version": 2, "remaining_nanos": 40, "reservation": "r", "amount_nanos": 60,
            "child": "b"
        }],
    ]);
    assert_eq!(Value::Array(written), expected);
    let read: Record = serde_json::from_value(expected[1][1].clone()).unwrap();
    assert_eq!(read, ledger.log[1].1);
}

#[test]
fn a_posting_is_read_as_written() {
    let written = json!({"kind": "settle", "account": "a", "reservation": "r", "amount": 5, "unknown": true});
    let posting: Posting = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(serde_json::to_value(&posting).unwrap(), written);
    for bad in [r#"{"kind":"steal","account":"a"}"#, r#"{"kind":"close","account":"a","max":1}"#] {
        assert!(serde_json::from_str::<Posting>(bad).is_err(), "{bad}");
    }
    assert!(serde_json::from_value::<Posting>(reserve("r", -1)).is_err());
}

fn posting() -> impl Strategy<Value = Posting> {
    let account = prop_oneof![Just("a"), Just("b")].prop_map(|id| AccountId::new(id).unwrap());
    let name = (0..5).prop_map(|number| ReservationId::new(format!("r{number}")).unwrap());
    let amount = (0i64..60).prop_map(nanos);
    let child = prop::option::weighted(0.3, Just(AccountId::new("child").unwrap()));
    (account, name, amount, child, 0..34, any::<bool>()).prop_map(
        |(account, reservation, amount, child, which, unknown)| match which {
            0..8 => Posting::Reserve { account, reservation, amount, child },
            8..14 => Posting::Issue { account, reservation },
            14..20 => Posting::Settle { account, reservation, amount, unknown },
            20..23 => Posting::Release { account, reservation },
            23..26 => Posting::Correct { account, reservation, amount, evidence: "seen".to_owned() },
            26 => Posting::Raise { account, max: amount.saturating_add(amount).saturating_add(amount) },
            27 => Posting::Stop { account },
            28 | 29 => Posting::Reopen { account },
            30..33 => {
                let child = AccountId::new("child").unwrap();
                let returned = nanos(amount.nanos() / 2);
                Posting::ReserveAgain { account, reservation, amount, child, returned }
            }
            _ => Posting::Close { account },
        },
    )
}

/// What the test itself counts for one account.
#[derive(Default)]
struct Counted {
    spent: i64,
    overcharged: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_order_of_postings_exceeds_a_limit_or_loses_money(
        max_a in 0i64..150,
        max_b in prop::option::of(0i64..150),
        postings in prop::collection::vec(posting(), 0..80),
    ) {
        let mut ledger = opened(max_a);
        ledger.ask(json!({"kind": "open", "account": "b", "parent": "a", "max": max_b})).unwrap();
        let mut counted: BTreeMap<AccountId, Counted> = BTreeMap::new();
        for posting in &postings {
            let held = posting.reservation().and_then(|id| ledger.reservations.get(id)).cloned();
            if ledger.post(posting).is_ok() {
                let counted = counted.entry(posting.account().clone()).or_default();
                match (posting, held) {
                    (Posting::Settle { amount, .. }, Some(held)) => {
                        counted.spent += amount.nanos();
                        counted.overcharged |= *amount > held.amount;
                    }
                    (Posting::Correct { amount, .. }, Some(held)) => counted.spent -= held.amount.nanos() - amount.nanos(),
                    (Posting::ReserveAgain { returned, .. }, _) => counted.spent -= returned.nanos(),
                    (Posting::Stop { .. }, _) => counted.overcharged = true,
                    _ => {}
                }
            }
            for account in ledger.accounts.values() {
                check(account, &ledger, counted.get(&account.id).unwrap_or(&Counted::default()))?;
            }
        }
        check_replay(&ledger)?;
    }
}

fn check(account: &Account, ledger: &Ledger, counted: &Counted) -> Result<(), TestCaseError> {
    let is_open = |held: &&Reservation| held.account == account.id && held.state != ReservationState::Unknown;
    let held: Vec<_> = ledger.reservations.values().filter(is_open).collect();
    prop_assert_eq!(account.reserved.nanos(), held.iter().map(|held| held.amount.nanos()).sum::<i64>());
    prop_assert_eq!(account.open, held.len() as u64);
    prop_assert_eq!(account.settled.nanos() + account.settled_children.nanos(), counted.spent);
    match account.status {
        AccountStatus::Active => {}
        AccountStatus::Closing => prop_assert!(!held.is_empty()),
        AccountStatus::Closed => prop_assert!(held.is_empty()),
    }
    if let (Some(max), false) = (account.max, counted.overcharged) {
        let used = counted.spent + account.reserved.nanos();
        prop_assert!(used <= max.nanos());
        prop_assert_eq!(account.remaining().map(Money::nanos), Some(max.nanos() - used));
    }
    Ok(())
}

/// The records alone, ordered by account version, rebuild the ledger and are written again unchanged.
fn check_replay(ledger: &Ledger) -> Result<(), TestCaseError> {
    let mut records = ledger.log.clone();
    records.sort_by_key(|(_, record)| (record.account.clone(), record.account_version));
    let mut rebuilt: BTreeMap<AccountId, Ledger> = BTreeMap::new();
    for (event_type, record) in &records {
        let text = serde_json::to_string(record).unwrap();
        let read: Record = serde_json::from_str(&text).unwrap();
        let posting = Posting::from_record(event_type, &read).unwrap();
        let again = rebuilt.entry(record.account.clone()).or_default().post(&posting);
        prop_assert_eq!(again.as_ref(), Ok(record));
    }
    for account in ledger.accounts.values() {
        prop_assert_eq!(&rebuilt[&account.id].accounts[&account.id], account);
    }
    Ok(())
}
