//! Interleavings between the steps of a commit, which no caller can provoke through the public interface.

use std::fs;
use std::path::Path;

use selvedge_log::recovery::Finding;
use selvedge_model::{AgentId, Changeset, Expect, Message, NewThread, Part, Role};
use selvedge_store::{Commit, Feed, Logs};

use super::*;
use crate::LocalStore;
use crate::core::Phase;
use crate::redo::SPARES_IDLE;
use crate::testing::{TestStore, thread};

fn birth(name: &str) -> Batch {
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    Batch::of(Part::new(thread(name), Expect::Absent, Changeset::creating(new)))
}

fn message(name: &str, text: &str) -> Batch {
    let messages = vec![Message::text(Role::User, text)];
    let changeset = Changeset { messages, ..Changeset::empty(selvedge_model::Reason::UserMessage) };
    Batch::of(Part::new(thread(name), Expect::Any, changeset))
}

/// Makes a batch durable and stops before it is drained.
fn half_committed(store: &LocalStore, batch: &Batch) -> (Job, Vec<Numbers>) {
    let core = &store.core;
    match core.commit_together(vec![core.job(batch, ReadSource::Database).unwrap()]).pop() {
        Some(JobOutcome::Durable(job, numbers)) => (*job, numbers.numbers),
        _ => panic!("it was not committed"),
    }
}

fn transcript(store: &LocalStore, name: &str) -> Vec<u8> {
    fs::read(store.thread_folder(&thread(name)).join("transcript.jsonl")).unwrap()
}

#[test]
fn a_job_that_is_refused_halfway_leaves_nothing_and_the_other_jobs_commit() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for name in ["one", "two", "three"] {
        store.commit(birth(name)).unwrap();
    }
    let key = CommitKey::new("once").unwrap();
    let batch = |name: &str| Batch { key: (name == "two").then(|| key.clone()), ..message(name, "hello") };
    let jobs = ["two", "one"].map(|name| store.core.job(&batch(name), ReadSource::Database).unwrap());
    // Another batch uses its key meanwhile, which is noticed only after its head and its redo are written.
    store.commit(Batch { key: Some(key.clone()), ..message("three", "first") }).unwrap();
    let before = store.position().unwrap();
    let mut outcomes = store.core.commit_together(jobs.into());
    let Some(JobOutcome::Durable(job, numbers)) = outcomes.pop() else { panic!("the other job was refused too") };
    assert!(matches!(outcomes.pop(), Some(JobOutcome::Stale)));
    store.core.conclude(*job, numbers.numbers);
    assert_eq!(store.head(&thread("one")).unwrap().version, 1);
    assert_eq!(store.head(&thread("two")).unwrap().version, 0);
    let entries: Vec<_> =
        store.after(before, 10).unwrap().into_iter().map(|entry| (entry.position, entry.thread)).collect();
    assert_eq!(entries, [(before + 1, thread("one"))]);
}

/// An agent waits for its model longer than the sync worker waits for commits; the next commit still finds a row to overwrite.
#[test]
fn an_idle_store_keeps_spare_redo_rows_and_closing_removes_them() {
    let test_store = TestStore::new();
    let store = test_store.open();
    store.commit(birth("one")).unwrap();
    pause(&store);
    let before = redo_rows(&store);
    assert!(before > 0);
    for text in ["two", "three", "four"] {
        store.commit(message("one", text)).unwrap();
        pause(&store);
    }
    assert_eq!(redo_rows(&store), before);
    for _ in 0..2 * SPARES_IDLE {
        store.commit(message("one", "more")).unwrap();
    }
    pause(&store);
    assert_eq!(redo_rows(&store), SPARES_IDLE);
    store.close().unwrap();
    assert_eq!(redo_rows(&test_store.open()), 0);
}

/// The redo that a head names is the redo of its thread: the same rows that a search of the whole table finds, whichever process wrote
/// them and however often they were overwritten.
#[test]
fn the_redo_that_a_head_names_is_what_a_search_of_all_rows_finds() {
    let test_store = TestStore::new();
    let stores = [test_store.open(), test_store.open()];
    let names = ["one", "two", "three"];
    for store in &stores {
        lock(&store.core.pending).phase = Phase::Abandoned;
        store.core.pending_changed.notify_all();
    }
    for name in &names {
        drop(stores[0].commit(birth(name)).unwrap());
    }
    let mut found = 0;
    for step in 0..120_usize {
        let store = &stores[step / 7 % 2];
        // Of sizes that fit one page of the database, two, and more.
        let text = "x".repeat([10, 2_500, 6_000, 40][step % 4]);
        store.commit(message(names[step * step % 5 % 3], &text)).unwrap();
        if step % 11 == 3 {
            store.core.sync_pending().unwrap();
        }
        if step % 37 == 20 {
            store.core.rest_spares().unwrap();
        }
        for name in names {
            let (named, searched) = store
                .core
                .read(|connection| {
                    let row = rows::existing(connection, &thread(name))?;
                    let named = redo::Redo::read(connection, row.id, row.head.bytes)?;
                    Ok((named, redo::Redo::search(connection, row.id, row.head.bytes)?))
                })
                .unwrap();
            let fields = |redo: Option<redo::Redo>| redo.map(|redo| (redo.from, redo.bytes, redo.rows));
            let named = fields(named);
            let searched = fields(searched);
            found += usize::from(named.is_some());
            assert_eq!(named, searched, "`{name}` after step {step}");
        }
    }
    assert!(found > 100, "{found}");
}

/// Rows that another process deleted were remembered for ever, and rows of the same number were deleted in their place.
#[test]
fn deleted_spare_rows_are_forgotten() {
    let test_store = TestStore::new();
    let store = test_store.open();
    store.commit(birth("one")).unwrap();
    pause(&store);
    // Opening the store deletes rows that belong to no log.
    test_store.open().close().unwrap();
    assert_eq!(redo_rows(&store), 0);
    for text in ["two", "three"] {
        store.commit(message("one", text)).unwrap();
        pause(&store);
        assert_eq!((redo_rows(&store), lock(&store.core.spares).ids().len()), (1, 1), "{text}");
    }
}

/// While redo rows led to the head of a thread, bytes cut from its file were taken for bytes that a crash had kept from reaching it, and
/// the loss became permanent when the rows were deleted on closing.
#[test]
fn a_log_that_is_cut_while_idle_is_not_taken_for_a_whole_one() {
    let test_store = TestStore::new();
    let store = test_store.open();
    store.commit(birth("one")).unwrap();
    store.commit(message("one", "hello")).unwrap();
    pause(&store);
    let is_sound = || store.verify(&thread("one"), &mut |_| {}).unwrap().judgement.finding == Finding::Sound;
    assert!(is_sound());
    let path = store.thread_folder(&thread("one")).join("transcript.jsonl");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 40]).unwrap();
    assert!(!is_sound());
}

/// What the sync worker does when no commit arrives for long, without the worker.
fn pause(store: &LocalStore) {
    lock(&store.core.pending).phase = Phase::Abandoned;
    store.core.pending_changed.notify_all();
    store.core.sync_pending().unwrap();
    store.core.rest_spares().unwrap();
}

fn redo_rows(store: &LocalStore) -> usize {
    let count = |connection: &crate::db::Db| {
        connection
            .query_row("SELECT count(*) FROM redo", [], |row| row.get::<_, i64>(0))
            .map_err(crate::schema::database)
    };
    usize::try_from(store.core.read(count).unwrap()).unwrap()
}

#[test]
fn a_stale_job_does_not_stop_the_others() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for name in ["one", "two"] {
        store.commit(birth(name)).unwrap();
    }
    let jobs = ["two", "one"].map(|name| store.core.job(&message(name, "late"), ReadSource::Database).unwrap());
    test_store.open().commit(message("two", "faster")).unwrap();
    let outcomes = store.core.commit_together(jobs.into());
    assert!(matches!(outcomes[..], [JobOutcome::Stale, JobOutcome::Durable(..)]));
}

#[test]
fn a_late_drain_writes_bytes_that_are_there_already() {
    let test_store = TestStore::new();
    let slow = test_store.open();
    let fast = test_store.open();
    slow.commit(birth("one")).unwrap();
    let (job, numbers) = half_committed(&slow, &message("one", "slow"));
    let bytes = job.prepared.parts[0].written.bytes.clone();
    fast.commit(message("one", "fast")).unwrap();
    let drained = transcript(&fast, "one");
    assert!(drained.windows(bytes.len()).any(|part| part == bytes), "another process did not drain it");
    slow.core.conclude(job, numbers);
    assert_eq!(transcript(&slow, "one"), drained);
    slow.commit(message("one", "again")).unwrap();
    assert_eq!(slow.head(&thread("one")).unwrap().bytes, transcript(&slow, "one").len() as u64);
}

#[test]
fn a_late_drain_does_not_bring_back_a_deleted_thread() {
    let test_store = TestStore::new();
    let slow = test_store.open();
    let fast = test_store.open();
    let is_there = |folder: &Path| folder.exists();
    let (job, numbers) = half_committed(&slow, &birth("one"));
    fast.delete(&thread("one")).unwrap();
    slow.core.conclude(job, numbers);
    assert!(!is_there(&slow.thread_folder(&thread("one"))), "a birth brought its folder back");
    slow.commit(birth("two")).unwrap();
    let (job, numbers) = half_committed(&slow, &message("two", "slow"));
    fast.delete(&thread("two")).unwrap();
    slow.core.conclude(job, numbers);
    assert!(!is_there(&slow.thread_folder(&thread("two"))), "an append brought its folder back");
}

/// A process whose sync failed replaces the file by a rebuilt one. A process that committed meanwhile has the old file open, which may have
/// a second name, as a copy by hard links creates.
#[test]
fn a_drain_writes_to_the_file_that_has_the_name_now() {
    for (is_linked, linked_meanwhile) in [(false, false), (true, false), (false, true)] {
        let test_store = TestStore::new();
        let store = test_store.open();
        store.commit(birth("one")).unwrap();
        let path = store.thread_folder(&thread("one")).join("transcript.jsonl");
        if is_linked {
            fs::hard_link(&path, test_store.folder.path().join("copy")).unwrap();
        }
        store.commit(message("one", "hello")).unwrap();
        let (job, numbers) = half_committed(&store, &message("one", "and this"));
        if linked_meanwhile {
            fs::hard_link(&path, test_store.folder.path().join("copy")).unwrap();
        }
        let rebuilt = path.with_extension("rebuild");
        fs::copy(&path, &rebuilt).unwrap();
        fs::rename(&rebuilt, &path).unwrap();
        store.core.conclude(job, numbers);
        let whole = transcript(&store, "one");
        assert_eq!(
            store.head(&thread("one")).unwrap().bytes,
            whole.len() as u64,
            "linked: {is_linked}, {linked_meanwhile}"
        );
        store.commit(message("one", "more")).unwrap();
        let verdict = store.verify(&thread("one"), &mut |_| {}).unwrap();
        assert_eq!(verdict.judgement.finding, Finding::Sound);
    }
}

/// Another process committed, and it is not known whether its bytes ever reached the file: syncing our bytes after them must not make
/// ours the only ones that are durable.
#[test]
fn undrained_bytes_of_another_process_are_found_before_ours_are_synced() {
    let test_store = TestStore::new();
    let other = test_store.open();
    let ours = test_store.open();
    other.commit(birth("one")).unwrap();
    half_committed(&other, &message("one", "theirs"));
    ours.commit(message("one", "ours")).unwrap();
    let mut threads = std::mem::take(&mut lock(&ours.core.pending).threads);
    let entry = threads.get_mut(&thread("one")).unwrap();
    let newest = entry.redo.iter().map(redo::RedoRow::offset).max().unwrap();
    entry.redo.retain(|row| row.offset() == newest);
    let id = entry.id;
    assert!(ours.core.undrained(&threads).unwrap().contains(&id));
}
