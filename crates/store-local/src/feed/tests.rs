use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// An operation on one of the threads 1, 2 and 3.
#[derive(Clone, Debug)]
enum Step {
    /// Its next version is committed.
    Commit(i64),
    /// A later version is committed, as after an accepted loss.
    Jump(i64),
    /// It is set back to before a version, if it has an earlier one.
    Withdraw(i64, i64),
    /// It is deleted.
    Delete(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let thread = 1..4_i64;
    let step = prop_oneof![
        6 => thread.clone().prop_map(Step::Commit),
        1 => thread.clone().prop_map(Step::Jump),
        1 => (thread.clone(), 0..8_i64).prop_map(|(thread, version)| Step::Withdraw(thread, version)),
        1 => thread.prop_map(Step::Delete),
    ];
    prop::collection::vec(step, 1..40)
}

fn connect() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    let tables = "CREATE TABLE feed (position INTEGER PRIMARY KEY, thread INTEGER NOT NULL, version INTEGER NOT NULL,
                      line INTEGER NOT NULL DEFAULT 0, counts BLOB NOT NULL DEFAULT x'');
                  CREATE TABLE heads (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, counts BLOB NOT NULL DEFAULT x'');
                  CREATE TABLE threads (id INTEGER PRIMARY KEY, thread_id TEXT NOT NULL);
                  PRAGMA user_version = 6;";
    connection.execute_batch(tables).unwrap();
    connection
}

fn name(thread: i64) -> ThreadId {
    ThreadId::new(format!("scribe-00000000000{thread}")).unwrap()
}

/// How many lines a version has; some counts take two bytes.
fn lines_of(version: i64) -> u64 {
    [1, 2, 300][usize::try_from(version).unwrap() % 3]
}

/// Moves the head of a thread as a commit does, and announces it.
fn commit(connection: &Connection, thread: i64, version: i64, first_line: u64) {
    let mut newest = FeedEnd::newest(connection).unwrap();
    let lines = first_line..first_line + lines_of(version);
    let kept = newest.head_counts(thread, unsigned(version), &lines);
    let moved = "INSERT OR REPLACE INTO heads (id, version, counts) VALUES (?, ?, ?)";
    connection.execute(moved, params![thread, version, kept]).unwrap();
    connection
        .execute("INSERT OR IGNORE INTO threads (id, thread_id) VALUES (?, ?)", params![thread, name(thread).as_str()])
        .unwrap();
    newest.announce(connection, thread, unsigned(version), &lines).unwrap();
}

/// Sets a thread back to before a version; without a head it is deleted.
fn set_back(connection: &Connection, thread: i64, version: i64, head: Option<i64>) {
    withdraw(connection, thread, unsigned(version)).unwrap();
    match head {
        Some(head) => connection.execute("UPDATE heads SET version = ? WHERE id = ?", [head, thread]).unwrap(),
        None => {
            connection.execute("DELETE FROM threads WHERE id = ?", [thread]).unwrap();
            connection.execute("DELETE FROM heads WHERE id = ?", [thread]).unwrap()
        }
    };
}

fn rows(connection: &Connection) -> usize {
    connection.query_row("SELECT count(*) FROM feed", [], |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap()
}

/// Whatever is announced and withdrawn: the feed has the same content as a list with one entry per version.
fn equals_a_plain_list(steps: &[Step]) {
    let connection = connect();
    // Every position: its thread, if any, the version, and the number of its first line.
    let mut positions: Vec<Option<(i64, i64, u64)>> = Vec::new();
    // The version of each thread, and how many lines its log has.
    let mut heads: BTreeMap<i64, (i64, u64)> = BTreeMap::new();
    for step in steps {
        match *step {
            Step::Commit(thread) | Step::Jump(thread) => {
                let by = if matches!(step, Step::Jump(_)) { 3 } else { 1 };
                let (version, line) = heads.get(&thread).map_or((0, 0), |(head, lines)| (head + by, *lines));
                commit(&connection, thread, version, line);
                heads.insert(thread, (version, line + lines_of(version)));
                positions.push(Some((thread, version, line)));
            }
            Step::Withdraw(thread, from) => {
                let kept = |entry: &Option<(i64, i64, u64)>| match entry {
                    Some((other, version, line)) if *other == thread && *version < from => {
                        Some((*version, line + lines_of(*version)))
                    }
                    _ => None,
                };
                let Some(head) = positions.iter().filter_map(kept).max() else { continue };
                set_back(&connection, thread, from, Some(head.0));
                heads.insert(thread, head);
                positions
                    .iter_mut()
                    .filter(|entry| entry.is_some_and(|(t, v, _)| t == thread && v >= from))
                    .for_each(|entry| *entry = None);
            }
            Step::Delete(thread) => {
                set_back(&connection, thread, 0, None);
                heads.remove(&thread);
                positions
                    .iter_mut()
                    .filter(|entry| entry.is_some_and(|(t, ..)| t == thread))
                    .for_each(|entry| *entry = None);
            }
        }
        let all: Vec<_> = (1..)
            .zip(&positions)
            .filter_map(|(position, entry)| {
                entry.map(|(thread, version, line)| {
                    let lines = line..line + lines_of(version);
                    FeedEntry::new(position, name(thread), unsigned(version), lines)
                })
            })
            .collect();
        assert_eq!(position(&connection).unwrap(), positions.len() as u64, "{step:?}");
        for from in 0..=positions.len() as u64 + 1 {
            let later: Vec<_> = all.iter().filter(|entry| entry.position > from).cloned().collect();
            assert_eq!(after(&connection, from, 1_000).unwrap(), later, "after {from}, {step:?}");
            assert_eq!(after(&connection, from, 2).unwrap(), later[..later.len().min(2)], "two after {from}");
        }
        let highest: Option<u64> = connection.query_row(&newest("main"), [], |row| row.get(0)).ok().map(unsigned);
        assert_eq!(highest.unwrap_or(0), positions.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_feed_equals_a_list_of_every_version(steps in steps()) {
        equals_a_plain_list(&steps);
    }
}

#[test]
fn commits_to_one_thread_cost_few_rows() {
    let connection = connect();
    let mut line = 0;
    for version in 0..100 {
        commit(&connection, 1, version, line);
        line += lines_of(version);
    }
    assert_eq!((rows(&connection), position(&connection).unwrap()), (4, 100));
    commit(&connection, 2, 0, 0);
    commit(&connection, 1, 100, line);
    assert_eq!((rows(&connection), position(&connection).unwrap()), (6, 102));
    let entries = after(&connection, 0, 1_000).unwrap();
    let mut end = 0;
    for entry in entries.iter().filter(|entry| entry.thread == name(1)) {
        assert_eq!((entry.first_line, entry.lines), (end, lines_of(signed(entry.version))), "{entry:?}");
        end += entry.lines;
    }
}

/// Rows may lack counts; if such a run were extended, later counts would be given to earlier commits.
#[test]
fn a_run_without_counts_is_not_extended() {
    let connection = connect();
    (0..3).for_each(|version| commit(&connection, 1, version, 0));
    connection.execute_batch("UPDATE feed SET line = 0, counts = x''; UPDATE heads SET counts = x''").unwrap();
    commit(&connection, 1, 3, 303);
    commit(&connection, 1, 4, 304);
    let entries = after(&connection, 0, 10).unwrap();
    let lines: Vec<_> = entries.iter().map(|entry| (entry.version, entry.first_line, entry.lines)).collect();
    assert_eq!(lines, [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 303, 1), (4, 304, 2)]);
}

#[test]
fn withdrawn_rows_do_not_accumulate() {
    let connection = connect();
    for thread in 1..50 {
        commit(&connection, thread, 0, 0);
        set_back(&connection, thread, 0, None);
    }
    commit(&connection, 50, 0, 0);
    assert!(rows(&connection) <= 3, "{}", rows(&connection));
    assert_eq!(after(&connection, 0, 100).unwrap().len(), 1);
    assert_eq!(position(&connection).unwrap(), 50);
}
