//! Redo rows that are overwritten once their bytes are durable, and stale ones.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use selvedge_model::{Batch, Expect, Part, ThreadId};
use selvedge_store::{Commit, Feed, Registry};
use selvedge_store_local::LocalStore;

use crate::support::{Home, says, thread_with};
use crate::world::{append, assert_sound};

fn database(home: &Home) -> Connection {
    let database = Connection::open(home.threads().join("registry.db")).unwrap();
    database.busy_timeout(Duration::from_secs(10)).unwrap();
    database
}

/// The id, thread and offset of every row.
fn rows(home: &Home) -> Vec<(i64, i64, i64)> {
    let database = database(home);
    let mut statement = database.prepare("SELECT id, thread, offset FROM redo ORDER BY id").unwrap();
    let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    found.map(Result::unwrap).collect()
}

/// Commits until rows are overwritten: then those before them were durable. Returns the number of rows.
fn until_rows_are_reused(home: &Home, store: &LocalStore, thread: &ThreadId) -> usize {
    let began = Instant::now();
    loop {
        let before = rows(home);
        append(store, thread, "more").unwrap();
        let after = rows(home);
        if before.len() == after.len() && before != after {
            return after.len();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no row was reused");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn rows_are_reused_and_removed_by_a_clean_close() {
    let home = Home::new();
    let store = home.open();
    let ann = thread_with(&store, "ann-0123456789ab", &["one", "two", "three"]);
    let bob = thread_with(&store, "bob-ba9876543210", &["one"]);
    let count = until_rows_are_reused(&home, &store, &ann);
    until_rows_are_reused(&home, &store, &bob);
    assert!(rows(&home).len() <= count + 2, "rows of one thread are reused by another");
    for thread in [&ann, &bob] {
        assert_sound(&store, thread, store.get(thread).unwrap().version);
    }
    store.close().unwrap();
    assert_eq!(rows(&home), []);
}

/// A process died in a power failure: some of its rows were overwritten, so that those of a thread have gaps, and only the newest rows have
/// what was committed last.
#[test]
fn redo_of_a_dead_process_is_drained_past_gaps_and_deleted() {
    let home = Home::new();
    let store = home.open();
    let ann = thread_with(&store, "ann-0123456789ab", &["one", "two", "three"]);
    let bob = thread_with(&store, "bob-ba9876543210", &["one"]);
    // The newest row of the first thread is overwritten, older ones still exist.
    let of_ann = || rows(&home).into_iter().filter(|(_, thread, _)| *thread == 1).map(|(_, _, offset)| offset);
    let newest = of_ann().max().unwrap();
    while of_ann().any(|offset| offset == newest) {
        until_rows_are_reused(&home, &store, &bob);
    }
    assert!(of_ann().count() > 0);
    let lengths = [&ann, &bob].map(|thread| fs::metadata(home.transcript(thread)).unwrap().len());
    let parts = [&ann, &bob].map(|thread| Part::new(thread.clone(), Expect::Any, says("last"))).to_vec();
    store.commit(Batch { parts: parts.clone(), ..Batch::of(parts[0].clone()) }).unwrap();
    let versions = [&ann, &bob].map(|thread| store.get(thread).unwrap().version);
    drop(store);
    for (thread, length) in [&ann, &bob].into_iter().zip(lengths) {
        fs::File::options().write(true).open(home.transcript(thread)).unwrap().set_len(length).unwrap();
    }
    for (thread, version) in [&ann, &bob].into_iter().zip(versions) {
        assert_sound(&home.read_only(), thread, version);
    }
    let store = home.open();
    for (thread, version) in [&ann, &bob].into_iter().zip(versions) {
        assert_sound(&store, thread, version);
    }
    store.close().unwrap();
    assert_eq!(rows(&home), []);
}

/// A power failure keeps any part of the bytes that were written last, or zeros in their place.
#[test]
fn redo_is_written_in_its_place_whatever_a_power_failure_left_there() {
    let home = Home::new();
    let store = home.open();
    let ann = thread_with(&store, "ann-0123456789ab", &["one"]);
    let before = fs::metadata(home.transcript(&ann)).unwrap().len();
    let version = append(&store, &ann, "two").unwrap();
    drop(store);
    let whole = fs::read(home.transcript(&ann)).unwrap();
    let signed = usize::try_from(before).unwrap();
    let kept = home.threads().join("../kept.db");
    Connection::open(home.threads().join("registry.db"))
        .unwrap()
        .execute("VACUUM INTO ?", [kept.to_str().unwrap()])
        .unwrap();
    let zeros = |from: usize| [&whole[..from], &vec![0; whole.len() - from]].concat();
    let torn = [whole[..signed].to_vec(), whole[..signed + 1].to_vec(), whole[..whole.len() - 1].to_vec()];
    for left in torn.into_iter().chain([zeros(signed), zeros(signed + 9), whole[..signed + 9].to_vec()]) {
        fs::write(home.transcript(&ann), &left).unwrap();
        for beside in ["registry.db-wal", "registry.db-shm"] {
            _ = fs::remove_file(home.threads().join(beside));
        }
        fs::copy(&kept, home.threads().join("registry.db")).unwrap();
        let store = home.open();
        assert_sound(&store, &ann, version);
        drop(store);
        assert_eq!(fs::read(home.transcript(&ann)).unwrap(), whole, "{} bytes were left", left.len());
    }
}

/// Another process that drained a row may have deleted it, and a row may be another one than this process remembers: then it may be the
/// only copy of a commit.
#[test]
fn a_row_is_overwritten_only_if_it_is_still_the_remembered_one() {
    let home = Home::new();
    let store = home.open();
    let ann = thread_with(&store, "ann-0123456789ab", &["one", "two", "three"]);
    until_rows_are_reused(&home, &store, &ann);
    // From here on no row is what the store remembers.
    thread::sleep(Duration::from_millis(700));
    let changed = rows(&home);
    database(&home).execute("UPDATE redo SET offset = offset + 1000000", params![]).unwrap();
    let length = fs::metadata(home.transcript(&ann)).unwrap().len();
    let version = append(&store, &ann, "last").unwrap();
    let after = rows(&home);
    for (id, thread, offset) in changed {
        assert!(after.contains(&(id, thread, offset + 1_000_000)), "row {id} was overwritten");
    }
    drop(store);
    fs::File::options().write(true).open(home.transcript(&ann)).unwrap().set_len(length).unwrap();
    let store = home.open();
    assert_sound(&store, &ann, version);
    store.close().unwrap();
    assert_eq!(rows(&home), []);
}

#[test]
fn a_feed_position_is_never_reused() {
    let home = Home::new();
    let store = home.open();
    let ann = thread_with(&store, "ann-0123456789ab", &["one"]);
    let bob = thread_with(&store, "bob-ba9876543210", &["one"]);
    let seen = store.position().unwrap();
    store.delete(&bob).unwrap();
    assert_eq!(store.position().unwrap(), seen);
    assert_eq!(store.after(0, 10).unwrap().len(), 2, "a deleted thread is not in the feed");
    append(&store, &ann, "two").unwrap();
    let told = store.after(seen, 10).unwrap();
    assert_eq!((told.len(), told[0].position, &told[0].thread), (1, seen + 1, &ann));
    store.close().unwrap();
}
