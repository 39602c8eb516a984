//! The database changed by hand, as a program does that can write it and has no key: each way that once led to something signed, shown,
//! spent or left out without a word.

use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::json;

use crate::approvals::asking;
use crate::budget;
use crate::running::{PAY_ONCE, RUN, TASK, pay, put, thread_of};
use crate::support::{HELLO, Ran, Sandbox};

const NOT_SEALED: &str = "not sealed with your key";

fn registry(sandbox: &Sandbox) -> Connection {
    Connection::open(sandbox.threads().join("registry.db")).unwrap()
}

/// A project with a thread that ran.
fn ran() -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/task.md", TASK);
    put(&sandbox, ".ai/tools/pay.yaml", &pay("echo ok"));
    put(&sandbox, "script.yaml", PAY_ONCE);
    let thread = run(&sandbox);
    (sandbox, thread)
}

fn run(sandbox: &Sandbox) -> String {
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    thread_of(&ran)
}

fn append(sandbox: &Sandbox, thread: &str) -> Ran {
    sandbox.run_with(&["append", thread, "--expect", "any", "--json"], HELLO.as_bytes())
}

/// A foreign key in the row itself switched the check of its seal off, and a message was signed and run in another thread.
#[test]
fn a_row_that_names_another_key_sends_no_message_into_another_thread() {
    let (sandbox, thread) = ran();
    let other = run(&sandbox);
    let log = fs::read(sandbox.transcript(&other)).unwrap();
    let forge = "UPDATE threads SET manifest = json_set(manifest, '$.status', 'continued', '$.continuation_thread_id', ?2) \
                 WHERE thread_id = ?1";
    registry(&sandbox).execute(forge, [&thread, &other]).unwrap();
    let sign = "UPDATE heads SET signer = zeroblob(32) WHERE id = (SELECT id FROM threads WHERE thread_id = ?)";
    registry(&sandbox).execute(sign, [&thread]).unwrap();
    for command in [
        &["send", &thread, "pay all"][..],
        &["resume", &thread],
        &["log", &thread],
        &["state", &thread],
        &["chain", &thread],
        &["thread", "show", &thread],
    ] {
        let ran = sandbox.run(&[command, &["--json"]].concat());
        assert_eq!(ran.code, Some(6), "{command:?}: {ran:?}");
        assert!(ran.stderr.contains(NOT_SEALED), "{command:?}: {ran:?}");
    }
    assert_eq!(fs::read(sandbox.transcript(&other)).unwrap(), log);
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    assert_eq!(sandbox.run(&["send", &thread, "go on", "--json"]).code, Some(0));
}

/// The inbox showed what stood in the database: a person allowed a payment that was another one.
#[test]
fn what_a_person_is_asked_about_is_what_was_sealed() {
    let sandbox = asking(PAY_ONCE);
    let ran = sandbox.run(&RUN);
    let thread = thread_of(&ran);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(sandbox.run(&["inbox"]).stdout.contains("anna"));
    let forge = "UPDATE threads SET manifest = replace(manifest, 'anna', 'mallory')";
    assert_eq!(registry(&sandbox).execute(forge, []).unwrap(), 1);
    // A database may also claim that no key has sealed it.
    for claimed in [0, 1] {
        registry(&sandbox).pragma_update(None, "application_id", claimed).unwrap();
        for command in [&["inbox"][..], &["tree", &thread], &["thread", "list"], &[], &["wait", &thread]] {
            let ran = sandbox.run(&[command, &["--json"]].concat());
            assert!(!ran.stdout.contains("mallory"), "{command:?}: {ran:?}");
            assert!(ran.code == Some(6) && ran.stderr.contains(NOT_SEALED), "{command:?}: {ran:?}");
        }
    }
}

/// A head that was changed made whole logs look cut off or damaged, and `repair --accept-loss` was what helped.
#[test]
fn a_head_that_was_changed_makes_no_log_look_damaged() {
    for change in ["version = version + 7", "hash = randomblob(32)", "bytes = bytes + 7", "lines = lines + 1"] {
        let (sandbox, thread) = ran();
        registry(&sandbox).execute(&format!("UPDATE heads SET {change}"), []).unwrap();
        for command in [&["verify", &thread][..], &["state", &thread], &["log", &thread], &["budget", &thread]] {
            let ran = sandbox.run(command);
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert_eq!(ran.code, Some(6), "{change}, {command:?}: {ran:?}");
            assert!(said.contains(NOT_SEALED) && said.contains("selvedge reindex"), "{change}, {command:?}: {said}");
            for wrong in ["accept-loss", "put the file back", "cut off", "damaged"] {
                assert!(!said.contains(wrong), "{change}, {command:?}: {said}");
            }
        }
        assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
        assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    }
}

/// A copy of the database as it is now.
fn kept(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.root().join("kept.db");
    registry(sandbox).execute("VACUUM INTO ?", [path.to_str().unwrap()]).unwrap();
    path
}

fn columns(database: &Connection, table: &str) -> String {
    let sql = "SELECT group_concat(name, ', ') FROM pragma_table_xinfo(?) WHERE hidden = 0";
    database.query_row(sql, [table], |row| row.get(0)).unwrap()
}

/// Puts rows back as they were.
fn put_back(database: &Connection, table: &str, condition: &str) {
    let list = columns(database, table);
    let rows = format!("SELECT {list} FROM kept.{table} WHERE {condition}");
    database
        .execute_batch(&format!(
            "DELETE FROM main.{table} WHERE {condition}; INSERT INTO main.{table} ({list}) {rows};"
        ))
        .unwrap();
}

/// Rows of a parent's account were put back together with the anchor and the head of the child that had posted since: the parent spent
/// what the child had spent before.
#[test]
fn no_ceiling_is_exceeded_by_rows_that_are_put_back_together() {
    for way in
        ["the parent's account", "both accounts", "the child disowned", "the child's head removed", "the child removed"]
    {
        let sandbox = budget::project(budget::SAYS);
        let (parent, children) = budget::family(&sandbox, "0.04", "0.004", 1);
        let child = children[0].as_str();
        let spend = |thread: &str| (0..30).take_while(|_| sandbox.run(&["send", thread, "go"]).code == Some(0)).count();
        assert!(spend(child) > 0);
        let path = kept(&sandbox);
        let raised = sandbox.run(&["resume", child, "--raise", "spend=0.03"]);
        assert!(matches!(raised.code, Some(0 | 8)), "{raised:?}");
        assert!(spend(child) > 5);
        let database = registry(&sandbox);
        database.execute("ATTACH ? AS kept", [path.to_str().unwrap()]).unwrap();
        database.pragma_update(None, "foreign_keys", false).unwrap();
        let both = format!("'{parent}', '{child}'");
        let accounts = if way == "the parent's account" { format!("'{parent}'") } else { both };
        put_back(&database, "budget_ledger", &format!("thread_id IN ({accounts})"));
        put_back(&database, "reservations", &format!("account IN ({accounts})"));
        put_back(&database, "anchor", "true");
        let number = format!("(SELECT id FROM main.threads WHERE thread_id = '{child}')");
        let remove = |tables: &[(&str, &str)]| {
            for (table, column) in tables {
                database.execute_batch(&format!("DELETE FROM main.{table} WHERE {column} = {number}")).unwrap();
            }
        };
        match way {
            "the child removed" => {
                remove(&[("heads", "id"), ("redo", "thread"), ("inboxes", "thread"), ("threads", "id")])
            }
            "the child's head removed" => remove(&[("heads", "id")]),
            _ => {
                put_back(&database, "heads", &format!("id = {number}"));
                put_back(&database, "threads", &format!("thread_id = '{child}'"));
            }
        }
        if way == "the child disowned" {
            let disown = "UPDATE main.threads SET manifest = json_remove(manifest, '$.parent_id') WHERE thread_id = ?";
            database.execute(disown, [child]).unwrap();
        }
        drop(database);
        let ran = sandbox.run(&["send", &parent, "go", "--json"]);
        assert_eq!(ran.code, Some(6), "{way}: {ran:?}");
        assert!(ran.stderr.contains("selvedge reindex"), "{ran:?}");
        assert_eq!(spend(&parent), 0);
        assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
        spend(&parent);
        let audit = sandbox.run(&["budget", &parent, "--verify", "--json"]);
        assert_eq!(audit.json()["verified"]["holds"], true, "{audit:?}");
    }
}

/// Every store that was rebuilt after a run was said to have lost a request, for ever, and nine times with each `send`.
#[test]
fn a_store_that_is_rebuilt_after_a_run_has_lost_no_request() {
    let (sandbox, thread) = ran();
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    let doctor = sandbox.run(&["doctor", "--deep", "--json"]);
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
    for _ in 0..2 {
        let sent = sandbox.run(&["send", &thread, "go on", "--json"]);
        assert_eq!((sent.code, sent.stderr.contains("removed from the database")), (Some(0), false), "{sent:?}");
    }
    assert_eq!(sandbox.run(&["doctor", "--deep"]).code, Some(0));
    // Named, and once: what was really removed.
    registry(&sandbox).execute("DELETE FROM inboxes", []).unwrap();
    let sent = sandbox.run(&["send", &thread, "go on", "--json"]);
    let said = |what: &str| sent.stderr.matches(what).count();
    assert_eq!((sent.code, said("removed from the database before it was consumed")), (Some(0), 1), "{sent:?}");
}

/// The schema was believed: a column computed something else, a trigger dropped what was written.
#[test]
fn a_schema_that_another_program_changed_is_refused_by_name() {
    let rewrite = |table: &str, from: &str, to: &str| {
        format!(
            "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, '{from}', '{to}') WHERE name = '{table}';"
        )
    };
    for (change, named) in [
        (rewrite("budget_ledger", "% 32", "% 32 * 0"), "table `budget_ledger`"),
        (rewrite("threads", "$.parent_id", "$.nobody"), "table `threads`"),
        (
            "CREATE TRIGGER drop_it BEFORE INSERT ON redo BEGIN SELECT RAISE(IGNORE); END".to_owned(),
            "trigger `drop_it`",
        ),
        ("CREATE VIEW shown AS SELECT * FROM heads".to_owned(), "view `shown`"),
        ("DROP INDEX threads_chain".to_owned(), "index `threads_chain`"),
    ] {
        let (sandbox, thread) = ran();
        registry(&sandbox).execute_batch(&change).unwrap();
        for ran in [append(&sandbox, &thread), sandbox.run(&["inbox"]), sandbox.run(&["doctor"])] {
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert!(ran.code == Some(6) && said.contains(named), "{change}: {ran:?}");
        }
        let rebuilt = sandbox.run(&["reindex", "--json"]);
        assert!(rebuilt.code == Some(0) && rebuilt.stdout.contains(named), "{change}: {rebuilt:?}");
        assert_eq!(append(&sandbox, &thread).code, Some(0), "{change}");
        let doctor = sandbox.run(&["doctor", "--deep", "--json"]);
        assert_eq!(doctor.code, Some(0), "{change}: {doctor:?}");
    }
}

/// A row that was planted was left out, and only a command that ran a thread said so.
#[test]
fn what_is_left_out_is_named_by_every_command() {
    let lead = json!({"event_type": "recovery", "payload": {"found": "loss"}}).to_string();
    let plant = |sandbox: &Sandbox| {
        let sql = "INSERT INTO leads (thread, event, mark) SELECT id, ?, zeroblob(32) FROM threads";
        registry(sandbox).execute(sql, [&lead]).unwrap();
    };
    let (sandbox, thread) = Sandbox::with_thread();
    plant(&sandbox);
    let ran = append(&sandbox, &thread);
    assert!(ran.code == Some(0) && ran.stderr.contains(NOT_SEALED), "{ran:?}");
    plant(&sandbox);
    let rebuilt = sandbox.run(&["reindex", "--json"]);
    assert!(rebuilt.code == Some(0) && rebuilt.stdout.contains(NOT_SEALED), "{rebuilt:?}");
    let bury =
        "INSERT INTO tombstones (thread_id, tombstone, document, buried) VALUES ('ghost-0123456789ab', '{}', '{}', 0)";
    registry(&sandbox).execute(bury, []).unwrap();
    let ran = append(&sandbox, &thread);
    assert!(ran.code == Some(0) && ran.stderr.contains("the tombstone of `ghost-0123456789ab`"), "{ran:?}");
}

/// A counter at its end made a run drop its own request, and a new thread fail without a reason.
#[test]
fn a_counter_that_was_changed_is_named() {
    for table in ["requests", "threads", "redo", "leads", "runs"] {
        let (sandbox, thread) = ran();
        let set = "DELETE FROM sqlite_sequence WHERE name = ?1; ";
        registry(&sandbox).execute(set, [table]).unwrap();
        let set = "INSERT INTO sqlite_sequence (name, seq) VALUES (?, 9223372036854775807)";
        registry(&sandbox).execute(set, [table]).unwrap();
        for command in [&RUN[..], &["send", &thread, "go"], &["thread", "new", "--agent", "scribe"]] {
            let ran = sandbox.run(command);
            let named = format!("the counter of table `{table}`");
            assert!(ran.code == Some(6) && ran.stderr.contains(&named), "{command:?}: {ran:?}");
        }
        let rebuilt = sandbox.run(&["reindex", "--json"]);
        assert!(rebuilt.code == Some(0) && rebuilt.stdout.contains("counter"), "{rebuilt:?}");
        assert_eq!(sandbox.run(&["send", &thread, "go on"]).code, Some(0));
        assert_eq!(sandbox.run(&["doctor", "--deep"]).code, Some(0));
        // One that is too low gives no number twice.
        registry(&sandbox).execute("UPDATE sqlite_sequence SET seq = 0", []).unwrap();
        run(&sandbox);
        assert_eq!(sandbox.run(&["send", &thread, "go on"]).code, Some(0));
        assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
    }
}
