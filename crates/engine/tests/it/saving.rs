//! Snapshots on a store without a disk: every trigger, and a thread that is taken up from one.

use std::sync::Arc;

use selvedge_engine::snapshot::Keeper;
use selvedge_engine::{Assignment, Input};
use selvedge_items::config::state_persistence::{Action, Coalesce, StatePersistence};
use selvedge_model::event::EffectClass;
use selvedge_model::limits::Limits;
use selvedge_model::{Cancel, ModelError, Status, Stop, ThreadId};
use selvedge_store::Snapshots;
use selvedge_store::snapshot::Place;
use serde_json::json;

use crate::support::{Counting, House, Reply, agent};

const ARCHIVE: &str = "archive";

/// A house whose engine saves at every trigger, and keeps all.
fn saving() -> House {
    let house = House::new();
    keeping(house)
}

fn keeping(mut house: House) -> House {
    let mut config = StatePersistence::builtin();
    config.checkpoint.performance.coalesce = Coalesce::Always;
    config.retention.cleanup.enabled = false;
    config.retention.on_completion.action = Action::Keep;
    let keeper = Keeper::new(Arc::new(house.store.inner.another()), config).unwrap();
    house.engine = house.engine.keeping(keeper);
    house
}

fn looking(then: Reply) -> Assignment {
    let tool = Arc::new(Counting::new("look", EffectClass::Pure));
    agent(vec![Reply::Calls(vec![("a", "look", json!({}))]), then], vec![tool])
}

/// What the snapshots of a thread were saved for, the oldest first.
fn triggers(house: &House, thread: &ThreadId) -> Vec<String> {
    let store = &house.store.inner;
    let kept = store.kept(thread, ARCHIVE).unwrap();
    let body = |kept| store.read_snapshot(thread, kept, ARCHIVE).unwrap().body().unwrap();
    kept.iter().rev().map(|kept| body(kept)["trigger"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_trigger_saves() {
    let house = saving();
    let mut seen: Vec<String> = Vec::new();
    let mut check = |work: &Assignment, cancel: &Cancel, status: Status, expected: &[&str]| {
        let thread = house.thread();
        let stop = cancel.clone();
        let ended = house.engine.send(&thread, Input::text("go"), work, cancel, &mut move |told| {
            if matches!(told, selvedge_engine::Told::Draft(_)) {
                stop.say(Stop::Cancelled);
            }
        });
        assert_eq!(ended.unwrap().status, status);
        assert_eq!(triggers(&house, &thread), expected);
        seen.extend(expected.iter().map(|trigger| (*trigger).to_owned()));
    };
    let fails = Reply::Fails(ModelError::Permanent { why: "no".to_owned() });
    let never = Cancel::new();
    check(&looking(fails), &never, Status::Error, &["pre_turn", "post_llm", "post_tools", "on_error"]);
    let mut short = looking(Reply::Says("on"));
    short.limits = Limits { turns: Some(1), ..Limits::default() };
    check(&short, &never, Status::Suspended, &["pre_turn", "post_llm", "post_tools", "on_suspend"]);
    let stopped = agent(vec![Reply::Waits], Vec::new());
    check(&stopped, &Cancel::new(), Status::Cancelled, &["pre_turn", "on_cancel"]);
    for trigger in selvedge_engine::snapshot::Trigger::ALL {
        assert!(seen.iter().any(|seen| seen == trigger.as_str()), "{trigger:?} was never seen");
    }
}

#[test]
fn a_thread_is_taken_up_from_a_snapshot_that_only_memory_holds() {
    let house = saving();
    let thread = house.thread();
    let mut work = looking(Reply::Says("seen"));
    work.limits = Limits { turns: Some(1), ..Limits::default() };
    assert_eq!(house.send(&thread, Input::text("go"), &work).0.unwrap().status, Status::Suspended);
    let other = keeping(house.another());
    let raise = Input::nothing().raising(Limits { turns: Some(5), ..Limits::default() });
    let mut told = Vec::new();
    let ended = other.engine.resume(&thread, raise, &work, &Cancel::new(), &mut |heard| {
        if let selvedge_engine::Told::Snapshot { why } = heard {
            told.push(why.to_owned());
        }
    });
    let ended = ended.unwrap();
    assert_eq!((ended.status, ended.text.as_deref(), told), (Status::Completed, Some("seen"), Vec::new()));
    assert_eq!(other.loaded(&thread).messages.len(), 4);
    let kept = other.store.inner.kept(&thread, ARCHIVE).unwrap();
    assert_eq!(kept.iter().filter(|kept| kept.place == Place::Newest).count(), 1);
}
