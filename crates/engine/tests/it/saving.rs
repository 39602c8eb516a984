//! Snapshots on a store without a disk: every trigger, and a thread that is loaded from one.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_engine::snapshot::Keeper;
use selvedge_engine::{Input, RunConfig};
use selvedge_items::config::state_persistence::{Action, Coalesce, StatePersistence};
use selvedge_log::Head;
use selvedge_model::event::EffectClass;
use selvedge_model::limits::Limits;
use selvedge_model::{Cancel, Event, ModelError, Part, Price, Reason, Status, ThreadId};
use selvedge_store::memory::MemoryStore;
use selvedge_store::snapshot::{Disposal, LogRest, SavedSnapshot, SnapshotFolder, SnapshotInfo, VerifiedSnapshot};
use selvedge_store::{Error, Logs, Result, Snapshots};
use serde_json::{Value, json};

use crate::support::{CountingTool, Harness, Reply, agent};

const ARCHIVE: &str = "archive";

/// A harness whose engine saves at every trigger, and keeps all snapshots.
fn saving() -> Harness {
    let harness = Harness::new();
    keeping(harness)
}

fn keeping(harness: Harness) -> Harness {
    keeping_as(harness, |_| {})
}

fn keeping_as(mut harness: Harness, change: impl Fn(&mut StatePersistence)) -> Harness {
    let mut config = StatePersistence::builtin();
    config.checkpoint.performance.coalesce = Coalesce::Always;
    config.retention.cleanup.enabled = false;
    config.retention.on_completion.action = Action::Keep;
    change(&mut config);
    let keeper = Keeper::new(Arc::new(harness.store.inner.another()), config).unwrap();
    harness.keep(keeper);
    harness
}

fn looking(then: Reply) -> RunConfig {
    let tool = Arc::new(CountingTool::new("look", EffectClass::Pure));
    agent(vec![Reply::Calls(vec![("a", "look", json!({}))]), then], vec![tool])
}

/// The triggers of a thread's snapshots, the oldest first.
fn triggers(harness: &Harness, thread: &ThreadId) -> Vec<String> {
    let store = &harness.store.inner;
    let kept = store.list_snapshots(thread, ARCHIVE).unwrap();
    let body = |kept| store.read_snapshot(thread, kept, ARCHIVE).unwrap().body().unwrap();
    kept.iter().rev().map(|kept| body(kept)["trigger"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_trigger_saves() {
    let harness = saving();
    let mut seen: Vec<String> = Vec::new();
    let mut check = |work: &RunConfig, cancel: &Cancel, status: Status, expected: &[&str]| {
        let thread = harness.thread();
        let ended = harness.engine.send(&thread, Input::text("go"), work, cancel, &mut |_| {});
        assert_eq!(ended.unwrap().status, status);
        assert_eq!(triggers(&harness, &thread), expected);
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
fn each_model_call_is_preceded_by_a_snapshot_if_nothing_else_saves_one() {
    for (coalesce, priority, is_paid) in
        [(Coalesce::Always, 1, false), (Coalesce::Always, 1, true), (Coalesce::Auto, 10, false)]
    {
        let harness = keeping_as(Harness::new(), |config| {
            let triggers = &mut config.checkpoint.triggers;
            (triggers.post_llm.enabled, triggers.post_tools.enabled) = (false, false);
            (triggers.pre_turn.priority, config.checkpoint.performance.coalesce) = (priority, coalesce);
        });
        let thread = harness.thread();
        let tool = Arc::new(CountingTool::new("look", EffectClass::Pure));
        let call = |id| Reply::Calls(vec![(id, "look", json!({}))]);
        let mut work = agent(vec![call("a"), call("b"), call("c"), Reply::Says("done")], vec![tool]);
        if is_paid {
            work.price = Some(Price { input: "1".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() });
            work.limits.spend = Some("1".parse().unwrap());
        }
        let before = Arc::new(Mutex::new(Vec::new()));
        let store = harness.store.inner.another();
        let behind = before.clone();
        harness.after_commit(move |batch| {
            let Part { thread, changeset, .. } = &batch.parts[0];
            if changeset.reason == Reason::AssistantTurnCommitted {
                let newest = store.list_snapshots(thread, ARCHIVE).unwrap()[0].version;
                behind.lock().unwrap().push(store.head(thread).unwrap().version - newest);
            }
        });
        assert_eq!(harness.send(&thread, Input::text("go"), &work).0.unwrap().status, Status::Completed);
        assert_eq!(triggers(&harness, &thread), ["pre_turn", "pre_turn", "pre_turn", "pre_turn", "on_completion"]);
        let before = before.lock().unwrap();
        assert!(before.iter().all(|behind| *behind == 1) && before.len() == 4, "{before:?}");
    }
}

#[test]
fn a_thread_is_loaded_from_a_snapshot_that_only_memory_holds() {
    let harness = saving();
    let thread = harness.thread();
    let mut work = looking(Reply::Says("seen"));
    work.limits = Limits { turns: Some(1), ..Limits::default() };
    assert_eq!(harness.send(&thread, Input::text("go"), &work).0.unwrap().status, Status::Suspended);
    let other = keeping(harness.another());
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
    let kept = other.store.inner.list_snapshots(&thread, ARCHIVE).unwrap();
    assert_eq!(kept.iter().filter(|kept| kept.place == SnapshotFolder::Newest).count(), 1);
}

/// Saves only when it is signalled to, and perhaps not even then.
struct Slow {
    store: MemoryStore,
    go: Mutex<Receiver<()>>,
    is_full: bool,
}

impl Snapshots for Slow {
    fn seal(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>> {
        self.store.seal(thread, at)
    }

    fn save(&self, thread: &ThreadId, body: &Value) -> Result<SavedSnapshot> {
        let full =
            || Error::Io { what: "write", path: "state.json".into(), source: std::io::ErrorKind::StorageFull.into() };
        // After this long, the signal will not come: the run does not continue.
        let told = self.go.lock().unwrap().recv_timeout(Duration::from_secs(20));
        if told.is_ok() && !self.is_full { self.store.save(thread, body) } else { Err(full()) }
    }

    fn list_snapshots(&self, thread: &ThreadId, archive: &str) -> Result<Vec<SnapshotInfo>> {
        self.store.list_snapshots(thread, archive)
    }

    fn read_snapshot(&self, thread: &ThreadId, kept: &SnapshotInfo, archive: &str) -> Result<VerifiedSnapshot> {
        self.store.read_snapshot(thread, kept, archive)
    }

    fn dispose(&self, thread: &ThreadId, kept: &[SnapshotInfo], archive: &str, away: Disposal<'_>) -> Result<()> {
        self.store.dispose(thread, kept, archive, away)
    }

    fn log_after(&self, thread: &ThreadId, at: &Head, seal: &str) -> Result<Option<LogRest>> {
        self.store.log_after(thread, at, seal)
    }
}

/// Runs a thread whose first commit triggers a snapshot, which is not saved before the model has answered.
fn beside_a_run(is_full: bool) -> (Harness, ThreadId) {
    let mut harness = Harness::new();
    let (say, go): (Sender<()>, _) = channel();
    let slow = Slow { store: harness.store.inner.another(), go: Mutex::new(go), is_full };
    let mut config = StatePersistence::builtin();
    config.retention.on_completion.action = Action::Keep;
    harness.keep(Keeper::new(Arc::new(slow), config).unwrap());
    let thread = harness.thread();
    let long = "a long story ".repeat(6_000);
    let work = looking(Reply::Says("done"));
    harness.after_commit(move |batch| {
        if batch.parts[0].changeset.reason == Reason::AssistantTurnCommitted {
            // As often as it may be tried.
            (0..3).for_each(|_| say.send(()).unwrap());
        }
    });
    assert_eq!(harness.send(&thread, Input::text(long), &work).0.unwrap().status, Status::Completed);
    (harness, thread)
}

#[test]
fn a_snapshot_that_only_speeds_up_a_load_is_saved_while_the_run_continues() {
    let (harness, thread) = beside_a_run(false);
    let store = &harness.store.inner;
    let kept = store.list_snapshots(&thread, ARCHIVE).unwrap();
    assert_eq!(triggers(&harness, &thread), ["pre_turn", "on_completion"]);
    let body = store.read_snapshot(&thread, &kept[1], ARCHIVE).unwrap().body().unwrap();
    assert!(body["seal"].is_string(), "it has the seal of its version");
    let head = selvedge_store::Logs::head(store, &thread).unwrap();
    assert!(kept[1].version < head.version && kept[0].version == head.version);
    // The next process that loads the thread begins with the last one.
    let sent = keeping(harness.another()).send(&thread, Input::text("and?"), &looking(Reply::Says("yes")));
    assert_eq!(sent.0.unwrap().status, Status::Completed);
}

#[test]
fn a_failed_background_save_is_recorded_by_the_run() {
    let (harness, thread) = beside_a_run(true);
    assert_eq!(harness.store.inner.list_snapshots(&thread, ARCHIVE).unwrap(), []);
    let lines = selvedge_store::Logs::read(&harness.store.inner, &thread, 0, usize::MAX).unwrap();
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
    let harness = saving();
    let thread = harness.thread();
    harness.send(&thread, Input::text("go"), &looking(Reply::Says("done"))).0.unwrap();
    let store = &harness.store.inner;
    let kept = store.list_snapshots(&thread, ARCHIVE).unwrap();
    let body = store.read_snapshot(&thread, &kept[0], ARCHIVE).unwrap().body().unwrap();
    let lines = selvedge_store::Logs::read(store, &thread, 0, usize::MAX).unwrap();
    let checkpoint = |line: &&selvedge_log::Line| matches!(&line.event, Event::Checkpoint(checkpoint) if checkpoint.version == kept[0].version);
    let at = lines.iter().find(checkpoint).unwrap().timestamp;
    assert_eq!(body["thread"]["fold"]["manifest"]["updated_at"], json!(at));
}
