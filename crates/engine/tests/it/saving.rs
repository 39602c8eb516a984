//! Snapshots on a store without a disk: every trigger, and a thread that is taken up from one.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_engine::snapshot::Keeper;
use selvedge_engine::{Assignment, Input};
use selvedge_items::config::state_persistence::{Action, Coalesce, StatePersistence};
use selvedge_log::Head;
use selvedge_model::event::EffectClass;
use selvedge_model::limits::Limits;
use selvedge_model::{Cancel, Event, ModelError, Part, Price, Reason, Status, ThreadId};
use selvedge_store::memory::MemoryStore;
use selvedge_store::snapshot::{Away, Behind, Kept, Place, Read, Saved};
use selvedge_store::{Error, Logs, Result, Snapshots};
use serde_json::{Value, json};

use crate::support::{Counting, House, Reply, agent};

const ARCHIVE: &str = "archive";

/// A house whose engine saves at every trigger, and keeps all.
fn saving() -> House {
    let house = House::new();
    keeping(house)
}

fn keeping(house: House) -> House {
    keeping_as(house, |_| {})
}

fn keeping_as(mut house: House, change: impl Fn(&mut StatePersistence)) -> House {
    let mut config = StatePersistence::builtin();
    config.checkpoint.performance.coalesce = Coalesce::Always;
    config.retention.cleanup.enabled = false;
    config.retention.on_completion.action = Action::Keep;
    change(&mut config);
    let keeper = Keeper::new(Arc::new(house.store.inner.another()), config).unwrap();
    house.keep(keeper);
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
        let ended = house.engine.send(&thread, Input::text("go"), work, cancel, &mut |_| {});
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
    let cancel = Cancel::new();
    let stopped = agent(vec![Reply::Stops(cancel.clone())], Vec::new());
    check(&stopped, &cancel, Status::Cancelled, &["pre_turn", "on_cancel"]);
    for trigger in selvedge_engine::snapshot::Trigger::ALL {
        assert!(seen.iter().any(|seen| seen == trigger.as_str()), "{trigger:?} was never seen");
    }
}

#[test]
fn each_call_of_the_model_is_saved_before_it_is_made_when_nothing_else_saves() {
    for (coalesce, priority, is_paid) in
        [(Coalesce::Always, 1, false), (Coalesce::Always, 1, true), (Coalesce::Auto, 10, false)]
    {
        let house = keeping_as(House::new(), |config| {
            let triggers = &mut config.checkpoint.triggers;
            (triggers.post_llm.enabled, triggers.post_tools.enabled) = (false, false);
            (triggers.pre_turn.priority, config.checkpoint.performance.coalesce) = (priority, coalesce);
        });
        let thread = house.thread();
        let tool = Arc::new(Counting::new("look", EffectClass::Pure));
        let call = |id| Reply::Calls(vec![(id, "look", json!({}))]);
        let mut work = agent(vec![call("a"), call("b"), call("c"), Reply::Says("done")], vec![tool]);
        if is_paid {
            work.price = Some(Price { input: "1".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() });
            work.limits.spend = Some("1".parse().unwrap());
        }
        let before = Arc::new(Mutex::new(Vec::new()));
        let (store, behind) = (house.store.inner.another(), before.clone());
        house.after_commit(move |batch| {
            let Part { thread, changeset, .. } = &batch.parts[0];
            if changeset.reason == Reason::AssistantTurnCommitted {
                let newest = store.kept(thread, ARCHIVE).unwrap()[0].version;
                behind.lock().unwrap().push(store.head(thread).unwrap().version - newest);
            }
        });
        assert_eq!(house.send(&thread, Input::text("go"), &work).0.unwrap().status, Status::Completed);
        assert_eq!(triggers(&house, &thread), ["pre_turn", "pre_turn", "pre_turn", "pre_turn", "on_completion"]);
        let before = before.lock().unwrap();
        assert!(before.iter().all(|behind| *behind == 1) && before.len() == 4, "{before:?}");
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
        if let selvedge_engine::RunEvent::Notice { why, .. } = heard {
            told.push(why.to_owned());
        }
    });
    let ended = ended.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.result.as_deref(), told),
        (Status::Completed, Some("seen"), Vec::new())
    );
    assert_eq!(other.loaded(&thread).messages.len(), 4);
    let kept = other.store.inner.kept(&thread, ARCHIVE).unwrap();
    assert_eq!(kept.iter().filter(|kept| kept.place == Place::Newest).count(), 1);
}

/// Saves only when it is told to, and perhaps not even then.
struct Slow {
    store: MemoryStore,
    go: Mutex<Receiver<()>>,
    is_full: bool,
}

impl Snapshots for Slow {
    fn seal(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>> {
        self.store.seal(thread, at)
    }

    fn save(&self, thread: &ThreadId, body: &Value) -> Result<Saved> {
        let full =
            || Error::Io { what: "write", path: "state.json".into(), source: std::io::ErrorKind::StorageFull.into() };
        // Whoever is waited for longer than this will not come: the run does not go on.
        let told = self.go.lock().unwrap().recv_timeout(Duration::from_secs(20));
        match told.is_ok() && !self.is_full {
            true => self.store.save(thread, body),
            false => Err(full()),
        }
    }

    fn kept(&self, thread: &ThreadId, archive: &str) -> Result<Vec<Kept>> {
        self.store.kept(thread, archive)
    }

    fn read_snapshot(&self, thread: &ThreadId, kept: &Kept, archive: &str) -> Result<Read> {
        self.store.read_snapshot(thread, kept, archive)
    }

    fn put_away(&self, thread: &ThreadId, kept: &[Kept], archive: &str, away: Away<'_>) -> Result<()> {
        self.store.put_away(thread, kept, archive, away)
    }

    fn behind(&self, thread: &ThreadId, at: &Head, seal: &str) -> Result<Option<Behind>> {
        self.store.behind(thread, at, seal)
    }
}

/// Runs a thread whose first commit is worth a snapshot, which is not saved before the model has answered.
fn beside_a_run(is_full: bool) -> (House, ThreadId) {
    let mut house = House::new();
    let (say, go): (Sender<()>, _) = channel();
    let slow = Slow { store: house.store.inner.another(), go: Mutex::new(go), is_full };
    let mut config = StatePersistence::builtin();
    config.retention.on_completion.action = Action::Keep;
    house.keep(Keeper::new(Arc::new(slow), config).unwrap());
    let thread = house.thread();
    let long = "a long story ".repeat(6_000);
    let work = looking(Reply::Says("done"));
    house.after_commit(move |batch| {
        if batch.parts[0].changeset.reason == Reason::AssistantTurnCommitted {
            // As often as it may be tried.
            (0..3).for_each(|_| say.send(()).unwrap());
        }
    });
    assert_eq!(house.send(&thread, Input::text(long), &work).0.unwrap().status, Status::Completed);
    (house, thread)
}

#[test]
fn a_snapshot_that_only_spares_a_load_is_saved_while_the_run_goes_on() {
    let (house, thread) = beside_a_run(false);
    let store = &house.store.inner;
    let kept = store.kept(&thread, ARCHIVE).unwrap();
    assert_eq!(triggers(&house, &thread), ["pre_turn", "on_completion"]);
    let body = store.read_snapshot(&thread, &kept[1], ARCHIVE).unwrap().body().unwrap();
    assert!(body["seal"].is_string(), "it has the seal of the moment that it shows");
    let head = selvedge_store::Logs::head(store, &thread).unwrap();
    assert!(kept[1].version < head.version && kept[0].version == head.version);
    // Whoever takes the thread up begins with the last one.
    let sent = keeping(house.another()).send(&thread, Input::text("and?"), &looking(Reply::Says("yes")));
    assert_eq!(sent.0.unwrap().status, Status::Completed);
}

#[test]
fn one_that_fails_beside_a_run_is_recorded_by_it() {
    let (house, thread) = beside_a_run(true);
    assert_eq!(house.store.inner.kept(&thread, ARCHIVE).unwrap(), []);
    let lines = selvedge_store::Logs::read(&house.store.inner, &thread, 0, usize::MAX).unwrap();
    let failures: Vec<Value> = lines
        .iter()
        .filter_map(|line| match &line.event {
            Event::ContextInjected(fields) => fields.get("snapshot_failed").cloned(),
            _ => None,
        })
        .collect();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!((&failures[0]["trigger"], &failures[0]["attempts"]), (&json!("pre_turn"), &json!(3)));
}

#[test]
fn a_snapshot_has_the_times_that_the_log_has() {
    let house = saving();
    let thread = house.thread();
    house.send(&thread, Input::text("go"), &looking(Reply::Says("done"))).0.unwrap();
    let store = &house.store.inner;
    let kept = store.kept(&thread, ARCHIVE).unwrap();
    let body = store.read_snapshot(&thread, &kept[0], ARCHIVE).unwrap().body().unwrap();
    let lines = selvedge_store::Logs::read(store, &thread, 0, usize::MAX).unwrap();
    let checkpoint = |line: &&selvedge_log::Line| matches!(&line.event, Event::Checkpoint(checkpoint) if checkpoint.version == kept[0].version);
    let at = lines.iter().find(checkpoint).unwrap().timestamp;
    assert_eq!(body["thread"]["fold"]["manifest"]["updated_at"], json!(at));
}
