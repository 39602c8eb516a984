//! Threads whose process died: the record decides which calls are made again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use selvedge_engine::{Choice, Input, Outcome, Recorded};
use selvedge_model::event::{EffectClass, SuspendReason};
use selvedge_model::tool::Reconciled;
use selvedge_model::{CallId, Cancel, Classify, Kind, Output, Status, Stop, ThreadId};
use serde_json::json;

use crate::support::{CountingTool, Harness, Reply, agent, die, roles};

fn paying() -> Vec<Reply> {
    vec![Reply::Calls(vec![("pay.1", "pay", json!({"dollars": 5}))]), Reply::Says("paid")]
}

/// A process that dies in the middle of a call: its handle on the store is dropped while the tool runs.
fn die_in_the_call(harness: &Harness, thread: &ThreadId, class: EffectClass) {
    let dying = harness.another();
    let mut tool = CountingTool::new("pay", class);
    tool.meanwhile = Arc::new(|_| die());
    let work = agent(paying(), vec![Arc::new(tool)]);
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dying.send(thread, Input::text("pay"), &work)));
    assert!(died.is_err());
}

fn resume(harness: &Harness, thread: &ThreadId, tool: CountingTool) -> (Outcome, usize) {
    let ran = tool.ran.clone();
    let work = agent(paying(), vec![Arc::new(tool)]);
    let ended = harness.engine.resume(thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    (ended, ran.load(Ordering::SeqCst))
}

#[test]
fn a_call_that_may_run_once_is_reconciled_and_not_repeated() {
    let harness = Harness::new();
    let thread = harness.thread();
    die_in_the_call(&harness, &thread, EffectClass::AtMostOnce);
    assert_eq!(harness.engine.recover().unwrap(), std::slice::from_ref(&thread));
    assert_eq!(harness.processes.0.lock().unwrap().len(), 1, "the recorded process is ended first");
    let manifest = harness.loaded(&thread).manifest;
    assert_eq!(manifest.status, Status::Suspended);
    let suspended = manifest.suspended.unwrap();
    assert_eq!((suspended.reason, suspended.code.as_deref()), (SuspendReason::OutcomeUnknown, Some("process_lost")));
    let mut tool = CountingTool::new("pay", EffectClass::AtMostOnce);
    tool.known = Reconciled::Done(Output::text("paid already"));
    let (ended, ran) = resume(&harness, &thread, tool);
    assert_eq!(
        (ended.status.status().unwrap(), ran),
        (Status::Completed, 0),
        "the payment was made once, by the process that died"
    );
    assert_eq!(roles(&harness.loaded(&thread)), "uata");
}

#[test]
fn a_call_that_was_not_executed_is_made_under_the_same_key() {
    let harness = Harness::new();
    let thread = harness.thread();
    die_in_the_call(&harness, &thread, EffectClass::AtMostOnce);
    let recorded = harness.loaded(&thread).calls.values().next().unwrap().intent.clone().unwrap().key;
    let mut tool = CountingTool::new("pay", EffectClass::AtMostOnce);
    tool.known = Reconciled::NotDone;
    let seen = tool.seen.clone();
    let (ended, ran) = resume(&harness, &thread, tool);
    assert_eq!((ended.status.status().unwrap(), ran), (Status::Completed, 1));
    assert_eq!(seen.lock().unwrap()[0].key, recorded);
}

fn settle(
    harness: &Harness,
    thread: &ThreadId,
    call: &CallId,
    choice: Choice,
    who: &str,
) -> selvedge_engine::Result<Recorded> {
    let work = agent(Vec::new(), Vec::new());
    harness.engine.decide(thread, call, choice, who, &work).map(|decided| decided.recorded)
}

#[test]
fn an_unknown_outcome_suspends_the_thread_until_a_decision() {
    for (verdict, runs, told) in [
        (Choice::Done(json!("receipt 7")), 0, "receipt 7"),
        (Choice::NotDone, 1, "done"),
        (Choice::Unknown, 0, "it is unknown"),
    ] {
        let harness = Harness::new();
        let thread = harness.thread();
        die_in_the_call(&harness, &thread, EffectClass::AtMostOnce);
        let (ended, ran) = resume(&harness, &thread, CountingTool::new("pay", EffectClass::AtMostOnce));
        assert_eq!(
            (ended.status.status().unwrap(), ended.code.as_deref().unwrap(), ran),
            (Status::Suspended, "outcome_unknown", 0)
        );
        // A message does not change that, and is not lost.
        let work = agent(paying(), vec![Arc::new(CountingTool::new("pay", EffectClass::AtMostOnce))]);
        assert_eq!(harness.send(&thread, Input::text("well?"), &work).0.unwrap().status, Status::Suspended);
        let call = CallId::new("pay.1").unwrap();
        let is_same = verdict == Choice::NotDone;
        settle(&harness, &thread, &call, verdict, "anna").unwrap();
        let (ended, ran) = resume(&harness, &thread, CountingTool::new("pay", EffectClass::AtMostOnce));
        assert_eq!((ended.status.status().unwrap(), ran), (Status::Completed, runs));
        let text = harness.answer_of(&thread, &call).unwrap().as_str().unwrap().to_owned();
        assert!(text.contains(told), "{text}");
        let late = settle(&harness, &thread, &call, Choice::NotDone, "anna");
        let before = harness.loaded(&thread).version;
        assert!(late.is_err() || is_same, "a late, different decision is refused, and the same one changes nothing");
        assert_eq!(harness.loaded(&thread).version, before);
    }
}

#[test]
fn pure_and_idempotent_calls_run_again() {
    for class in [EffectClass::Pure, EffectClass::Idempotent] {
        let harness = Harness::new();
        let thread = harness.thread();
        die_in_the_call(&harness, &thread, class);
        let (ended, ran) = resume(&harness, &thread, CountingTool::new("pay", class));
        assert_eq!((ended.status.status().unwrap(), ran), (Status::Completed, 1));
    }
}

#[test]
fn open_calls_are_finished_before_a_new_message_is_answered() {
    let harness = Harness::new();
    let thread = harness.thread();
    die_in_the_call(&harness, &thread, EffectClass::Pure);
    let tool = CountingTool::new("pay", EffectClass::Pure);
    let work = agent(paying(), vec![Arc::new(tool)]);
    let ended = harness.send(&thread, Input::text("are you there?"), &work).0.unwrap();
    assert_eq!(ended.result.as_deref(), Some("paid"));
    let loaded = harness.loaded(&thread);
    // In the log the result came late; in the prompt it follows its call.
    assert_eq!(roles(&loaded), "uauta");
}

#[test]
fn a_call_whose_tool_is_gone_does_not_make_a_thread_unusable() {
    let harness = Harness::new();
    let thread = harness.thread();
    die_in_the_call(&harness, &thread, EffectClass::AtMostOnce);
    let ended = harness.send(&thread, Input::text("go on"), &agent(paying(), Vec::new())).0.unwrap();
    assert_eq!(ended.status, Status::Completed);
    let outcome = harness.loaded(&thread).calls.values().next().unwrap().outcome.clone().unwrap();
    assert!(outcome.error.unwrap().starts_with("interrupted"));
}

/// The lease of a process that dies in the middle of a tool is released, and the next process can take the thread.
#[test]
fn an_interrupted_run_leaves_the_thread_to_the_next_process() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut tool = CountingTool::new("pay", EffectClass::Pure);
    tool.meanwhile = Arc::new(|_| die());
    let work = agent(paying(), vec![Arc::new(tool)]);
    let died =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| harness.send(&thread, Input::text("pay"), &work)));
    assert!(died.is_err());
    // The same process still has the store open.
    let (ended, ran) = resume(&harness, &thread, CountingTool::new("pay", EffectClass::Pure));
    assert_eq!((ended.status.status().unwrap(), ran), (Status::Completed, 1));
}

/// A second decision about a call replaced the first, on which another process had already acted.
#[test]
fn the_first_decision_about_an_unknown_outcome_counts() {
    let harness = Harness::new();
    let thread = harness.thread();
    die_in_the_call(&harness, &thread, EffectClass::AtMostOnce);
    let call = CallId::new("pay.1").unwrap();
    let done = || Choice::Done(json!("receipt 7"));
    assert_eq!(settle(&harness, &thread, &call, done(), "anna").unwrap(), Recorded::Now);
    assert_eq!(
        settle(&harness, &thread, &call, done(), "ben").unwrap(),
        Recorded::Before,
        "the same again is nothing new"
    );
    for other in [Choice::NotDone, Choice::Unknown, Choice::Done(json!("receipt 8"))] {
        let error = settle(&harness, &thread, &call, other, "ben").unwrap_err();
        assert_eq!((error.code(), error.kind()), ("already_decided", Kind::Conflict));
    }
    assert_eq!(harness.loaded(&thread).calls[&call].decisions.len(), 1);
}

/// A process that could not be ended continued beside a second dispatch after the decision "not done".
#[test]
fn a_decision_dispatches_nothing_beside_a_process_that_still_runs() {
    let harness = Harness::new();
    let thread = harness.thread();
    die_in_the_call(&harness, &thread, EffectClass::AtMostOnce);
    settle(&harness, &thread, &CallId::new("pay.1").unwrap(), Choice::NotDone, "anna").unwrap();
    let ended_before = harness.processes.0.lock().unwrap().len();
    let (_, ran) = resume(&harness, &thread, CountingTool::new("pay", EffectClass::AtMostOnce));
    assert_eq!((harness.processes.0.lock().unwrap().len(), ran), (ended_before + 1, 1));
}

#[test]
fn a_thread_that_never_ran_can_be_stopped() {
    for (stop, status) in [(Stop::Cancelled, Status::Cancelled), (Stop::Killed, Status::Killed)] {
        let harness = Harness::new();
        let thread = harness.thread();
        assert_eq!(harness.engine.stop(&thread, stop).unwrap().status, status);
        assert_eq!(harness.loaded(&thread).manifest.status, status);
        let ended = harness.send(&thread, Input::text("go on"), &agent(vec![Reply::Says("hi")], Vec::new())).0.unwrap();
        assert_eq!(ended.status, Status::Completed, "a message resumes it");
    }
}
