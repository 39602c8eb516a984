//! What the next changeset of a thread leads with: what was found and mended before it, sealed until it is signed.
//!
//! A row here is signed by the next honest commit, so a row that was not sealed with the key must not count. What holds:
//!
//! - only `recovery` and `key_rotated` lead a changeset;
//! - a row counts if its mark was made with the key for this event, in this log, at this head: one that was planted, altered, moved to
//!   another thread or put back after its changeset was signed does not;
//! - rows that don't count are left out of the log, named, and removed by the commit that would have recorded them;
//! - a row that was removed is missed: the head says how many there are.

use rusqlite::params;
use selvedge_log::Head;
use selvedge_log::hash::{Binding, Seals};
use selvedge_model::event::Place;
use selvedge_model::{Digest, Event};
use selvedge_store::Result;

use crate::db::Db;
use crate::index;
use crate::rows::{self, Row, bad_row};
use crate::schema::database;
use crate::sealed::Mark;

/// What the next changeset leads with.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Leads {
    /// The events that count, in order.
    pub(crate) events: Vec<Event>,
    /// The numbers of all rows, those that don't count included; the commit that leads with the events removes them.
    pub(crate) rows: Vec<i64>,
    /// How many rows don't count.
    pub(crate) unsealed: usize,
    /// How many there should be and are not.
    pub(crate) missing: usize,
}

fn binding(head: &Head) -> Binding<'_> {
    Binding { log_id: head.log_id.as_str(), segment: head.segment, version: head.version, offset: head.bytes }
}

/// Tells this content from every other that is marked.
fn content(event: &str) -> Vec<u8> {
    [b"lead\0", event.as_bytes()].concat()
}

/// Puts down what the next changeset of a thread must lead with; gives its row as it is then.
pub(crate) fn put(db: &Db, row: &Row, event: &Event) -> Result<Row> {
    let event = serde_json::to_string(event).map_err(bad_row)?;
    let mark = db.seals().map_or(Mark::NONE, |seals| seals.mark(&binding(&row.head), &content(&event)).into());
    let sql = "INSERT INTO leads (thread, event, mark) VALUES (?, ?, ?)";
    rows::execute(db, sql, params![row.id, event, mark.bytes()])?;
    index::set_leads(db, row, row.leads + 1)
}

/// What the next changeset of a thread leads with. Without a key none counts.
pub(crate) fn read(db: &Db, row: &Row) -> Result<Leads> {
    let sql = "SELECT id, event, mark FROM leads WHERE thread = ? ORDER BY id";
    let mut statement = db.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([row.id]).map_err(database)?;
    let mut leads = Leads::default();
    let head = &row.head;
    let expected = row.leads;
    while let Some(row) = found.next().map_err(database)? {
        let (text, mark): (String, Vec<u8>) = (row.get(1).map_err(database)?, row.get(2).map_err(database)?);
        leads.rows.push(row.get(0).map_err(database)?);
        match db.seals().and_then(|seals| counted(seals, head, &text, mark)) {
            Some(event) => leads.events.push(event),
            None => leads.unsealed += 1,
        }
    }
    // One that was put in a second time is as genuine as the first.
    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
    leads.missing = expected.saturating_sub(leads.events.len());
    leads.unsealed += leads.events.len().saturating_sub(expected);
    leads.events.truncate(expected);
    Ok(leads)
}

/// Lets what waited behind the head of `from` lead the changeset behind that of `to`, to which a repair moved the thread.
pub(crate) fn rebind(db: &Db, from: &Row, to: &Row) -> Result<Row> {
    let waiting = read(db, from)?;
    for row in &waiting.rows {
        rows::execute(db, "DELETE FROM leads WHERE id = ?", [row])?;
    }
    let mut row = index::set_leads(db, to, 0)?;
    for event in &waiting.events {
        row = put(db, &row, event)?;
    }
    Ok(row)
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
