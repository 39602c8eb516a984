//! Which threads stay cached, and that cached ones are still compared with the database.

use selvedge_model::{AgentId, Batch, Changeset, Expect, Message, NewThread, Part, Reason, Role};
use selvedge_store::{Acquire, Commit, Error, Lease, Leases, Logs};

use super::*;
use crate::LocalStore;
use crate::core::{Durability, run};
use crate::rows;
use crate::testing::{TestStore, thread};

fn create(store: &LocalStore, name: &str) -> ThreadId {
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    store.commit(Batch::of(Part::new(thread(name), Expect::Absent, Changeset::creating(new)))).unwrap();
    thread(name)
}

fn message(thread: &ThreadId) -> Part {
    let messages = vec![Message::text(Role::User, "hello")];
    let changeset = Changeset { messages, ..Changeset::empty(Reason::UserMessage) };
    Part::new(thread.clone(), Expect::Any, changeset)
}

fn commit_under(store: &LocalStore, lease: &Lease) -> selvedge_store::Result<u64> {
    let committed = store.commit(Batch::of(message(&lease.thread).under(lease.epoch)))?;
    Ok(committed.versions[0].1)
}

fn acquire(store: &LocalStore, thread: &ThreadId) -> Lease {
    store.acquire(thread, Acquire::default()).unwrap()
}

/// The whole cache was cleared at once, so that a store with more threads than fit read each of them from the database for every commit.
#[test]
fn beyond_the_maximum_the_least_recently_used_thread_is_dropped_and_no_other() {
    let store = TestStore::new().open();
    let core = &store.core;
    let known = core.remembered(&create(&store, "known")).unwrap();
    let name = |number: usize| thread(&format!("t-{number}"));
    (0..CACHED_MAX - 1).for_each(|number| core.remember(&name(number), CachedThread::clone(&known)));
    assert!(core.remembered(&thread("known")).is_some());
    core.remember(&name(CACHED_MAX), CachedThread::clone(&known));
    let forgotten: Vec<usize> = (0..CACHED_MAX - 1).filter(|n| core.remembered(&name(*n)).is_none()).collect();
    assert_eq!(forgotten, [0]);
    assert!(core.remembered(&thread("known")).is_some());
}

#[test]
fn a_thread_whose_lease_is_held_stays_cached_until_it_is_released() {
    let store = TestStore::new().open();
    let core = &store.core;
    let held = create(&store, "held");
    let lease = acquire(&store, &held);
    commit_under(&store, &lease).unwrap();
    let known = core.remembered(&create(&store, "known")).unwrap();
    let crowd = |from: usize| {
        let names = from..from + CACHED_MAX;
        for number in names {
            core.remember(&thread(&format!("t-{number}")), CachedThread::clone(&known));
        }
    };
    crowd(0);
    assert!(core.remembered(&held).is_some());
    assert!(core.remembered(&thread("known")).is_none());
    store.release(&lease).unwrap();
    assert!(core.remembered(&held).is_some());
    crowd(CACHED_MAX);
    assert!(core.remembered(&held).is_none());
}

#[test]
fn releasing_and_acquiring_a_lease_keeps_the_thread_cached() {
    let store = TestStore::new().open();
    let core = &store.core;
    let kept = create(&store, "kept");
    for version in 1..4 {
        let lease = acquire(&store, &kept);
        let row = core.remembered(&kept).expect("cached when the lease is acquired").row.clone();
        assert_eq!((row.owner, row.epoch), (Some(lease.owner.clone()), lease.epoch));
        assert_eq!(commit_under(&store, &lease).unwrap(), version);
        store.release(&lease).unwrap();
        let row = core.remembered(&kept).expect("cached when the lease is released").row.clone();
        assert_eq!((row.owner, row.epoch), (None, lease.epoch));
        let late = commit_under(&store, &lease);
        assert!(matches!(late, Err(Error::StaleEpoch { .. })), "{late:?}");
    }
}

#[test]
fn a_commit_of_another_process_between_release_and_acquire_is_noticed() {
    let test_store = TestStore::new();
    let ours = test_store.open();
    let theirs = test_store.open();
    let shared = create(&ours, "shared");
    let lease = acquire(&ours, &shared);
    commit_under(&ours, &lease).unwrap();
    ours.release(&lease).unwrap();
    theirs.commit(Batch::of(message(&shared))).unwrap();
    let lease = acquire(&ours, &shared);
    assert!(ours.core.remembered(&shared).is_none());
    assert_eq!(commit_under(&ours, &lease).unwrap(), 3);
}

#[test]
fn a_thread_that_stays_cached_across_a_release_is_compared_by_the_next_commit() {
    let test_store = TestStore::new();
    let ours = test_store.open();
    let theirs = test_store.open();
    let shared = create(&ours, "shared");
    ours.release(&acquire(&ours, &shared)).unwrap();
    let lease = acquire(&ours, &shared);
    assert!(ours.core.remembered(&shared).is_some());
    let taken = theirs.acquire(&shared, Acquire { take_over: true, ..Acquire::default() }).unwrap();
    commit_under(&theirs, &taken).unwrap();
    let late = commit_under(&ours, &lease);
    assert!(matches!(late, Err(Error::StaleEpoch { .. })), "{late:?}");
    theirs.release(&taken).unwrap();
    assert_eq!(commit_under(&ours, &acquire(&ours, &shared)).unwrap(), 2);
}

/// If another process moves foreign bytes aside and dies before its commit, the row is unchanged, and a lead waits.
#[test]
fn a_lead_that_another_process_left_is_noticed_when_the_lease_is_acquired() {
    let test_store = TestStore::new();
    let ours = test_store.open();
    let theirs = test_store.open();
    let shared = create(&ours, "shared");
    ours.release(&acquire(&ours, &shared)).unwrap();
    std::fs::OpenOptions::new()
        .append(true)
        .open(ours.thread_folder(&shared).join("transcript.jsonl"))
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"foreign"))
        .unwrap();
    theirs.core.repair_file(&shared).unwrap();
    assert!(ours.core.remembered(&shared).is_some());
    let lease = acquire(&ours, &shared);
    assert!(ours.core.remembered(&shared).is_none());
    commit_under(&ours, &lease).unwrap();
    let lines = ours.read(&shared, 0, 10).unwrap();
    assert!(lines.iter().any(|line| matches!(line.event, selvedge_model::Event::Recovery(_))));
}

/// Redo has no index by thread: a search for the redo of one thread reads the whole table, megabytes for each thread that is loaded.
#[test]
fn a_log_whose_file_is_complete_is_loaded_without_a_search_for_redo() {
    let store = TestStore::new().open();
    let core = &store.core;
    let whole = create(&store, "whole");
    let rename = |from: &str, to: &str| {
        let statement = format!("ALTER TABLE {from} RENAME TO {to}");
        core.write(Durability::Lazy, |connection| run(connection, &statement)).unwrap();
    };
    rename("redo", "put_aside");
    let recalled = core.load_thread(&whole).unwrap().unwrap();
    rename("put_aside", "redo");
    let row = core.read(|connection| rows::existing(connection, &whole)).unwrap();
    assert_eq!(recalled.row.head, row.head);
}
