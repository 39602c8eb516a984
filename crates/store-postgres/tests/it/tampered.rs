//! What a program that can write to the database and does not have the key can do: destroy, and be named. Nothing that it writes is signed,
//! spent, dispatched or answered.

use selvedge_model::Batch;
use selvedge_store::conformance::support::{append, create, part, request, says};
use selvedge_store::{Acquire, Commit, Error, Inbox, Leases, Logs, Registry, Result};
use selvedge_store_postgres::{PostgresStore, test_server};

use crate::support::Home;

fn change(home: &Home, sql: &str) {
    let (address, schema) = home.address.split_once("?schema=").unwrap();
    test_server::execute(address, &sql.replace('~', &format!("{schema}."))).unwrap();
}

fn is_unsealed<T: std::fmt::Debug>(answer: Result<T>) {
    assert!(matches!(answer, Err(Error::Unsealed { .. })), "{answer:?}");
}

#[test]
fn every_changed_column_of_a_head_is_named() {
    for sql in [
        "UPDATE ~threads SET epoch = epoch + 1",
        "UPDATE ~threads SET owner = 'me'",
        "UPDATE ~threads SET number = number + 7",
        "UPDATE ~threads SET updated_at = updated_at + 1",
        "UPDATE ~threads SET posted = '{\"x\":7}'",
        "UPDATE ~threads SET consumed = '{\"newest\":7}'",
        "UPDATE ~threads SET manifest = replace(manifest, '\"created\"', '\"completed\"')",
        "UPDATE ~threads SET head = replace(head, '\"lines\":2', '\"lines\":3')",
    ] {
        let home = Home::new();
        let thread = create(&home.open(), "head");
        change(&home, sql);
        let store = home.open();
        is_unsealed(store.get(&thread));
        is_unsealed(store.commit(Batch::of(part(&thread, says("more")))));
        is_unsealed(store.acquire(&thread, Acquire { take_over: true, ..Acquire::default() }));
    }
}

#[test]
fn a_warm_writer_refuses_a_changed_head_too() {
    let home = Home::new();
    let store = home.open();
    let thread = create(&store, "warm");
    append(&store, &thread, says("one"));
    change(&home, "UPDATE ~threads SET epoch = 7, mark = decode(repeat('00', 32), 'hex')");
    is_unsealed(store.commit(Batch::of(part(&thread, says("two")))));
}

#[test]
fn a_planted_or_changed_request_is_not_sealed() {
    let home = Home::new();
    let store = home.open();
    let thread = create(&store, "asked");
    store.post(request(&thread, "true", "cancel")).unwrap();
    change(
        &home,
        "INSERT INTO ~requests SELECT root, chain, number + 1, thread, 'planted', holds, posted_at, body, mark, arrival FROM ~requests",
    );
    let waiting = store.pending(&thread).unwrap();
    let sealed: Vec<_> = waiting.iter().map(|one| (one.posted.id.as_str(), one.is_sealed)).collect();
    assert_eq!(sealed, [("true", true), ("planted", false)]);
    change(&home, "UPDATE ~requests SET posted_at = posted_at + 1");
    assert!(store.pending(&thread).unwrap().iter().all(|one| !one.is_sealed));
}

#[test]
fn a_removed_request_is_reported() {
    let home = Home::new();
    let store = home.open();
    let thread = create(&store, "asked");
    store.post(request(&thread, "gone", "cancel")).unwrap();
    change(&home, "DELETE FROM ~requests");
    assert!(store.pending(&thread).unwrap().is_empty());
    let problems = store.problems().take();
    assert!(problems.iter().any(|problem| problem.contains("was removed")), "{problems:?}");
}

#[test]
fn changed_log_bytes_are_not_continued() {
    let home = Home::new();
    let store = home.open();
    let thread = create(&store, "edited");
    append(&store, &thread, says("first"));
    drop(store);
    change(
        &home,
        "UPDATE ~log SET bytes = overlay(bytes placing 'F'::bytea from position('first'::bytea in bytes)) WHERE version = 1",
    );
    let store: PostgresStore = home.open();
    let verdict = selvedge_store::Verify::verify(&store, &thread, &mut |_| {}).unwrap();
    assert!(!matches!(verdict.judgement.finding, selvedge_log::recovery::Finding::Sound), "{:?}", verdict.judgement);
    let loaded = selvedge_store::load::load(&store, &thread, &home.trust(), None);
    assert!(matches!(loaded, Err(Error::Log { .. })), "{loaded:?}");
    assert_eq!(store.head(&thread).unwrap().version, 1);
}
