//! The rows of one thread replaced by their own earlier selves: their seals are genuine, and the log goes on after them.

use rusqlite::Connection;

use crate::approvals::asking;
use crate::running::{RUN, paid, thread_of};
use crate::support::{HELLO, Sandbox, copy};
use crate::tamper::keep_to_owner;

const PAY_TWICE: &str = "turns:\n  - { say: One moment., calls: [{ tool: pay, arguments: { to: anna } }] }\n  - { say: Another., calls: [{ tool: pay, arguments: { to: bob } }] }\n  - { say: Done., repeat: forever }\n";

fn registry(sandbox: &Sandbox) -> Connection {
    Connection::open(sandbox.threads().join("registry.db")).unwrap()
}

/// A thread that waits for the approval of its second call, and whose rows say that it waits for that of the first.
fn rolled_back() -> (Sandbox, String) {
    let sandbox = asking(PAY_TWICE);
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let thread = thread_of(&ran);
    let path = sandbox.root().join("kept.db");
    registry(&sandbox).execute("VACUUM INTO ?", [path.to_str().unwrap()]).unwrap();
    let ran = sandbox.run(&["approve", "call_1", "--thread", &thread]);
    assert_eq!((ran.code, paid(&sandbox)), (Some(7), 1), "{ran:?}");
    let database = registry(&sandbox);
    database.execute("ATTACH ? AS kept", [path.to_str().unwrap()]).unwrap();
    database.pragma_update(None, "foreign_keys", false).unwrap();
    let back = "UPDATE main.threads SET manifest = (SELECT manifest FROM kept.threads); \
                DELETE FROM main.heads; INSERT INTO main.heads SELECT * FROM kept.heads;";
    database.execute_batch(back).unwrap();
    (sandbox, thread)
}

/// The inbox showed a call that had been approved and made, and `wait` and `tree` the state before it.
#[test]
fn an_older_row_of_a_thread_is_not_shown_as_what_it_waits_for() {
    let (sandbox, thread) = rolled_back();
    for command in [
        &["inbox"][..],
        &["inbox", &thread],
        &["tree", &thread],
        &["thread", "show", &thread],
        &["wait", &thread],
        &["log", &thread],
        &["state", &thread],
        &["transcript", &thread],
        &["approve", "call_1", "--thread", &thread],
        &["resume", &thread],
        &["send", &thread, "go on"],
    ] {
        let ran = sandbox.run(command);
        assert_eq!(ran.code, Some(6), "{command:?}: {ran:?}");
        assert!(ran.stderr.contains("the database has it only up to version"), "{command:?}: {ran:?}");
        assert!(!ran.stdout.contains("anna"), "{command:?}: {ran:?}");
    }
    assert_eq!(paid(&sandbox), 1);
    let listed = sandbox.run(&["thread", "list"]);
    assert!(listed.code == Some(0) && listed.stderr.contains("has it only up to version"), "{listed:?}");
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    let inbox = sandbox.run(&["inbox"]);
    assert!(inbox.stdout.contains("bob") && !inbox.stdout.contains("anna"), "{inbox:?}");
}

/// The last text of a thread was read without its hash: `tree` showed it, also to the model of another thread.
#[test]
fn a_text_that_was_changed_in_the_log_is_not_shown_in_a_tree() {
    let sandbox = asking(PAY_TWICE);
    let thread = thread_of(&sandbox.run(&RUN));
    let log = std::fs::read_to_string(sandbox.transcript(&thread)).unwrap();
    std::fs::write(sandbox.transcript(&thread), log.replace("One moment", "Two moment")).unwrap();
    for command in ["tree", "chain"] {
        let ran = sandbox.run(&[command, &thread, "--json"]);
        assert!(!ran.stdout.contains("Two moment"), "{command}: {ran:?}");
        assert!(ran.stdout.contains("not the ones that were signed"), "{command}: {ran:?}");
    }
}

/// A list of heads was signed that ended a log before its last versions.
#[test]
fn a_list_of_heads_is_not_made_from_older_rows() {
    let (sandbox, _) = rolled_back();
    let file = sandbox.root().join("heads.json");
    let ran = sandbox.run(&["heads", "export", file.to_str().unwrap(), "--json"]);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(format!("{}{}", ran.stdout, ran.stderr).contains("only up to version"), "{ran:?}");
    let listed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(!listed.contains("task-"), "{listed}");
}

/// A thread was deleted in a copy of the project, and its tombstone came back: `reindex` said that the folder was not changed, and the next
/// command removed it with all that had been written since.
#[test]
fn a_log_that_continues_after_its_tombstone_is_kept() {
    let (sandbox, thread) = Sandbox::with_thread();
    let other = sandbox.new_thread("other");
    let clone = Sandbox::empty();
    copy(&sandbox.root(), &clone.root());
    keep_to_owner(&clone.home());
    assert_eq!(clone.run(&["thread", "delete", &thread, "--yes"]).code, Some(0));
    let append = |thread: &str| sandbox.run_with(&["append", thread, "--expect", "any"], HELLO.as_bytes());
    assert_eq!(append(&thread).code, Some(0));
    let tombstone = format!("tombstones/{thread}.json");
    std::fs::copy(clone.threads().join(&tombstone), sandbox.threads().join(&tombstone)).unwrap();
    let log = std::fs::read(sandbox.transcript(&thread)).unwrap();
    let rebuilt = sandbox.run(&["reindex"]);
    assert!(rebuilt.code != Some(0) && rebuilt.stderr.contains("its log continues after that"), "{rebuilt:?}");
    let ran = append(&other);
    assert!(ran.code == Some(0) && ran.stderr.contains("its log continues after that"), "{ran:?}");
    let doctor = sandbox.run(&["doctor"]);
    assert!(doctor.code == Some(6) && doctor.stdout.contains("its log continues after that"), "{doctor:?}");
    assert_eq!(std::fs::read(sandbox.transcript(&thread)).unwrap(), log);
    std::fs::remove_file(sandbox.threads().join(&tombstone)).unwrap();
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    assert_eq!(append(&thread).code, Some(0));
    assert_eq!(sandbox.run(&["doctor", "--deep"]).code, Some(0));
}

/// How the file itself is to be written is data of the file: readers would have kept writers waiting.
#[test]
fn a_database_without_a_write_ahead_log_gets_one_again() {
    let (sandbox, thread) = Sandbox::with_thread();
    let mode =
        |database: &Connection| -> String { database.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap() };
    registry(&sandbox).query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).unwrap();
    assert_eq!(mode(&registry(&sandbox)), "delete");
    let ran = sandbox.run_with(&["append", &thread, "--expect", "any"], HELLO.as_bytes());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(mode(&registry(&sandbox)), "wal");
}
