//! Threads whose process died: what is on record decides what is done again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use selvedge_engine::{Choice, Input, Outcome, Recorded};
use selvedge_model::event::{EffectClass, SuspendReason};
use selvedge_model::tool::Reconciled;
use selvedge_model::{CallId, Cancel, Classify, Kind, Output, Status, Stop, ThreadId};
use serde_json::json;

use crate::support::{Counting, House, Reply, agent, die, roles};

fn paying() -> Vec<Reply> {
    vec![Reply::Calls(vec![("pay.1", "pay", json!({"dollars": 5}))]), Reply::Says("paid")]
}

/// A process that dies in the middle of a call: its handle on the store is dropped while the tool runs.
fn die_in_the_call(house: &House, thread: &ThreadId, class: EffectClass) {
    let dying = house.another();
    let mut tool = Counting::new("pay", class);
    tool.meanwhile = Arc::new(|_| die());
    let work = agent(paying(), vec![Arc::new(tool)]);
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dying.send(thread, Input::text("pay"), &work)));
    assert!(died.is_err());
}

fn resume(house: &House, thread: &ThreadId, tool: Counting) -> (Outcome, usize) {
    let ran = tool.ran.clone();
    let work = agent(paying(), vec![Arc::new(tool)]);
    let ended = house.engine.resume(thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    (ended, ran.load(Ordering::SeqCst))
}

#[test]
fn a_call_that_may_run_once_is_reconciled_and_not_repeated() {
    let house = House::new();
    let thread = house.thread();
    die_in_the_call(&house, &thread, EffectClass::AtMostOnce);
    assert_eq!(house.engine.recover().unwrap(), std::slice::from_ref(&thread));
    assert_eq!(house.processes.0.lock().unwrap().len(), 1, "the recorded process is dealt with first");
    let manifest = house.loaded(&thread).manifest;
    assert_eq!(manifest.status, Status::Suspended);
    let suspended = manifest.suspended.unwrap();
    assert_eq!((suspended.reason, suspended.code.as_deref()), (SuspendReason::OutcomeUnknown, Some("process_lost")));
    let mut tool = Counting::new("pay", EffectClass::AtMostOnce);
    tool.known = Reconciled::Done(Output::text("paid already"));
    let (ended, ran) = resume(&house, &thread, tool);
    assert_eq!(
        (ended.status.status().unwrap(), ran),
        (Status::Completed, 0),
        "the payment was made once, by the process that died"
    );
    assert_eq!(roles(&house.loaded(&thread)), "uata");
}

#[test]
fn a_call_that_was_not_done_is_done_under_the_same_key() {
    let house = House::new();
    let thread = house.thread();
    die_in_the_call(&house, &thread, EffectClass::AtMostOnce);
    let recorded = house.loaded(&thread).calls.values().next().unwrap().intent.clone().unwrap().key;
    let mut tool = Counting::new("pay", EffectClass::AtMostOnce);
    tool.known = Reconciled::NotDone;
    let seen = tool.seen.clone();
    let (ended, ran) = resume(&house, &thread, tool);
    assert_eq!((ended.status.status().unwrap(), ran), (Status::Completed, 1));
    assert_eq!(seen.lock().unwrap()[0].key, recorded);
}

fn settle(
    house: &House,
    thread: &ThreadId,
    call: &CallId,
    choice: Choice,
    who: &str,
) -> selvedge_engine::Result<Recorded> {
    let work = agent(Vec::new(), Vec::new());
    house.engine.decide(thread, call, choice, who, &work).map(|decided| decided.recorded)
}

#[test]
fn what_nobody_knows_waits_for_a_person() {
    for (verdict, runs, told) in [
        (Choice::Done(json!("receipt 7")), 0, "receipt 7"),
        (Choice::NotDone, 1, "done"),
        (Choice::Unknown, 0, "nobody knows"),
    ] {
        let house = House::new();
        let thread = house.thread();
        die_in_the_call(&house, &thread, EffectClass::AtMostOnce);
        let (ended, ran) = resume(&house, &thread, Counting::new("pay", EffectClass::AtMostOnce));
        assert_eq!(
            (ended.status.status().unwrap(), ended.code.as_deref().unwrap(), ran),
            (Status::Suspended, "outcome_unknown", 0)
        );
        // A message does not change that, and is not lost.
        let work = agent(paying(), vec![Arc::new(Counting::new("pay", EffectClass::AtMostOnce))]);
        assert_eq!(house.send(&thread, Input::text("well?"), &work).0.unwrap().status, Status::Suspended);
        let call = CallId::new("pay.1").unwrap();
        let is_same = verdict == Choice::NotDone;
        settle(&house, &thread, &call, verdict, "anna").unwrap();
        let (ended, ran) = resume(&house, &thread, Counting::new("pay", EffectClass::AtMostOnce));
        assert_eq!((ended.status.status().unwrap(), ran), (Status::Completed, runs));
        let text = house.answer_of(&thread, &call).unwrap().as_str().unwrap().to_owned();
        assert!(text.contains(told), "{text}");
        let (late, before) = (settle(&house, &thread, &call, Choice::NotDone, "anna"), house.loaded(&thread).version);
        assert!(late.is_err() || is_same, "another word that comes late is refused, and the same one changes nothing");
        assert_eq!(house.loaded(&thread).version, before);
    }
}

#[test]
fn pure_and_idempotent_calls_run_again() {
    for class in [EffectClass::Pure, EffectClass::Idempotent] {
        let house = House::new();
        let thread = house.thread();
        die_in_the_call(&house, &thread, class);
        let (ended, ran) = resume(&house, &thread, Counting::new("pay", class));
        assert_eq!((ended.status.status().unwrap(), ran), (Status::Completed, 1));
    }
}

#[test]
fn a_new_message_first_finishes_what_is_open() {
    let house = House::new();
    let thread = house.thread();
    die_in_the_call(&house, &thread, EffectClass::Pure);
    let tool = Counting::new("pay", EffectClass::Pure);
    let work = agent(paying(), vec![Arc::new(tool)]);
    let ended = house.send(&thread, Input::text("are you there?"), &work).0.unwrap();
    assert_eq!(ended.result.as_deref(), Some("paid"));
    let loaded = house.loaded(&thread);
    // In the order of the log the result came late; the model was shown it behind its call.
    assert_eq!(roles(&loaded), "uauta");
}

#[test]
fn a_call_whose_tool_is_gone_does_not_make_a_thread_unusable() {
    let house = House::new();
    let thread = house.thread();
    die_in_the_call(&house, &thread, EffectClass::AtMostOnce);
    let ended = house.send(&thread, Input::text("go on"), &agent(paying(), Vec::new())).0.unwrap();
    assert_eq!(ended.status, Status::Completed);
    let outcome = house.loaded(&thread).calls.values().next().unwrap().outcome.clone().unwrap();
    assert!(outcome.error.unwrap().starts_with("interrupted"));
}

/// A process that is cut down in the middle of a tool has its lease given back, and is not the last to have the thread.
#[test]
fn a_run_that_is_cut_short_leaves_the_thread_to_whoever_comes_next() {
    let house = House::new();
    let thread = house.thread();
    let mut tool = Counting::new("pay", EffectClass::Pure);
    tool.meanwhile = Arc::new(|_| die());
    let work = agent(paying(), vec![Arc::new(tool)]);
    let died =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| house.send(&thread, Input::text("pay"), &work)));
    assert!(died.is_err());
    // The same process still has the store open.
    let (ended, ran) = resume(&house, &thread, Counting::new("pay", EffectClass::Pure));
    assert_eq!((ended.status.status().unwrap(), ran), (Status::Completed, 1));
}

/// Whoever settled a call twice changed his mind behind the back of whoever had acted on the first word.
#[test]
fn what_was_said_of_a_call_counts_and_is_not_unsaid() {
    let house = House::new();
    let thread = house.thread();
    die_in_the_call(&house, &thread, EffectClass::AtMostOnce);
    let call = CallId::new("pay.1").unwrap();
    let done = || Choice::Done(json!("receipt 7"));
    assert_eq!(settle(&house, &thread, &call, done(), "anna").unwrap(), Recorded::Now);
    assert_eq!(
        settle(&house, &thread, &call, done(), "ben").unwrap(),
        Recorded::Before,
        "the same again is nothing new"
    );
    for other in [Choice::NotDone, Choice::Unknown, Choice::Done(json!("receipt 8"))] {
        let error = settle(&house, &thread, &call, other, "ben").unwrap_err();
        assert_eq!((error.code(), error.kind()), ("already_decided", Kind::Conflict));
    }
    assert_eq!(house.loaded(&thread).calls[&call].decisions.len(), 1);
}

/// An orphan that could not be ended went on beside a second dispatch once a person had said "not done".
#[test]
fn a_person_s_word_dispatches_nothing_beside_a_process_that_goes_on() {
    let house = House::new();
    let thread = house.thread();
    die_in_the_call(&house, &thread, EffectClass::AtMostOnce);
    settle(&house, &thread, &CallId::new("pay.1").unwrap(), Choice::NotDone, "anna").unwrap();
    let ended_before = house.processes.0.lock().unwrap().len();
    let (_, ran) = resume(&house, &thread, Counting::new("pay", EffectClass::AtMostOnce));
    assert_eq!((house.processes.0.lock().unwrap().len(), ran), (ended_before + 1, 1));
}

#[test]
fn a_thread_that_never_ran_can_be_stopped() {
    for (stop, status) in [(Stop::Cancelled, Status::Cancelled), (Stop::Killed, Status::Killed)] {
        let house = House::new();
        let thread = house.thread();
        assert_eq!(house.engine.stop(&thread, stop).unwrap().status, status);
        assert_eq!(house.loaded(&thread).manifest.status, status);
        let ended = house.send(&thread, Input::text("go on"), &agent(vec![Reply::Says("hi")], Vec::new())).0.unwrap();
        assert_eq!(ended.status, Status::Completed, "a message goes on with it");
    }
}
