//! Snapshots of real threads: when they are saved, what they say, what becomes of them, and that nothing depends on them.
//!
//! A snapshot that is believed when it should not be would show a user another thread than the log has; one that fails a run would cost
//! the run for the sake of a copy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use selvedge::hooks::{Hook, Hooks};
use selvedge::items::config::state_persistence::{Action, Coalesce, StatePersistence};
use selvedge::items::hook::{HookFile, resolve};
use selvedge::log::{Signer, Trust};
use selvedge::model::answer::{Drafts, End, Usage};
use selvedge::model::blocking::BoxFuture;
use selvedge::model::event::Event;
use selvedge::model::message::Block;
use selvedge::model::scope::Scopes;
use selvedge::model::{
    AgentId, Answer, CallId, Cancel, Clock, Model, ModelError, NewThread, Price, Prompt, Status, Stop, ThreadId,
    Timestamp,
};
use selvedge::snapshot::{Keeper, Schema, examined, newest};
use selvedge::store::snapshot::{SnapshotFolder, SnapshotInfo};
use selvedge::store::{Logs, Snapshots};
use selvedge::store_local::disk::{Disk, DiskFile, OpenMode, RealDisk};
use selvedge::store_local::system::SystemIds;
use selvedge::store_local::{Access, LocalStore, Options};
use selvedge::tools::ProcessGroups;
use selvedge::{Engine, EngineOptions, Input, NoticeKind, Outcome, Permission, Redactor, RunConfig, RunEvent};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Watched, look};

/// A disk on which snapshots don't fit while it is full.
#[derive(Debug, Default)]
struct Filling {
    is_full: AtomicBool,
    refused: AtomicUsize,
    /// Whether no snapshot can be removed.
    keeps_all: AtomicBool,
}

impl Disk for Filling {
    fn open(&self, path: &Path, how: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let is_snapshot = path.to_string_lossy().contains("state.json") && how == OpenMode::CreateNew;
        if is_snapshot && self.is_full.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(28));
        }
        RealDisk.open(path, how)
    }
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.make_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let is_snapshot = path.ends_with("state.json") || path.to_string_lossy().contains("checkpoints");
        if is_snapshot && self.keeps_all.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        RealDisk.remove(path)
    }
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_folder(path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_folder(path)
    }
}

/// A clock that says what it is told to.
#[derive(Debug)]
struct FakeAnswer(AtomicU64);

impl Clock for FakeAnswer {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.0.fetch_add(1000, Ordering::SeqCst)).unwrap())
    }
}

/// A model that calls a tool so many times, saying something long each time, and then is done.
struct Talker {
    calls: usize,
    text: String,
    then: Then,
    shown: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    Done,
    Fails,
    Stopped,
}

impl Model for Talker {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            self.shown.store(prompt.messages.len(), Ordering::SeqCst);
            let asked = prompt.messages.iter().flat_map(|message| &message.content);
            let asked = asked.filter(|block| matches!(block, Block::ToolCall { .. })).count();
            let text = Block::text(self.text.clone());
            let (content, end) = match (asked < self.calls, self.then) {
                (true, _) => {
                    let id = CallId::new(format!("call_{asked}")).unwrap();
                    (vec![text, Block::tool_call(id, "look", json!({}))], End::ToolCalls)
                }
                (false, Then::Done) => (vec![text], End::Finished),
                (false, Then::Fails) => return Err(ModelError::Permanent { why: "no more".to_owned() }),
                (false, Then::Stopped) => {
                    cancel.say(Stop::Cancelled);
                    let partial = vec![Block::text("half of it")];
                    return Err(ModelError::Stopped { partial, usage: None });
                }
            };
            Ok(Answer::new(content, end).using(Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() }))
        })
    }
    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A store in a folder of its own, with a clock and a disk that do as they are told.
struct House {
    folder: TempDir,
    signer: Signer,
    clock: Arc<FakeAnswer>,
    disk: Arc<Filling>,
    config: StatePersistence,
}

/// What came of a run.
struct Ran {
    ended: Outcome,
    told: Vec<String>,
    /// How many messages the model was shown last.
    shown: usize,
    /// How often the log was read.
    reads: u64,
}

impl House {
    fn new(change: impl FnOnce(&mut StatePersistence)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(Filling::default());
        LocalStore::init(folder.path(), disk.clone()).unwrap();
        let mut config = StatePersistence::builtin();
        change(&mut config);
        let clock = Arc::new(FakeAnswer(AtomicU64::new(1_800_000_000_000_000)));
        Self { folder, signer: Signer::generate(&SystemIds), clock, disk, config }
    }

    /// Every trigger saves, and nothing is tidied away.
    fn saving_always() -> Self {
        Self::new(|config| {
            config.checkpoint.performance.coalesce = Coalesce::Always;
            config.retention.cleanup.enabled = false;
            config.retention.on_completion.action = Action::Keep;
        })
    }

    fn trust(&self) -> Trust {
        Trust::of(&[self.signer.public()])
    }

    fn open(&self) -> LocalStore {
        let store = LocalStore::open(Options {
            project: self.folder.path().to_owned(),
            access: Access::ReadWrite,
            trust: self.trust(),
            signer: Some(Signer::from_pem(&self.signer.to_pem()).unwrap()),
            clock: self.clock.clone(),
            ids: Arc::new(SystemIds),
            disk: self.disk.clone(),
        });
        store.unwrap()
    }

    fn work(&self, calls: usize, text: &str, then: Then) -> (RunConfig, Arc<Talker>) {
        let model = Arc::new(Talker { calls, text: text.to_owned(), then, shown: AtomicUsize::new(0) });
        let mut work = RunConfig::new(AgentId::new("scribe").unwrap(), model.clone(), "talker");
        work.retries.wait = Duration::from_millis(1);
        let file = HookFile::parse("hooks: [{event: limit, directive: on_limit}]").unwrap();
        let placed = resolve(Some(&file), None, None).into_iter();
        work.hooks = Arc::new(Hooks::new(placed.map(|placed| Hook { placed, calls: Vec::new() }).collect()));
        work.tools = vec![look()];
        (work, model)
    }

    /// A run as in a process of its own.
    fn run(&self, thread: Option<&ThreadId>, calls: usize, text: &str, then: Then) -> (ThreadId, Ran) {
        self.run_with(thread, calls, text, then, |_| {})
    }

    fn run_with(
        &self,
        thread: Option<&ThreadId>,
        calls: usize,
        text: &str,
        then: Then,
        change: impl FnOnce(&mut RunConfig),
    ) -> (ThreadId, Ran) {
        let watched = Arc::new(Watched::new(self.open()));
        let keeper = Keeper::new(Arc::new(self.open()), self.config.clone()).unwrap();
        let engine = Engine::new(EngineOptions {
            store: watched.clone(),
            trust: self.trust(),
            clock: self.clock.clone(),
            ids: Arc::new(SystemIds),
            processes: Arc::new(ProcessGroups),
            scopes: Scopes::builtin(),
            redactor: Redactor::default(),
            snapshots: Some(keeper),
            prepare: None,
        });
        let (mut work, model) = self.work(calls, text, then);
        change(&mut work);
        let thread = match thread {
            Some(thread) => thread.clone(),
            None => {
                let mut new = NewThread::of(AgentId::new("scribe").unwrap());
                new.capabilities = Some(vec!["tool.look".to_owned()]);
                engine.create(new, Vec::new()).unwrap()
            }
        };
        let mut told = Vec::new();
        let mut tell = |one: RunEvent| {
            if let RunEvent::Notice { kind: NoticeKind::Snapshot, why, .. } = one {
                told.push(why);
            }
        };
        let ended = engine.send(&thread, Input::text("go on"), &work, &Cancel::new(), &mut tell).unwrap();
        let reads = watched.reads.load(Ordering::SeqCst);
        (thread, Ran { ended, told, shown: model.shown.load(Ordering::SeqCst), reads })
    }

    fn folder_of(&self, thread: &ThreadId) -> PathBuf {
        self.folder.path().join(".ai/agent/threads").join(thread.folder())
    }

    fn kept(&self, thread: &ThreadId) -> Vec<SnapshotInfo> {
        self.open().list_snapshots(thread, "archive").unwrap()
    }

    /// The newest good snapshot, whole.
    fn snapshot(&self, thread: &ThreadId) -> Value {
        let schema = Schema::new(&self.config.state).unwrap();
        let found = newest(&self.open(), &schema, "archive", thread).unwrap();
        assert_eq!(found.bad.len(), 0, "{:?}", found.bad);
        found.good.unwrap().1
    }

    /// What the triggers were, oldest first.
    fn triggers(&self, thread: &ThreadId) -> Vec<String> {
        let store = self.open();
        let mut kept = store.list_snapshots(thread, "archive").unwrap();
        kept.reverse();
        let trigger = |kept: &SnapshotInfo| {
            store.read_snapshot(thread, kept, "archive").unwrap().body().unwrap()["trigger"].clone()
        };
        kept.iter().map(|kept| trigger(kept).as_str().unwrap().to_owned()).collect()
    }
}

/// Long enough that a few turns make a log that is worth a snapshot.
fn long_text() -> String {
    "a long story, told slowly. ".repeat(400)
}

#[test]
fn every_trigger_saves_when_it_is_due() {
    let house = House::saving_always();
    let (thread, ran) = house.run(None, 1, "hm", Then::Done);
    assert_eq!(ran.ended.status, Status::Completed);
    assert_eq!(house.triggers(&thread), ["pre_turn", "post_llm", "post_tools", "post_llm", "on_completion"]);
    assert_eq!(house.snapshot(&thread)["status"], "completed");
    let (thread, ran) = house.run(None, 0, "hm", Then::Fails);
    assert_eq!(ran.ended.status, Status::Error);
    assert_eq!(house.triggers(&thread), ["pre_turn", "on_error"]);
    let (thread, ran) = house.run(None, 0, "hm", Then::Stopped);
    assert_eq!(ran.ended.status, Status::Cancelled);
    assert_eq!(house.triggers(&thread), ["pre_turn", "on_cancel"]);
}

/// With `on_completion: keep`, the `state.json` of a thread that had ended said `running` for ever.
#[test]
fn a_kept_snapshot_says_that_its_thread_is_completed() {
    let house = House::new(|config| config.retention.on_completion.action = Action::Keep);
    let (thread, _) = house.run_with(None, 30, &long_text(), Then::Done, |work| work.limits.turns = None);
    let state = house.snapshot(&thread);
    assert_eq!((&state["status"], &state["trigger"]), (&json!("completed"), &json!("on_completion")));
    assert_eq!(state["log_version"], json!(house.open().head(&thread).unwrap().version));
}

/// A snapshot of a run that goes on counted no time for it.
#[test]
fn a_snapshot_counts_the_time_of_the_active_run() {
    let mut house = House::saving_always();
    house.config.checkpoint.triggers.post_llm.enabled = false;
    let clock = house.clock.clone();
    let (thread, _) = house.run_with(None, 3, "hm", Then::Done, move |work| {
        // Deciding about a call takes a second, or more.
        work.gate = Arc::new(move |_, _| {
            clock.0.fetch_add(1_000_000, Ordering::SeqCst);
            Permission::Allowed
        });
    });
    let seconds: Vec<f64> = {
        let store = house.open();
        let mut kept = house.kept(&thread);
        kept.reverse();
        let body = |kept: &SnapshotInfo| store.read_snapshot(&thread, kept, "archive").unwrap().body().unwrap();
        let running = kept.iter().map(body).filter(|state| state["status"] == "running");
        running.map(|state| state["cost"]["duration_seconds"].as_f64().unwrap()).collect()
    };
    assert!(seconds.last().is_some_and(|last| *last >= 2.0), "{seconds:?}");
    assert!(seconds.is_sorted(), "{seconds:?}");
}

/// What a thread waits for that has spent all of its money was not said under the name that ceilings have.
#[test]
fn a_thread_whose_money_is_spent_names_the_ceiling() {
    let house = House::new(|_| {});
    let (thread, ran) = house.run_with(None, 9, "hm", Then::Done, |work| {
        work.price =
            Some(Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() });
        work.limits.spend = Some("0.001".parse().unwrap());
    });
    assert_eq!(ran.ended.status, Status::Suspended);
    let state = house.snapshot(&thread);
    assert_eq!(state["suspend_reason"], "budget");
    assert_eq!(state["suspend_metadata"]["limit_code"], "spend_exceeded");
}

#[test]
fn every_call_of_the_model_is_preceded_by_a_snapshot_when_only_that_is_wanted() {
    let mut house = House::saving_always();
    let triggers = &mut house.config.checkpoint.triggers;
    (triggers.post_llm.enabled, triggers.post_tools.enabled) = (false, false);
    let (thread, ran) = house.run_with(None, 9, "hm", Then::Done, |work| work.limits.turns = Some(4));
    assert_eq!(ran.ended.status, Status::Suspended);
    let expected = ["pre_turn", "pre_turn", "pre_turn", "pre_turn", "on_suspend"];
    assert_eq!(house.triggers(&thread), expected);
}

#[test]
fn a_suspended_thread_is_saved_with_everything_needed_to_decide() {
    let house = House::new(|_| {});
    let (thread, ran) = house.run_with(None, 9, "hm", Then::Done, |work| work.limits.turns = Some(2));
    assert_eq!(ran.ended.status, Status::Suspended);
    let state = house.snapshot(&thread);
    assert_eq!(state["trigger"], "on_suspend");
    assert_eq!((&state["status"], &state["suspend_reason"]), (&json!("suspended"), &json!("limit")));
    let metadata =
        json!({"limit_code": "turns_exceeded", "code": "turns_exceeded", "current_value": 2, "current_max": 2});
    assert_eq!(state["suspend_metadata"], metadata);
    assert_eq!((&state["turn_number"], &state["cost"]["turns"]), (&json!(2), &json!(2)));
    assert_eq!(state["cost"]["tokens"], json!({"input_tokens": 20, "output_tokens": 10}));
    assert_eq!(state["hooks"], json!([{"event": "limit", "directive": "on_limit", "inputs": {}}]));
    assert_eq!(state["required_caps"], json!(["tool.look"]));
    assert_eq!(state["messages"].as_array().unwrap().len(), 5);
    assert_eq!((&state["version"], &state["partial_cognition"]), (&json!("1.1.0"), &Value::Null));
    let head = house.open().head(&thread).unwrap();
    assert_eq!((&state["log_version"], &state["log_hash"]), (&json!(head.version), &json!(head.hash)));
}

#[test]
fn the_partial_answer_of_a_stopped_model_is_kept_with_its_cost() {
    let house = House::new(|_| {});
    let (thread, _) = house.run(None, 1, "a story of forty letters, or a bit more..", Then::Stopped);
    let partial = house.snapshot(&thread)["partial_cognition"].clone();
    assert_eq!((&partial["text"], &partial["is_partial"]), (&json!("half of it"), &json!(true)));
    // 10 letters of 41, and not of the mean with what stands there for the answer that was stopped.
    assert_eq!(partial["completion_percentage"], 24);
    // The next run has not been stopped.
    let (_, ran) = house.run(Some(&thread), 1, "x", Then::Fails);
    assert_eq!(ran.ended.status, Status::Error);
    assert_eq!(house.snapshot(&thread)["partial_cognition"], Value::Null);
}

#[test]
fn short_threads_are_not_saved_turn_by_turn_and_long_ones_rarely() {
    let house = House::new(|config| config.retention.on_completion.action = Action::Keep);
    let (short, _) = house.run(None, 3, "hm", Then::Done);
    assert_eq!(house.kept(&short), []);
    let (long, _) = house.run_with(None, 60, &long_text(), Then::Done, |work| work.limits.turns = None);
    let kept = house.kept(&long).len();
    // While one is being saved, no other is begun.
    assert!((1..=8).contains(&kept), "{kept} of 180 triggers saved");
}

#[test]
fn a_long_thread_is_loaded_from_its_snapshot_and_the_lines_after_it() {
    let house = House::new(|_| {});
    let (thread, _) = house.run_with(None, 30, &long_text(), Then::Done, |work| work.limits.turns = None);
    assert!(house.kept(&thread).iter().all(|kept| kept.place == SnapshotFolder::Archived), "it is completed");
    let (_, ran) = house.run(Some(&thread), 30, "x", Then::Done);
    assert_eq!((ran.reads, ran.shown, ran.told.len()), (0, 63, 0), "{:?}", ran.told);
    // Without any snapshot it is the same thread.
    fs::remove_dir_all(house.folder_of(&thread).join("archive")).unwrap();
    let (_, ran) = house.run(Some(&thread), 30, "x", Then::Done);
    assert_eq!((ran.reads, ran.shown, ran.told.len()), (1, 65, 0));
}

#[test]
fn a_snapshot_has_the_same_content_as_the_log() {
    let house = House::saving_always();
    let (thread, _) = house.run_with(None, 9, &long_text(), Then::Stopped, |work| work.limits.turns = None);
    let full = selvedge::store::load::load(&house.open(), &thread, &house.trust(), None).unwrap().thread;
    let state = house.snapshot(&thread);
    let strip = |mut value: Value| {
        // The log has the times of the store, the snapshot those of the run.
        fn times(value: &mut Value) {
            match value {
                Value::Object(members) => {
                    members.retain(|name, _| !["created_at", "updated_at", "completed_at"].contains(&name.as_str()));
                    members.values_mut().for_each(times);
                }
                Value::Array(items) => items.iter_mut().for_each(times),
                _ => {}
            }
        }
        times(&mut value);
        value
    };
    assert_eq!(strip(state["thread"]["fold"].clone()), strip(json!(full)));
    assert_eq!(state["messages"], json!(full.messages));
}

/// A long thread that waits, so that its newest snapshot is of its last version.
fn waiting(house: &House) -> ThreadId {
    let (thread, ran) = house.run_with(None, 99, &long_text(), Then::Done, |work| work.limits.turns = Some(9));
    assert_eq!(ran.ended.status, Status::Suspended);
    thread
}

#[test]
fn a_changed_cut_or_forged_snapshot_is_detected_and_the_log_is_read() {
    let house = House::new(|_| {});
    let thread = waiting(&house);
    let path = house.folder_of(&thread).join("state.json");
    let good = fs::read(&path).unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    let stranger = Signer::generate(&SystemIds);
    let mut forged: Value = serde_json::from_slice(&good).unwrap();
    forged.as_object_mut().unwrap().remove("_signature");
    forged["messages"] = json!([]);
    let kind = selvedge::store::snapshot::KIND;
    let at = house.clock.now();
    let forged = selvedge::log::document::sign_exact(kind, thread.as_str(), &forged, &stranger, at).unwrap().0;
    let other = text.replace("a long story", "a tall story").into_bytes();
    let half = good[..good.len() / 2].to_vec();
    let older = fs::read_dir(house.folder_of(&thread).join("checkpoints"));
    let older: Vec<PathBuf> = older.map(|all| all.map(|one| one.unwrap().path()).collect()).unwrap_or_default();
    older.iter().for_each(|path| fs::remove_file(path).unwrap());
    let mut shown = 20;
    let cut = |bytes: usize| good[..bytes].to_vec();
    for bad in [other, half, forged, b"{}".to_vec(), cut(0), cut(1), cut(100), cut(400)] {
        fs::write(&path, bad).unwrap();
        let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Fails, |work| work.limits.turns = None);
        assert_eq!((ran.reads, ran.shown, ran.ended.status.status().unwrap()), (1, shown, Status::Error));
        assert!(ran.told.len() == 1 && ran.told[0].contains("`state.json` is not used"), "{:?}", ran.told);
        // What is there afterwards is good again.
        assert_eq!(house.snapshot(&thread)["status"], "error");
        shown += 2;
        fs::remove_dir_all(house.folder_of(&thread).join("checkpoints")).ok();
    }
}

/// A short thread that waits, with its newest snapshot.
fn short(house: &House) -> (ThreadId, PathBuf) {
    let (thread, ran) = house.run_with(None, 9, "hm", Then::Done, |work| work.limits.turns = Some(1));
    assert_eq!(ran.ended.status, Status::Suspended);
    let path = house.folder_of(&thread).join("state.json");
    (thread, path)
}

/// Signs a snapshot with something in it changed, by the key that counts.
fn resigned(house: &House, thread: &ThreadId, path: &Path, change: impl FnOnce(&mut Value)) {
    let mut state: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    state.as_object_mut().unwrap().remove("_signature");
    change(&mut state);
    let kind = selvedge::store::snapshot::KIND;
    let text = selvedge::log::document::sign_exact(kind, thread.as_str(), &state, &house.signer, house.clock.now());
    fs::write(path, text.unwrap().0).unwrap();
}

#[test]
fn an_invalid_file_in_place_of_the_newest_snapshot_is_reported_before_it_is_replaced() {
    let house = House::new(|_| {});
    let (thread, path) = short(&house);
    let good = String::from_utf8(fs::read(&path).unwrap()).unwrap();
    let changed = good.replace("\"status\":\"suspended\"", "\"status\":\"completed\"");
    assert_ne!(good, changed);
    for bad in [changed.as_str(), "{}", "", &good[..good.len() / 2]] {
        fs::write(&path, bad).unwrap();
        let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Fails, |work| work.limits.turns = None);
        assert!(ran.told.len() == 1 && ran.told[0].contains("`state.json` was not valid"), "{:?}", ran.told);
        assert_eq!(house.snapshot(&thread)["status"], "error");
    }
    // A good one is nothing to talk about.
    let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Fails, |work| work.limits.turns = None);
    assert_eq!(ran.told, [""; 0]);
    // One that was good once, and is not the one that was saved last.
    fs::write(&path, &good).unwrap();
    let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Fails, |work| work.limits.turns = None);
    assert!(ran.told.len() == 1 && ran.told[0].contains("`state.json` was that of version"), "{:?}", ran.told);
}

/// It stayed where it was, without a notice.
#[test]
fn an_invalid_snapshot_is_replaced_when_its_thread_is_completed() {
    for action in [Action::Keep, Action::Archive] {
        let house = House::new(|config| config.retention.on_completion.action = action);
        let (thread, path) = short(&house);
        let good = fs::read(&path).unwrap();
        for bad in [&b"{}"[..], b"", &good[..good.len() / 2]] {
            fs::write(&path, bad).unwrap();
            let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Done, |work| work.limits.turns = None);
            assert_eq!(ran.ended.status, Status::Completed);
            assert!(ran.told.len() == 1 && ran.told[0].contains("`state.json` was not valid"), "{:?}", ran.told);
            assert_eq!(path.exists(), action == Action::Keep);
            let newest = house.kept(&thread).remove(0);
            assert_eq!(newest.version, house.open().head(&thread).unwrap().version, "it says what its thread came to");
        }
        // What is good is nothing to talk about. Where it stays, it says how the thread ended; else it is not saved again.
        let before = house.kept(&thread);
        let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Done, |work| work.limits.turns = None);
        let saved = usize::from(action == Action::Keep);
        assert_eq!((ran.told.len(), house.kept(&thread).len()), (0, before.len() + saved));
    }
}

#[test]
fn a_snapshot_of_an_unknown_format_is_refused() {
    let house = House::new(|_| {});
    for (version, is_known) in [("9.9.9", false), ("1.2.0", false), ("1.0.0", true), ("1.1.7", true)] {
        let thread = waiting(&house);
        let path = house.folder_of(&thread).join("state.json");
        fs::remove_dir_all(house.folder_of(&thread).join("checkpoints")).ok();
        resigned(&house, &thread, &path, |state| state["version"] = json!(version));
        let schema = Schema::new(&house.config.state).unwrap();
        let found = newest(&house.open(), &schema, "archive", &thread).unwrap();
        assert_eq!(found.good.is_some(), is_known, "{:?}", found.bad);
        let listed = examined(&house.open(), &schema, "archive", &thread).unwrap();
        assert_eq!(listed[0].1.is_none(), is_known, "{listed:?}");
        let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Fails, |work| work.limits.turns = None);
        let told = ran.told.iter().filter(|told| told.contains("is unknown")).count();
        assert_eq!((ran.reads, told), (u64::from(!is_known), usize::from(!is_known)), "{:?}", ran.told);
    }
}

#[test]
fn a_snapshot_of_another_thread_is_refused() {
    let house = House::new(|_| {});
    let one = waiting(&house);
    let other = waiting(&house);
    let place = |thread: &ThreadId| house.folder_of(thread).join("state.json");
    fs::copy(place(&one), place(&other)).unwrap();
    fs::remove_dir_all(house.folder_of(&other).join("checkpoints")).ok();
    let (_, ran) = house.run(Some(&other), 0, "x", Then::Fails);
    assert_eq!((ran.reads, ran.told.len()), (1, 1), "{:?}", ran.told);
}

#[test]
fn an_older_snapshot_is_used_with_the_lines_after_it() {
    let house = House::saving_always();
    let thread = waiting(&house);
    fs::write(house.folder_of(&thread).join("state.json"), "{").unwrap();
    let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Fails, |work| work.limits.turns = None);
    assert_eq!((ran.reads, ran.shown), (0, 20));
}

#[test]
fn an_invalid_seal_makes_every_byte_be_read_without_a_notice() {
    let mut house = House::new(|_| {});
    let thread = waiting(&house);
    // The same key in another store would do; another key is refused by the log itself, so the seal alone is changed, and signed.
    let path = house.folder_of(&thread).join("state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    state.as_object_mut().unwrap().remove("_signature");
    state["seal"] = json!("00".repeat(145));
    let kind = selvedge::store::snapshot::KIND;
    let text = selvedge::log::document::sign_exact(kind, thread.as_str(), &state, &house.signer, house.clock.now());
    fs::write(&path, text.unwrap().0).unwrap();
    fs::remove_dir_all(house.folder_of(&thread).join("checkpoints")).ok();
    house.config.checkpoint.performance.compress = true;
    let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Fails, |work| work.limits.turns = None);
    assert_eq!((ran.reads, ran.told.len()), (1, 0));
}

#[test]
fn a_full_disk_prevents_the_snapshot_and_not_the_run() {
    let house = House::new(|_| {});
    house.disk.is_full.store(true, Ordering::SeqCst);
    let (thread, ran) = house.run_with(None, 9, "hm", Then::Done, |work| work.limits.turns = Some(1));
    assert_eq!(ran.ended.status, Status::Suspended);
    assert_eq!(house.disk.refused.load(Ordering::SeqCst), 3, "three tries");
    assert!(ran.told.len() == 1 && ran.told[0].contains("No space left"), "{:?}", ran.told);
    assert_eq!(house.kept(&thread), []);
    let store = house.open();
    let lines = store.read(&thread, 0, 1000).unwrap();
    let recorded = lines.iter().find_map(|line| match &line.event {
        Event::ContextInjected(fields) => fields.get("snapshot_failed").cloned(),
        _ => None,
    });
    let recorded = recorded.unwrap();
    assert_eq!((&recorded["trigger"], &recorded["attempts"]), (&json!("on_suspend"), &json!(3)));
    drop(store);
    // In the middle of a run it is recorded with the next commit, and the disk is asked again once there is more to save.
    let (_, ran) = house.run_with(None, 12, &long_text(), Then::Done, |work| work.limits.turns = None);
    assert_eq!((ran.ended.status.status().unwrap(), ran.told.is_empty()), (Status::Completed, false));
    house.disk.is_full.store(false, Ordering::SeqCst);
    let (_, ran) = house.run_with(Some(&thread), 0, "hm", Then::Fails, |work| work.limits.turns = None);
    assert_eq!((ran.told.len(), house.kept(&thread).len()), (0, 1));
}

#[test]
fn a_snapshot_that_violates_the_schema_is_never_written() {
    let house = House::new(|config| config.state.required.push("approved_by".to_owned()));
    let (thread, ran) = house.run_with(None, 9, "hm", Then::Done, |work| work.limits.turns = Some(1));
    assert_eq!(ran.ended.status, Status::Suspended);
    assert!(ran.told.len() == 1 && ran.told[0].contains("approved_by"), "{:?}", ran.told);
    assert_eq!((house.kept(&thread), house.disk.refused.load(Ordering::SeqCst)), (Vec::new(), 0));
    assert!(!house.folder_of(&thread).join("state.json").exists());
}

#[test]
fn only_changes_are_written_packed_and_the_whole_is_read_back() {
    let mut house = House::saving_always();
    house.config.checkpoint.performance.incremental = true;
    house.config.checkpoint.performance.compress = true;
    let thread = waiting(&house);
    let whole = house.snapshot(&thread);
    assert_eq!(whole["messages"].as_array().unwrap().len(), 19);
    let kept = house.kept(&thread);
    let (changes, wholes): (Vec<_>, Vec<_>) = kept.iter().partition(|kept| kept.base.is_some());
    assert!(changes.len() >= 4 * wholes.len() && wholes.len() >= 2, "{} and {}", changes.len(), wholes.len());
    assert!(kept[0].bytes * 10 < whole.to_string().len() as u64, "{} bytes", kept[0].bytes);
    let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Fails, |work| work.limits.turns = None);
    assert_eq!((ran.reads, ran.shown, ran.told.len()), (0, 20, 0), "{:?}", ran.told);
}

#[test]
fn a_snapshot_whose_base_is_missing_or_different_is_detected() {
    let mut house = House::saving_always();
    house.config.checkpoint.performance.incremental = true;
    let thread = waiting(&house);
    let kept = house.kept(&thread);
    let newest = &kept[0];
    let base = kept.iter().find(|kept| Some(kept.version) == newest.base).unwrap();
    let path = house.folder_of(&thread).join("checkpoints").join(&base.name);
    // Another good one in its place, under its name.
    let whole = kept.iter().rev().find(|kept| kept.base.is_none() && kept.version != base.version).unwrap();
    let good = fs::read(&path).unwrap();
    fs::copy(house.folder_of(&thread).join("checkpoints").join(&whole.name), &path).unwrap();
    let schema = Schema::new(&house.config.state).unwrap();
    let found = selvedge::snapshot::newest(&house.open(), &schema, "archive", &thread).unwrap();
    assert!(found.bad[0].1.contains("was replaced by another one"), "{:?}", found.bad);
    fs::write(&path, good).unwrap();
    house.snapshot(&thread);
    // Without it, neither that one nor any that builds on it is valid, and all commands say so.
    fs::remove_file(&path).unwrap();
    let listed = examined(&house.open(), &schema, "archive", &thread).unwrap();
    let why = listed[0].1.as_deref().unwrap_or_default();
    assert!(why.contains(&format!("its base of version {} does not exist", base.version)), "{listed:?}");
    assert_eq!(listed.last().unwrap().1, None);
}

/// A suspended thread whose newest snapshot holds only what changed, and the file of the whole snapshot that it builds on.
fn thread_with_incremental_snapshot(house: &House, text: &str) -> (ThreadId, PathBuf) {
    let (thread, ran) = house.run_with(None, 99, text, Then::Done, |work| work.limits.turns = Some(2));
    assert_eq!(ran.ended.status, Status::Suspended);
    let kept = house.kept(&thread);
    assert!(kept[0].base.is_some(), "{kept:?}");
    let base = kept.iter().find(|kept| kept.base.is_none()).unwrap();
    let path = house.folder_of(&thread).join("checkpoints").join(&base.name);
    (thread, path)
}

/// It was saved again, without a notice that it had been changed.
#[test]
fn a_snapshot_whose_base_was_changed_is_reported_once_and_saved_again() {
    for (text, then) in [("hm", Then::Fails), ("hm", Then::Done), (long_text().as_str(), Then::Fails)] {
        let mut house = House::saving_always();
        house.config.checkpoint.performance.incremental = true;
        let (thread, path) = thread_with_incremental_snapshot(&house, text);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        let schema = Schema::new(&house.config.state).unwrap();
        let listed = examined(&house.open(), &schema, "archive", &thread).unwrap();
        let why = listed[0].1.as_deref().unwrap_or_default();
        assert!(why.contains("its base of version") && why.contains("is not valid"), "{listed:?}");
        // On completion nothing is saved unless what is there is not good.
        let triggers = &mut house.config.checkpoint.triggers;
        for rule in [&mut triggers.pre_turn, &mut triggers.post_llm, &mut triggers.post_tools] {
            rule.enabled = false;
        }
        let (_, ran) = house.run_with(Some(&thread), 0, "x", then, |work| work.limits.turns = None);
        assert_eq!(ran.told.len(), 1, "{:?}", ran.told);
        assert!(ran.told[0].contains("its base of version") && ran.told[0].contains("is not valid"), "{:?}", ran.told);
        house.snapshot(&thread);
        let (_, ran) = house.run_with(Some(&thread), 0, "x", then, |work| work.limits.turns = None);
        assert_eq!(ran.told, [""; 0], "it was told once");
    }
}

#[test]
fn snapshots_that_can_not_be_archived_are_reported_and_recorded_and_the_run_completes() {
    for action in [Action::Archive, Action::Delete] {
        let house = House::new(|config| config.retention.on_completion.action = action);
        let (thread, path) = short(&house);
        let archive = house.folder_of(&thread).join("archive");
        fs::write(&archive, "mine").unwrap();
        house.disk.keeps_all.store(action == Action::Delete, Ordering::SeqCst);
        let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Done, |work| work.limits.turns = None);
        assert_eq!(ran.ended.status, Status::Completed);
        assert!(ran.told.len() == 1 && ran.told[0].contains("could not be archived or removed"), "{:?}", ran.told);
        assert!(path.exists() && fs::read(&archive).unwrap() == b"mine");
        let lines = house.open().read(&thread, 0, 1000).unwrap();
        let recorded = lines.iter().find_map(|line| match &line.event {
            Event::ContextInjected(fields) => fields.get("snapshot_failed").cloned(),
            _ => None,
        });
        let recorded = recorded.unwrap();
        assert_eq!((&recorded["trigger"], &recorded["attempts"]), (&json!("on_completion"), &json!(1)));
        // Once it can be done, the next completion does it.
        fs::remove_file(&archive).unwrap();
        house.disk.keeps_all.store(false, Ordering::SeqCst);
        let (_, ran) = house.run_with(Some(&thread), 0, "x", Then::Done, |work| work.limits.turns = None);
        assert_eq!((ran.told.len(), path.exists()), (0, false));
    }
}

#[test]
fn outdated_snapshots_that_can_not_be_removed_are_reported_once() {
    let house = House::new(|config| {
        config.checkpoint.performance.coalesce = Coalesce::Always;
        config.retention.max_checkpoints = 3;
    });
    house.disk.keeps_all.store(true, Ordering::SeqCst);
    let (thread, ran) = house.run_with(None, 99, "hm", Then::Done, |work| work.limits.turns = Some(5));
    assert_eq!(ran.ended.status, Status::Suspended);
    assert!(ran.told.len() == 1 && ran.told[0].contains("could not be removed"), "{:?}", ran.told);
    assert!(house.kept(&thread).len() > 5);
}

#[test]
fn the_configured_number_of_older_snapshots_is_kept_and_none_that_is_too_old() {
    let house = House::new(|config| {
        config.checkpoint.performance.coalesce = Coalesce::Always;
        config.retention.max_checkpoints = 4;
    });
    let (thread, _) = house.run_with(None, 99, "hm", Then::Done, |work| work.limits.turns = Some(5));
    let count = |place| house.kept(&thread).iter().filter(|kept| kept.place == place).count();
    assert_eq!((count(SnapshotFolder::Newest), count(SnapshotFolder::Older)), (1, 4));
    // Eight days later only the last few of them are left beside the new ones.
    house.clock.0.fetch_add(8 * 24 * 3_600_000_000, Ordering::SeqCst);
    house.run_with(Some(&thread), 0, "hm", Then::Fails, |work| work.limits.turns = None);
    assert_eq!((count(SnapshotFolder::Newest), count(SnapshotFolder::Older)), (1, 3));
}

/// Ten older snapshots, each nearly as long as the log, made a store more than twice as large as its logs.
#[test]
fn older_snapshots_take_less_than_half_of_their_log() {
    let house = House::new(|_| {});
    let story =
        "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. ".repeat(20);
    let (thread, _) = house.run_with(None, 300, &story, Then::Done, |work| work.limits.turns = Some(1000));
    let log = fs::metadata(house.folder_of(&thread).join("transcript.jsonl")).unwrap().len();
    let away: u64 =
        house.kept(&thread).iter().filter(|kept| kept.place != SnapshotFolder::Newest).map(|kept| kept.bytes).sum();
    assert!(away > 0 && away * 2 <= log, "{away} of {log} bytes");
}

#[test]
fn a_damaged_snapshot_does_not_count_towards_the_kept_ones() {
    let house = House::new(|config| {
        config.checkpoint.performance.coalesce = Coalesce::Always;
        config.retention.max_checkpoints = 4;
    });
    let (thread, _) = house.run_with(None, 99, "hm", Then::Done, |work| work.limits.turns = Some(5));
    // Names that say they are the newest of all, and are as young as can be.
    let damaged: Vec<PathBuf> = [900, 901, 902, 903]
        .map(|version| {
            let name = selvedge::store::snapshot::name_of(version, house.clock.now(), None);
            house.folder_of(&thread).join("checkpoints").join(name)
        })
        .into();
    damaged.iter().for_each(|file| fs::write(file, "{\"log_version\":900}").unwrap());
    house.run_with(Some(&thread), 99, "hm", Then::Done, |work| work.limits.turns = Some(2));
    let older: Vec<_> = house.kept(&thread).into_iter().filter(|kept| kept.place == SnapshotFolder::Older).collect();
    let good = older.iter().filter(|kept| kept.version < 900).count();
    assert_eq!((good, older.len()), (4, 8), "all valid ones are kept, and the others are found");
}

#[test]
fn when_a_thread_is_completed_its_snapshots_are_archived_deleted_or_kept() {
    for (action, places) in [
        (Action::Archive, vec![SnapshotFolder::Archived; 4]),
        (Action::Delete, Vec::new()),
        // The newest says how it ended.
        (
            Action::Keep,
            vec![
                SnapshotFolder::Newest,
                SnapshotFolder::Older,
                SnapshotFolder::Older,
                SnapshotFolder::Older,
                SnapshotFolder::Older,
            ],
        ),
    ] {
        let house = House::new(|config| {
            config.checkpoint.performance.coalesce = Coalesce::Always;
            config.retention.on_completion.action = action;
        });
        let (thread, ran) = house.run(None, 1, "hm", Then::Done);
        assert_eq!(ran.ended.status, Status::Completed);
        let found: Vec<_> = house.kept(&thread).iter().map(|kept| kept.place).collect();
        assert_eq!(found, places, "{action:?}");
    }
}
