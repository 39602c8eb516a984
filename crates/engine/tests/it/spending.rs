//! What runs pay: reserved before each call, settled with its answer, and never more than the account holds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use selvedge_engine::ledger::{Book, audit};
use selvedge_engine::{Input, Outcome, RunConfig};
use selvedge_model::account::{Account, AccountStatus, Posting, Record};
use selvedge_model::answer::{Answer, End, Usage};
use selvedge_model::event::SuspendReason;
use selvedge_model::id::ReservationId;
use selvedge_model::limits::Limits;
use selvedge_model::message::Block;
use selvedge_model::{
    AgentId, Batch, Cancel, Changeset, Classify, Draft, Expect, ModelError, Money, NewThread, Part, Price, Prompt,
    Reason, Status, Stop, ThreadId,
};
use selvedge_store::conformance::support::SeededIds;
use selvedge_store::{Commit, Ledger, Logs};
use serde_json::json;

use crate::support::{Harness, Meanwhile, Reply, agent};

/// A dollar for a million tokens sent, two for a million received.
fn price() -> Price {
    Price { input: dollars("1"), output: dollars("2"), ..Price::default() }
}

pub(crate) fn dollars(text: &str) -> Money {
    text.parse().unwrap()
}

pub(crate) fn spend(most: &str) -> Limits {
    Limits { spend: Some(dollars(most)), ..Limits::default() }
}

/// A model that costs something, under a limit.
pub(crate) fn paid(replies: Vec<Reply>, most: &str) -> RunConfig {
    let mut work = agent(replies, Vec::new());
    (work.price, work.limits) = (Some(price()), spend(most));
    work
}

pub(crate) fn account(harness: &Harness, thread: &ThreadId) -> Account {
    harness.store.account(thread).unwrap().expect("the chain has an account")
}

/// The postings in a log, in order.
fn postings(harness: &Harness, thread: &ThreadId) -> Vec<(&'static str, Record)> {
    let lines = harness.store.read(thread, 0, usize::MAX).unwrap();
    lines.iter().filter_map(|line| line.event.posting()).map(|(name, record)| (name, record.clone())).collect()
}

fn names(harness: &Harness, thread: &ThreadId) -> Vec<&'static str> {
    postings(harness, thread).into_iter().map(|(name, _)| name).collect()
}

pub(crate) fn resume(
    harness: &Harness,
    thread: &ThreadId,
    input: Input,
    work: &RunConfig,
) -> selvedge_engine::Result<Outcome> {
    harness.engine.resume(thread, input, work, &Cancel::new(), &mut |_| {})
}

#[test]
fn a_call_is_reserved_and_issued_before_it_is_made_and_settled_with_its_answer() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = paid(vec![Reply::Says("hello")], "1");
    let (ended, heard) = harness.send(&thread, Input::text("hi"), &work);
    assert_eq!(ended.unwrap().status, Status::Completed);
    assert_eq!(heard, ["UserMessage", "Reserved", "draft", "AssistantTurnCommitted", "RunFinished"]);
    assert_eq!(
        names(&harness, &thread),
        ["account_opened", "reserved", "issued", "settled", "account_closed"],
        "one reservation, and the account is closed with the chain"
    );
    let told = postings(&harness, &thread);
    // Ten tokens sent and five received.
    assert_eq!(told[3].1.amount, Some(dollars("0.00002")));
    assert!(told[1].1.amount.unwrap() > dollars("0.016"), "8,192 tokens may be received");
    let account = account(&harness, &thread);
    assert_eq!(
        (account.settled, account.reserved, account.status),
        (dollars("0.00002"), Money::ZERO, AccountStatus::Closed)
    );
}

#[test]
fn a_free_model_makes_no_postings_and_no_additional_commits() {
    let harness = Harness::new();
    for price in [None, Some(Price::default())] {
        let thread = harness.thread();
        let mut work = agent(vec![Reply::Says("hello")], Vec::new());
        work.price = price;
        harness.send(&thread, Input::text("hi"), &work).0.unwrap();
        assert_eq!(
            harness.reasons(&thread),
            [Reason::UserMessage, Reason::AssistantTurnCommitted, Reason::RunFinished]
        );
        assert_eq!(harness.store.account(&thread).unwrap(), None);
    }
}

#[test]
fn published_events_have_the_numbers_of_their_lines() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = paid(vec![Reply::Says("hello")], "1");
    let mut told = Vec::new();
    let mut tell = |one: selvedge_engine::RunEvent| {
        if let selvedge_engine::RunEvent::Committed { first_line: seq, events, .. } = one {
            told.extend(events.iter().enumerate().map(|(index, event)| (seq + index as u64, event.clone())));
        }
    };
    harness.engine.send(&thread, Input::text("hi"), &work, &Cancel::new(), &mut tell).unwrap();
    let lines = harness.store.read(&thread, 0, usize::MAX).unwrap();
    assert!(told.len() > 8);
    for (seq, event) in told {
        assert_eq!(lines[usize::try_from(seq).unwrap()].event, event);
    }
}

#[test]
fn a_call_that_the_account_does_not_hold_is_not_made_and_one_that_fits_when_shorter_is() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = paid(vec![Reply::Says("never asked")], "0.0005");
    let ended = harness.send(&thread, Input::text("hi"), &work).0.unwrap();
    let why = ended.suspended.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), why.reason, why.code.as_deref()),
        (Status::Suspended, SuspendReason::Budget, Some("spend_exceeded"))
    );
    assert_eq!((why.current, why.maximum), (Some(json!(0.0)), Some(json!(0.0005))));
    assert!(ended.why.unwrap().contains("has 0.0005 dollars left"));
    assert_eq!(
        (ended.run_cost.clone().unwrap().turns, names(&harness, &thread)),
        (0, vec!["account_opened"]),
        "nothing was asked"
    );
    assert_eq!(account(&harness, &thread).status, AccountStatus::Active, "a suspended chain keeps its account");

    let raise = Input::nothing().raising(spend("0.002"));
    let ended = resume(&harness, &thread, raise, &work).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("never asked")));
    let told = postings(&harness, &thread);
    assert_eq!(told[1].0, "account_raised");
    assert_eq!((told[1].1.amount, told[1].1.remaining), (Some(dollars("0.002")), Some(dollars("0.002"))));
    let bound = told.iter().find(|(name, _)| *name == "reserved").unwrap().1.amount.unwrap();
    assert!(bound <= dollars("0.002") && bound > dollars("0.0019"), "a shorter answer was allowed: {bound}");
}

/// A model with a configured usage that calls a function in the middle of its answer.
struct Using {
    usage: Option<Usage>,
    meanwhile: Box<dyn Fn(&Prompt<'_>) + Send + Sync>,
    asked: AtomicUsize,
}

impl Using {
    fn tokens(input_tokens: u64, output_tokens: u64) -> Self {
        let usage = Some(Usage { input_tokens, output_tokens, ..Usage::default() });
        Self { usage, meanwhile: Box::new(|_| {}), asked: AtomicUsize::new(0) }
    }

    fn meanwhile(self, meanwhile: impl Fn(&Prompt<'_>) + Send + Sync + 'static) -> Self {
        Self { meanwhile: Box::new(meanwhile), ..self }
    }
}

crate::support::as_model!(Using);

impl crate::support::Blocking for Using {
    fn answer(&self, prompt: &Prompt<'_>, _: &mut dyn FnMut(Draft), _: &Cancel) -> Result<Answer, ModelError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        (self.meanwhile)(prompt);
        let content = vec![Block::text("so it is")];
        let answer = Answer::new(content, End::Finished);
        Ok(match self.usage {
            Some(usage) => answer.using(usage),
            None => answer,
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

fn paid_by(model: Using, most: &str) -> (RunConfig, Arc<Using>) {
    let model = Arc::new(model);
    let mut work = RunConfig::new(AgentId::new("scribe").unwrap(), model.clone(), "using");
    (work.price, work.limits) = (Some(price()), spend(most));
    (work, model)
}

#[test]
fn the_model_gets_the_maximal_length_of_its_answer() {
    let harness = Harness::new();
    let thread = harness.thread();
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = told.clone();
    let model = Using::tokens(10, 5).meanwhile(move |prompt| seen.lock().unwrap().push(prompt.output_tokens_max));
    let (mut work, _) = paid_by(model, "1");
    harness.send(&thread, Input::text("hi"), &work).0.unwrap();
    work.output_tokens_max = Some(300);
    harness.send(&thread, Input::text("hi again"), &work).0.unwrap();
    assert_eq!(*told.lock().unwrap(), [Some(8192), Some(300)]);
}

/// An endless answer of a free model was not bounded by anything.
#[test]
fn a_model_without_a_price_gets_the_maximal_length_of_its_answer_too() {
    let harness = Harness::new();
    let thread = harness.thread();
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = told.clone();
    let model = Using::tokens(10, 5).meanwhile(move |prompt| seen.lock().unwrap().push(prompt.output_tokens_max));
    let (mut work, _) = paid_by(model, "1");
    for (price, limits) in [(Some(Price::default()), spend("1")), (None, Limits::default())] {
        (work.price, work.limits, work.output_tokens_max) = (price, limits, Some(300));
        harness.send(&thread, Input::text("hi"), &work).0.unwrap();
    }
    work.output_tokens_max = None;
    harness.send(&thread, Input::text("hi"), &work).0.unwrap();
    assert_eq!(*told.lock().unwrap(), [Some(300), Some(300), None]);
}

#[test]
fn each_attempt_is_reserved_and_an_unknown_cost_is_settled_at_its_bound() {
    let harness = Harness::new();
    let thread = harness.thread();
    let cut = ModelError::Status { status: 500, why: "it broke".to_owned(), retry_after: None };
    let work = paid(vec![Reply::Fails(cut)], "1");
    let ended = harness.send(&thread, Input::text("hi"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Suspended);
    let attempt = ["reserved", "issued", "settled"];
    let expected: Vec<_> = ["account_opened"].into_iter().chain([attempt; 3].concat()).collect();
    assert_eq!(names(&harness, &thread), expected);
    let told = postings(&harness, &thread);
    let bounds: Vec<_> = told.iter().filter(|(name, _)| *name == "reserved").map(|(_, record)| record.amount).collect();
    let settled: Vec<_> = told.iter().filter(|(name, _)| *name == "settled").map(|(_, record)| record).collect();
    assert!(settled.iter().all(|record| record.unknown));
    assert_eq!(settled.iter().map(|record| record.amount).collect::<Vec<_>>(), bounds);
    let reasons = harness.reasons(&thread);
    assert_eq!(reasons[1..], [Reason::Reserved, Reason::Reserved, Reason::Reserved, Reason::RunFinished]);
    // The run, the thread and the account agree.
    let settled = account(&harness, &thread).settled;
    assert!(!settled.is_zero());
    assert_eq!(
        (ended.run_cost.clone().unwrap().spend, ended.run_cost.clone().unwrap().spend_unknown),
        (settled, settled)
    );
    assert_eq!(harness.loaded(&thread).manifest.cost.spend, settled);
}

/// An answer without reported usage was settled at zero, and no limit ever held.
#[test]
fn an_answer_without_reported_usage_is_not_free_and_its_tokens_are_estimated() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (mut work, _) = paid_by(Using { usage: None, ..Using::tokens(0, 0) }, "1");
    let ended = harness.send(&thread, Input::text("hi"), &work).0.unwrap();
    let told = postings(&harness, &thread);
    assert!(told[3].1.unknown && told[3].1.amount == told[1].1.amount, "{:?}", told[3]);
    let settled = account(&harness, &thread).settled;
    assert_eq!(
        (ended.run_cost.clone().unwrap().spend, ended.run_cost.clone().unwrap().spend_unknown),
        (settled, settled)
    );
    assert!(
        ended.run_cost.clone().unwrap().input_tokens > 0 && ended.run_cost.clone().unwrap().output_tokens > 0,
        "{:?}",
        ended.run_cost.clone().unwrap()
    );
    // The same for a token limit, whatever the tokens cost.
    let free = harness.thread();
    (work.price, work.limits) = (None, Limits { tokens: Some(1), ..Limits::default() });
    let ended = harness.send(&free, Input::text("hi"), &work).0.unwrap();
    assert!(
        ended.run_cost.clone().unwrap().input_tokens > 0 && ended.run_cost.clone().unwrap().spend.is_zero(),
        "{:?}",
        ended.run_cost.clone().unwrap()
    );
    // Zeros that a provider reports are zeros.
    let thread = harness.thread();
    let (work, _) = paid_by(Using::tokens(0, 0), "1");
    let ended = harness.send(&thread, Input::text("hi"), &work).0.unwrap();
    assert_eq!((account(&harness, &thread).settled, ended.run_cost.clone().unwrap().input_tokens), (Money::ZERO, 0));
}

#[test]
fn a_provider_that_rejects_a_call_has_charged_nothing() {
    for refusal in [
        ModelError::RateLimited { why: "slowly".to_owned(), retry_after: None },
        ModelError::Permanent { why: "no".to_owned() },
        ModelError::Status { status: 429, why: "slowly".to_owned(), retry_after: None },
        ModelError::Status { status: 401, why: "who are you".to_owned(), retry_after: None },
        // It was not even reached.
        ModelError::Unreached { why: "no route".to_owned() },
    ] {
        let harness = Harness::new();
        let thread = harness.thread();
        let work = paid(vec![Reply::Fails(refusal)], "1");
        harness.send(&thread, Input::text("hi"), &work).0.unwrap();
        let told = postings(&harness, &thread);
        let settled: Vec<_> = told.iter().filter(|(name, _)| *name == "settled").collect();
        assert!(!settled.is_empty());
        assert!(settled.iter().all(|(_, record)| record.amount == Some(Money::ZERO) && !record.unknown));
        assert_eq!(account(&harness, &thread).settled, Money::ZERO);
    }
}

#[test]
fn a_stopped_answer_is_settled_at_its_bound_with_the_end_of_the_run() {
    let harness = Harness::new();
    let thread = harness.thread();
    let cancel = Cancel::new();
    let work = paid(vec![Reply::Stops(cancel.clone())], "1");
    let ended = harness.engine.send(&thread, Input::text("hi"), &work, &cancel, &mut |_| {}).unwrap();
    assert_eq!(ended.status, Status::Cancelled);
    let told = postings(&harness, &thread);
    assert_eq!(names(&harness, &thread), ["account_opened", "reserved", "issued", "settled", "account_closed"]);
    assert!(told[3].1.unknown && told[3].1.amount == told[1].1.amount);
    assert_eq!(harness.reasons(&thread), [Reason::UserMessage, Reason::Reserved, Reason::RunFinished]);
}

#[test]
fn issued_calls_of_a_killed_run_are_settled_at_their_bound_and_reserved_ones_are_released() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.thread();
    let (work, _) = paid_by(Using::tokens(1, 1), "1");
    harness.dies_after(Reason::Reserved, || harness.send(&thread, Input::text("go"), &work));
    let bound = account(&harness, &thread).reserved;
    assert!(bound > Money::ZERO);
    // As if it had been killed between reserving and issuing.
    let run = harness.loaded(&thread).manifest.run_id.unwrap();
    let reserve = Posting::Reserve {
        account: thread.clone(),
        reservation: ReservationId::new(format!("{run}.77")).unwrap(),
        amount: dollars("0.1"),
        child: None,
    };
    let changeset = Changeset::empty(Reason::Reserved);
    let part = Part { postings: vec![reserve], ..Part::new(other.clone(), Expect::Any, changeset) };
    harness.store.commit(Batch::of(part)).unwrap();

    assert_eq!(harness.engine.recover().unwrap(), std::slice::from_ref(&thread));
    let account_now = account(&harness, &thread);
    assert_eq!((account_now.settled, account_now.reserved, account_now.open), (bound, Money::ZERO, 0));
    assert_eq!(account_now.status, AccountStatus::Active, "a suspended thread keeps its account");
    assert_eq!(harness.loaded(&thread).manifest.cost.spend, bound, "thread and account agree");
    let told = postings(&harness, &thread);
    let settled = &told[told.len() - 2];
    let released = &told[told.len() - 1];
    assert_eq!((settled.0, settled.1.unknown, settled.1.amount), ("settled", true, Some(bound)));
    assert_eq!((released.0, released.1.amount), ("released", Some(dollars("0.1"))));
    assert_eq!(harness.reasons(&thread).last(), Some(&Reason::RunFinished), "in the batch that settles the run");
}

/// Postings from a thread that no process holds.
fn posts(harness: &Harness, thread: &ThreadId, postings: Vec<Posting>) -> selvedge_store::Result<()> {
    let part = Part::new(thread.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
    harness.store.commit(Batch::of(Part { postings, ..part })).map(|_| ())
}

/// A thread whose account has this limit.
pub(crate) fn parent(harness: &Harness, most: &str) -> ThreadId {
    let thread = harness.thread();
    let open = Posting::Open { account: thread.clone(), parent: None, max: Some(dollars(most)) };
    posts(harness, &thread, vec![open]).unwrap();
    thread
}

/// A child with this much of its parent's money.
pub(crate) fn child(harness: &Harness, parent: &ThreadId, most: &str) -> ThreadId {
    let new = NewThread { parent_id: Some(parent.clone()), ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    let ids = SeededIds::new(thread.as_str().bytes().map(u64::from).sum());
    let mut book = Book::over(&*harness.store, &ids);
    book.ensure(parent, None).unwrap();
    book.spawn(parent, &thread, Some(dollars(most))).unwrap();
    posts(harness, parent, book.into_postings()).unwrap();
    thread
}

/// What the accounts of a parent and its child must agree on.
fn figures(account: &Account) -> (Money, Money, Money, AccountStatus) {
    (account.settled, account.settled_children, account.reserved, account.status)
}

#[test]
fn an_overcharge_is_recorded_as_it_was_and_nothing_more_is_reserved_in_the_tree() {
    let harness = Harness::new();
    let parent = parent(&harness, "1");
    let dear = child(&harness, &parent, "0.4");
    let sibling = child(&harness, &parent, "0.3");
    // Far more than the 8,192 tokens that were allowed.
    let (work, _) = paid_by(Using::tokens(10, 20_000), "0.4");
    let ended = harness.send(&dear, Input::text("go"), &work).0.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.run_cost.clone().unwrap().spend),
        (Status::Completed, dollars("0.04001"))
    );
    assert_eq!(account(&harness, &dear).settled, dollars("0.04001"), "the real figure is kept");
    for stopped in [&parent, &sibling] {
        assert_eq!(account(&harness, stopped).remaining(), Some(Money::ZERO), "{stopped}");
    }
    let (work, model) = paid_by(Using::tokens(1, 1), "0.3");
    let ended = harness.send(&sibling, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.suspended.unwrap().reason, SuspendReason::Budget);
    assert_eq!(model.asked.load(Ordering::SeqCst), 0);
    let raise = Input::nothing().raising(spend("0.31"));
    let error = resume(&harness, &sibling, raise, &work).unwrap_err();
    assert_eq!(error.code(), "budget_exceeded", "its parent has no money for it");
}

/// An overcharge stops every account of the tree in the batch that records it. Siblings run meanwhile: an account that is closed, or was
/// stopped by another overcharge, need not be stopped any more, and once prevented the charge from being recorded at all.
#[test]
fn a_sibling_that_ends_or_overcharges_at_the_same_moment_does_not_prevent_the_record_of_a_charge() {
    for tokens in [5, 20_000] {
        let harness = Harness::new();
        let parent = parent(&harness, "1");
        let children = ["0.3", "0.3", "0.2"].map(|most| child(&harness, &parent, most));
        let [dear, sibling, third] = &children;
        let other = harness.another();
        let quick = sibling.clone();
        let ends: Meanwhile = Box::new(move |_| {
            let (work, _) = paid_by(Using::tokens(10, tokens), "0.3");
            assert_eq!(other.send(&quick, Input::text("go"), &work).0.unwrap().status, Status::Completed);
        });
        *harness.store.before_stop.lock().unwrap() = Some(ends);
        let (work, _) = paid_by(Using::tokens(10, 20_000), "0.3");
        let ended = harness.send(dear, Input::text("go"), &work).0.unwrap();
        assert_eq!(ended.status, Status::Completed, "{ended:?}");
        assert!(harness.store.before_stop.lock().unwrap().is_none(), "the other came in between");
        assert_eq!(account(&harness, dear).settled, dollars("0.04001"), "the real figure is kept");
        assert_eq!(account(&harness, sibling).status, AccountStatus::Closed);
        for stopped in [&parent, third] {
            assert_eq!(account(&harness, stopped).remaining(), Some(Money::ZERO), "{stopped}");
        }
        let charged = if tokens == 5 { "0.04003" } else { "0.08002" };
        assert_eq!(account(&harness, &parent).settled_children, dollars(charged));
    }
}

#[test]
fn siblings_that_overcharge_at_the_same_time_are_all_charged_in_full() {
    for round in 0..20 {
        let harness = Harness::new();
        let parent = parent(&harness, "1");
        let children: Vec<_> = (0..4).map(|_| child(&harness, &parent, "0.2")).collect();
        let gate = Arc::new(std::sync::Barrier::new(children.len()));
        std::thread::scope(|scope| {
            for thread in &children {
                let harness = harness.another();
                let gate = gate.clone();
                scope.spawn(move || {
                    // All are called before any is charged.
                    let (work, _) = paid_by(Using::tokens(10, 20_000).meanwhile(move |_| _ = gate.wait()), "0.2");
                    let ended = harness.send(thread, Input::text("go"), &work).0.unwrap();
                    assert_eq!(ended.status, Status::Completed, "{ended:?}");
                });
            }
        });
        let now = account(&harness, &parent);
        assert_eq!(figures(&now), (Money::ZERO, dollars("0.16004"), Money::ZERO, AccountStatus::Active), "{round}");
        assert_eq!(now.remaining(), Some(Money::ZERO));
        for child in &children {
            assert_eq!(account(&harness, child).settled, dollars("0.04001"));
        }
        let tree = audit::tree(&*harness.store, &parent).unwrap();
        let found = audit::audit(&*harness.store, &harness.trust, &tree).unwrap().found;
        assert!(found.iter().all(|found| !found.is_of_integrity()), "{found:?}");
    }
}

#[test]
fn a_tree_without_a_limit_continues_after_an_overcharge() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (mut work, _) = paid_by(Using::tokens(10, 20_000), "1");
    work.limits = Limits::default();
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(harness.send(&thread, Input::text("on"), &work).0.unwrap().status, Status::Completed);
    assert_eq!(account(&harness, &thread).settled, dollars("0.08002"));
}

#[test]
fn a_child_holds_one_reservation_of_its_parent_and_its_own_calls_do_not_count_there() {
    let harness = Harness::new();
    let parent = parent(&harness, "1");
    let child = child(&harness, &parent, "0.4");
    assert_eq!(harness.store.reservations(&parent).unwrap().len(), 1);
    let store = harness.store.clone();
    let here = child.clone();
    let above = parent.clone();
    let model = Using::tokens(10, 5).meanwhile(move |_| {
        assert_eq!(store.reservations(&above).unwrap().len(), 1, "reserved once, however often it calls");
        assert!(!store.account(&here).unwrap().unwrap().reserved.is_zero());
        assert_eq!(store.account(&above).unwrap().unwrap().remaining(), Some("0.6".parse().unwrap()));
    });
    let (work, _) = paid_by(model, "0.4");
    harness.send(&child, Input::text("go"), &work).0.unwrap();
    let cost = dollars("0.00002");
    assert_eq!(figures(&account(&harness, &child)), (cost, Money::ZERO, Money::ZERO, AccountStatus::Closed));
    assert_eq!(figures(&account(&harness, &parent)), (Money::ZERO, cost, Money::ZERO, AccountStatus::Active));
    let (last, record) = postings(&harness, &child).pop().unwrap();
    assert_eq!(
        (last, &record.account, record.child.as_ref()),
        ("settled", &parent, Some(&child)),
        "in the child's own log"
    );
    let tree = harness.store.tree(&parent).unwrap();
    let own = tree.iter().fold(Money::ZERO, |sum, account| sum.saturating_add(account.settled));
    assert_eq!((own, tree[0].spent()), (cost, cost), "nothing is counted twice");
}

#[test]
fn what_a_parent_spends_counts_while_it_runs() {
    let harness = Harness::new();
    let parent = parent(&harness, "1");
    let store = harness.store.clone();
    let above = parent.clone();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let model = Using::tokens(100_000, 0).meanwhile(move |_| {
        told.lock().unwrap().push(store.account(&above).unwrap().unwrap().settled);
    });
    let (work, _) = paid_by(model, "1");
    for text in ["one", "two", "three"] {
        let mut work = work.clone();
        work.system = "x".repeat(400_000);
        harness.send(&parent, Input::text(text), &work).0.unwrap();
    }
    assert_eq!(*seen.lock().unwrap(), [Money::ZERO, dollars("0.1"), dollars("0.2")]);
    let book_ids = SeededIds::new(5);
    let mut book = Book::over(&*harness.store, &book_ids);
    book.ensure(&parent, None).unwrap();
    let refused = book.spawn(&parent, &ThreadId::new("late").unwrap(), Some(dollars("0.71"))).unwrap_err();
    assert_eq!(refused.code(), "budget_exceeded", "0.3 are spent already");
}

#[test]
fn a_chain_that_is_continued_moves_no_money() {
    let harness = Harness::new();
    let first = harness.thread();
    let (work, _) = paid_by(Using::tokens(10, 5), "1");
    harness.send(&first, Input::text("go"), &work).0.unwrap();
    let new = NewThread { chain_root_id: Some(first.clone()), ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let second = harness.engine.create(new, Vec::new()).unwrap();
    harness.send(&second, Input::text("on"), &work).0.unwrap();
    assert_eq!(harness.store.account(&second).unwrap(), None);
    let account = account(&harness, &first);
    assert_eq!(figures(&account), (dollars("0.00004"), Money::ZERO, Money::ZERO, AccountStatus::Closed));
    assert_eq!(
        names(&harness, &second),
        ["account_reopened", "reserved", "issued", "settled", "account_closed"],
        "the second thread spends from the account of the first"
    );
    assert!(postings(&harness, &second).iter().all(|(_, record)| record.account == first));
}

#[test]
fn a_parent_that_ends_first_is_closed_by_its_last_child() {
    let harness = Harness::new();
    let root = parent(&harness, "1");
    let middle = child(&harness, &root, "0.5");
    let one = child(&harness, &middle, "0.1");
    let two = child(&harness, &middle, "0.2");
    let (work, _) = paid_by(Using::tokens(10, 5), "1");
    harness.send(&middle, Input::text("go"), &work).0.unwrap();
    assert_eq!(account(&harness, &middle).status, AccountStatus::Closing);
    harness.send(&one, Input::text("go"), &work).0.unwrap();
    assert_eq!(account(&harness, &middle).status, AccountStatus::Closing);
    assert_eq!(account(&harness, &root).reserved, dollars("0.5"), "money for unfinished children stays reserved");
    // A child that is stopped before it ran is finished as well.
    harness.engine.stop(&two, Stop::Killed).unwrap();
    let cost = dollars("0.00002");
    assert_eq!(figures(&account(&harness, &middle)), (cost, cost, Money::ZERO, AccountStatus::Closed));
    let spent = dollars("0.00004");
    assert_eq!(figures(&account(&harness, &root)), (Money::ZERO, spent, Money::ZERO, AccountStatus::Active));
    assert!(harness.store.reservations(&root).unwrap().is_empty(), "nothing stays reserved for ever");
}

#[test]
fn a_suspended_child_keeps_its_reservation_and_a_cancelled_one_releases_it() {
    let harness = Harness::new();
    let parent = parent(&harness, "1");
    let child = child(&harness, &parent, "0.0001");
    let (work, _) = paid_by(Using::tokens(10, 5), "0.0001");
    let ended = harness.send(&child, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Suspended);
    assert_eq!(account(&harness, &parent).reserved, dollars("0.0001"));
    harness.engine.stop(&child, Stop::Cancelled).unwrap();
    assert_eq!(figures(&account(&harness, &parent)), (Money::ZERO, Money::ZERO, Money::ZERO, AccountStatus::Active));
    assert_eq!(account(&harness, &child).status, AccountStatus::Closed);
}

#[test]
fn a_child_that_is_raised_reserves_the_difference_or_is_refused() {
    let harness = Harness::new();
    let parent = parent(&harness, "0.1");
    let child = child(&harness, &parent, "0.0001");
    let (work, _) = paid_by(Using::tokens(10, 5), "0.0001");
    harness.send(&child, Input::text("go"), &work).0.unwrap();
    let error = resume(&harness, &child, Input::nothing().raising(spend("0.2")), &work).unwrap_err();
    assert_eq!((error.code(), error.kind()), ("budget_exceeded", selvedge_model::Kind::Exhausted));
    let command = format!("`selvedge resume {parent} --raise spend=");
    assert!(error.hint().is_some_and(|hint| hint.contains(&command)), "{:?}", error.hint());
    assert_eq!(harness.loaded(&child).manifest.status, Status::Suspended, "nothing was recorded");
    assert_eq!(account(&harness, &child).max, Some(dollars("0.0001")));
    let ended = resume(&harness, &child, Input::nothing().raising(spend("0.05")), &work).unwrap();
    assert_eq!(ended.status, Status::Completed);
    assert_eq!(account(&harness, &child).max, Some(dollars("0.05")));
    let cost = dollars("0.00002");
    assert_eq!(figures(&account(&harness, &parent)), (Money::ZERO, cost, Money::ZERO, AccountStatus::Active));
}

#[test]
fn a_new_run_on_a_closed_child_reserves_again_up_to_the_root_or_is_refused() {
    let harness = Harness::new();
    let root = parent(&harness, "1");
    let middle = child(&harness, &root, "0.5");
    let leaf = child(&harness, &middle, "0.4");
    let (work, _) = paid_by(Using::tokens(10, 5), "1");
    for thread in [&leaf, &middle, &root] {
        harness.send(thread, Input::text("go"), &work).0.unwrap();
        assert_eq!(account(&harness, thread).status, AccountStatus::Closed);
    }
    let store = harness.store.clone();
    let above = middle.clone();
    let top = root.clone();
    let model = Using::tokens(10, 5).meanwhile(move |_| {
        let account = |id| store.account(id).unwrap().unwrap();
        assert_eq!(
            (account(&above).reserved, account(&above).status),
            ("0.4".parse().unwrap(), AccountStatus::Closing)
        );
        assert_eq!((account(&top).reserved, account(&top).status), ("0.5".parse().unwrap(), AccountStatus::Closing));
    });
    let (again, _) = paid_by(model, "1");
    harness.send(&leaf, Input::text("once more"), &again).0.unwrap();
    let once = dollars("0.00002");
    let twice = dollars("0.00004");
    assert_eq!(figures(&account(&harness, &leaf)), (twice, Money::ZERO, Money::ZERO, AccountStatus::Closed));
    assert_eq!(figures(&account(&harness, &middle)), (once, twice, Money::ZERO, AccountStatus::Closed));
    assert_eq!(figures(&account(&harness, &root)), (once, dollars("0.00006"), Money::ZERO, AccountStatus::Closed));

    // The root gives the money to another child.
    let other = child(&harness, &root, "0.9");
    let error = harness.send(&leaf, Input::text("and again"), &work).0.unwrap_err();
    assert_eq!(error.code(), "budget_exceeded");
    assert_eq!(account(&harness, &leaf).status, AccountStatus::Closed, "nothing was recorded");
    drop(other);
}

#[test]
fn of_two_processes_that_want_the_last_money_of_an_account_one_is_refused_with_what_is_left() {
    for round in 0..8 {
        let harness = Harness::new();
        let parent = parent(&harness, "0.5");
        let other = harness.another();
        let new = || NewThread { parent_id: Some(parent.clone()), ..NewThread::of(AgentId::new("scribe").unwrap()) };
        let threads =
            [harness.engine.create(new(), Vec::new()).unwrap(), other.engine.create(new(), Vec::new()).unwrap()];
        // Neither has an account: each reserves from the parent's when it begins, and only one of the two fits.
        let (work, model) = paid_by(Using::tokens(10, 5), "0.3");
        let gate = std::sync::Barrier::new(2);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let runs = [(&harness, &threads[0]), (&other, &threads[1])].map(|(harness, thread)| {
                let work = work.clone();
                let gate = &gate;
                scope.spawn(move || {
                    gate.wait();
                    harness.send(thread, Input::text("go"), &work).0
                })
            });
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        let account = account(&harness, &parent);
        assert!(account.used() <= dollars("0.5"), "round {round}: {account:?}");
        let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        // A child that was fast enough has returned what it did not need before the other one reserved.
        assert!(refused.len() <= 1);
        for error in refused {
            assert!(error.to_string().contains("has 0.20 dollars left, and 0.30 are needed"), "{error}");
        }
        assert!(model.asked.load(Ordering::SeqCst) >= 1);
    }
}

#[test]
fn a_posting_by_another_thread_in_the_middle_of_a_call_is_no_conflict_for_the_run() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.thread();
    let store = harness.store.clone();
    let account = thread.clone();
    let from = other.clone();
    let count = AtomicUsize::new(0);
    let model = Using::tokens(10, 5).meanwhile(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let reservation = ReservationId::new(format!("elsewhere-{number}")).unwrap();
        let reserve =
            Posting::Reserve { account: account.clone(), reservation, amount: "0.1".parse().unwrap(), child: None };
        let part = Part::new(from.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
        store.commit(Batch::of(Part { postings: vec![reserve], ..part })).unwrap();
    });
    let (work, _) = paid_by(model, "1");
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Completed);
    let now = harness.store.account(&thread).unwrap().unwrap();
    assert_eq!((now.settled, now.reserved, now.status), (dollars("0.00002"), dollars("0.1"), AccountStatus::Closing));
}

#[test]
fn sums_of_money_are_exact() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (mut work, _) = paid_by(Using::tokens(1, 1), "1");
    // A tenth and two tenths of a nano-dollar a token: neither has an exact binary fraction, and each call is rounded up to one.
    work.price = Some(Price { input: dollars("0.1"), output: dollars("0.2"), ..Price::default() });
    for _ in 0..50 {
        harness.send(&thread, Input::text("go"), &work).0.unwrap();
    }
    assert_eq!(account(&harness, &thread).settled.nanos(), 50 * 300);
}

#[test]
fn a_parent_and_its_last_child_that_end_at_the_same_time_are_both_closed() {
    for _ in 0..40 {
        let harness = Harness::new();
        let root = parent(&harness, "1");
        let middle = child(&harness, &root, "0.5");
        let leaves = [child(&harness, &middle, "0.1"), child(&harness, &middle, "0.1")];
        let gate = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for thread in [&middle, &leaves[0], &leaves[1]] {
                let harness = harness.another();
                let gate = &gate;
                let (work, _) = paid_by(Using::tokens(10, 5), "1");
                scope.spawn(move || {
                    gate.wait();
                    harness.send(thread, Input::text("go"), &work).0.unwrap();
                });
            }
        });
        let cost = dollars("0.00002");
        assert_eq!(account(&harness, &middle).status, AccountStatus::Closed, "the last one closed it");
        assert_eq!(
            figures(&account(&harness, &root)),
            (Money::ZERO, dollars("0.00006"), Money::ZERO, AccountStatus::Active)
        );
        assert_eq!(account(&harness, &middle).settled, cost);
    }
}
