//! The search index changed by a program that has no key. It is a hint as a whole: whatever is in it, what is shown stands in the verified
//! log, no command crashes, commits don't notice, and the next search without it finds everything again.

use super::*;

/// The tables of the index that this program creates; the tables of a full-text table begin with its name.
const TABLES: [&str; 5] = ["documents", "meta", "threads", "unembedded", "vectors"];
const FULL_TEXT: [&str; 2] = ["trigrams", "words"];

struct Searched {
    sandbox: Sandbox,
    ann: String,
}

impl Searched {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let ann = sandbox.new_thread("ann");
        for thread in [ann.clone(), sandbox.new_thread("bob")] {
            for text in ["The invoice was paid.", "Another invoice came."] {
                let message = json!({"reason": "UserMessage", "messages": [{"role": "user", "content": text}]});
                let append = ["append", &thread, "--expect", "any"];
                assert_eq!(sandbox.run_with(&append, message.to_string().as_bytes()).code, Some(0));
            }
        }
        let searched = Self { sandbox, ann };
        assert_eq!(passages(&searched.sandbox, "invoice").unwrap().len(), 2);
        searched
    }

    fn index(sandbox: &Sandbox) -> Connection {
        Connection::open(sandbox.threads().join("search.db")).unwrap()
    }

    /// A copy with a changed index; none if nothing could be changed.
    fn changed(&self, change: &str) -> Option<Sandbox> {
        let other = Sandbox::empty_in_memory();
        copy(&self.sandbox.root(), &other.root());
        keep_to_owner(&other.home());
        let index = Self::index(&other);
        let before = index.total_changes();
        // Without this, SQLite refuses to write to the tables of a full-text table.
        index.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false).unwrap();
        index.execute_batch(change).is_ok().then_some(())?;
        (index.total_changes() > before).then_some(other)
    }
}

/// The threads and passages that a search shows; why it is not one.
fn passages(sandbox: &Sandbox, query: &str) -> Result<Vec<(String, String)>, String> {
    let ran = sandbox.run(&["search", query, "--json"]);
    match ran.code {
        Some(0) => {
            let text = |hit: &Value, name: &str| hit[name].as_str().unwrap().to_owned();
            let results = ran.json()["results"].as_array().unwrap().clone();
            Ok(results.iter().map(|hit| (text(hit, "thread_id"), text(hit, "passage"))).collect())
        }
        // It names what is damaged.
        Some(6) if !ran.stderr.contains("panicked") => Ok(Vec::new()),
        _ => Err(format!("{ran:?}")),
    }
}

#[test]
fn nothing_in_the_search_index_is_shown_that_the_log_does_not_have() {
    let world = Searched::new();
    let index = Searched::index(&world.sandbox);
    let list = |sql: &str| -> Vec<String> {
        let mut statement = index.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(rusqlite::Result::unwrap).collect()
    };
    let mut changes = Vec::new();
    for table in list("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'") {
        if FULL_TEXT.contains(&table.as_str()) {
            continue;
        }
        let is_known =
            TABLES.contains(&table.as_str()) || FULL_TEXT.iter().any(|name| table.starts_with(&format!("{name}_")));
        assert!(is_known, "`{table}` is new: say what it may decide");
        for column in list(&format!("SELECT name FROM pragma_table_xinfo('{table}') WHERE hidden = 0")) {
            for value in ["'mallory'", "-1", "9223372036854775807", "zeroblob(40)", "''", "NULL"] {
                changes.push(format!("UPDATE OR REPLACE {table} SET {column} = {value}"));
            }
            changes.push(format!("UPDATE OR REPLACE {table} SET {column} = {column} + 1"));
        }
        changes.push(format!("DELETE FROM {table}"));
    }
    changes.push(
        "INSERT INTO documents (thread, kind, version, line, offset, digest, at, text) \
         SELECT thread, kind, version, line, offset, digest, at, 'mallory was paid' FROM documents; \
         INSERT INTO words (rowid, text) SELECT id, text FROM documents WHERE text LIKE 'mallory%'"
            .to_owned(),
    );
    drop(index);
    let log = log(&world.sandbox, &world.ann);
    let mut tried = 0;
    let mut failures = Vec::new();
    for change in &changes {
        let Some(other) = world.changed(change) else { continue };
        tried += 1;
        for query in ["invoice", "mallory"] {
            match passages(&other, query) {
                Ok(found) => {
                    let is_there = |(thread, passage): &(String, String)| {
                        other.transcript(thread).exists() && log.contains(passage.as_str())
                    };
                    if !found.iter().all(is_there) {
                        failures.push(format!("{change}: shown: {found:?}"));
                    }
                }
                Err(why) => failures.push(format!("{change}: {why}")),
            }
        }
        let append = ["append", &world.ann, "--expect", "any"];
        if other.run_with(&append, HELLO.as_bytes()).code != Some(0) {
            failures.push(format!("{change}: a commit failed"));
        }
        for file in ["search.db", "search.db-wal", "search.db-shm"] {
            _ = fs::remove_file(other.threads().join(file));
        }
        if passages(&other, "invoice").map(|found| found.len()) != Ok(2) {
            failures.push(format!("{change}: not found again without the index"));
        }
    }
    assert!(tried > 40, "only {tried} changes could be made");
    assert!(failures.is_empty(), "{} of {tried}:\n{}", failures.len(), failures.join("\n"));
}
