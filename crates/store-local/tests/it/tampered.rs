//! Outdated rows with valid seals, removed rows, and rows that name another key: what must not be signed because of them.

use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, params};
use selvedge_model::account::{Posting, Reservation, ReservationState};
use selvedge_model::event::Predecessor;
use selvedge_model::id::ReservationId;
use selvedge_model::request::{Answered, Verdict};
use selvedge_model::{
    AgentId, Batch, Changeset, Classify, Event, Expect, Message, MessageId, Money, NewThread, Part, Posted, Reason,
    Request, RequestId, RequestKind, Role, ThreadId, Timestamp,
};
use selvedge_store::{Commit, Committed, Error, Filter, Inbox, Ledger, Logs, Registry};
use selvedge_store_local::{Access, LocalStore, Repair};

use crate::support::{Home, birth, id, says, thread_with};

/// The database, and beside it a place for copies: in the database itself a table of ours would be refused.
fn database(home: &Home) -> Connection {
    let database = Connection::open(home.threads().join("registry.db")).unwrap();
    let aside = home.threads().with_file_name("aside.db");
    database.execute("ATTACH ? AS aside", [aside.to_str().unwrap()]).unwrap();
    database
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
    assert_eq!(store.delete(&thread).unwrap_err().code(), "row_unsealed");
    assert!(home.transcript(&thread).exists());
    store.close().unwrap();
}

#[test]
fn no_tombstone_is_signed_at_a_head_that_is_older_than_the_log() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let keep =
        "CREATE TABLE aside.kept AS SELECT * FROM heads; CREATE TABLE aside.told AS SELECT id, manifest FROM threads;";
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
    assert_eq!(made.failed_checks.len(), 1, "{:?}", made.failed_checks);
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

/// A parent with an account of 1,000, of which 600 are reserved for its child; what [`back`] puts back is kept.
struct Funded {
    home: Home,
    parent: ThreadId,
    child: ThreadId,
}

impl Funded {
    fn new() -> Self {
        let home = Home::new();
        let store = home.open();
        let (parent, child) = (id("parent-0123456789ab"), id("child-0123456789ab"));
        for thread in [&parent, &child] {
            store.commit(birth(thread)).unwrap();
        }
        // A log of this length is not hashed again when its thread is loaded.
        let long = says(&"long ".repeat(20_000));
        store.commit(Batch::of(Part::new(parent.clone(), Expect::Any, long))).unwrap();
        let made = Self { home, parent, child };
        let open = |account: &ThreadId, parent: Option<&ThreadId>, max| Posting::Open {
            account: account.clone(),
            parent: parent.cloned(),
            max: Some(Money::from_nanos(max).unwrap()),
        };
        let hold = made.reserve("for-child", 600, Some(&made.child));
        let given = open(&made.child, Some(&made.parent), 600);
        made.post(&store, &made.parent, vec![open(&made.parent, None, 1_000), hold, given]).unwrap();
        store.close().unwrap();
        keep(&made.home, &["budget_ledger", "reservations", "anchor"]);
        made
    }

    fn reserve(&self, name: &str, amount: i64, child: Option<&ThreadId>) -> Posting {
        let reservation = ReservationId::new(name).unwrap();
        let amount = Money::from_nanos(amount).unwrap();
        Posting::Reserve { account: self.parent.clone(), reservation, amount, child: child.cloned() }
    }

    fn post(&self, store: &LocalStore, thread: &ThreadId, postings: Vec<Posting>) -> Result<Committed, Error> {
        let part = Part::new(thread.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
        store.commit(Batch::of(Part { postings, ..part }))
    }

    /// The child spends what it was given, from its own log.
    fn spend(&self, store: &LocalStore) {
        let amount = Money::from_nanos(500).unwrap();
        let name = |text| ReservationId::new(text).unwrap();
        let account = self.child.clone();
        let reserve = Posting::Reserve { account: account.clone(), reservation: name("call"), amount, child: None };
        let settle = |account: &ThreadId, reservation| Posting::Settle {
            account: account.clone(),
            reservation,
            amount,
            unknown: false,
        };
        self.post(
            store,
            &self.child,
            vec![reserve, Posting::Issue { account: account.clone(), reservation: name("call") }],
        )
        .unwrap();
        let end = vec![
            settle(&account, name("call")),
            Posting::Close { account: account.clone() },
            settle(&self.parent, name("for-child")),
        ];
        self.post(store, &self.child, end).unwrap();
    }

    /// Puts the accounts back to where the child had spent nothing, with the anchor.
    fn back(&self) {
        restore_tables(&self.home, &["budget_ledger", "reservations", "anchor"]);
    }

    fn refused(&self) -> String {
        let store = self.home.open();
        let refused = self.post(&store, &self.parent, vec![self.reserve("more", 400, None)]).unwrap_err().to_string();
        store.close().unwrap();
        refused
    }
}

/// What a child had spent was available again once the child was deleted and the account's row replaced by an older one.
#[test]
fn an_account_that_is_older_than_the_postings_of_a_deleted_thread_is_refused() {
    let funded = Funded::new();
    let store = funded.home.open();
    funded.spend(&store);
    store.delete(&funded.child).unwrap();
    store.close().unwrap();
    funded.back();
    let refused = funded.refused();
    assert!(refused.contains("older than the logs"), "{refused}");
}

/// The child's rows and its folder were removed with what it had spent; only its parent's log still names it. A tombstone that no key
/// signed made it look deleted.
#[test]
fn an_account_is_refused_while_a_child_that_its_log_names_is_gone() {
    for planted in ["", "INSERT INTO tombstones VALUES ('child-0123456789ab', '{}', '{}', 1);"] {
        let funded = Funded::new();
        let store = funded.home.open();
        funded.spend(&store);
        store.close().unwrap();
        funded.back();
        let name = "(SELECT id FROM threads WHERE thread_id = 'child-0123456789ab')";
        let remove = format!(
            "DELETE FROM feed; DELETE FROM heads WHERE id = {name}; DELETE FROM threads WHERE id = {name}; DELETE FROM redo; {planted}"
        );
        database(&funded.home).execute_batch(&remove).unwrap();
        let folder = funded.home.threads().join(funded.child.folder());
        let aside = funded.home.threads().with_file_name("child-aside");
        std::fs::rename(&folder, &aside).unwrap();
        let refused = funded.refused();
        assert!(refused.contains("`child-0123456789ab` is missing"), "{planted}: {refused}");
        // With its folder it is a log without a row.
        std::fs::rename(&aside, &folder).unwrap();
        let refused = funded.refused();
        assert!(refused.contains("has no rows in the database"), "{planted}: {refused}");
        let store = funded.home.open();
        assert_eq!(store.unindexed().unwrap(), std::slice::from_ref(&funded.child), "{planted}");
        store.close().unwrap();
        // A rebuild without it counts what it may have spent as spent.
        std::fs::remove_dir_all(&folder).unwrap();
        crate::reindex::reindex(&funded.home);
        let store = funded.home.open();
        let rebuilt = store.account(&funded.parent).unwrap().unwrap();
        assert!(rebuilt.incomplete, "{planted}: {rebuilt:?}");
        funded.post(&store, &funded.parent, vec![funded.reserve("more", 400, None)]).unwrap();
        assert!(funded.post(&store, &funded.parent, vec![funded.reserve("most", 1, None)]).is_err());
        store.close().unwrap();
    }
}

/// A new account was sealed together with a reservation that another program had planted under its name.
#[test]
fn a_reservation_that_was_planted_before_its_account_exists_is_not_sealed_with_it() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &[]);
    store.close().unwrap();
    let planted = Reservation {
        id: ReservationId::new("call").unwrap(),
        account: thread.clone(),
        amount: Money::from_nanos(500).unwrap(),
        state: ReservationState::Issued,
        child: None,
    };
    let body = serde_json::to_string(&planted).unwrap();
    let plant = "INSERT INTO reservations (account, reservation, body) VALUES ('scribe-0123456789ab', 'call', ?)";
    database(&home).execute(plant, [body]).unwrap();
    let store = home.open();
    let open = Posting::Open { account: thread.clone(), parent: None, max: Some(Money::from_nanos(1_000).unwrap()) };
    let part = Part::new(thread.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
    let batch = Batch::of(Part { postings: vec![open], ..part });
    let refused = store.commit(batch.clone()).unwrap_err();
    assert!(refused.code() == "row_unsealed" && refused.to_string().contains("a reservation"), "{refused}");
    store.close().unwrap();
    crate::reindex::reindex(&home);
    let store = home.open();
    store.commit(batch).unwrap();
    store.close().unwrap();
}

/// A message of a version that was lost is sent again, and its genuine row is back: it was acknowledged as one that is there.
#[test]
fn a_message_of_a_lost_version_is_stored_when_it_is_sent_again() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let proven = std::fs::read(home.transcript(&thread)).unwrap();
    let named = |text: &str| {
        let message = Message::text(Role::User, text).with_id(MessageId::new(text).unwrap());
        let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
        Batch::of(Part::new(thread.clone(), Expect::Any, changeset))
    };
    store.commit(named("two")).unwrap();
    store.close().unwrap();
    database(&home).execute_batch("CREATE TABLE aside.kept AS SELECT * FROM messages;").unwrap();
    std::fs::write(home.transcript(&thread), &proven).unwrap();
    let store = home.open();
    store.repair(&thread, Repair { accept_loss: true, dry_run: false }).unwrap();
    // What is sent twice and is there is known from the log, once for all of them.
    store.commit(named("three")).unwrap();
    store.commit(named("three")).unwrap();
    store.close().unwrap();
    database(&home).execute_batch("INSERT OR IGNORE INTO messages SELECT * FROM kept; DROP TABLE kept;").unwrap();
    let store = home.open();
    store.commit(named("three")).unwrap();
    let refused = store.commit(named("two")).unwrap_err();
    assert!(refused.to_string().contains("its log has no such message"), "{refused}");
    assert_eq!(refused.kind(), selvedge_model::Kind::Integrity);
    store.close().unwrap();
    crate::reindex::reindex(&home);
    let store = home.open();
    store.commit(named("two")).unwrap();
    let log = std::fs::read_to_string(home.transcript(&thread)).unwrap();
    assert_eq!((log.matches(r#""id":"two""#).count(), log.matches(r#""id":"three""#).count()), (1, 1), "{log}");
    store.close().unwrap();
}

/// The manifest in a tombstone's row is not signed: it led a chain into a thread of another one.
#[test]
fn a_chain_is_not_continued_by_what_a_row_says_of_a_deleted_thread() {
    let home = Home::new();
    let store = home.open();
    let [first, last, other] = ["first", "last", "other"].map(|name| id(&format!("{name}-0123456789ab")));
    store.commit(birth(&first)).unwrap();
    store.commit(birth(&other)).unwrap();
    let pinned = Predecessor { thread_id: first.clone(), version: 0, hash: store.head(&first).unwrap().hash };
    let next = NewThread { continuation_of: Some(pinned), ..NewThread::of(AgentId::new("scribe").unwrap()) };
    store.commit(Batch::of(Part::new(last.clone(), Expect::Absent, Changeset::creating(next)))).unwrap();
    store.delete(&first).unwrap();
    let chain = |store: &LocalStore| -> Vec<ThreadId> {
        store.chain(&last).unwrap().into_iter().map(|link| link.manifest.thread_id).collect()
    };
    assert_eq!(chain(&store), std::slice::from_ref(&last));
    store.close().unwrap();
    let forge =
        "UPDATE tombstones SET tombstone = json_set(tombstone, '$.manifest.continuation_of', 'other-0123456789ab')";
    assert_eq!(database(&home).execute(forge, []).unwrap(), 1);
    let store = home.open();
    assert_eq!(chain(&store), std::slice::from_ref(&last));
    store.close().unwrap();
}

/// The log of the parent was edited so that it does not name its child any more.
#[test]
fn an_account_is_refused_if_a_log_of_its_chain_is_not_the_one_that_was_signed() {
    let funded = Funded::new();
    let log = funded.home.transcript(&funded.parent);
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replace("child-0123456789ab", "chilx-0123456789ab")).unwrap();
    let refused = funded.refused();
    assert!(refused.contains("damaged"), "{refused}");
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
    database(&home).execute_batch("CREATE TABLE aside.kept AS SELECT * FROM requests;").unwrap();
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
        database(home).execute_batch(&format!("CREATE TABLE aside.kept_{table} AS SELECT * FROM {table};")).unwrap();
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

/// A row and its genuine seal, copied under another number and name, was the newest thread; so `@` meant another one.
#[test]
fn a_row_that_is_copied_or_renumbered_is_refused() {
    let head = "version, lines, bytes, hash, segment, signer, head_epoch, sealed, posted, heard, leads, anchor, mark, epoch, owner, \
                updated_at, counts, redo";
    let copied = format!(
        "INSERT INTO threads (id, thread_id, log_id, manifest, manifest_stale) \
         SELECT 900, 'zz-000000000000', log_id, manifest, 0 FROM threads WHERE id = 1; \
         INSERT INTO heads (id, {head}) SELECT 900, {head} FROM heads WHERE id = 1;"
    );
    let renumbered = "UPDATE threads SET id = -7 WHERE id = 1; UPDATE threads SET id = 1 WHERE id = 2; \
                      UPDATE threads SET id = 2 WHERE id = -7; UPDATE heads SET id = -7 WHERE id = 1; \
                      UPDATE heads SET id = 1 WHERE id = 2; UPDATE heads SET id = 2 WHERE id = -7; DELETE FROM redo;";
    let renamed = "UPDATE threads SET thread_id = 'zz' WHERE id = 1; \
                   UPDATE threads SET thread_id = 'one-0123456789ab' WHERE id = 2; \
                   UPDATE threads SET thread_id = 'two-ba9876543210' WHERE id = 1;";
    for forged in [copied.as_str(), renumbered, renamed] {
        let home = Home::new();
        let store = home.open();
        thread_with(&store, "one-0123456789ab", &["one"]);
        thread_with(&store, "two-ba9876543210", &["two"]);
        assert_eq!(store.resolve("0123").unwrap().as_str(), "one-0123456789ab");
        store.close().unwrap();
        database(&home).execute_batch(&format!("PRAGMA foreign_keys = OFF; {forged}")).unwrap();
        let store = home.open();
        let listed = store.list(&Filter::default(), None, 10).unwrap_err();
        assert_eq!(listed.code(), "row_unsealed", "{forged}: {listed}");
        let newest = selvedge_store::newest::by_age(&store, "@").unwrap().unwrap_err();
        assert_eq!(newest.code(), "row_unsealed", "{forged}: {newest}");
        if forged == renamed {
            let resolved = store.resolve("0123").unwrap_err();
            assert_eq!(resolved.code(), "row_unsealed", "{resolved}");
        }
        store.close().unwrap();
    }
}

/// The column of abbreviated names could be exchanged between threads; it follows from the id now.
#[test]
fn an_abbreviated_name_can_not_be_given_to_another_thread() {
    let home = Home::new();
    let store = home.open();
    for name in ["one-0123456789ab", "plain", "short-01234567", "twelve-g123456789ab", "0123456789ab"] {
        thread_with(&store, name, &[]);
    }
    store.close().unwrap();
    assert!(database(&home).execute("UPDATE threads SET hex = 'ffffffffffff'", []).is_err());
    let database = database(&home);
    let mut statement = database.prepare("SELECT thread_id, hex FROM threads").unwrap();
    let mut found = statement.query([]).unwrap();
    while let Some(row) = found.next().unwrap() {
        let name: String = row.get(0).unwrap();
        let hex: Option<String> = row.get(1).unwrap();
        assert_eq!(hex.as_deref(), id(&name).hex(), "{name}");
    }
}

/// The number of a removed request was given to the next one, and so the first was lost without a report.
#[test]
fn the_number_of_a_removed_request_is_not_given_again() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &[]);
    store.post(rename(&thread, "q1")).unwrap();
    store.close().unwrap();
    let remove = "DELETE FROM requests; UPDATE sqlite_sequence SET seq = 0 WHERE name = 'requests';";
    database(&home).execute_batch(remove).unwrap();
    let is_named = |store: &LocalStore| store.take_problems().iter().any(|what| what.contains("was removed"));
    let store = home.open();
    store.post(rename(&thread, "q2")).unwrap();
    assert!(is_named(&store), "the next post reports it");
    let number: i64 = database(&home).query_row("SELECT id FROM requests", [], |row| row.get(0)).unwrap();
    assert_eq!(number, 2);
    consume(&store, &thread, "q2");
    store.close().unwrap();
    let store = home.open();
    assert_eq!(store.pending(&thread).unwrap().len(), 0);
    assert!(is_named(&store), "and so does every later read");
    store.close().unwrap();
    crate::reindex::reindex(&home);
    let store = home.open();
    store.pending(&thread).unwrap();
    assert!(!is_named(&store), "until the database is rebuilt");
    store.close().unwrap();
}

/// What an unsealed row of an inbox said was subtracted from the sums that detect older rows.
#[test]
fn a_forged_inbox_does_not_change_the_anchor() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &[]);
    store.post(rename(&thread, "q1")).unwrap();
    store.close().unwrap();
    database(&home).execute("UPDATE inboxes SET posted = '[9]'", []).unwrap();
    let store = home.open();
    assert_eq!(store.post(rename(&thread, "q2")).unwrap_err().code(), "row_unsealed");
    assert_eq!(store.delete(&thread).unwrap_err().code(), "row_unsealed");
    assert!(home.transcript(&thread).exists());
    store.close().unwrap();
}
