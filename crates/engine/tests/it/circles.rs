//! Who waits for whom.

use selvedge_engine::Input;
use selvedge_model::{AgentId, Message, NewThread, Reason, Role, ThreadId};
use selvedge_store::{Acquire, Leases};
use serde_json::json;

use crate::spawning::{nursery, parent};
use crate::support::House;

#[test]
fn a_wait_that_leads_back_is_seen_through_children_and_calls_and_only_while_somebody_waits() {
    let house = House::new();
    let thread = house.thread();
    let work = parent(vec![("s", json!({"task": "count"}))], nursery(Vec::new()));
    house.dies_after(Reason::ToolIntentCommitted, || house.send(&thread, Input::text("go"), &work));
    let child = house.children_of(&thread).remove(0).thread_id;
    let none = |_: &str, _: &serde_json::Value| Vec::new();
    let leads_back = |from: &ThreadId, to: &ThreadId| house.engine.waits_for(from, to, &none, 8).unwrap();
    assert!(!leads_back(&thread, &child), "the dead wait for nobody");
    let other = house.another();
    let lease = other.store.acquire(&thread, Acquire::default()).unwrap();
    assert!(leads_back(&thread, &child), "it waits for the child that it started");
    assert!(!leads_back(&child, &thread), "the child waits for nobody");
    // A third one that the open call names, in a circle with itself.
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let third = house.engine.create(new, vec![Message::text(Role::User, "go")]).unwrap();
    let named = |tool: &str, _: &serde_json::Value| {
        if tool == "spawn" { vec![third.clone(), thread.clone()] } else { Vec::new() }
    };
    assert!(house.engine.waits_for(&thread, &third, &named, 8).unwrap());
    assert!(!house.engine.waits_for(&third, &child, &named, 8).unwrap());
    other.store.abandon(&lease).unwrap();
}

/// It waited until its time was over: the place that the other waited for was its own.
#[test]
fn a_wait_for_a_child_that_waits_for_a_place_leads_back_if_nobody_else_makes_room() {
    let house = House::new();
    let thread = house.thread();
    let calls = ["s1", "s2", "s3"].map(|id| (id, json!({"task": "count", "detached": true})));
    let work = parent(calls.to_vec(), nursery(Vec::new()));
    house.dies_after(Reason::ToolIntentCommitted, || house.send(&thread, Input::text("go"), &work));
    let [one, other, queued] = <[_; 3]>::try_from(house.children_of(&thread)).unwrap().map(|child| child.thread_id);
    let none = |_: &str, _: &serde_json::Value| Vec::new();
    let leads_back = |from: &ThreadId, at_once| house.engine.waits_for(from, &one, &none, at_once).unwrap();
    house.dies_running(&one);
    let alive = house.another();
    let mut leases = vec![alive.store.acquire(&one, Acquire::default()).unwrap()];
    assert!(!leads_back(&queued, 1), "nobody has its parent, who would start it");
    leases.push(alive.store.acquire(&thread, Acquire::default()).unwrap());
    assert!(leads_back(&queued, 1), "the one who waits has the only place");
    assert!(!leads_back(&queued, 2), "there is a place");
    assert!(leads_back(&thread, 1), "its parent goes on once all of them have had a place");
    house.dies_running(&other);
    leases.push(alive.store.acquire(&other, Acquire::default()).unwrap());
    assert!(!leads_back(&queued, 2), "the other one will make room");
    leases.iter().for_each(|lease| alive.store.abandon(lease).unwrap());
}

/// Both have a place, and both wait for the one that has none.
#[test]
fn those_who_all_wait_for_a_child_without_a_place_never_make_room_for_it() {
    let house = House::new();
    let thread = house.thread();
    let spawns = |call: &'static str| parent(vec![(call, json!({"task": "count"}))], nursery(Vec::new()));
    let calls = ["s1", "s2", "s3"].map(|id| (id, json!({"task": "count", "detached": true})));
    let work = parent(calls.to_vec(), nursery(Vec::new()));
    house.dies_after(Reason::ToolIntentCommitted, || house.send(&thread, Input::text("go"), &work));
    let [one, other, queued] = <[_; 3]>::try_from(house.children_of(&thread)).unwrap().map(|child| child.thread_id);
    house.dies_running(&one);
    // An open call of the other one names whom it waits for.
    let work = spawns("s");
    house.dies_after(Reason::ToolIntentCommitted, || house.taken_up(&other, Input::nothing(), &work));
    let alive = house.another();
    let leases = [&thread, &one, &other].map(|thread| alive.store.acquire(thread, Acquire::default()).unwrap());
    let named = |named: &ThreadId| {
        let named = named.clone();
        move |tool: &str, arguments: &serde_json::Value| {
            let is_wait = tool == "spawn" && arguments.get("detached").is_none();
            if is_wait { vec![named.clone()] } else { Vec::new() }
        }
    };
    let nobody = ThreadId::new("nobody-000000000000").unwrap();
    assert!(!house.engine.waits_for(&queued, &one, &named(&nobody), 2).unwrap(), "it waits for somebody else");
    assert!(house.engine.waits_for(&queued, &one, &named(&queued), 2).unwrap());
    assert!(house.engine.waits_for(&queued, &one, &named(&one), 2).unwrap());
    leases.iter().for_each(|lease| alive.store.abandon(lease).unwrap());
}
