//! The feed: every version that a thread came to, in the order of the commits.
//!
//! ```text
//! position  thread  version
//!        1     ann        0      ann 0, ann 1, ann 2
//!        4     bob        0      bob 0
//!        5     ann        3      ann 3, and as far as ann has come since
//! ```
//!
//! A row begins a run: its thread came to that version, and with each place behind it to the next one, up to the next row. The last run
//! goes as far as its thread has come. So whoever commits to the same thread as the commit before moves the head, and with
//! it the feed, and writes no row here. What holds:
//!
//! - every version has one place, later commits a greater one, and a place is never used twice;
//! - the head of a thread is never moved but by what is announced here, and what was announced is withdrawn before it is set back.
//!
//! The thread of a run that was withdrawn is [`NOBODY`].

use rusqlite::{Connection, params};
use selvedge_model::ThreadId;
use selvedge_store::{Commitment, Result};

use crate::rows::{self, bad_row, signed, unsigned};
use crate::schema::database;

/// The thread of places that are nobody's.
const NOBODY: i64 = 0;

/// Lets nobody's begin where rows are missing, and behind the last one if its thread has come further.
pub(crate) const CLOSE_GAPS: &str = "
INSERT INTO feed SELECT position + 1, 0, 0 FROM feed AS f WHERE NOT EXISTS (SELECT 1 FROM feed WHERE position = f.position + 1)
    AND (EXISTS (SELECT 1 FROM feed WHERE position > f.position)
         OR f.version <> (SELECT version FROM heads WHERE id = f.thread));
";

/// The newest place, and who came to which version there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    position: i64,
    thread: i64,
    version: i64,
}

impl Place {
    /// The newest place; must be asked in the transaction that announces, and before it moves a head.
    pub(crate) fn newest(connection: &Connection) -> Result<Self> {
        let sql = "SELECT f.position, f.thread, f.version, h.version FROM feed AS f LEFT JOIN heads AS h ON h.id = f.thread \
                   ORDER BY f.position DESC LIMIT 1";
        let mut statement = connection.prepare_cached(sql).map_err(database)?;
        let mut found = statement.query([]).map_err(database)?;
        let Some(row) = found.next().map_err(database)? else {
            return Ok(Self { position: 0, thread: NOBODY, version: 0 });
        };
        let run = Run::of(row, None).map_err(database)?;
        Ok(Self { position: run.last(), thread: run.thread, version: run.version + (run.last() - run.position) })
    }

    /// Tells followers that a thread came to a version.
    pub(crate) fn announce(&mut self, connection: &Connection, thread: i64, version: u64) -> Result<()> {
        let now = Self { position: self.position + 1, thread, version: signed(version) };
        let before = std::mem::replace(self, now);
        if before.thread == thread && before.version + 1 == now.version {
            return Ok(());
        }
        let sql = "INSERT INTO feed (position, thread, version) VALUES (?, ?, ?)";
        rows::execute(connection, sql, params![now.position, thread, now.version])?;
        Ok(())
    }
}

/// The place of the newest commit.
pub(crate) fn position(connection: &Connection) -> Result<u64> {
    let _moment = connection.unchecked_transaction().map_err(database)?;
    Place::newest(connection).map(|newest| unsigned(newest.position))
}

/// Commits behind `position`, in order, at most `limit`.
pub(crate) fn after(connection: &Connection, position: u64, limit: usize) -> Result<Vec<Commitment>> {
    let _moment = connection.unchecked_transaction().map_err(database)?;
    let sql = "SELECT f.position, f.thread, f.version, h.version, t.thread_id FROM feed AS f \
               LEFT JOIN heads AS h ON h.id = f.thread LEFT JOIN threads AS t ON t.id = f.thread \
               WHERE f.position >= (SELECT COALESCE(MAX(position), 0) FROM feed WHERE position <= ?) ORDER BY f.position";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([signed(position)]).map_err(database)?;
    let mut told = Vec::new();
    let mut begun: Option<(Run, Option<ThreadId>)> = None;
    while told.len() < limit {
        let next = match found.next().map_err(database)? {
            Some(row) => {
                let name: Option<String> = row.get(4).map_err(database)?;
                let name = name.map(ThreadId::new).transpose().map_err(bad_row)?;
                Some((Run::of(row, begun.as_mut().map(|(run, _)| run)).map_err(database)?, name))
            }
            None => None,
        };
        let is_last = next.is_none();
        if let Some((run, Some(name))) = std::mem::replace(&mut begun, next) {
            let places = run.position.max(signed(position).saturating_add(1))..=run.last();
            told.extend(places.take(limit - told.len()).map(|place| Commitment {
                position: unsigned(place),
                thread: name.clone(),
                version: unsigned(run.version + (place - run.position)),
            }));
        }
        if is_last {
            break;
        }
    }
    Ok(told)
}

/// One row.
struct Run {
    position: i64,
    thread: i64,
    version: i64,
    /// How many places it has.
    length: i64,
}

impl Run {
    /// The run that begins at a row of position, thread, version and the version that the thread has now; the one before it ends there.
    fn of(row: &rusqlite::Row<'_>, before: Option<&mut Self>) -> rusqlite::Result<Self> {
        let (position, version): (i64, i64) = (row.get(0)?, row.get(2)?);
        if let Some(before) = before {
            before.length = position - before.position;
        }
        let head: Option<i64> = row.get(3)?;
        let length = head.map_or(1, |head| head - version + 1).max(1);
        Ok(Self { position, thread: row.get(1)?, version, length })
    }

    /// Its last place.
    fn last(&self) -> i64 {
        self.position + self.length - 1
    }
}

/// Takes back what followers were told of a thread from a version on, before its head goes there. The newest place stays, as
/// nobody's: it is where the feed goes on.
pub(crate) fn withdraw(connection: &Connection, thread: i64, from_version: u64) -> Result<()> {
    let (newest, from) = (Place::newest(connection)?, signed(from_version));
    if newest.thread == thread && newest.version >= from {
        let sql = "INSERT OR REPLACE INTO feed (position, thread, version) VALUES (?, ?, 0)";
        rows::execute(connection, sql, params![newest.position, NOBODY])?;
    }
    // Where a run goes on beyond what stays of it, nobody's begins.
    let sql = "INSERT INTO feed (position, thread, version) SELECT position + ?2 - version, ?3, 0 FROM feed AS f \
               WHERE thread = ?1 AND version < ?2 \
                   AND (SELECT MIN(position) FROM feed WHERE position > f.position) > position + ?2 - version";
    rows::execute(connection, sql, params![thread, from, NOBODY])?;
    let sql = "UPDATE feed SET thread = ?3 WHERE thread = ?1 AND version >= ?2";
    rows::execute(connection, sql, params![thread, from, NOBODY])?;
    // Of rows of nobody's behind each other the first says it all, but for the newest place.
    let sql = "DELETE FROM feed AS f WHERE thread = ?1 AND position < (SELECT MAX(position) FROM feed) AND ?1 = COALESCE( \
                   (SELECT thread FROM feed WHERE position < f.position ORDER BY position DESC LIMIT 1), ?1)";
    rows::execute(connection, sql, params![NOBODY])?;
    Ok(())
}

/// A query for every place, thread and version that was told, of the database of this name.
pub(crate) fn every(schema: &str) -> String {
    format!(
        "WITH RECURSIVE runs AS (SELECT position, thread, version, COALESCE(LEAD(position) OVER (ORDER BY position), \
             1 + position + (SELECT h.version FROM {schema}.heads AS h WHERE h.id = f.thread) - version) AS next \
             FROM {schema}.feed AS f), \
         told AS (SELECT position, thread, version, next FROM runs UNION ALL \
             SELECT position + 1, thread, version + 1, next FROM told WHERE position + 1 < next) \
         SELECT position, thread, version FROM told"
    )
}

/// A query for the newest place of the database of this name; no row if nothing was told.
pub(crate) fn newest(schema: &str) -> String {
    format!(
        "SELECT f.position + COALESCE((SELECT h.version FROM {schema}.heads AS h WHERE h.id = f.thread) - f.version, 0) \
         FROM {schema}.feed AS f ORDER BY f.position DESC LIMIT 1"
    )
}

#[cfg(test)]
mod tests;
