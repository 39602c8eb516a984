//! What is changed together, what is no row, and what other commands do with it: pairs of columns of one thread; counters, triggers and
//! the text of the schema; every table between a run, a spawn, an approval, an import and a backup.

use super::*;
use crate::children;

const CHILD: &str = "---\nname: child\nversion: 1.0.0\nmodel: scripted:child.yaml\n---\nSay something.\n";

impl World {
    /// Makes what [`Later::of`] needs: a parent that starts a child, and an archive of another store whose key is trusted here.
    fn with_more(self) -> Self {
        let sandbox = &self.sandbox;
        let parent = children::PARENT.replace("script.yaml", "parent.yaml");
        put(sandbox, ".ai/directives/parent.md", &parent);
        put(sandbox, ".ai/directives/child.md", CHILD);
        put(sandbox, "parent.yaml", &children::calling(children::SPAWN));
        put(sandbox, "child.yaml", "turns:\n  - { say: The child is done., repeat: forever }\n");
        let (theirs, thread) = Sandbox::with_thread();
        let [file, key] = ["theirs.tar", "theirs.pem"].map(|name| sandbox.project().join(name));
        theirs.run(&["export", &thread, "-o", file.to_str().unwrap(), "--json"]).json();
        fs::write(&key, theirs.run(&["keys", "export"]).stdout).unwrap();
        sandbox.run(&["keys", "trust", key.to_str().unwrap(), "--owner", "Ada", "--json"]).json();
        self
    }
}

/// What commands that run, start, allow, take in and copy did after a change.
struct Later {
    ran: Vec<Ran>,
    paid: String,
    is_whole: bool,
    doctored: Option<i32>,
    verified: Option<i32>,
}

impl Later {
    fn of(world: &World, other: &Sandbox) -> Self {
        let backup = other.root().join("backup");
        let backup = backup.to_str().unwrap();
        let model = "scripted:script.yaml";
        let mut ran: Vec<Ran> = [
            &["run", "task", "--model", model, "--limit", "spend=0.02", "--json"][..],
            &["run", "parent", "--json"],
            &["approve", "call_1", "--thread", &world.task, "--json"],
            &["import", "theirs.tar", "--json"],
            &["backup", backup, "--json"],
            &["doctor", "--deep", "--json"],
            &["reindex", "--json"],
        ]
        .into_iter()
        .map(|args| other.run(args))
        .collect();
        let [doctored, verified] = [&["doctor", "--deep", "--json"][..], &["verify", "--all", "--json"]].map(|args| {
            let after = other.run(args);
            let code = after.code;
            ran.push(after);
            code
        });
        let paid = fs::read_to_string(other.project().join("paid.txt")).unwrap_or_default();
        let is_whole = [&world.ann, &world.task]
            .into_iter()
            .all(|thread| log(other, thread).starts_with(log(&world.sandbox, thread).as_str()));
        Self { ran, paid, is_whole, doctored, verified }
    }

    fn broken(&self, control: &Self) -> Vec<&'static str> {
        let named = |later: &Self| later.ran.iter().flat_map(named).collect::<BTreeSet<String>>();
        let is_same = self.ran.iter().zip(&control.ran).all(|(ran, control)| ran.code == control.code);
        let failed = |ran: &Ran| !matches!(ran.code, Some(0 | 1 | 3..=8)) || ran.stderr.contains("savepoint");
        [
            (!["", "paid anna\n"].contains(&self.paid.as_str()), "something was paid that no person allowed"),
            (!self.is_whole, "signed lines are lost or changed"),
            (!matches!(self.doctored, Some(0 | 1)), "`doctor` finds damage after `reindex`"),
            (self.verified != Some(0), "a log does not verify after `reindex`"),
            (self.ran.iter().any(failed), "a command failed without a reason"),
            (!is_same && named(self).is_subset(&named(control)), "it was not named"),
        ]
        .into_iter()
        .filter_map(|(is_broken, why)| is_broken.then_some(why))
        .collect()
    }
}

/// A change and its name.
type Named<'a> = (String, Box<dyn Fn(&Connection) -> bool + 'a>);

/// Tries changes one after the other, each on a copy.
fn try_later(world: &World, changes: Vec<Named<'_>>) {
    let control = world.changed(&|_| true).map(|same| Later::of(world, &same)).unwrap();
    assert_eq!(control.broken(&control), [] as [&str; 0], "{:#?}", control.ran);
    assert_eq!(control.paid, "paid anna\n", "{:#?}", control.ran);
    let mut tried = 0;
    let mut failures = Vec::new();
    for (name, change) in changes {
        let Some(other) = world.changed(&*change) else { continue };
        tried += 1;
        let later = Later::of(world, &other);
        let broken = later.broken(&control);
        if !broken.is_empty() {
            failures.push(format!("{name}: {broken:?}\n{:#?}", later.ran));
        }
    }
    assert!(tried > 0);
    assert!(failures.is_empty(), "{} of {tried}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_table_changed_between_a_run_a_spawn_an_approval_an_import_and_a_backup() {
    let world = World::new().with_more();
    let classes = classes();
    let tables = columns(&world);
    let mut changes: Vec<Named<'_>> = Vec::new();
    for (table, columns) in &tables {
        let is_sealed =
            |column: &&String| *column != "mark" && classes[&(table.clone(), (*column).clone())] == Class::Sealed;
        let value = columns.iter().rfind(is_sealed).map(|column| Change::Value { column: column.clone() });
        for change in value.into_iter().chain([Change::Remove]) {
            let name = format!("{table}, {change:?}");
            changes.push((name, Box::new(move |database| apply(database, table, columns, 0, &change))));
        }
    }
    try_later(&world, changes);
}

/// Counters, triggers and views, and every generated column computed as something else.
#[test]
fn the_schema_and_the_counters_changed_without_the_key() {
    let world = World::new();
    let database = Connection::open(world.sandbox.threads().join("registry.db")).unwrap();
    let list = |sql: &str| -> Vec<String> {
        let mut statement = database.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(rusqlite::Result::unwrap).collect()
    };
    let mut changes = Vec::new();
    for table in list("SELECT name FROM sqlite_sequence") {
        for value in ["9223372036854775807", "-1", "'many'"] {
            changes.push(format!("UPDATE sqlite_sequence SET seq = {value} WHERE name = '{table}'"));
        }
    }
    for table in columns(&world).keys() {
        for moment in ["INSERT", "UPDATE", "DELETE"] {
            changes.push(format!("CREATE TRIGGER t BEFORE {moment} ON {table} BEGIN SELECT RAISE(IGNORE); END"));
        }
    }
    let generated = "SELECT m.name || ' ' || c.name FROM sqlite_schema AS m, pragma_table_xinfo(m.name) AS c \
                     WHERE m.type = 'table' AND c.hidden = 2";
    for place in list(generated) {
        let (table, column) = place.split_once(' ').unwrap();
        let sql = list(&format!("SELECT sql FROM sqlite_schema WHERE name = '{table}'")).remove(0);
        let at = sql.find(&format!("\n    {column} ")).unwrap();
        let at = at + sql[at..].find(" AS ").unwrap();
        let at = at + sql[at..].find('(').unwrap() + 1;
        let sql = format!("{}NULL AND {}", &sql[..at], &sql[at..]).replace('\'', "''");
        changes.push(format!(
            "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = '{sql}' WHERE name = '{table}'"
        ));
    }
    let mut failures = Vec::new();
    for change in &changes {
        let other = world.changed(&|database| database.execute_batch(change).is_ok()).unwrap();
        let message = r#"{"reason":"UserMessage","messages":[{"role":"user","content":"hello"}]}"#;
        let append = ["append", &world.ann, "--expect", "any", "--json"];
        let before = fs::read(other.transcript(&world.ann)).unwrap();
        let ran =
            [other.run_with(&append, message.as_bytes()), other.run(&["deny", "call_1", "--thread", &world.task])];
        let is_named = |ran: &Ran| ran.code == Some(6) && ran.stderr.contains("changed its schema");
        let is_kept = fs::read(other.transcript(&world.ann)).unwrap() == before;
        if !ran.iter().all(is_named) || !is_kept || other.project().join("paid.txt").exists() {
            failures.push(format!("{change}: {ran:#?}"));
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), changes.len(), failures.join("\n"));
}

/// A column that once switched the check of the others off, with each of them, and each column with the next.
#[test]
fn pairs_of_columns_of_one_thread_changed_without_the_key() {
    let world = World::new();
    let control = world.changed(&|_| true).map(|same| After::of(&world, &same)).unwrap();
    let tables = columns(&world);
    let classes = classes();
    let is_sealed = |table: &str, column: &String| classes[&(table.to_owned(), column.clone())] == Class::Sealed;
    let place = |table: &str, column: &String| (table.to_owned(), column.clone());
    let mut sealed: Vec<(String, String)> = Vec::new();
    for table in ["heads", "threads"] {
        sealed
            .extend(tables[table].iter().filter(|column| is_sealed(table, column)).map(|column| place(table, column)));
    }
    let signer = place("heads", &"signer".to_owned());
    let with_signer = sealed.iter().filter(|other| **other != signer).map(|other| (signer.clone(), other.clone()));
    let neighbours = sealed.iter().cloned().zip(sealed.iter().skip(1).cloned());
    let mut failures = Vec::new();
    for (one, two) in with_signer.chain(neighbours) {
        let change = |database: &Connection| {
            database.pragma_update(None, "foreign_keys", false).unwrap();
            [&one, &two].iter().all(|(table, column)| change_of(database, &world.task, table, column))
        };
        let Some(other) = world.changed(&change) else { continue };
        let after = After::of(&world, &other);
        let broken = after.broken(&control, Class::Sealed);
        if !broken.is_empty() {
            failures.push(format!("{one:?} with {two:?}: {broken:?}\n{:#?}", after.ran));
        }
    }
    assert!(failures.is_empty(), "{} pairs:\n{}", failures.len(), failures.join("\n"));
}

/// Changes one column of the row of a thread.
fn change_of(database: &Connection, thread: &str, table: &str, column: &str) -> bool {
    let row =
        "id = (SELECT id FROM threads WHERE thread_id = ?1 OR manifest LIKE '%' || ?1 || '%' ORDER BY id LIMIT 1)";
    let select = format!("SELECT {column} FROM {table} WHERE {row}");
    let Ok(value) = database.query_row(&select, [thread], |row| row.get::<_, Sql>(0)) else { return false };
    let update = format!("UPDATE OR IGNORE {table} SET {column} = ?2 WHERE {row}");
    database.execute(&update, rusqlite::params![thread, other(&value)]).is_ok_and(|count| count == 1)
}

/// A send whose request was removed from the database reported the end of another run as its own.
#[test]
fn a_send_whose_request_was_removed_fails() {
    let sandbox = crate::approvals::busy();
    let (child, told) = crate::approvals::until(&sandbox, &crate::running::RUN, |record| record["type"] == "calling");
    let thread = told[0]["thread_id"].as_str().unwrap();
    let mut send = sandbox.command(&["send", thread, "Don't pay.", "--json"]);
    let send = send.stdin(std::process::Stdio::null()).spawn().unwrap();
    let database = Connection::open(sandbox.threads().join("registry.db")).unwrap();
    database.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
    while database.execute("DELETE FROM requests", []).unwrap() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    database.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'requests'", []).unwrap();
    put(&sandbox, "fast", "");
    assert_eq!(Ran::of(child).code, Some(7));
    let sent = Ran::of(send);
    assert!(sent.code == Some(6) && sent.stderr.contains("removed from the database"), "{sent:?}");
    let log = std::fs::read_to_string(sandbox.transcript(thread)).unwrap();
    assert!(!log.contains("Don't pay."));
}
