//! A refused operation has changed nothing.
//!
//! A raise that was too low, or that could not be paid, was once refused after an ended thread had been continued in a successor: the message
//! was recorded there and never answered, and a repetition recorded it twice.

use selvedge_engine::{Error, Input, RunConfig};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::limits::Limits;
use selvedge_model::{Classify, Kind, NewThread, Role, Status, ThreadId};
use selvedge_store::{Feed, Ledger, Logs, Registry};

use crate::spending::{account, child, dollars, paid, parent, resume, spend};
use crate::support::{Harness, Reply, agent};

/// Everything that a refusal must not change.
#[derive(Debug, PartialEq)]
struct Untouched {
    position: u64,
    lines: u64,
    status: Status,
    accounts: Vec<(Account, Vec<Reservation>)>,
}

fn untouched(harness: &Harness, thread: &ThreadId, accounts: &[&AccountId]) -> Untouched {
    let held = |id: &&AccountId| (account(harness, id), harness.store.reservations(id).unwrap());
    Untouched {
        position: harness.store.position().unwrap(),
        lines: harness.store.head(thread).unwrap().lines,
        status: harness.store.get(thread).unwrap().manifest.status,
        accounts: accounts.iter().map(held).collect(),
    }
}

/// How often a text was sent to a thread.
fn said(harness: &Harness, thread: &ThreadId, text: &str) -> usize {
    let messages = harness.loaded(thread).messages;
    messages.iter().filter(|message| message.role == Role::User && message.plain_text() == text).count()
}

fn refuse(
    harness: &Harness,
    thread: &ThreadId,
    raise: Option<Limits>,
    work: &RunConfig,
    accounts: &[&AccountId],
) -> Error {
    let before = untouched(harness, thread, accounts);
    let again = Input { raise, ..Input::text("again") };
    let error = resume(harness, thread, again, work).unwrap_err();
    assert_eq!(untouched(harness, thread, accounts), before, "{error}");
    error
}

#[test]
fn a_raise_that_is_too_low_leaves_an_ended_thread_as_it_was() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = paid(vec![Reply::Says("one"), Reply::Says("two")], "0.5");
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let error = refuse(&harness, &thread, Some(spend("0.1")), &work, &[&thread]);
    assert_eq!((error.code(), error.kind()), ("limit_not_raised", Kind::Invalid));
    let ended = resume(&harness, &thread, Input::text("again").raising(spend("0.6")), &work).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("two")));
    assert_eq!(said(&harness, &ended.thread_id, "again"), 1);
    assert_eq!(harness.loaded(&ended.thread_id).manifest.limits, Some(spend("0.6")));
    assert_eq!(account(&harness, &thread).max, Some(dollars("0.6")));
    assert_eq!(harness.store.chain(&thread).unwrap().len(), 2);
}

#[test]
fn a_raise_that_its_parent_can_not_pay_leaves_an_ended_child_as_it_was() {
    let harness = Harness::new();
    let parent = parent(&harness, "0.1");
    let child = child(&harness, &parent, "0.05");
    let work = paid(vec![Reply::Says("one"), Reply::Says("two")], "0.05");
    harness.send(&child, Input::text("go"), &work).0.unwrap();
    let error = refuse(&harness, &child, Some(spend("5")), &work, &[&child, &parent]);
    assert_eq!((error.code(), error.kind()), ("budget_exceeded", Kind::Exhausted));
    let ended = resume(&harness, &child, Input::text("again").raising(spend("0.08")), &work).unwrap();
    assert_eq!((ended.status.status().unwrap(), said(&harness, &ended.thread_id, "again")), (Status::Completed, 1));
    assert_eq!(account(&harness, &child).max, Some(dollars("0.08")));
    assert!(account(&harness, &parent).reserved.is_zero());
}

#[test]
fn a_child_that_its_parent_can_not_pay_again_is_not_resumed_and_stays_as_it_was() {
    let harness = Harness::new();
    let parent = parent(&harness, "0.1");
    let first = child(&harness, &parent, "0.05");
    let work = paid(vec![Reply::Says("one")], "0.05");
    harness.send(&first, Input::text("go"), &work).0.unwrap();
    child(&harness, &parent, "0.08");
    let error = refuse(&harness, &first, None, &work, &[&first, &parent]);
    assert_eq!(error.code(), "budget_exceeded");
}

#[test]
fn a_raise_above_its_parent_leaves_an_ended_child_as_it_was() {
    let harness = Harness::new();
    let work = agent(vec![Reply::Says("one"), Reply::Says("two")], Vec::new());
    let turns = |most| Limits { turns: Some(most), ..Limits::default() };
    let new =
        |parent_id, most| NewThread { parent_id, limits: Some(turns(most)), ..NewThread::of(work.agent_id.clone()) };
    let parent = harness.engine.create(new(None, 5), Vec::new()).unwrap();
    let child = harness.engine.create(new(Some(parent), 3), Vec::new()).unwrap();
    harness.send(&child, Input::text("go"), &work).0.unwrap();
    let error = refuse(&harness, &child, Some(turns(9)), &work, &[]);
    assert!(matches!(&error, Error::AboveParent { thread, needs: 9, .. } if *thread == child), "{error:?}");
    let ended = resume(&harness, &child, Input::text("again").raising(turns(4)), &work).unwrap();
    assert_eq!((ended.status.status().unwrap(), said(&harness, &ended.thread_id, "again")), (Status::Completed, 1));
    assert_eq!(harness.loaded(&ended.thread_id).manifest.limits, Some(turns(4)));
}

#[test]
fn a_model_without_a_price_under_a_limit_leaves_an_ended_thread_as_it_was() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut work = paid(vec![Reply::Says("one")], "0.5");
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    work.price = None;
    assert_eq!(refuse(&harness, &thread, None, &work, &[&thread]).code(), "price_unknown");
}
