//! Values that no program of ours writes: numbers at their ends, empty and long texts, JSON of another form. Whatever is in a column, no
//! command crashes or hangs, nothing forged is signed, and `reindex` brings the store back.

use super::*;

/// The columns of a table that may be written, and their types.
fn typed(database: &Connection, table: &str) -> Vec<(String, String)> {
    let sql = "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden = 0";
    let mut statement = database.prepare(sql).unwrap();
    let rows = statement.query_map([table], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(rusqlite::Result::unwrap).collect()
}

/// Why the store is not as it was before a change, after some commands and a rebuild.
fn broken(world: &World, other: &Sandbox) -> Vec<String> {
    let message = r#"{"reason":"UserMessage","messages":[{"role":"user","content":"hello"}]}"#;
    let append = ["append", &world.ann, "--expect", "any", "--json"];
    let mut ran = vec![other.run_with(&append, message.as_bytes())];
    ran.push(other.run(&["deny", "call_1", "--thread", &world.task, "--json"]));
    ran.push(other.run(&["doctor", "--json"]));
    let reindexed = other.run(&["reindex", "--json"]);
    // It reads and verifies the log that it adds to.
    let after = [other.run_with(&append, message.as_bytes())];
    let mut broken = Vec::new();
    for ran in ran.iter().chain([&reindexed]).chain(&after) {
        if !matches!(ran.code, Some(0..=8)) || ran.stderr.contains("panicked") {
            broken.push(format!("crashed: {ran:?}"));
        }
    }
    // A row that names a thread which is not there is reported once.
    let is_rebuilt = reindexed.code == Some(0) || other.run(&["reindex", "--json"]).code == Some(0);
    if !is_rebuilt || after.iter().any(|ran| ran.code != Some(0)) {
        broken.push(format!("not rebuilt: {reindexed:?} {after:?}"));
    }
    let is_whole = |thread: &String| log(other, thread).starts_with(log(&world.sandbox, thread).as_str());
    if !is_whole(&world.ann) || !is_whole(&world.task) {
        broken.push("signed lines are lost or changed".to_owned());
    }
    if other.project().join("paid.txt").exists() {
        broken.push("a denied call ran".to_owned());
    }
    broken
}

/// A position of the feed at the end of its numbers crashed every commit, and the database could not be rebuilt.
#[test]
fn numbers_that_no_program_of_ours_writes_are_survived() {
    try_columns("INTEGER", &["9223372036854775807", "-9223372036854775808", "-1"]);
}

#[test]
fn texts_that_no_program_of_ours_writes_are_survived() {
    try_columns("TEXT", &["''", "'{}'", "'../../x'"]);
}

#[test]
fn bytes_that_no_program_of_ours_writes_are_survived() {
    try_columns("BLOB", &["x''", "zeroblob(100000)"]);
}

/// Puts each value into every column of a type.
fn try_columns(of: &str, values: &[&str]) {
    let world = World::new();
    let database = Connection::open(world.sandbox.threads().join("registry.db")).unwrap();
    let mut tried = 0;
    let mut failures = Vec::new();
    for table in columns(&world).into_keys() {
        for (column, _) in typed(&database, &table).into_iter().filter(|(_, found)| found == of) {
            for value in values {
                let change = |database: &Connection| {
                    database.pragma_update(None, "foreign_keys", false).unwrap();
                    let row = format!("(SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1)");
                    let last = format!("UPDATE {table} SET {column} = {value} WHERE rowid = {row}");
                    let any = format!("UPDATE OR IGNORE {table} SET {column} = {value}");
                    let changed = database.execute(&last, []).or_else(|_| database.execute(&any, []));
                    changed.is_ok_and(|count| count > 0)
                };
                let Some(other) = world.changed(&change) else { continue };
                tried += 1;
                let broken = broken(&world, &other);
                if !broken.is_empty() {
                    failures.push(format!("{table}.{column} = {value}: {broken:#?}"));
                }
            }
        }
    }
    assert!(tried > 20, "only {tried} values could be written");
    assert!(failures.is_empty(), "{} of {tried}:\n{}", failures.len(), failures.join("\n"));
}
