use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What may happen to one of the threads 1, 2 and 3.
#[derive(Clone, Debug)]
enum Step {
    /// It comes to its next version.
    Commit(i64),
    /// It comes to a later one, as after a loss that was accepted.
    Jump(i64),
    /// It goes back to before a version, or as far as it has come if that is less.
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
    let tables = "CREATE TABLE feed (position INTEGER PRIMARY KEY, thread INTEGER NOT NULL, version INTEGER NOT NULL);
                  CREATE TABLE heads (id INTEGER PRIMARY KEY, version INTEGER NOT NULL);
                  CREATE TABLE threads (id INTEGER PRIMARY KEY, thread_id TEXT NOT NULL);
                  PRAGMA user_version = 5;";
    connection.execute_batch(tables).unwrap();
    connection
}

fn name(thread: i64) -> ThreadId {
    ThreadId::new(format!("scribe-00000000000{thread}")).unwrap()
}

/// Moves the head of a thread as a commit does, and announces it.
fn commit(connection: &Connection, thread: i64, version: i64) {
    let mut newest = Place::newest(connection).unwrap();
    let moved = "INSERT OR REPLACE INTO heads (id, version) VALUES (?, ?)";
    connection.execute(moved, [thread, version]).unwrap();
    connection
        .execute("INSERT OR IGNORE INTO threads (id, thread_id) VALUES (?, ?)", params![thread, name(thread).as_str()])
        .unwrap();
    newest.announce(connection, thread, unsigned(version)).unwrap();
}

/// Sets a thread back to before a version, which none has if that is the first.
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

/// Whatever is announced and withdrawn: the feed tells what a list with one entry per version tells.
fn tells_the_same(steps: &[Step]) {
    let connection = connect();
    // Every place: who has it, if anybody, and which version.
    let mut places: Vec<Option<(i64, i64)>> = Vec::new();
    let mut heads: BTreeMap<i64, i64> = BTreeMap::new();
    for step in steps {
        match *step {
            Step::Commit(thread) | Step::Jump(thread) => {
                let by = if matches!(step, Step::Jump(_)) { 3 } else { 1 };
                let version = heads.get(&thread).map_or(0, |head| head + by);
                commit(&connection, thread, version);
                heads.insert(thread, version);
                places.push(Some((thread, version)));
            }
            Step::Withdraw(thread, from) => {
                let kept = |place: &Option<(i64, i64)>| match place {
                    Some((other, version)) if *other == thread && *version < from => Some(*version),
                    _ => None,
                };
                let head = places.iter().filter_map(kept).max();
                if head.is_none() {
                    continue;
                }
                set_back(&connection, thread, from, head);
                heads.extend(head.map(|head| (thread, head)));
                places
                    .iter_mut()
                    .filter(|place| place.is_some_and(|(t, v)| t == thread && v >= from))
                    .for_each(|p| *p = None);
            }
            Step::Delete(thread) => {
                set_back(&connection, thread, 0, None);
                heads.remove(&thread);
                places
                    .iter_mut()
                    .filter(|place| place.is_some_and(|(t, _)| t == thread))
                    .for_each(|place| *place = None);
            }
        }
        let all: Vec<_> = (1..)
            .zip(&places)
            .filter_map(|(position, place)| {
                place.map(|(thread, version)| Commitment { position, thread: name(thread), version: unsigned(version) })
            })
            .collect();
        assert_eq!(position(&connection).unwrap(), places.len() as u64, "{step:?}");
        for from in 0..=places.len() as u64 + 1 {
            let behind: Vec<_> = all.iter().filter(|told| told.position > from).cloned().collect();
            assert_eq!(after(&connection, from, 1_000).unwrap(), behind, "behind {from} after {step:?}");
            assert_eq!(after(&connection, from, 2).unwrap(), behind[..behind.len().min(2)], "two behind {from}");
        }
        let mut statement =
            connection.prepare(&format!("{} WHERE thread > 0 ORDER BY position", every("main"))).unwrap();
        let listed = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        let listed: Vec<(i64, i64, i64)> = listed.map(Result::unwrap).collect();
        let expected = (1..).zip(&places).filter_map(|(position, place)| place.map(|(t, v)| (position, t, v)));
        assert_eq!(listed, expected.collect::<Vec<_>>(), "listed after {step:?}");
        let highest: Option<u64> = connection.query_row(&newest("main"), [], |row| row.get(0)).ok().map(unsigned);
        assert_eq!(highest.unwrap_or(0), places.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_feed_tells_what_a_list_of_every_version_tells(steps in steps()) {
        tells_the_same(&steps);
    }
}

#[test]
fn a_thread_that_is_written_alone_costs_one_row() {
    let connection = connect();
    (0..100).for_each(|version| commit(&connection, 1, version));
    assert_eq!((rows(&connection), position(&connection).unwrap()), (1, 100));
    commit(&connection, 2, 0);
    commit(&connection, 1, 100);
    assert_eq!((rows(&connection), position(&connection).unwrap()), (3, 102));
}

#[test]
fn rows_of_nobodys_do_not_pile_up() {
    let connection = connect();
    for thread in 1..50 {
        commit(&connection, thread, 0);
        set_back(&connection, thread, 0, None);
    }
    commit(&connection, 50, 0);
    assert!(rows(&connection) <= 3, "{}", rows(&connection));
    assert_eq!(after(&connection, 0, 100).unwrap().len(), 1);
    assert_eq!(position(&connection).unwrap(), 50);
}
