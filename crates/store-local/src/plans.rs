//! What a store of many threads must not do: look at what belongs to other threads for the sake of one.

use std::collections::BTreeSet;

use rusqlite::Connection;
use selvedge_model::{
    AgentId, Batch, Changeset, CommitKey, Expect, Input, Message, MessageId, NewThread, Part, Posted, Reason, Request,
    RequestId, Role, RunId, RunMeta, Timestamp,
};
use selvedge_store::{Acquire, Commit, Feed, Inbox, Leases, Logs};

use crate::LocalStore;
use crate::testing::{House, listen, thread};

/// Tables that have as many rows as the schema has, whatever the store holds.
const SMALL: [&str; 2] = ["sqlite_sequence", "CONSTANT ROW"];

/// The steps of the plan of a statement that look at every row of a table.
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

/// Everything that a run does in the store from the creation of its thread to the release of its lease.
fn live(store: &LocalStore) {
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
    // As another process left it: from the database, the file and the redo.
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
}

/// Loading a thread looked at the redo of all threads: with ten thousand that begin at once, each at that of ten thousand.
#[test]
fn what_one_thread_needs_is_found_without_a_look_at_the_others() {
    let house = House::new();
    let store = house.open();
    let said: BTreeSet<String> = listen(&store, || live(&store));
    let asked = |table: &str| said.iter().any(|sql| sql.contains(table));
    for table in ["threads", "heads", "redo", "leads", "requests", "runs", "messages", "feed", "keys"] {
        assert!(asked(table), "nothing was asked of `{table}`: {said:#?}");
    }
    let is_planned =
        |sql: &&String| !["BEGIN", "COMMIT", "PRAGMA", "ROLLBACK"].iter().any(|word| sql.starts_with(word));
    let plans = store.core.read(|connection| {
        let scans = said.iter().filter(is_planned).map(|sql| (sql.clone(), scans(connection, sql)));
        Ok(scans.filter(|(_, scans)| !scans.is_empty()).collect::<Vec<_>>())
    });
    assert_eq!(plans.unwrap(), []);
    // A plan that scans is noticed.
    let scanned = store.core.read(|connection| Ok(scans(connection, "SELECT 1 FROM redo WHERE thread = ?")));
    assert_eq!(scanned.unwrap().len(), 1);
}
