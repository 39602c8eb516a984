//! Checks that the schema of a database is exactly the one that this program creates.
//!
//! A program that can write the file can also change its schema: a generated column that computes something else, an index that leaves
//! rows out, a trigger that drops a write. So the text of the schema is compared when a connection is opened, in one small query. The
//! counters of `AUTOINCREMENT` and the highest numbers of rows are read, too: one near its maximum would make every insert fail.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use selvedge_store::{Error, Result};

use crate::schema::{REBUILD, SCRIPTS, database};

/// The highest number that a counter may have reached. Counting up to it takes longer than any store lives.
pub(crate) const COUNTER_MAX: i64 = 1 << 53;

/// Everything in the schema, and every counter, each with a text or a number.
const WHOLE: &str =
    "SELECT type, name, sql FROM main.sqlite_schema UNION ALL SELECT 'counter', name, seq FROM main.sqlite_sequence";

/// The highest number in each table that is numbered upwards: the next one is derived from it, whatever its counter says.
const NUMBERS: &str = "SELECT 'feed', max(position) FROM main.feed UNION ALL SELECT 'leads', max(id) FROM main.leads \
     UNION ALL SELECT 'redo', max(id) FROM main.redo UNION ALL SELECT 'requests', max(id) FROM main.requests \
     UNION ALL SELECT 'runs', max(id) FROM main.runs UNION ALL SELECT 'threads', max(id) FROM main.threads";

/// The table in which SQLite keeps its counters.
const COUNTERS: &str = "CREATE TABLE sqlite_sequence(name,seq)";

/// The differences between the schema of a database and the expected one.
#[derive(Debug, Default)]
pub(crate) struct SchemaDifferences {
    /// Tables and indexes that are missing or have another text.
    pub(crate) altered: Vec<String>,
    /// Counters that can't be right.
    pub(crate) counters: Vec<String>,
    /// Objects that this program never creates.
    pub(crate) foreign: Vec<String>,
}

impl SchemaDifferences {
    /// The faults of a database.
    pub(crate) fn of(connection: &Connection) -> Result<Self> {
        let mut found = Self::default();
        let mut missing: BTreeSet<&str> = expected().iter().map(String::as_str).collect();
        let mut statement = connection.prepare(WHOLE).map_err(database)?;
        let mut rows = statement.query([]).map_err(database)?;
        while let Some(row) = rows.next().map_err(database)? {
            let text = |column: usize| -> Result<String> {
                Ok(String::from_utf8_lossy(row.get_ref(column).map_err(database)?.as_bytes().unwrap_or(b"?"))
                    .into_owned())
            };
            let kind = text(0)?;
            let name = text(1)?;
            match (kind.as_str(), row.get_ref(2).map_err(database)?) {
                ("counter", ValueRef::Integer(0..=COUNTER_MAX)) => {}
                ("counter", _) => found.counters.push(format!("the counter of table `{name}`")),
                ("index", ValueRef::Null) if name.starts_with("sqlite_autoindex_") => {}
                ("table", ValueRef::Text(sql)) if name == "sqlite_sequence" && sql == COUNTERS.as_bytes() => {}
                ("table" | "index", ValueRef::Text(sql)) => {
                    if !missing.remove(plain(&String::from_utf8_lossy(sql)).as_str()) {
                        found.foreign.push(format!("{kind} `{name}`"));
                    }
                }
                _ => found.foreign.push(format!("{kind} `{name}`")),
            }
        }
        found.altered.extend(missing.into_iter().map(named));
        if found.altered.is_empty() {
            found.add_numbers(connection)?;
        }
        Ok(found)
    }

    /// Adds the tables in which a number can't be right.
    fn add_numbers(&mut self, connection: &Connection) -> Result<()> {
        let mut statement = connection.prepare(NUMBERS).map_err(database)?;
        let mut rows = statement.query([]).map_err(database)?;
        while let Some(row) = rows.next().map_err(database)? {
            let table: String = row.get(0).map_err(database)?;
            let number: Option<i64> = row.get(1).map_err(database)?;
            if number.is_some_and(|number| number > COUNTER_MAX) {
                self.counters.push(format!("the counter of table `{table}`"));
            }
        }
        Ok(())
    }

    /// The differences as a sentence; `None` if there are none.
    pub(crate) fn why(&self) -> Option<String> {
        let all: BTreeSet<_> = [&self.altered, &self.foreign, &self.counters].into_iter().flatten().collect();
        let all: Vec<_> = all.into_iter().map(String::as_str).collect();
        (!all.is_empty()).then(|| format!("another program changed its schema: {}", all.join(", ")))
    }

    /// Returns an error if there are differences.
    pub(crate) fn refuse(&self) -> Result<()> {
        match self.why() {
            None => Ok(()),
            Some(why) => {
                Err(Error::Integrity { what: "`registry.db`".to_owned(), why, hint: Some(REBUILD.to_owned()) })
            }
        }
    }
}

/// What a statement creates, in words: `table `name``.
fn named(statement: &str) -> String {
    let mut words = statement.split(' ').skip(1);
    let kind = words.next().unwrap_or_default();
    let name = words.next().unwrap_or_default();
    format!("{} `{name}`", kind.to_lowercase())
}

/// The statements that create a database, without their comments.
fn expected() -> &'static [String] {
    static EXPECTED: OnceLock<Vec<String>> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let statements = SCRIPTS.iter().flat_map(|script| statements(script));
        statements.filter(|statement| !statement.is_empty()).collect()
    })
}

/// The statements of a script; none of ours has a semicolon in quotes.
fn statements(script: &str) -> Vec<String> {
    plain(script).split(';').map(|statement| statement.trim().to_owned()).collect()
}

/// A statement without its comments, and with one space where there are several. What stands in quotes stays as it is.
fn plain(sql: &str) -> String {
    let mut plain = String::with_capacity(sql.len());
    let mut quote = None;
    let mut left = sql.chars().peekable();
    while let Some(next) = left.next() {
        match quote {
            Some(end) => {
                plain.push(next);
                quote = Some(end).filter(|end| *end != next);
            }
            None if next == '-' && left.peek() == Some(&'-') => {
                // The end of its line separates, as the comment did.
                left.by_ref().find(|next| *next == '\n');
                space(&mut plain);
            }
            None if next.is_ascii_whitespace() => space(&mut plain),
            None => {
                plain.push(next);
                quote = match next {
                    '\'' | '"' | '`' => Some(next),
                    '[' => Some(']'),
                    _ => None,
                };
            }
        }
    }
    plain.truncate(plain.trim_end().len());
    plain
}

fn space(text: &mut String) {
    if !text.is_empty() && !text.ends_with(' ') {
        text.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{self, ConnectionMode};

    fn made() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.db");
        std::fs::File::create(&path).unwrap();
        schema::create(&path).unwrap();
        (folder, path)
    }

    #[test]
    fn a_new_database_has_just_what_is_expected() {
        let (_folder, path) = made();
        schema::open(&path, ConnectionMode::Write).unwrap();
        let found = SchemaDifferences::of(&Connection::open(&path).unwrap()).unwrap();
        assert_eq!(found.why(), None);
    }

    #[test]
    fn comments_and_the_width_of_a_gap_say_nothing_and_quotes_say_everything() {
        let short = "CREATE TABLE a (b TEXT, c TEXT)";
        assert_eq!(plain("\nCREATE  TABLE a (b TEXT, -- it's a 'comment'; really\n    c TEXT)\n"), short);
        assert_eq!(plain("CREATE TABLE a (b TEXT, --\n c TEXT)"), short);
        let kept = "x DEFAULT '--  ''\n'";
        assert_eq!(plain(kept), kept);
        assert_ne!(plain("'$.parent_id'"), plain("'$.parent_id--\n'"));
        assert_ne!(plain("/* c */ CREATE TABLE a (b TEXT, c TEXT)"), short);
    }

    /// Whatever is changed in the schema is named, and no other name.
    #[test]
    fn a_schema_that_was_changed_is_refused_by_name() {
        let rewritten = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, '% 32', '% 31') \
                         WHERE name = 'budget_ledger';";
        let count = |table: &str, seq: &str| format!("INSERT INTO sqlite_sequence VALUES ('{table}', {seq});");
        for (change, said) in [
            (rewritten.to_owned(), "table `budget_ledger`"),
            ("CREATE TRIGGER t BEFORE INSERT ON redo BEGIN SELECT RAISE(IGNORE); END;".to_owned(), "trigger `t`"),
            ("CREATE VIEW v AS SELECT 1;".to_owned(), "view `v`"),
            ("CREATE INDEX i ON redo (thread);".to_owned(), "index `i`"),
            ("CREATE TABLE more (a);".to_owned(), "table `more`"),
            ("DROP INDEX threads_chain;".to_owned(), "index `threads_chain`"),
            ("DROP TABLE leads;".to_owned(), "table `leads`"),
            ("ALTER TABLE keys ADD COLUMN more TEXT;".to_owned(), "table `keys`"),
            (count("requests", "9223372036854775807"), "the counter of table `requests`"),
            (count("threads", "-1"), "the counter of table `threads`"),
            (count("redo", "'many'"), "the counter of table `redo`"),
            ("INSERT INTO feed (position, thread, version) VALUES (9223372036854775807, 1, 1)".to_owned(), "`feed`"),
        ] {
            let (_folder, path) = made();
            Connection::open(&path).unwrap().execute_batch(&change).unwrap();
            let error = schema::open(&path, ConnectionMode::Read).map(drop).expect_err(&change).to_string();
            assert!(error.contains(said), "{change}: {error}");
            assert!(!error.contains("`heads`"), "{change}: {error}");
        }
    }
}
