//! Who waits for whom.

use std::panic::{AssertUnwindSafe, catch_unwind};

use selvedge_engine::{Input, Told};
use selvedge_model::{AgentId, Cancel, Message, NewThread, Reason, Role, ThreadId};
use selvedge_store::{Acquire, Leases};
use serde_json::json;

use crate::spawning::{nursery, parent};
use crate::support::House;

#[test]
fn a_wait_that_leads_back_is_seen_through_children_and_calls_and_only_while_somebody_waits() {
    let house = House::new();
    let thread = house.thread();
    let work = parent(vec![("s", json!({"task": "count"}))], nursery(Vec::new()));
    let cut = catch_unwind(AssertUnwindSafe(|| {
        house.engine.send(&thread, Input::text("go"), &work, &Cancel::new(), &mut |told| {
            let is_born = matches!(told, Told::Committed { reason: Reason::ToolIntentCommitted, .. });
            assert!(!is_born, "the process dies here");
        })
    }));
    assert!(cut.is_err());
    let child = house.children_of(&thread).remove(0).thread_id;
    let none = |_: &str, _: &serde_json::Value| Vec::new();
    let leads_back = |from: &ThreadId, to: &ThreadId| house.engine.waits_for(from, to, &none).unwrap();
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
    assert!(house.engine.waits_for(&thread, &third, &named).unwrap());
    assert!(!house.engine.waits_for(&third, &child, &named).unwrap());
    other.store.abandon(&lease).unwrap();
}
