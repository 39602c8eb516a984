//! Calls that need an approval.

mod changed;
mod queued;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use selvedge_engine::run_config::NeededApproval;
use selvedge_engine::{Choice, Input, Outcome, Permission, Recorded, RunConfig};
use selvedge_items::config::{ResumeMode, Wait};
use selvedge_log::Line;
use selvedge_model::event::{Decision, DecisionAction, EffectClass, SuspendReason};
use selvedge_model::message::Block;
use selvedge_model::{
    Batch, Call, CallId, Cancel, Changeset, Classify, Clock, Digest, Event, Expect, Message, Output, Part, Reason,
    Request, Role, Status, Stop, ThreadId, Timestamp, Tool,
};
use selvedge_store::{Commit, Inbox, Logs, Registry};
use serde_json::{Value, json};

use crate::support::{CountingTool, Harness, Reply, agent, die, request};

fn call(id: &str) -> CallId {
    CallId::new(id).unwrap()
}

/// An agent whose tool `pay` needs an approval, and whose tool `look` needs none.
struct Payer {
    work: RunConfig,
    paid: Arc<AtomicUsize>,
    seen: Arc<std::sync::Mutex<Vec<Call>>>,
}

fn payer(calls: Vec<(&'static str, &'static str, Value)>) -> Payer {
    let mut pay = CountingTool::new("pay", EffectClass::AtMostOnce);
    let look = CountingTool::new("look", EffectClass::Pure);
    pay.answer = Output::text("paid");
    let paid = pay.ran.clone();
    let seen = pay.seen.clone();
    let mut work = agent(vec![Reply::Calls(calls), Reply::Says("done")], vec![Arc::new(pay), Arc::new(look)]);
    work.gate = asks(NeededApproval { why: Some("it is money".to_owned()), ..NeededApproval::default() });
    Payer { work, paid, seen }
}

impl Payer {
    /// Calls this in the middle of each call of `look`.
    fn while_looking(&mut self, meanwhile: impl Fn(&Call) + Send + Sync + 'static) {
        let mut look = CountingTool::new("look", EffectClass::Pure);
        look.meanwhile = Arc::new(meanwhile);
        self.work.tools[1] = Arc::new(look);
    }
}

fn asks(asking: NeededApproval) -> selvedge_engine::run_config::Gate {
    Arc::new(move |spec, _| match spec.name.as_str() {
        "pay" => Permission::Ask(asking.clone()),
        _ => Permission::Allowed,
    })
}

fn two() -> Vec<(&'static str, &'static str, Value)> {
    vec![("p2", "pay", json!({"amount": 2})), ("p1", "pay", json!({"amount": 1})), ("l", "look", json!({}))]
}

fn one() -> Vec<(&'static str, &'static str, Value)> {
    vec![("p1", "pay", json!({"amount": 1}))]
}

impl Harness {
    fn asked(&self, payer: &Payer) -> ThreadId {
        let thread = self.thread();
        let ended = self.send(&thread, Input::text("pay"), &payer.work).0.unwrap();
        assert_eq!((ended.status.status().unwrap(), ended.code.as_deref().unwrap()), (Status::Suspended, "approval"));
        assert_eq!(payer.paid.load(Ordering::SeqCst), 0, "nothing is executed before it is approved");
        thread
    }

    fn decide(&self, thread: &ThreadId, id: &str, choice: Choice, payer: &Payer) -> selvedge_engine::Result<Recorded> {
        self.engine.decide(thread, &call(id), choice, "ann", &payer.work).map(|decided| decided.recorded)
    }

    fn go_on(&self, thread: &ThreadId, payer: &Payer) -> Outcome {
        self.engine.resume(thread, Input::nothing(), &payer.work, &Cancel::new(), &mut |_| {}).unwrap()
    }

    /// The results that the model got.
    fn results(&self, thread: &ThreadId) -> Vec<(String, String)> {
        let loaded = self.loaded(thread);
        let tools = loaded.messages.iter().filter(|message| message.role == Role::Tool);
        let result = |block: &Block| match block {
            Block::ToolResult { call_id, content, .. } => {
                Some((call_id.to_string(), content.as_str().map_or_else(|| content.to_string(), str::to_owned)))
            }
            _ => None,
        };
        tools.flat_map(|message| message.content.iter().filter_map(result)).collect()
    }
}

#[test]
fn several_calls_wait_together_and_are_made_in_the_order_of_their_ids_once_all_are_approved() {
    let harness = Harness::new();
    let payer = payer(two());
    let thread = harness.asked(&payer);
    let manifest = harness.loaded(&thread).manifest;
    let why = manifest.suspended.unwrap();
    let asks = manifest.asks;
    assert_eq!((why.reason, why.calls.len()), (SuspendReason::Approval, 2));
    assert_eq!(
        (asks[0].arguments.as_ref(), asks[0].why.as_deref()),
        (Some(&json!({"amount": 2})), Some("it is money"))
    );
    assert_eq!(
        harness.results(&thread),
        [("l".to_owned(), "done".to_owned())],
        "a call that needs no approval is made"
    );
    let decided = harness.engine.decide(&thread, &call("p2"), Choice::Approve(None), "ann", &payer.work).unwrap();
    assert_eq!((decided.recorded, decided.undecided), (Recorded::Now, vec![call("p1")]));
    // It waits for the other one, and makes no run.
    assert_eq!((harness.go_on(&thread, &payer).run_id, payer.paid.load(Ordering::SeqCst)), (None, 0));
    harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap();
    let ended = harness.go_on(&thread, &payer);
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("done")));
    let lines = harness.store.read(&thread, 0, usize::MAX).unwrap();
    let made = lines.iter().filter_map(|line| match &line.event {
        Event::ToolIntent(intent) => Some(intent.call_id.as_str()),
        _ => None,
    });
    assert_eq!(made.collect::<Vec<_>>(), ["p1", "p2"]);
    let mut results: Vec<_> = harness.results(&thread).into_iter().map(|(id, _)| id).collect();
    results.sort_unstable();
    assert_eq!(results, ["l", "p1", "p2"]);
    assert_eq!(payer.paid.load(Ordering::SeqCst), 2);
}

#[test]
fn each_approved_call_can_be_made_by_itself() {
    let harness = Harness::new();
    let mut payer = payer(two());
    payer.work.wait = Wait::Each;
    let thread = harness.asked(&payer);
    harness.decide(&thread, "p2", Choice::Approve(None), &payer).unwrap();
    let ended = harness.engine.resume(&thread, Input::nothing(), &payer.work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), payer.paid.load(Ordering::SeqCst)), (Status::Suspended, 1));
    assert_eq!(ended.suspended.unwrap().calls, [call("p1")]);
}

#[test]
fn a_denied_call_is_never_made_and_the_model_gets_the_reason() {
    let harness = Harness::new();
    let payer = payer(one());
    let thread = harness.asked(&payer);
    harness.decide(&thread, "p1", Choice::Deny(Some("too much".to_owned())), &payer).unwrap();
    assert_eq!(harness.go_on(&thread, &payer).status, Status::Completed);
    assert_eq!(harness.results(&thread), [("p1".to_owned(), "denied by ann: too much".to_owned())]);
    assert_eq!(payer.paid.load(Ordering::SeqCst), 0);
}

#[test]
fn a_call_is_made_with_changed_arguments_and_the_model_gets_to_know_them() {
    let harness = Harness::new();
    let payer = payer(one());
    let thread = harness.asked(&payer);
    harness.decide(&thread, "p1", Choice::Edit(json!({"amount": 7})), &payer).unwrap();
    harness.go_on(&thread, &payer);
    assert_eq!(payer.seen.lock().unwrap()[0].arguments, json!({"amount": 7}));
    let told = &harness.results(&thread)[0].1;
    assert!(
        told.contains("ann changed the arguments") && told.contains("{\"amount\":7}") && told.ends_with("paid"),
        "{told}"
    );
}

#[test]
fn a_decision_can_be_the_result_or_the_arguments() {
    for (mode, made, told) in
        [(ResumeMode::UseDecisionAsToolResult, 0, "blue"), (ResumeMode::PassDecisionToTool, 1, "ann changed")]
    {
        let harness = Harness::new();
        let mut payer = payer(one());
        payer.work.gate = asks(NeededApproval { mode, ..NeededApproval::default() });
        let thread = harness.asked(&payer);
        harness.decide(&thread, "p1", Choice::Approve(Some(json!("blue"))), &payer).unwrap();
        harness.go_on(&thread, &payer);
        assert_eq!(payer.paid.load(Ordering::SeqCst), made);
        assert!(harness.results(&thread)[0].1.contains(told));
    }
}

#[test]
fn late_repeated_and_unknown_decisions_change_nothing() {
    let harness = Harness::new();
    let payer = payer(one());
    let thread = harness.asked(&payer);
    let code = |error: selvedge_engine::Error| error.code();
    let unknown = harness.decide(&thread, "p9", Choice::Approve(None), &payer).unwrap_err();
    assert_eq!(code(unknown), "call_not_open");
    let verdict = harness.decide(&thread, "p1", Choice::NotDone, &payer).unwrap_err();
    assert_eq!(code(verdict), "call_not_open", "it was never dispatched");
    assert_eq!(harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap(), Recorded::Now);
    let version = harness.loaded(&thread).version;
    assert_eq!(harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap(), Recorded::Before);
    assert_eq!(code(harness.decide(&thread, "p1", Choice::Deny(None), &payer).unwrap_err()), "already_decided");
    assert_eq!(harness.loaded(&thread).version, version);
    harness.go_on(&thread, &payer);
    assert_eq!(payer.paid.load(Ordering::SeqCst), 1);
    assert_eq!(code(harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap_err()), "call_not_open");
    harness.send(&thread, Input::text("thanks"), &payer.work).0.unwrap();
    assert_eq!(payer.paid.load(Ordering::SeqCst), 1);
}

#[test]
fn a_call_of_another_thread_and_a_cancelled_one_can_not_be_approved() {
    let harness = Harness::new();
    let payer = payer(one());
    let thread = harness.asked(&payer);
    let other = harness.thread();
    assert_eq!(harness.decide(&other, "p1", Choice::Approve(None), &payer).unwrap_err().code(), "call_not_open");
    harness.engine.stop(&thread, Stop::Cancelled).unwrap();
    assert_eq!(harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap_err().code(), "call_not_open");
    assert_eq!(harness.loaded(&thread).manifest.status, Status::Cancelled);
    assert!(harness.results(&thread)[0].1.contains("interrupted"));
    assert_eq!(payer.paid.load(Ordering::SeqCst), 0);
}

/// The approval requests were not visible before the slowest call of the round had ended.
#[test]
fn approval_requests_are_committed_with_the_answer() {
    let harness = Harness::new();
    let mut payer = payer(two());
    let thread = harness.thread();
    let at = thread.clone();
    let other = harness.another();
    let seen = Arc::new(AtomicUsize::new(0));
    let asked = seen.clone();
    payer.while_looking(move |_| {
        let manifest = other.store.get(&at).unwrap().manifest;
        assert_eq!(manifest.status, Status::Running);
        assert_eq!(manifest.asks.iter().map(|ask| &ask.call_id).collect::<Vec<_>>(), [&call("p2"), &call("p1")]);
        asked.fetch_add(1, Ordering::SeqCst);
    });
    harness.send(&thread, Input::text("pay"), &payer.work).0.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    let lines = selvedge_store::conformance::support::lines_of(&harness.store.inner, &thread);
    let is_ask = |line: &Line| matches!(line.event, Event::Asked(_));
    let first = lines.iter().position(is_ask).unwrap();
    assert_eq!(lines.iter().filter(|line| is_ask(line)).count(), 2, "once each");
    let end = lines[first..].iter().find_map(|line| match &line.event {
        Event::Checkpoint(checkpoint) => Some(checkpoint.reason),
        _ => None,
    });
    assert_eq!(end, Some(Reason::AssistantTurnCommitted));
    // Undecided requests stay; decided ones do not.
    harness.decide(&thread, "p1", Choice::Deny(None), &payer).unwrap();
    assert_eq!(harness.loaded(&thread).manifest.asks.len(), 1);
    harness.decide(&thread, "p2", Choice::Deny(None), &payer).unwrap();
    assert_eq!((harness.go_on(&thread, &payer).asks.len(), harness.loaded(&thread).manifest.asks.len()), (0, 0));
}

#[test]
fn arguments_that_a_tool_refuses_are_not_recorded_as_approved() {
    let harness = Harness::new();
    let mut payer = payer(one());
    let thread = harness.asked(&payer);
    payer.work.tools[0] = Arc::new(Picky(CountingTool::new("pay", EffectClass::AtMostOnce)));
    let refused = harness.decide(&thread, "p1", Choice::Edit(json!({"amount": "much"})), &payer).unwrap_err();
    assert_eq!(refused.code(), "edit_refused");
    assert!(harness.loaded(&thread).calls[&call("p1")].decisions.is_empty());
}

/// A tool that accepts numbers only.
struct Picky(CountingTool);

impl Tool for Picky {
    fn spec(&self) -> &selvedge_model::ToolSpec {
        self.0.spec()
    }

    fn start(&self, call: &Call) -> Result<Box<dyn selvedge_model::tool::Started>, selvedge_model::ToolError> {
        if call.arguments["amount"].is_number() {
            return self.0.start(call);
        }
        Err(selvedge_model::ToolError::NotStarted { tool: "pay".to_owned(), why: "no number".to_owned() })
    }

    fn reconcile(&self, call: &Call, cancel: &Cancel) -> selvedge_model::tool::Reconciled {
        self.0.reconcile(call, cancel)
    }
}

#[test]
fn a_message_replaces_a_pending_approval() {
    let harness = Harness::new();
    let payer = payer(one());
    let thread = harness.asked(&payer);
    let ended = harness.send(&thread, Input::text("never mind"), &payer.work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), payer.paid.load(Ordering::SeqCst)), (Status::Completed, 0));
    assert!(harness.results(&thread)[0].1.contains("a new message came"));
    assert_eq!(harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap_err().code(), "call_not_open");
}

#[test]
fn a_call_that_was_approved_before_a_restart_is_made_once_after_it() {
    let harness = Harness::new();
    let payer = payer(two());
    let thread = harness.asked(&payer);
    harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap();
    let later = harness.another();
    later.decide(&thread, "p2", Choice::Deny(None), &payer).unwrap();
    assert_eq!(
        (later.go_on(&thread, &payer).status.status().unwrap(), payer.paid.load(Ordering::SeqCst)),
        (Status::Completed, 1)
    );
}

#[test]
fn a_call_that_was_approved_and_interrupted_needs_no_second_approval() {
    let harness = Harness::new();
    let mut payer = payer(one());
    let thread = harness.asked(&payer);
    harness.decide(&thread, "p1", Choice::Edit(json!({"amount": 3})), &payer).unwrap();
    let mut dies = CountingTool::new("pay", EffectClass::AtMostOnce);
    dies.meanwhile = Arc::new(|_| die());
    payer.work.tools[0] = Arc::new(dies);
    let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| harness.go_on(&thread, &payer)));
    assert!(cut.is_err());
    let mut pay = CountingTool::new("pay", EffectClass::AtMostOnce);
    pay.known = selvedge_model::tool::Reconciled::NotDone;
    let seen = pay.seen.clone();
    payer.work.tools[0] = Arc::new(pay);
    assert_eq!(harness.go_on(&thread, &payer).status, Status::Completed);
    let seen: Vec<_> = seen.lock().unwrap().iter().map(|call| call.arguments.clone()).collect();
    assert_eq!(seen, [json!({"amount": 3})], "made once, with the approved arguments");
}

#[test]
fn a_decision_does_not_count_after_the_approval_request_expired() {
    let harness = Harness::new();
    let mut payer = payer(one());
    payer.work.gate =
        asks(NeededApproval { expires_after: Some(Duration::from_secs(60)), ..NeededApproval::default() });
    let thread = harness.asked(&payer);
    harness.clock.set(Timestamp::from_micros(harness.clock.now().as_micros() + 60_000_000));
    assert_eq!(harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap_err().code(), "decision_too_late");
    assert_eq!(
        (harness.go_on(&thread, &payer).status.status().unwrap(), payer.paid.load(Ordering::SeqCst)),
        (Status::Completed, 0)
    );
    assert!(harness.results(&thread)[0].1.contains("expired"));
}

/// The approval requests were forgotten when a thread was suspended for another reason, and a decision about one call ran it.
#[test]
fn approval_requests_stay_undecided_whatever_a_thread_is_suspended_for() {
    let harness = Harness::new();
    let mut payer = payer(two());
    let thread = harness.thread();
    let whole = payer.work.tools.clone();
    payer.while_looking(|_| die());
    let run = || harness.send(&thread, Input::text("pay"), &payer.work);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    payer.work.tools = whole;
    let later = harness.another();
    let decided = later.engine.decide(&thread, &call("p1"), Choice::Approve(None), "ann", &payer.work).unwrap();
    assert_eq!((decided.recorded, decided.undecided), (Recorded::Now, vec![call("p2")]));
    let decided = later.engine.decide(&thread, &call("p2"), Choice::Approve(None), "ann", &payer.work).unwrap();
    assert_eq!(decided.undecided, []);
    assert_eq!(
        (later.go_on(&thread, &payer).status.status().unwrap(), payer.paid.load(Ordering::SeqCst)),
        (Status::Completed, 2)
    );
}

#[test]
fn a_value_that_is_not_used_or_that_the_tool_refuses_is_not_recorded() {
    for (mode, value, code) in [
        (ResumeMode::ReplayToolCall, json!({"amount": 1}), "decision_value_unused"),
        (ResumeMode::PassDecisionToTool, json!({"amount": "much"}), "edit_refused"),
        (ResumeMode::PassDecisionToTool, json!(false), "edit_refused"),
    ] {
        let harness = Harness::new();
        let mut payer = payer(one());
        payer.work.gate = asks(NeededApproval { mode, ..NeededApproval::default() });
        let thread = harness.asked(&payer);
        payer.work.tools[0] = Arc::new(Picky(CountingTool::new("pay", EffectClass::AtMostOnce)));
        let version = harness.loaded(&thread).version;
        assert_eq!(harness.decide(&thread, "p1", Choice::Approve(Some(value)), &payer).unwrap_err().code(), code);
        assert_eq!(harness.loaded(&thread).version, version);
        assert_eq!(harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap(), Recorded::Now);
    }
}

/// It waited for ever for a decision about a call that could not be decided any more.
#[test]
fn a_thread_resumes_whose_call_was_answered_by_another_program() {
    let harness = Harness::new();
    let payer = payer(one());
    let thread = harness.asked(&payer);
    let block = Block::tool_result(call("p1"), json!("paid by hand"));
    let message = Message { content: vec![block], ..Message::text(Role::Tool, "") };
    let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::ToolResultsCommitted) };
    let expect = Expect::Exact(harness.loaded(&thread).version.unwrap());
    harness.store.commit(Batch::of(Part::new(thread.clone(), expect, changeset))).unwrap();
    let manifest = harness.store.get(&thread).unwrap().manifest;
    assert_eq!((manifest.suspended.unwrap().calls, manifest.asks), (vec![], vec![]));
    assert_eq!(harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap_err().code(), "call_not_open");
    let ended = harness.go_on(&thread, &payer);
    assert_eq!(
        (ended.status.status().unwrap(), ended.result.as_deref()),
        (Status::Completed, Some("done")),
        "{ended:?}"
    );
    assert_eq!(payer.paid.load(Ordering::SeqCst), 0);
}

#[test]
fn a_call_whose_approval_request_expired_is_not_undecided() {
    let harness = Harness::new();
    let mut payer = payer(two());
    payer.work.gate = Arc::new(|spec, arguments| match spec.name.as_str() {
        "pay" => Permission::Ask(NeededApproval {
            expires_after: (arguments["amount"] == 2).then_some(Duration::from_millis(1)),
            ..NeededApproval::default()
        }),
        _ => Permission::Allowed,
    });
    let thread = harness.asked(&payer);
    let decided = harness.engine.decide(&thread, &call("p1"), Choice::Approve(None), "ann", &payer.work).unwrap();
    assert_eq!((decided.recorded, decided.undecided), (Recorded::Now, vec![]));
    assert_eq!(
        (harness.go_on(&thread, &payer).status.status().unwrap(), payer.paid.load(Ordering::SeqCst)),
        (Status::Completed, 1)
    );
}

#[test]
fn the_published_arguments_of_a_call_are_those_that_the_approver_changed() {
    let harness = Harness::new();
    let payer = payer(one());
    let thread = harness.asked(&payer);
    harness.decide(&thread, "p1", Choice::Edit(json!({"amount": 7})), &payer).unwrap();
    let mut called = Vec::new();
    let mut tell = |told: selvedge_engine::RunEvent| {
        if let selvedge_engine::RunEvent::Calling { arguments, .. } = told {
            called.push(arguments.clone());
        }
    };
    harness.engine.resume(&thread, Input::nothing(), &payer.work, &Cancel::new(), &mut tell).unwrap();
    assert_eq!(called, [Arc::new(json!({"amount": 7}))]);
}
