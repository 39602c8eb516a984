//! Outdated rows with valid seals, removed rows, and rows that name another key: what must not be signed because of them.

use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, params};
use selvedge_model::account::Posting;
use selvedge_model::id::ReservationId;
use selvedge_model::request::{Answered, Verdict};
use selvedge_model::{
    Batch, Changeset, Classify, Event, Expect, Money, Part, Posted, Reason, Request, RequestId, RequestKind, ThreadId,
    Timestamp,
};
use selvedge_store::{Commit, Inbox};
use selvedge_store_local::{Access, LocalStore};

use crate::support::{Home, birth, id, says, thread_with};

fn database(home: &Home) -> Connection {
    Connection::open(home.threads().join("registry.db")).unwrap()
}

/// A row was taken for another key's, and its content was signed as the tombstone.
#[test]
fn no_tombstone_is_signed_from_a_row_that_names_another_key() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let forge = "UPDATE threads SET manifest = json_set(manifest, '$.title', 'FORGED')";
    database(&home).execute(forge, []).unwrap();
    database(&home).execute("UPDATE heads SET version = 99, signer = zeroblob(32)", []).unwrap();
    let store = home.open();
    assert_eq!(store.delete(&thread).unwrap_err().code(), "other_signer");
    assert!(home.transcript(&thread).exists());
    store.close().unwrap();
}

#[test]
fn no_tombstone_is_signed_at_a_head_that_is_older_than_the_log() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let keep = "CREATE TABLE kept AS SELECT * FROM heads; CREATE TABLE told AS SELECT id, manifest FROM threads;";
    database(&home).execute_batch(keep).unwrap();
    let manifest = std::fs::read(home.threads().join(thread.folder()).join("thread.json")).unwrap();
    let store = home.open();
    let title = selvedge_model::event::ManifestChanged { title: Some("two".to_owned()), ..Default::default() };
    let renamed = Changeset::of_event(Event::ManifestChanged(title));
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, renamed))).unwrap();
    store.close().unwrap();
    let newer = std::fs::read(home.threads().join(thread.folder()).join("thread.json")).unwrap();
    let back = "DELETE FROM heads; INSERT INTO heads SELECT * FROM kept; \
                UPDATE threads SET manifest = (SELECT manifest FROM told WHERE told.id = threads.id); \
                DROP TABLE kept; DROP TABLE told;";
    database(&home).execute_batch(back).unwrap();
    std::fs::write(home.threads().join(thread.folder()).join("thread.json"), manifest).unwrap();
    let store = home.open();
    // A backup copies up to the database's head, and reports that it is incomplete.
    let target = tempfile::tempdir().unwrap();
    let made = store.backup(&target.path().join("b"), &mut |_, _| {}).unwrap();
    assert_eq!(made.bad.len(), 1, "{:?}", made.bad);
    let refused = store.delete(&thread).unwrap_err();
    assert_eq!(refused.code(), "database_behind", "{refused}");
    assert!(home.transcript(&thread).exists());
    store.close().unwrap();
    // With a manifest that records more it was reported as a cut log.
    std::fs::write(home.threads().join(thread.folder()).join("thread.json"), newer).unwrap();
    let store = home.open();
    let refused = store.commit(Batch::of(Part::new(thread, Expect::Any, says("three")))).unwrap_err();
    assert_eq!(refused.code(), "database_behind", "{refused}");
    store.close().unwrap();
}

fn rename(thread: &ThreadId, name: &str) -> Posted {
    let id = RequestId::new(name).unwrap();
    let at = Timestamp::from_micros(7);
    Posted { thread: thread.clone(), id, at, request: Request::Rename { title: name.to_owned() } }
}

fn consume(store: &LocalStore, thread: &ThreadId, name: &str) {
    let id = RequestId::new(name).unwrap();
    let answered = Event::RequestAnswered(Answered {
        request_id: id.clone(),
        kind: RequestKind::Rename,
        verdict: Verdict::Applied,
        why: None,
    });
    let part = Part::new(thread.clone(), Expect::Any, Changeset::of_event(answered));
    store.commit(Batch { consumed: vec![(thread.clone(), id)], ..Batch::of(part) }).unwrap();
}

/// Only the newest request was noticed; and consuming one before an earlier one looked as if that had been removed.
#[test]
fn a_removed_request_is_noticed_and_out_of_order_consumption_is_not_reported() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &[]);
    for name in ["q1", "q2", "q3"] {
        store.post(rename(&thread, name)).unwrap();
    }
    consume(&store, &thread, "q3");
    assert_eq!(store.pending(&thread).unwrap().len(), 2);
    assert_eq!(store.take_problems(), [] as [String; 0]);
    store.post(rename(&thread, "q4")).unwrap();
    assert_eq!(store.pending(&thread).unwrap().iter().filter(|waiting| waiting.is_sealed).count(), 3);
    assert_eq!(store.take_problems(), [] as [String; 0]);
    store.close().unwrap();
    for sql in ["DELETE FROM requests WHERE request_id = 'q2'", "DELETE FROM inboxes"] {
        database(&home).execute(sql, []).unwrap();
        let store = home.open();
        store.pending(&thread).unwrap();
        let named = store.take_problems();
        assert!(named.iter().any(|what| what.contains("removed from the database")), "{sql}: {named:?}");
        store.close().unwrap();
    }
}

/// A commit between two reads of one check made a consumed request look like a removed one, in one run of a hundred.
#[test]
fn a_request_that_is_consumed_while_the_inbox_is_read_is_not_reported_as_removed() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &[]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let look = || {
            while !is_over.load(Ordering::Relaxed) {
                store.pending(&thread).unwrap();
            }
        };
        let looks = [scope.spawn(look), scope.spawn(look)];
        for number in 0..300 {
            let name = format!("q{number}");
            store.post(rename(&thread, &name)).unwrap();
            consume(&store, &thread, &name);
        }
        is_over.store(true, Ordering::Relaxed);
        for look in looks {
            look.join().unwrap();
        }
    });
    assert_eq!(store.take_problems(), [] as [String; 0]);
    store.close().unwrap();
}

/// What a child had spent was available again once the child was deleted and the account's row replaced by an older one.
#[test]
fn an_account_that_is_older_than_the_postings_of_a_deleted_thread_is_refused() {
    let home = Home::new();
    let store = home.open();
    let parent = id("parent-0123456789ab");
    let child = id("child-0123456789ab");
    for thread in [&parent, &child] {
        store.commit(birth(thread)).unwrap();
    }
    let money = |nanos| Money::from_nanos(nanos).unwrap();
    let post = |store: &LocalStore, thread: &ThreadId, posting| {
        let part = Part::new(thread.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
        store.commit(Batch::of(Part { postings: vec![posting], ..part }))
    };
    let account = parent.clone();
    post(&store, &parent, Posting::Open { account: account.clone(), parent: None, max: Some(money(1_000)) }).unwrap();
    store.close().unwrap();
    database(&home).execute_batch("CREATE TABLE kept AS SELECT thread_id, mark FROM budget_ledger;").unwrap();
    let columns = "parent_id, max_spend, own_spend, children_spend, reserved_spend, open, status, version";
    let older: Vec<String> = {
        let database = database(&home);
        let sql = format!("SELECT json_array({columns}) FROM budget_ledger");
        let mut statement = database.prepare(&sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let store = home.open();
    let spend = Posting::Reserve {
        account: account.clone(),
        reservation: ReservationId::new("r1").unwrap(),
        amount: money(900),
        child: None,
    };
    post(&store, &child, spend).unwrap();
    store.delete(&child).unwrap();
    store.close().unwrap();
    let back = "UPDATE budget_ledger SET own_spend = ?1 ->> 2, children_spend = ?1 ->> 3, reserved_spend = ?1 ->> 4, open = ?1 ->> 5, \
                status = ?1 ->> 6, version = ?1 ->> 7, mark = (SELECT mark FROM kept)";
    assert_eq!(database(&home).execute(back, params![older[0]]).unwrap(), 1);
    database(&home).execute_batch("DELETE FROM reservations; DROP TABLE kept;").unwrap();
    let store = home.open();
    let again =
        Posting::Reserve { account, reservation: ReservationId::new("r2").unwrap(), amount: money(900), child: None };
    let refused = post(&store, &parent, again).unwrap_err();
    assert!(refused.to_string().contains("older than the logs"), "{refused}");
    store.close().unwrap();
}

/// A program that could write the database made the next command rebuild it and adopt a log that was cut.
#[test]
fn a_database_marked_as_written_without_a_key_is_not_rebuilt_automatically() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    database(&home).pragma_update(None, "application_id", 1).unwrap();
    let refused = LocalStore::open(home.options(Access::ReadWrite)).err().unwrap();
    assert_eq!(refused.code(), "integrity", "{refused}");
    assert!(refused.hint().unwrap().contains("selvedge reindex"), "{refused:?}");
    drop(home.read_only());
    crate::reindex::reindex(&home);
    let store = home.open();
    store.commit(Batch::of(Part::new(thread, Expect::Exact(1), says("two")))).unwrap();
    store.close().unwrap();
}

/// Old rows were accepted again once a rebuild had lost which requests were consumed.
#[test]
fn after_a_rebuild_of_a_tampered_database_no_older_request_is_accepted() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &[]);
    store.post(rename(&thread, "q1")).unwrap();
    store.close().unwrap();
    database(&home).execute_batch("CREATE TABLE kept AS SELECT * FROM requests;").unwrap();
    let kept: (i64, String, i64, String, Vec<u8>) = database(&home)
        .query_row("SELECT id, kind, posted_at, body, mark FROM kept", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .unwrap();
    let store = home.open();
    consume(&store, &thread, "q1");
    store.close().unwrap();
    let forget = "DROP TABLE kept; UPDATE heads SET mark = x'00'; DELETE FROM sqlite_sequence WHERE name = 'requests';";
    database(&home).execute_batch(forget).unwrap();
    crate::reindex::reindex(&home);
    let back = "INSERT INTO requests (id, thread, request_id, kind, posted_at, body, mark) \
                SELECT ?, id, 'q1', ?, ?, ?, ? FROM threads";
    database(&home).execute(back, params![kept.0, kept.1, kept.2, kept.3, kept.4]).unwrap();
    let store = home.open();
    let waiting = store.pending(&thread).unwrap();
    assert_eq!(waiting.iter().map(|one| one.is_sealed).collect::<Vec<_>>(), [false]);
    store.close().unwrap();
}

/// Saves tables as they are now, until [`restore_tables`].
fn keep(home: &Home, tables: &[&str]) {
    for table in tables {
        database(home).execute_batch(&format!("CREATE TABLE kept_{table} AS SELECT * FROM {table};")).unwrap();
    }
}

/// Replaces the rows of tables by the saved ones.
fn restore_tables(home: &Home, tables: &[&str]) {
    let database = database(home);
    for table in tables {
        let sql = format!("SELECT group_concat(name, ', ') FROM pragma_table_info('{table}')");
        let columns: String = database.query_row(&sql, [], |row| row.get(0)).unwrap();
        let back = format!(
            "DELETE FROM {table}; INSERT INTO {table} ({columns}) SELECT {columns} FROM kept_{table}; DROP TABLE kept_{table};"
        );
        database.execute_batch(&back).unwrap();
    }
}

/// A request that was removed together with the row that records it was lost, and no command reported it.
#[test]
fn a_request_that_was_removed_with_its_inbox_row_is_noticed() {
    for anchor in [false, true] {
        let home = Home::new();
        let store = home.open();
        let thread = thread_with(&store, "scribe-0123456789ab", &[]);
        store.post(rename(&thread, "q1")).unwrap();
        store.close().unwrap();
        let tables = if anchor { &["requests", "inboxes", "anchor"][..] } else { &["requests", "inboxes"] };
        keep(&home, tables);
        let store = home.open();
        store.post(rename(&thread, "q2")).unwrap();
        assert_eq!(store.pending(&thread).unwrap().len(), 2);
        // A later commit reveals it.
        thread_with(&store, "other-0123456789ab", &["one"]);
        assert_eq!(store.take_problems(), [] as [String; 0]);
        store.close().unwrap();
        restore_tables(&home, tables);
        let store = home.open();
        assert_eq!(store.pending(&thread).unwrap().len(), 1);
        let named = store.take_problems();
        assert!(named.iter().any(|what| what.contains("in `registry.db`")), "anchor {anchor}: {named:?}");
        store.close().unwrap();
        // A rebuild reports it once more; then it is settled.
        let rebuilt = crate::reindex::reindex(&home);
        assert!(rebuilt.notices.iter().any(|notice| notice.contains("must be sent again")), "{rebuilt:?}");
        let store = home.open();
        store.pending(&thread).unwrap();
        store.post(rename(&thread, "q2")).unwrap();
        store.pending(&thread).unwrap();
        assert_eq!(store.take_problems(), [] as [String; 0]);
        store.close().unwrap();
    }
}

/// What a child had spent was available again once its rows were removed and the account's row replaced by an older one.
#[test]
fn an_account_that_is_replaced_while_the_childs_rows_are_removed_is_refused() {
    for anchor in [false, true] {
        let home = Home::new();
        let store = home.open();
        let parent = id("parent-0123456789ab");
        let child = id("child-0123456789ab");
        store.commit(birth(&parent)).unwrap();
        let money = |nanos| Money::from_nanos(nanos).unwrap();
        let post = |store: &LocalStore, thread: &ThreadId, posting| {
            let part = Part::new(thread.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
            store.commit(Batch::of(Part { postings: vec![posting], ..part }))
        };
        let reserve = |name: &str| {
            let reservation = ReservationId::new(name).unwrap();
            Posting::Reserve { account: parent.clone(), reservation, amount: money(900), child: None }
        };
        let open = Posting::Open { account: parent.clone(), parent: None, max: Some(money(1_000)) };
        post(&store, &parent, open).unwrap();
        store.close().unwrap();
        let tables =
            if anchor { &["budget_ledger", "reservations", "anchor"][..] } else { &["budget_ledger", "reservations"] };
        keep(&home, tables);
        let store = home.open();
        store.commit(birth(&child)).unwrap();
        post(&store, &child, reserve("r1")).unwrap();
        assert!(post(&store, &parent, reserve("r2")).is_err(), "the ceiling holds");
        store.commit(Batch::of(Part::new(parent.clone(), Expect::Any, says("on")))).unwrap();
        store.close().unwrap();
        // The parent's rows stay: its log does not have the child's postings.
        restore_tables(&home, tables);
        let remove = "DELETE FROM heads WHERE id = (SELECT id FROM threads WHERE thread_id = 'child-0123456789ab'); \
                      DELETE FROM threads WHERE thread_id = 'child-0123456789ab'; DELETE FROM redo;";
        database(&home).execute_batch(remove).unwrap();
        std::fs::remove_dir_all(home.threads().join(child.folder())).unwrap();
        let store = home.open();
        let refused = post(&store, &parent, reserve("r3")).unwrap_err();
        assert!(refused.to_string().contains("in `registry.db`"), "anchor {anchor}: {refused}");
        store.close().unwrap();
    }
}
