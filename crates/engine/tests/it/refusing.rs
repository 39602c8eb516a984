//! What is refused has changed nothing.
//!
//! A raise that was too low, or that nobody had the money for, was once found out after an ended thread had gone on in another one: the
//! message stood there, nobody answered it, and whoever repeated it said it twice.

use selvedge_engine::{Assignment, Error, Input};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::limits::Limits;
use selvedge_model::{Classify, Kind, NewThread, Role, Status, ThreadId};
use selvedge_store::{Feed, Ledger, Logs, Registry};

use crate::spending::{account, child, dollars, paid, parent, resume, spend};
use crate::support::{House, Reply, agent};

/// Everything that a refusal must leave alone.
#[derive(Debug, PartialEq)]
struct Standing {
    position: u64,
    lines: u64,
    status: Status,
    accounts: Vec<(Account, Vec<Reservation>)>,
}

fn standing(house: &House, thread: &ThreadId, accounts: &[&AccountId]) -> Standing {
    let held = |id: &&AccountId| (account(house, id), house.store.reservations(id).unwrap());
    Standing {
        position: house.store.position().unwrap(),
        lines: house.store.head(thread).unwrap().lines,
        status: house.store.get(thread).unwrap().manifest.status,
        accounts: accounts.iter().map(held).collect(),
    }
}

/// How often something was said to a thread.
fn said(house: &House, thread: &ThreadId, text: &str) -> usize {
    let messages = house.loaded(thread).messages;
    messages.iter().filter(|message| message.role == Role::User && message.plain_text() == text).count()
}

fn refuse(
    house: &House,
    thread: &ThreadId,
    raise: Option<Limits>,
    work: &Assignment,
    accounts: &[&AccountId],
) -> Error {
    let before = standing(house, thread, accounts);
    let again = Input { raise, ..Input::text("again") };
    let error = resume(house, thread, again, work).unwrap_err();
    assert_eq!(standing(house, thread, accounts), before, "{error}");
    error
}

#[test]
fn a_raise_that_is_too_low_leaves_an_ended_thread_as_it_was() {
    let house = House::new();
    let thread = house.thread();
    let work = paid(vec![Reply::Says("one"), Reply::Says("two")], "0.5");
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let error = refuse(&house, &thread, Some(spend("0.1")), &work, &[&thread]);
    assert_eq!((error.code(), error.kind()), ("not_raised", Kind::Invalid));
    let ended = resume(&house, &thread, Input::text("again").raising(spend("0.6")), &work).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("two")));
    assert_eq!(said(&house, &ended.thread_id, "again"), 1);
    assert_eq!(house.loaded(&ended.thread_id).manifest.limits, Some(spend("0.6")));
    assert_eq!(account(&house, &thread).max, Some(dollars("0.6")));
    assert_eq!(house.store.chain(&thread).unwrap().len(), 2);
}

#[test]
fn a_raise_that_its_parent_can_not_pay_leaves_an_ended_child_as_it_was() {
    let house = House::new();
    let parent = parent(&house, "0.1");
    let child = child(&house, &parent, "0.05");
    let work = paid(vec![Reply::Says("one"), Reply::Says("two")], "0.05");
    house.send(&child, Input::text("go"), &work).0.unwrap();
    let error = refuse(&house, &child, Some(spend("5")), &work, &[&child, &parent]);
    assert_eq!((error.code(), error.kind()), ("budget_exceeded", Kind::Exhausted));
    let ended = resume(&house, &child, Input::text("again").raising(spend("0.08")), &work).unwrap();
    assert_eq!((ended.status.status().unwrap(), said(&house, &ended.thread_id, "again")), (Status::Completed, 1));
    assert_eq!(account(&house, &child).max, Some(dollars("0.08")));
    assert!(account(&house, &parent).reserved.is_zero());
}

#[test]
fn a_child_that_its_parent_can_not_pay_again_is_not_resumed_and_stays_as_it_was() {
    let house = House::new();
    let parent = parent(&house, "0.1");
    let first = child(&house, &parent, "0.05");
    let work = paid(vec![Reply::Says("one")], "0.05");
    house.send(&first, Input::text("go"), &work).0.unwrap();
    child(&house, &parent, "0.08");
    let error = refuse(&house, &first, None, &work, &[&first, &parent]);
    assert_eq!(error.code(), "budget_exceeded");
}

#[test]
fn a_raise_above_its_parent_leaves_an_ended_child_as_it_was() {
    let house = House::new();
    let work = agent(vec![Reply::Says("one"), Reply::Says("two")], Vec::new());
    let turns = |most| Limits { turns: Some(most), ..Limits::default() };
    let new =
        |parent_id, most| NewThread { parent_id, limits: Some(turns(most)), ..NewThread::of(work.agent_id.clone()) };
    let parent = house.engine.create(new(None, 5), Vec::new()).unwrap();
    let child = house.engine.create(new(Some(parent), 3), Vec::new()).unwrap();
    house.send(&child, Input::text("go"), &work).0.unwrap();
    let error = refuse(&house, &child, Some(turns(9)), &work, &[]);
    assert!(matches!(&error, Error::AboveParent { thread, needs: 9, .. } if *thread == child), "{error:?}");
    let ended = resume(&house, &child, Input::text("again").raising(turns(4)), &work).unwrap();
    assert_eq!((ended.status.status().unwrap(), said(&house, &ended.thread_id, "again")), (Status::Completed, 1));
    assert_eq!(house.loaded(&ended.thread_id).manifest.limits, Some(turns(4)));
}

#[test]
fn a_model_without_a_price_under_a_ceiling_leaves_an_ended_thread_as_it_was() {
    let house = House::new();
    let thread = house.thread();
    let mut work = paid(vec![Reply::Says("one")], "0.5");
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    work.price = None;
    assert_eq!(refuse(&house, &thread, None, &work, &[&thread]).code(), "no_price");
}
