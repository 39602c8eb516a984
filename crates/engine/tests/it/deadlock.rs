//! Detection of deadlocks.

use selvedge_engine::Input;
use selvedge_model::{AgentId, Message, NewThread, Reason, Role, ThreadId};
use selvedge_store::{Acquire, Leases};
use serde_json::json;

use crate::spawning::{nursery, parent};
use crate::support::Harness;

#[test]
fn a_deadlock_is_found_through_children_and_calls_and_only_while_a_process_waits() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = parent(vec![("s", json!({"task": "count"}))], nursery(Vec::new()));
    harness.dies_after(Reason::ToolIntentCommitted, || harness.send(&thread, Input::text("go"), &work));
    let child = harness.children_of(&thread).remove(0).thread_id;
    let none = |_: &str, _: &serde_json::Value| Vec::new();
    let leads_back = |from: &ThreadId, to: &ThreadId| harness.engine.waits_for(from, to, &none, 8).unwrap();
    assert!(!leads_back(&thread, &child), "a run whose process is dead does not wait");
    let other = harness.another();
    let lease = other.store.acquire(&thread, Acquire::default()).unwrap();
    assert!(leads_back(&thread, &child), "it waits for the child that it spawned");
    assert!(!leads_back(&child, &thread), "the child does not wait");
    // A third one that the open call names, and the thread itself.
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let third = harness.engine.create(new, vec![Message::text(Role::User, "go")]).unwrap();
    let named = |tool: &str, _: &serde_json::Value| {
        if tool == "spawn" { vec![third.clone(), thread.clone()] } else { Vec::new() }
    };
    assert!(harness.engine.waits_for(&thread, &third, &named, 8).unwrap());
    assert!(!harness.engine.waits_for(&third, &child, &named, 8).unwrap());
    other.store.abandon(&lease).unwrap();
}

/// It waited until its timeout: the slot that the other one waited for was its own.
#[test]
fn waiting_for_a_child_that_waits_for_a_slot_is_a_deadlock_if_no_other_slot_comes_free() {
    let harness = Harness::new();
    let thread = harness.thread();
    let calls = ["s1", "s2", "s3"].map(|id| (id, json!({"task": "count", "detached": true})));
    let work = parent(calls.to_vec(), nursery(Vec::new()));
    harness.dies_after(Reason::ToolIntentCommitted, || harness.send(&thread, Input::text("go"), &work));
    let [one, other, queued] = <[_; 3]>::try_from(harness.children_of(&thread)).unwrap().map(|child| child.thread_id);
    let none = |_: &str, _: &serde_json::Value| Vec::new();
    let leads_back = |from: &ThreadId, at_once| harness.engine.waits_for(from, &one, &none, at_once).unwrap();
    harness.dies_running(&one);
    let alive = harness.another();
    let mut leases = vec![alive.store.acquire(&one, Acquire::default()).unwrap()];
    assert!(!leads_back(&queued, 1), "no process holds its parent, so it is not about to start");
    leases.push(alive.store.acquire(&thread, Acquire::default()).unwrap());
    assert!(leads_back(&queued, 1), "the waiting thread has the only slot");
    assert!(!leads_back(&queued, 2), "there is a free slot");
    assert!(leads_back(&thread, 1), "its parent continues once all of them have had a slot");
    harness.dies_running(&other);
    leases.push(alive.store.acquire(&other, Acquire::default()).unwrap());
    assert!(!leads_back(&queued, 2), "the other one will release its slot");
    for lease in &leases {
        alive.store.abandon(lease).unwrap();
    }
}

/// Both have a slot, and both wait for the one that has none.
#[test]
fn threads_that_all_wait_for_a_child_without_a_slot_never_release_one() {
    let harness = Harness::new();
    let thread = harness.thread();
    let spawns = |call: &'static str| parent(vec![(call, json!({"task": "count"}))], nursery(Vec::new()));
    let calls = ["s1", "s2", "s3"].map(|id| (id, json!({"task": "count", "detached": true})));
    let work = parent(calls.to_vec(), nursery(Vec::new()));
    harness.dies_after(Reason::ToolIntentCommitted, || harness.send(&thread, Input::text("go"), &work));
    let [one, other, queued] = <[_; 3]>::try_from(harness.children_of(&thread)).unwrap().map(|child| child.thread_id);
    harness.dies_running(&one);
    // An open call of the other one names the thread that it waits for.
    let work = spawns("s");
    harness.dies_after(Reason::ToolIntentCommitted, || harness.resumed(&other, Input::nothing(), &work));
    let alive = harness.another();
    let leases = [&thread, &one, &other].map(|thread| alive.store.acquire(thread, Acquire::default()).unwrap());
    let named = |named: &ThreadId| {
        let named = named.clone();
        move |tool: &str, arguments: &serde_json::Value| {
            let is_wait = tool == "spawn" && arguments.get("detached").is_none();
            if is_wait { vec![named.clone()] } else { Vec::new() }
        }
    };
    let unrelated = ThreadId::new("unrelated-000000000000").unwrap();
    assert!(!harness.engine.waits_for(&queued, &one, &named(&unrelated), 2).unwrap(), "it waits for another thread");
    assert!(harness.engine.waits_for(&queued, &one, &named(&queued), 2).unwrap());
    assert!(harness.engine.waits_for(&queued, &one, &named(&one), 2).unwrap());
    for lease in &leases {
        alive.store.abandon(lease).unwrap();
    }
}
