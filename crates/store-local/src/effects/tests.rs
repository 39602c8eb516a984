//! The files of effects: written once, whatever is lost in between.

use std::fs;
use std::sync::Arc;

use selvedge_model::event::TurnUsage;
use selvedge_model::limits::Cost;
use selvedge_model::{
    AgentId, Batch, Cancel, Changeset, Event, Expect, NewThread, Part, Reason, RunId, RunMeta, Status,
};
use selvedge_store::usage::{Group, UsageSummary};
use selvedge_store::{Commit, Logs as _};

use super::*;
use crate::disk::{Disk, RealDisk};
use crate::testing::{TestStore, thread};

fn create(store: &LocalStore, name: &str, agent: &str) {
    let new = NewThread::of(AgentId::new(agent).unwrap());
    store.commit(Batch::of(Part::new(thread(name), Expect::Absent, Changeset::creating(new)))).unwrap();
}

fn commit(store: &LocalStore, name: &str, changeset: Changeset) {
    store.commit(Batch::of(Part::new(thread(name), Expect::Any, changeset))).unwrap();
}

/// One run of a turn.
fn run(store: &LocalStore, name: &str, run: &str, code: &str) {
    let id = Some(RunId::new(run).unwrap());
    let meta = RunMeta::started(AgentId::new("scribe").unwrap(), "user");
    let begin = Changeset { run_id: id.clone(), run_meta: Some(meta.clone()), ..Changeset::empty(Reason::UserMessage) };
    commit(store, name, begin);
    let cost = Cost { turns: 1, input_tokens: 100, output_tokens: 7, ..Cost::default() };
    let turn: TurnUsage = serde_json::from_value(serde_json::json!({
        "model": "m:1", "turns": 1, "input_tokens": 100, "output_tokens": 7, "cache_read_tokens": 30, "cache_write_tokens": 5,
    }))
    .unwrap();
    let said = Changeset {
        run_id: id.clone(),
        events: vec![Event::Usage(turn)],
        ..Changeset::empty(Reason::AssistantTurnCommitted)
    };
    commit(store, name, said);
    let end = RunMeta { cost: Some(cost), ..meta.finished(code) };
    commit(store, name, Changeset { run_id: id, run_meta: Some(end), ..Changeset::empty(Reason::RunFinished) });
}

fn records(store: &LocalStore) -> Vec<UsageRecord> {
    let mut found = Vec::new();
    store.each_usage(&mut |record| found.push(record)).unwrap();
    found
}

fn record(store: &LocalStore) -> u64 {
    store.record_usage(&Cancel::new()).unwrap()
}

fn file(store: &LocalStore) -> PathBuf {
    store.core.layout.usage()
}

#[test]
fn a_run_has_one_record_with_its_cache_tokens_origin_and_models() {
    let test_store = TestStore::new();
    let store = test_store.open();
    create(&store, "one", "scribe");
    run(&store, "one", "r1", "natural");
    run(&store, "one", "r2", "error");
    assert_eq!((record(&store), record(&store)), (2, 0));
    let found = records(&store);
    assert_eq!(found.iter().map(|record| record.version).collect::<Vec<_>>(), [3, 6]);
    assert_eq!((found[0].status, found[1].status), (Status::Completed, Status::Error), "failed runs, too");
    let used = &found[0].used;
    assert_eq!((used.input_tokens, used.cache_read_tokens, used.cache_write_tokens, used.turns), (100, 30, 5, 1));
    assert_eq!((found[0].origin.as_str(), &found[0].models["m:1"].output_tokens), ("user", &7));
    let mut by_model = UsageSummary::new(Group::Model, |_| String::new());
    found.iter().for_each(|record| by_model.add(record));
    assert_eq!((by_model.groups["m:1"].runs, by_model.total.used.output_tokens), (2, 14));
    assert!(!by_model.groups.contains_key("unknown"));
}

#[test]
fn no_record_is_lost_or_doubled_whatever_is_lost_in_between() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for name in ["one", "two"] {
        create(&store, name, "scribe");
        run(&store, name, "r1", "natural");
    }
    record(&store);
    let whole = fs::read_to_string(file(&store)).unwrap();
    let state = store.core.effect_file(Effect::Usage, "json");
    let first = whole.lines().next().unwrap().len() + 1;
    let spoil: [(&str, &dyn Fn()); 7] = [
        ("the state", &|| fs::remove_file(&state).unwrap()),
        ("a state of nonsense", &|| fs::write(&state, "{").unwrap()),
        ("the file", &|| fs::remove_file(file(&store)).unwrap()),
        ("its last line", &|| fs::write(file(&store), &whole[..first]).unwrap()),
        ("half of its last line", &|| fs::write(file(&store), &whole[..whole.len() - 20]).unwrap()),
        ("half of a line, and the state", &|| {
            fs::write(file(&store), &whole[..first + 20]).unwrap();
            fs::remove_file(&state).unwrap();
        }),
        ("the end of its last line", &|| fs::write(file(&store), whole.trim_end()).unwrap()),
    ];
    for (lost, spoil) in spoil {
        spoil();
        record(&store);
        assert_eq!(fs::read_to_string(file(&store)).unwrap(), whole, "{lost}");
    }
    // A process died after it wrote the records and before it wrote how far it was.
    let before = fs::read(&state).unwrap();
    run(&store, "two", "r2", "natural");
    record(&store);
    fs::write(&state, before).unwrap();
    run(&store, "one", "r2", "natural");
    assert_eq!(record(&store), 1);
    assert_eq!(records(&store).len(), 4);
}

/// The records of all threads stopped at the first log that could not be opened.
#[test]
fn a_log_that_cannot_be_read_costs_no_other_thread_its_records() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for name in ["gone", "lost", "two"] {
        create(&store, name, "scribe");
        run(&store, name, "r1", "natural");
    }
    let path = store.core.layout.transcript(&thread("lost"));
    let aside = path.with_extension("aside");
    fs::rename(&path, &aside).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(record(&store), 2);
    assert_eq!(store.effect_failures().unwrap(), [(Effect::Usage, None, 4)], "it is said what is left out");
    // As `selvedge doctor` advises: without the state, what is missing is added, and what can't be derived again stays.
    store.delete(&thread("gone")).unwrap();
    fs::remove_dir(&path).unwrap();
    fs::rename(&aside, &path).unwrap();
    fs::remove_file(store.core.effect_file(Effect::Usage, "json")).unwrap();
    assert_eq!((record(&store), records(&store).len()), (1, 3));
    assert_eq!(store.effect_failures().unwrap(), []);
}

/// A disk whose files of one name can't be opened while it says so.
#[derive(Debug)]
struct FailingDisk {
    part: &'static str,
    fails: std::sync::atomic::AtomicBool,
}

impl Disk for FailingDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> std::io::Result<Box<dyn DiskFile>> {
        if self.fails.load(std::sync::atomic::Ordering::SeqCst) && path.to_string_lossy().contains(self.part) {
            return Err(std::io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        RealDisk.open(path, mode)
    }

    fn make_folder(&self, path: &Path) -> std::io::Result<()> {
        RealDisk.make_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        RealDisk.remove(path)
    }

    fn remove_folder(&self, path: &Path) -> std::io::Result<()> {
        RealDisk.remove_folder(path)
    }

    fn sync_folder(&self, path: &Path) -> std::io::Result<()> {
        RealDisk.sync_folder(path)
    }
}

#[test]
fn a_log_that_fails_for_a_moment_loses_no_record_and_delays_no_other() {
    let test_store = TestStore::new();
    let disk = Arc::new(FailingDisk { part: "lost/transcript", fails: false.into() });
    let store = test_store.open_on(disk.clone());
    for name in ["one", "lost", "two"] {
        create(&store, name, "scribe");
        run(&store, name, "r1", "natural");
    }
    disk.fails.store(true, std::sync::atomic::Ordering::SeqCst);
    for _ in 0..2 {
        assert!(store.record_usage(&Cancel::new()).is_err());
        assert_eq!(records(&store).len(), 2, "those of the others, once");
    }
    disk.fails.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!((record(&store), records(&store).len()), (1, 3));
    assert_eq!((record(&store), store.effect_failures().unwrap()), (0, vec![]));
}

#[test]
fn usage_stays_when_a_thread_is_deleted_before_it_was_recorded() {
    let test_store = TestStore::new();
    let store = test_store.open();
    create(&store, "gone", "scribe");
    run(&store, "gone", "r1", "natural");
    store.delete(&thread("gone")).unwrap();
    record(&store);
    assert_eq!(records(&store).len(), 1);
    assert!(store.read(&thread("gone"), 0, 1).is_err());
}

#[test]
fn a_failure_is_kept_until_an_attempt_succeeds_and_positions_of_another_feed_are_not_used() {
    let test_store = TestStore::new();
    let store = test_store.open();
    create(&store, "one", "scribe");
    run(&store, "one", "r1", "natural");
    let failure = Some(EffectFailure { at: store.core.clock.now(), why: "a disk".to_owned(), stopped: false });
    store.set_effect_state(Effect::Usage, &EffectState { failure, ..EffectState::default() }).unwrap();
    assert_eq!(store.effect_failures().unwrap()[0].0, Effect::Usage);
    record(&store);
    assert_eq!(store.effect_failures().unwrap(), []);
    store.set_effect_state(Effect::Titles, &EffectState { position: Some(7), ..EffectState::default() }).unwrap();
    Core::forget_effects(&store.core.layout, &*store.core.disk).unwrap();
    assert_eq!(store.effect_state(Effect::Titles).unwrap(), EffectState::default());
    record(&store);
    assert_eq!(records(&store).len(), 1);
}

#[test]
fn an_effect_is_done_by_one_process_at_a_time() {
    let test_store = TestStore::new();
    let one = test_store.open();
    let two = test_store.open();
    let held = one.lock_effect(Effect::Titles).unwrap();
    assert!(held.is_some() && two.lock_effect(Effect::Titles).unwrap().is_none());
    assert!(two.lock_effect(Effect::Embeddings).unwrap().is_some(), "each has its own lock");
    drop(held);
    assert!(two.lock_effect(Effect::Titles).unwrap().is_some());
}

fn embedding(name: &str, line: u64, model: &str) -> Embedding {
    let digest = i64::try_from(line).unwrap();
    Embedding {
        thread_id: thread(name),
        version: 1,
        line,
        blob: None,
        offset: 0,
        digest,
        model: model.to_owned(),
        vector: "AAAA".to_owned(),
    }
}

#[test]
fn embeddings_are_stored_once_and_leave_with_their_thread_and_their_model() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for name in ["kept", "gone"] {
        create(&store, name, "scribe");
    }
    let agent = AgentId::new("scribe").unwrap();
    let lines = |model: &str| {
        let mut found = Vec::new();
        store.core.each_embedding(model, &mut |one| found.push((one.thread_id.to_string(), one.line))).unwrap();
        found
    };
    let all =
        [embedding("kept", 1, "a"), embedding("gone", 1, "a"), embedding("missing", 1, "a"), embedding("kept", 1, "a")];
    store.put_embeddings(&agent, &all).unwrap();
    assert_eq!(lines("a"), [("kept".to_owned(), 1), ("gone".to_owned(), 1)]);
    store.delete(&thread("gone")).unwrap();
    assert_eq!(lines("a"), [("kept".to_owned(), 1)]);
    store.put_embeddings(&agent, &[embedding("gone", 2, "a")]).unwrap();
    assert_eq!(lines("a").len(), 1, "a late vector of a deleted thread is dropped");
    store.put_embeddings(&agent, &[embedding("kept", 2, "b")]).unwrap();
    assert_eq!((lines("a").len(), lines("b").len()), (0, 1));
    // A torn last line is cut off.
    let path = store.core.layout.embeddings(&agent);
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{whole}{{\"thread_id\":\"ke")).unwrap();
    store.put_embeddings(&agent, &[embedding("kept", 3, "b")]).unwrap();
    assert_eq!(lines("b").len(), 2);
}
