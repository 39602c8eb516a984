//! Query plans: no operation on one thread may scan the rows of other threads.

use std::collections::BTreeSet;

use rusqlite::Connection;
use selvedge_model::account::Posting;
use selvedge_model::{
    AgentId, Batch, Changeset, CommitKey, Expect, Input, Message, MessageId, Money, NewThread, Part, Posted, Reason,
    Request, RequestId, Role, RunId, RunMeta, Timestamp,
};
use selvedge_store::{Acquire, Commit, Feed, Inbox, Leases, Logs};

use crate::LocalStore;
use crate::testing::{TestStore, thread, trace};

/// Tables whose number of rows does not depend on the store's content.
const SMALL: [&str; 2] = ["sqlite_sequence", "CONSTANT ROW"];

/// The steps of a statement's plan that scan a whole table.
fn scans(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let mut found = statement.raw_query();
    let mut scans = Vec::new();
    while let Some(row) = found.next().unwrap() {
        let step: String = row.get(3).unwrap();
        if step.starts_with("SCAN") && !SMALL.iter().any(|small| step.contains(small)) {
            scans.push(step);
        }
    }
    scans
}

fn says(text: &str) -> Changeset {
    let message = Message::text(Role::User, text).with_id(MessageId::new(text).unwrap());
    Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) }
}

fn starts(run: &str) -> Changeset {
    let meta = RunMeta::started(AgentId::new("scribe").unwrap(), "user").under_lease();
    Changeset { run_id: Some(RunId::new(run).unwrap()), run_meta: Some(meta), ..Changeset::empty(Reason::UserMessage) }
}

/// Everything that a run does in the store, from the creation of its thread to the release of its lease.
fn whole_run(store: &LocalStore) {
    let one = thread("one");
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let birth = Part::new(one.clone(), Expect::Absent, Changeset::creating(new));
    store.commit(Batch::of(birth).with_key(CommitKey::new("birth").unwrap())).unwrap();
    let lease = store.acquire(&one, Acquire::default()).unwrap();
    let commit = |changeset| {
        let part = Part::new(one.clone(), Expect::Any, changeset).under(lease.epoch);
        store.commit(Batch::of(part)).unwrap();
    };
    commit(starts("r1"));
    commit(says("warm"));
    // As after another process: from the database, the file and the redo.
    store.core.forget(&one);
    commit(says("cold"));
    store.read(&one, 0, 10).unwrap();
    store.transcript(&one).unwrap();
    let post = |request: Request, id: &str| {
        let id = RequestId::new(id).unwrap();
        store.post(Posted { thread: one.clone(), id, at: Timestamp::from_micros(7), request }).unwrap();
    };
    post(Request::Send(Input::text("hello")), "q1");
    post(Request::Cancel, "q2");
    assert_eq!(store.pending(&one).unwrap().len(), 2);
    assert!(store.release(&lease).is_err());
    store.abandon(&lease).unwrap();
    assert_eq!(store.after(0, 10).unwrap().len(), 4);
    let position = store.position().unwrap();
    let newest = store.newest().unwrap();
    assert_eq!((position, newest, store.arrivals(0, 10).unwrap().len()), (4, 2, 2));
    let account = one.clone();
    let postings = vec![Posting::Open { account, parent: None, max: Some(Money::from_nanos(7).unwrap()) }];
    let part = Part::new(one.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
    store.commit(Batch::of(Part { postings, ..part })).unwrap();
}

/// Loading a thread scanned the redo of all threads: with ten thousand that begin at once, each scanned that of ten thousand. The first
/// posting of a process read the row of every thread.
#[test]
fn operations_on_one_thread_scan_no_table() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let statements: BTreeSet<String> = trace(&store, || whole_run(&store));
    let is_queried = |table: &str| statements.iter().any(|sql| sql.contains(table));
    for table in ["threads", "heads", "redo", "leads", "requests", "runs", "messages", "feed", "keys", "budget_ledger"]
    {
        assert!(is_queried(table), "`{table}` was not queried: {statements:#?}");
    }
    // A plan calls this a search, and it reads every row.
    assert!(!statements.contains(crate::anchor::EVERY_HEAD), "the epochs of all heads are compared");
    let is_planned =
        |sql: &&String| !["BEGIN", "COMMIT", "PRAGMA", "ROLLBACK"].iter().any(|word| sql.starts_with(word));
    let plans = store.core.read(|connection| {
        let scans = statements.iter().filter(is_planned).map(|sql| (sql.clone(), scans(connection, sql)));
        Ok(scans.filter(|(_, scans)| !scans.is_empty()).collect::<Vec<_>>())
    });
    assert_eq!(plans.unwrap(), []);
    // The test detects a plan that scans.
    let scanned = store.core.read(|connection| Ok(scans(connection, "SELECT 1 FROM redo WHERE thread = ?")));
    assert_eq!(scanned.unwrap().len(), 1);
}
