use serde_json::json;

use super::*;
use crate::event::{ManifestChanged, NewThread, SuspendReason, Suspended, ThreadCreated};
use crate::id::{AgentId, LogId};
use crate::status::Status;

fn at() -> Timestamp {
    Timestamp::from_micros(0)
}

fn born() -> Thread {
    let thread = NewThread::of(AgentId::new("scribe").unwrap());
    let log_id = LogId::new("0".repeat(32)).unwrap();
    let created = Event::ThreadCreated(Box::new(ThreadCreated { format: 1, log_id, segment: 0, thread }));
    Thread::begin(&ThreadId::new("t").unwrap(), &created, at()).unwrap()
}

fn call(id: &str) -> CallId {
    CallId::new(id).unwrap()
}

fn opened(id: &str) -> Event {
    let origin = CallOrigin::Hook { hook: "h".to_owned(), required: false };
    Event::CallOpened(CallOpened { call_id: call(id), origin, tool: "look".to_owned(), arguments: json!({"of": id}) })
}

fn outcome(id: &str) -> Event {
    let result = Some(json!("seen"));
    Event::ToolOutcome(ToolOutcome { call_id: call(id), result, error: None, failure: None, blob: None })
}

fn asks(id: &str) -> Event {
    let content = vec![Block::tool_call(call(id), "look", Value::Null)];
    Event::Message(Message { content, ..Message::text(Role::Assistant, "") })
}

fn open(thread: &Thread) -> Vec<&str> {
    thread.opened().map(|opened| opened.call_id.as_str()).collect()
}

#[test]
fn an_opened_call_is_open_until_its_outcome_and_keeps_its_result() {
    let mut thread = born();
    for event in [opened("b"), opened("a"), opened("c"), outcome("a")] {
        thread.apply(&event, at()).unwrap();
    }
    assert_eq!(open(&thread), ["b", "c"], "in the order in which they were opened");
    let closed = &thread.calls[&call("a")];
    assert_eq!(closed.outcome.as_ref().unwrap().result, Some(json!("seen")), "no message has it");
    assert!(closed.origin.is_some() && closed.number.is_none());
    // A second outcome closes no other call.
    thread.apply(&outcome("c"), at()).unwrap();
    thread.apply(&opened("d"), at()).unwrap();
    thread.apply(&outcome("c"), at()).unwrap();
    assert_eq!(open(&thread), ["b", "d"]);
    // The result of a call that a message requests is only in the message.
    thread.apply(&asks("m"), at()).unwrap();
    thread.apply(&outcome("m"), at()).unwrap();
    assert_eq!(thread.calls[&call("m")].outcome.as_ref().unwrap().result, None);
}

#[test]
fn an_id_that_any_call_had_is_not_opened_again() {
    let mut thread = born();
    thread.apply(&asks("m"), at()).unwrap();
    thread.apply(&opened("a"), at()).unwrap();
    thread.apply(&opened("b"), at()).unwrap();
    thread.apply(&outcome("b"), at()).unwrap();
    let before = thread.clone();
    for id in ["m", "a", "b"] {
        let refused = thread.apply(&opened(id), at()).unwrap_err();
        assert_eq!((&refused, refused.code()), (&FoldError::CallExists(call(id)), "call_exists"));
    }
    assert_eq!(thread, before, "a refused event changes nothing");
}

#[test]
fn open_calls_survive_a_round_trip() {
    let mut thread = born();
    let message = Message { id: MessageId::new("m1").ok(), ..Message::text(Role::Assistant, "") };
    let message = Message { content: vec![Block::tool_call(call("m"), "look", Value::Null)], ..message };
    for event in [Event::Message(message.clone()), opened("b"), opened("a"), outcome("b"), opened("c")] {
        thread.apply(&event, at()).unwrap();
    }
    thread.take_messages();
    let mut again: Thread = serde_json::from_value(serde_json::to_value(&thread).unwrap()).unwrap();
    again.recall(&message);
    assert_eq!(again, thread);
    assert_eq!(open(&again), ["a", "c"]);
    for id in ["m", "a", "b", "c"] {
        assert!(again.knows_call(&call(id)), "{id}");
    }
    again.apply(&outcome("a"), at()).unwrap();
    assert_eq!(open(&again), ["c"]);
}

/// A thread that waits for a person to resolve an opened call stops waiting once the call has its outcome: no message would end the wait.
#[test]
fn a_call_with_an_outcome_no_longer_waits() {
    let mut thread = born();
    let why = Suspended { calls: vec![call("a")], ..Suspended::because(SuspendReason::OutcomeUnknown, "process_lost") };
    for event in [opened("a"), Event::ManifestChanged(running()), Event::Suspended(why)] {
        thread.apply(&event, at()).unwrap();
    }
    assert_eq!(thread.manifest.undecided(at()).count(), 1);
    thread.apply(&outcome("a"), at()).unwrap();
    assert_eq!(thread.manifest.undecided(at()).count(), 0);
}

fn running() -> ManifestChanged {
    ManifestChanged { status: Some(Status::Running), ..ManifestChanged::default() }
}

#[test]
fn an_opened_call_costs_the_same_with_a_hundred_thousand_open_ones() {
    let mut thread = born();
    let ids: Vec<String> = (0..100_000).map(|n| format!("c{n}")).collect();
    for id in &ids {
        thread.apply(&opened(id), at()).unwrap();
    }
    for id in ids.iter().rev() {
        thread.apply(&outcome(id), at()).unwrap();
    }
    assert_eq!((open(&thread).len(), thread.calls.len()), (0, ids.len()));
}
