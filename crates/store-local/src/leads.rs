//! What the next changeset of a thread leads with: what was found and mended before it, sealed until it is signed.
//!
//! A row here is signed by the next honest commit, so a row that was not sealed with the key must not count. What holds:
//!
//! - only `recovery` and `key_rotated` lead a changeset;
//! - a row counts if its mark was made with the key for this event, in this log, at this head: one that was planted, altered, moved to
//!   another thread or put back after its changeset was signed does not;
//! - rows that don't count are left out of the log, named, and removed by the commit that would have recorded them.

use rusqlite::{Connection, params};
use selvedge_log::Head;
use selvedge_log::hash::{Binding, Seals};
use selvedge_model::event::Place;
use selvedge_model::{Digest, Event};
use selvedge_store::Result;

use crate::rows::{self, bad_row};
use crate::schema::database;

/// What the next changeset leads with.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Leads {
    /// The events that count, in order.
    pub(crate) events: Vec<Event>,
    /// The numbers of all rows, those that don't count included; the commit that leads with the events removes them.
    pub(crate) rows: Vec<i64>,
    /// How many rows don't count.
    pub(crate) unsealed: usize,
}

fn binding(head: &Head) -> Binding<'_> {
    Binding { log_id: head.log_id.as_str(), segment: head.segment, version: head.version, offset: head.bytes }
}

/// Tells this content from every other that is marked.
fn content(event: &str) -> Vec<u8> {
    [b"lead\0", event.as_bytes()].concat()
}

/// Puts down what the next changeset behind `head` must lead with.
pub(crate) fn put(connection: &Connection, seals: &Seals, thread: i64, head: &Head, event: &Event) -> Result<()> {
    let event = serde_json::to_string(event).map_err(bad_row)?;
    let mark = seals.mark(&binding(head), &content(&event));
    let sql = "INSERT INTO leads (thread, event, mark) VALUES (?, ?, ?)";
    rows::execute(connection, sql, params![thread, event, &mark.0[..]])?;
    Ok(())
}

/// What the next changeset of the thread that ends at `head` leads with.
pub(crate) fn read(connection: &Connection, seals: &Seals, thread: i64, head: &Head) -> Result<Leads> {
    let sql = "SELECT id, event, mark FROM leads WHERE thread = ? ORDER BY id";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([thread]).map_err(database)?;
    let mut leads = Leads::default();
    while let Some(row) = found.next().map_err(database)? {
        let (text, mark): (String, Vec<u8>) = (row.get(1).map_err(database)?, row.get(2).map_err(database)?);
        leads.rows.push(row.get(0).map_err(database)?);
        match counted(seals, head, &text, mark) {
            Some(event) => leads.events.push(event),
            None => leads.unsealed += 1,
        }
    }
    Ok(leads)
}

/// The numbers of the rows that wait for a thread.
pub(crate) fn rows_of(connection: &Connection, thread: i64) -> Result<Vec<i64>> {
    let mut statement =
        connection.prepare_cached("SELECT id FROM leads WHERE thread = ? ORDER BY id").map_err(database)?;
    let found = statement.query_map([thread], |row| row.get(0)).map_err(database)?;
    found.collect::<rusqlite::Result<_>>().map_err(database)
}

/// Seals what waits anew, for the head that a repair moved a thread to.
pub(crate) fn rebind(connection: &Connection, seals: &Seals, thread: i64, from: &Head, to: &Head) -> Result<()> {
    let waiting = read(connection, seals, thread, from)?;
    for row in &waiting.rows {
        rows::execute(connection, "DELETE FROM leads WHERE id = ?", [row])?;
    }
    waiting.events.iter().try_for_each(|event| put(connection, seals, thread, to, event))
}

/// The event of a row, if it counts.
fn counted(seals: &Seals, head: &Head, text: &str, mark: Vec<u8>) -> Option<Event> {
    let mark = Digest(mark.try_into().ok()?);
    if !seals.is_marked(&binding(head), &content(text), &mark) {
        return None;
    }
    let event: Event = serde_json::from_str(text).ok()?;
    (event.place() == Place::Lead).then_some(event)
}
