//! Compares the fold of a log with the rows that the database has of it. Writes nothing.
//!
//! Compared are the head, the manifest and the rows of every index: messages, runs, commit keys, answered requests, erased blobs.

use std::collections::BTreeSet;

use rusqlite::types::FromSql;
use rusqlite::{Connection, Params, params};
use selvedge_model::MessageId;
use selvedge_store::Result;
use selvedge_store::folded::Folded;

use crate::index;
use crate::rows::Row;
use crate::schema::database;

/// How the rows differ from the log, if they do, as the end of a sentence about the database.
pub(crate) fn contradiction(folded: &Folded<'_>, connection: &Connection, row: &Row) -> Result<Option<String>> {
    let Some(manifest) = folded.manifest() else { return Ok(None) };
    if index::changed(manifest, &row.manifest) {
        return Ok(Some("has a different manifest".to_owned()));
    }
    let sql = "SELECT message_id, digest FROM messages WHERE thread = ?";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([row.id]).map_err(database)?;
    let mut known = 0;
    while let Some(row) = found.next().map_err(database)? {
        let id: String = row.get(0).map_err(database)?;
        let digest: Vec<u8> = row.get(1).map_err(database)?;
        let same = MessageId::new(id.as_str()).ok().and_then(|id| folded.messages.get(&id));
        if same.is_none_or(|same| same.0[..] != digest[..]) {
            return Ok(Some(format!("has a message `{id}` that is not in the log")));
        }
        known += 1;
    }
    let missing = folded.messages.len() - known;
    if missing > 0 {
        return Ok(Some(format!("lacks {missing} of its messages")));
    }
    if folded.signer.is_some_and(|signer| signer != row.head.signer) {
        return Ok(Some("records another key as its last signer".to_owned()));
    }
    missing_rows(folded, connection, row)
}

/// The missing rows of the other indexes. Additional rows are found by their seals.
fn missing_rows(folded: &Folded<'_>, connection: &Connection, row: &Row) -> Result<Option<String>> {
    let id = row.id;
    let runs: BTreeSet<String> = column(connection, "SELECT run_id FROM runs WHERE thread = ?", params![id])?;
    let erased: BTreeSet<Vec<u8>> = column(connection, "SELECT blob FROM erasures WHERE thread = ?", params![id])?;
    let sql = "SELECT request_id FROM answers WHERE chain_root = ?";
    let answered: BTreeSet<String> = column(connection, sql, params![row.manifest.chain_root_id.as_str()])?;
    let mut statement = connection.prepare_cached("SELECT 1 FROM keys WHERE key = ?").map_err(database)?;
    for key in &folded.keys {
        if !statement.exists([key]).map_err(database)? {
            return Ok(Some(format!("lacks the commit key `{key}`")));
        }
    }
    let lost = [
        ("run", folded.runs.difference(&runs).count()),
        ("answered request", folded.answered.difference(&answered).count()),
        ("erased blob", folded.erased.difference(&erased).count()),
    ];
    let first = lost.into_iter().find(|(_, count)| *count > 0);
    Ok(first.map(|(what, count)| format!("lacks {count} {what}(s) of it")))
}

fn column<T: FromSql + Ord>(connection: &Connection, sql: &str, values: impl Params) -> Result<BTreeSet<T>> {
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let found = statement.query_map(values, |row| row.get(0)).map_err(database)?;
    found.collect::<rusqlite::Result<_>>().map_err(database)
}
