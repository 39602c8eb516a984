//! The whole content of a database as text, to compare two of them.
//!
//! Threads are named, not numbered, and everything is in a stable order, so that a database and one that was rebuilt from its logs give the
//! same text. Left out is what is not content: row numbers and feed positions, the redo, saved states and running hashes (caches, which
//! prove nothing), and which leases are held.

use std::fmt::Write;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use selvedge_store::{FeedEntry, Result};

use crate::open::LocalStore;
use crate::rows::{self, bad_row};
use crate::schema::database;

/// The query for each table; the versions of a commit key are sorted.
const TABLES: [(&str, &str); 10] = [
    ("leads", "SELECT t.thread_id, x.event FROM leads AS x JOIN threads AS t ON t.id = x.thread ORDER BY 1, x.id"),
    (
        "messages",
        "SELECT t.thread_id, message_id, hex(digest) FROM messages AS x JOIN threads AS t ON t.id = x.thread ORDER BY 1, 2",
    ),
    (
        "runs",
        "SELECT t.thread_id, run_id, parent_run_id, meta, x.created_at, x.updated_at FROM runs AS x JOIN threads AS t ON t.id = x.thread ORDER BY 1, x.id",
    ),
    (
        "keys",
        "SELECT key, hex(request), (SELECT group_concat(value, ',') FROM (SELECT value FROM json_each(answer, '$.versions') ORDER BY value)) FROM keys ORDER BY 1",
    ),
    (
        "requests",
        "SELECT t.thread_id, request_id, posted_at, body FROM requests AS x JOIN threads AS t ON t.id = x.thread ORDER BY 1, x.id",
    ),
    (
        "answers",
        "SELECT chain_root, request_id, t.thread_id, x.version FROM answers AS x JOIN threads AS t ON t.id = x.thread ORDER BY 1, 2",
    ),
    ("tombstones", "SELECT thread_id, tombstone, document, buried FROM tombstones ORDER BY 1"),
    (
        "budget_ledger",
        "SELECT thread_id, parent_id, max_spend, own_spend, children_spend, reserved_spend, open, status, version, incomplete FROM budget_ledger ORDER BY 1",
    ),
    ("reservations", "SELECT account, reservation, body FROM reservations ORDER BY 1, 2"),
    (
        "erasures",
        "SELECT t.thread_id, hex(blob), reason, erased_at, done FROM erasures AS x JOIN threads AS t ON t.id = x.thread ORDER BY 1, 2",
    ),
];

impl LocalStore {
    /// The whole content of the database as text; equal for databases with equal content.
    pub fn dump(&self) -> Result<String> {
        let mut entries = self.core.after(0, usize::MAX)?;
        entries.sort_by(|one, two| (&one.thread, one.version).cmp(&(&two.thread, two.version)));
        self.core.read(|connection| {
            let mut text = String::new();
            for row in rows::select(connection, "true ORDER BY t.thread_id", [])? {
                let manifest = serde_json::to_string(&row.manifest).map_err(bad_row)?;
                let head = serde_json::to_string(&row.head).map_err(bad_row)?;
                _ = writeln!(text, "threads | {manifest} | {head} | epoch {}", row.epoch);
            }
            for (table, sql) in TABLES {
                dump_table(connection, table, sql, &mut text)?;
            }
            for entry in &entries {
                let FeedEntry { thread, version, first_line, lines, .. } = entry;
                _ = writeln!(text, "feed | {thread} | {version} | {first_line} | {lines}");
            }
            Ok(text)
        })
    }
}

fn dump_table(connection: &Connection, table: &str, sql: &str, text: &mut String) -> Result<()> {
    let mut statement = connection.prepare(sql).map_err(database)?;
    let columns = statement.column_count();
    let mut found = statement.query([]).map_err(database)?;
    while let Some(row) = found.next().map_err(database)? {
        text.push_str(table);
        for column in 0..columns {
            _ = match row.get_ref(column).map_err(database)? {
                ValueRef::Null => write!(text, " | –"),
                ValueRef::Integer(number) => write!(text, " | {number}"),
                ValueRef::Text(bytes) => write!(text, " | {}", String::from_utf8_lossy(bytes)),
                ValueRef::Real(number) => write!(text, " | {number}"),
                ValueRef::Blob(bytes) => write!(text, " | {} bytes", bytes.len()),
            };
        }
        text.push('\n');
    }
    Ok(())
}
