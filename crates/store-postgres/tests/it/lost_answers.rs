//! A connection that ends between a commit and its answer: the caller gets the truth, and the log has the commit once.

use selvedge_model::{Batch, Expect, Posted};
use selvedge_store::conformance::support::{append, create, id, part, request, says, verified};
use selvedge_store::{Acquire, Commit, Inbox, Leases, Logs};
use selvedge_store_postgres::PostgresStore;
use selvedge_store_postgres::test_server::{Server, schema};

use crate::proxy::{CUT_AFTER, CUT_BEFORE, CUT_DURING, Proxy};
use crate::support::Home;

/// A store that is reached through a proxy.
fn behind_a_proxy() -> (Server, Proxy, Home) {
    let server = Server::start("");
    let proxy = Proxy::before(&server.socket());
    let home = Home::at(schema(&proxy.address()));
    (server, proxy, home)
}

fn commits(store: &PostgresStore, home: &Home, cut: &str, key: Option<&str>) {
    let thread = create(store, "cut");
    append(store, &thread, says("warm: the statement is prepared"));
    for round in 0..5_u64 {
        let before = store.head(&thread).unwrap().version;
        let mut batch = Batch::of(part(&thread, says(&format!("{cut} in round {round}"))));
        if let Some(key) = key {
            batch = batch.with_key(id(&format!("{key}-{round}")));
        }
        let committed = store.commit(batch.clone()).unwrap();
        assert_eq!(committed.version_of(&thread), Some(before + 1), "round {round}");
        if key.is_some() {
            let again = store.commit(batch).unwrap();
            assert_eq!((again.replayed, again.version_of(&thread)), (true, Some(before + 1)), "it is there once");
        }
    }
    let entries = verified(store, &home.trust(), &thread);
    assert_eq!(entries.len(), 7, "every commit is there once");
}

#[test]
fn a_commit_whose_answer_is_lost_is_found() {
    let (_server, _proxy, home) = behind_a_proxy();
    let store = home.open();
    commits(&store, &home, CUT_AFTER, None);
    commits_again(&store, &home, CUT_AFTER);
}

#[test]
fn a_commit_that_never_arrived_is_made_again() {
    let (_server, _proxy, home) = behind_a_proxy();
    // Sent again it would be cut again: the proxy looks at the text. So the caller is told, and nothing is there.
    let store = home.open();
    let thread = create(&store, "unsent");
    append(&store, &thread, says("warm"));
    assert!(store.commit(Batch::of(part(&thread, says(CUT_BEFORE)))).is_err());
    assert_eq!(store.head(&thread).unwrap().version, 1);
    append(&store, &thread, says("and on"));
    assert_eq!(verified(&store, &home.trust(), &thread).len(), 3);
}

#[test]
fn a_connection_that_ends_during_a_commit_leaves_all_or_nothing_and_the_caller_knows() {
    let (_server, _proxy, home) = behind_a_proxy();
    let store = home.open();
    let thread = create(&store, "during");
    append(&store, &thread, says("warm"));
    for round in 0..10_u64 {
        let before = store.head(&thread).unwrap().version;
        let batch = Batch::of(part(&thread, says(&format!("{CUT_DURING} in round {round}"))))
            .with_key(id(&format!("k-{round}")));
        let said = store.commit(batch);
        let after = home.open().head(&thread).unwrap().version;
        match said {
            Ok(committed) => assert_eq!((committed.version_of(&thread), after), (Some(before + 1), before + 1)),
            // It was cut each time that it was sent, and was never executed.
            Err(_) => assert_eq!(after, before),
        }
    }
    verified(&store, &home.trust(), &thread);
}

fn commits_again(store: &PostgresStore, home: &Home, cut: &str) {
    let thread = id("keyed");
    let birth =
        selvedge_store::conformance::support::birth(&thread, selvedge_store::conformance::support::new_thread());
    store.commit(Batch::of(birth)).unwrap();
    for round in 0..5_u64 {
        let mut part = part(&thread, says(&format!("{cut} {round}")));
        part.expect = Expect::Exact(round);
        let batch = Batch::of(part).with_key(id(&format!("key-{round}")));
        assert_eq!(store.commit(batch.clone()).unwrap().version_of(&thread), Some(round + 1));
        assert!(store.commit(batch).unwrap().replayed);
    }
    assert_eq!(verified(store, &home.trust(), &thread).len(), 6);
}

#[test]
fn a_request_whose_answer_is_lost_is_posted_once() {
    let (_server, _proxy, home) = behind_a_proxy();
    let store = home.open();
    let thread = create(&store, "asked");
    for round in 0..3 {
        let name = format!("n{round}");
        let posted = request(&thread, &name, "send");
        let posted =
            Posted { request: selvedge_model::Request::Send(selvedge_model::Input::text(CUT_AFTER)), ..posted };
        store.post(posted.clone()).unwrap();
        store.post(posted).unwrap();
        assert_eq!(store.pending(&thread).unwrap().len(), round + 1);
    }
}

#[test]
fn a_lease_stands_although_connections_come_and_go() {
    let (_server, _proxy, home) = behind_a_proxy();
    let store = home.open();
    let thread = create(&store, "leased");
    let lease = store.acquire(&thread, Acquire::default()).unwrap();
    for round in 0..3 {
        let part = part(&thread, says(&format!("{CUT_AFTER} {round}"))).under(lease.epoch);
        store.commit(Batch::of(part)).unwrap();
        store.renew(&lease).unwrap();
    }
    store.release(&lease).unwrap();
}
