//! Requests in the database: one that was not sealed with the key is never accepted.

use rusqlite::Connection;
use selvedge_model::{Input, Posted, Request, RequestId, ThreadId, Timestamp};
use selvedge_store::{Acquire, Error, Inbox, Leases};

use crate::support::{Home, thread_with};

fn change(home: &Home, sql: &str) {
    Connection::open(home.threads().join("registry.db")).unwrap().execute_batch(sql).unwrap();
}

fn post(store: &impl Inbox, thread: &ThreadId, id: &str, request: Request) {
    let id = RequestId::new(id).unwrap();
    let at = Timestamp::from_micros(7);
    store.post(Posted { thread: thread.clone(), id, at, request }).unwrap();
}

/// A raise, a decision or a stop that another program wrote into the database was accepted as the user's.
#[test]
fn a_request_that_was_planted_altered_or_moved_is_not_sealed() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hi"]);
    let two = thread_with(&store, "two", &["hi"]);
    let seals = |thread: &ThreadId| -> Vec<bool> {
        store.pending(thread).unwrap().into_iter().map(|waiting| waiting.is_sealed).collect()
    };
    let plant = "INSERT INTO requests (thread, request_id, kind, posted_at, body, mark) \
                 SELECT id, 'planted', 'kill', 7, '{\"kind\":\"kill\"}', zeroblob(32) FROM threads WHERE thread_id = 'one'";
    change(&home, plant);
    assert_eq!(seals(&one), [false]);
    change(&home, "DELETE FROM requests");
    for alter in [
        "UPDATE requests SET body = '{\"kind\":\"kill\"}'",
        "UPDATE requests SET request_id = 'other'",
        "UPDATE requests SET posted_at = 8",
        "UPDATE requests SET mark = zeroblob(32)",
        "UPDATE requests SET mark = x''",
    ] {
        post(&store, &one, "genuine", Request::Cancel);
        assert_eq!(seals(&one), [true]);
        change(&home, alter);
        assert_eq!(seals(&one), [false], "{alter}");
        change(&home, "DELETE FROM requests");
    }
    post(&store, &one, "genuine", Request::Cancel);
    change(&home, "UPDATE requests SET thread = (SELECT id FROM threads WHERE thread_id = 'two')");
    assert_eq!((seals(&one), seals(&two)), (vec![], vec![false]), "it was sealed for another chain");
}

/// It was counted when the lease was released and left out when the inbox was read: its holder looped for ever.
#[test]
fn an_unreadable_row_does_not_block_a_release() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "one", &["hi"]);
    let plant = "INSERT INTO requests (thread, request_id, kind, posted_at, body, mark) \
                 SELECT id, 'planted', 'send', 7, 'x', zeroblob(32) FROM threads";
    change(&home, plant);
    let lease = store.acquire(&thread, Acquire::default()).unwrap();
    assert!(store.pending(&thread).unwrap().is_empty());
    store.release(&lease).unwrap();
    let send = Request::Send(Input::text("hi"));
    post(&store, &thread, "genuine", send);
    let lease = store.acquire(&thread, Acquire::default()).unwrap();
    assert!(matches!(store.release(&lease), Err(Error::RequestsPending { count: 1, .. })));
}
