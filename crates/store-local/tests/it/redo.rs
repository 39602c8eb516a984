//! Redo rows that are written over once their bytes are durable, and what nobody needs any more.

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

/// The number and place of every row.
fn rows(home: &Home) -> Vec<(i64, i64, i64)> {
    let database = database(home);
    let mut statement = database.prepare("SELECT id, thread, offset FROM redo ORDER BY id").unwrap();
    let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    found.map(Result::unwrap).collect()
}

/// Commits until rows are written over: then those before them were durable. Gives how many rows there are.
fn until_rows_are_used_again(home: &Home, store: &LocalStore, thread: &ThreadId) -> usize {
    let began = Instant::now();
    loop {
        let before = rows(home);
        append(store, thread, "more").unwrap();
        let after = rows(home);
        if before.len() == after.len() && before != after {
            return after.len();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no row was used again");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn rows_are_used_again_and_gone_after_an_orderly_close() {
    let home = Home::new();
    let store = home.open();
    let ann = thread_with(&store, "ann-0123456789ab", &["one", "two", "three"]);
    let bob = thread_with(&store, "bob-ba9876543210", &["one"]);
    let count = until_rows_are_used_again(&home, &store, &ann);
    until_rows_are_used_again(&home, &store, &bob);
    assert!(rows(&home).len() <= count + 2, "rows of one thread serve another");
    for thread in [&ann, &bob] {
        assert_sound(&store, thread, store.get(thread).unwrap().version);
    }
    store.close().unwrap();
    assert_eq!(rows(&home), []);
}

/// A process died, and power failed with it: of the rows that it left some were written over, so that those of a thread
/// have gaps, and the newest are all there is of what was committed last.
#[test]
fn what_a_dead_process_left_is_drained_past_gaps_and_deleted() {
    let home = Home::new();
    let store = home.open();
    let ann = thread_with(&store, "ann-0123456789ab", &["one", "two", "three"]);
    let bob = thread_with(&store, "bob-ba9876543210", &["one"]);
    // The newest row of the first thread is written over, older ones are still there.
    let of_ann = || rows(&home).into_iter().filter(|(_, thread, _)| *thread == 1).map(|(_, _, offset)| offset);
    let newest = of_ann().max().unwrap();
    while of_ann().any(|offset| offset == newest) {
        until_rows_are_used_again(&home, &store, &bob);
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

/// Another process that drained a row may have deleted it, and a row may be something else than what was kept: then it is
/// somebody's only copy of what was committed.
#[test]
fn a_row_is_written_over_only_if_it_is_still_the_one_that_was_kept() {
    let home = Home::new();
    let store = home.open();
    let ann = thread_with(&store, "ann-0123456789ab", &["one", "two", "three"]);
    until_rows_are_used_again(&home, &store, &ann);
    // From here on no row is what the store believes it to be.
    thread::sleep(Duration::from_millis(700));
    let changed = rows(&home);
    database(&home).execute("UPDATE redo SET offset = offset + 1000000", params![]).unwrap();
    let length = fs::metadata(home.transcript(&ann)).unwrap().len();
    let version = append(&store, &ann, "last").unwrap();
    let after = rows(&home);
    for (id, thread, offset) in changed {
        assert!(after.contains(&(id, thread, offset + 1_000_000)), "row {id} was written over");
    }
    drop(store);
    fs::File::options().write(true).open(home.transcript(&ann)).unwrap().set_len(length).unwrap();
    let store = home.open();
    assert_sound(&store, &ann, version);
    store.close().unwrap();
    assert_eq!(rows(&home), []);
}

#[test]
fn a_place_in_the_feed_is_never_used_twice() {
    let home = Home::new();
    let store = home.open();
    let ann = thread_with(&store, "ann-0123456789ab", &["one"]);
    let bob = thread_with(&store, "bob-ba9876543210", &["one"]);
    let seen = store.position().unwrap();
    store.delete(&bob).unwrap();
    assert_eq!(store.position().unwrap(), seen);
    assert_eq!(store.after(0, 10).unwrap().len(), 2, "nobody hears of what is gone");
    append(&store, &ann, "two").unwrap();
    let told = store.after(seen, 10).unwrap();
    assert_eq!((told.len(), told[0].position, &told[0].thread), (1, seen + 1, &ann));
    store.close().unwrap();
}
