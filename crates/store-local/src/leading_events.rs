//! The events that the next changeset of a thread leads with: what was found and repaired before it, sealed until it is signed.
//!
//! The next commit signs these rows, so a row that fails its seal must not be used. Invariants:
//!
//! - only `recovery` and `key_rotated` lead a changeset;
//! - a row is valid if its mark was made with the key for this event, in this log, at this head: one that was planted, altered, moved to
//!   another thread or inserted again after its changeset was signed is not;
//! - invalid rows are left out of the log, reported, and removed by the commit that would have recorded them;
//! - a removed row is noticed: the head has their number.

use rusqlite::params;
use selvedge_model::Event;
use selvedge_store::{Result, seal};

use crate::db::Db;
use crate::index;
use crate::rows::{self, Row, bad_row};
use crate::schema::database;
use crate::sealed::Mark;

/// The events that the next changeset leads with.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LeadingEvents {
    /// The valid events, in order.
    pub(crate) events: Vec<Event>,
    /// The ids of all rows, invalid ones included; the commit that leads with the events removes them.
    pub(crate) rows: Vec<i64>,
    /// How many rows are invalid.
    pub(crate) unsealed: usize,
    /// How many rows are missing.
    pub(crate) missing: usize,
}

/// Adds an event that the next changeset of a thread must lead with; returns the new row of the thread.
pub(crate) fn put(db: &Db, row: &Row, event: &Event) -> Result<Row> {
    let event = serde_json::to_string(event).map_err(bad_row)?;
    let mark = db.seals().map_or(Mark::NONE, |seals| seal::lead(seals, &row.head, &event).into());
    let sql = "INSERT INTO leads (thread, event, mark) VALUES (?, ?, ?)";
    rows::execute(db, sql, params![row.id, event, mark.bytes()])?;
    index::set_leads(db, row, row.leads + 1)
}

/// The events that the next changeset of a thread leads with. Without a key none is valid.
pub(crate) fn read(db: &Db, row: &Row) -> Result<LeadingEvents> {
    let sql = "SELECT id, event, mark FROM leads WHERE thread = ? ORDER BY id";
    let mut statement = db.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([row.id]).map_err(database)?;
    let mut leads = LeadingEvents::default();
    let head = &row.head;
    let expected = row.leads;
    while let Some(row) = found.next().map_err(database)? {
        let text: String = row.get(1).map_err(database)?;
        let mark = Mark::read(row.get(2).map_err(database)?);
        leads.rows.push(row.get(0).map_err(database)?);
        let sealed = db.seals().zip(mark.digest());
        match sealed.and_then(|(seals, mark)| seal::valid_lead(seals, head, &text, mark)) {
            Some(event) => leads.events.push(event),
            None => leads.unsealed += 1,
        }
    }
    // A row that was inserted a second time has a valid mark too.
    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
    leads.missing = expected.saturating_sub(leads.events.len());
    leads.unsealed += leads.events.len().saturating_sub(expected);
    leads.events.truncate(expected);
    Ok(leads)
}

/// Moves the events that waited at the head `from` to the head `to`, to which a repair moved the thread.
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
