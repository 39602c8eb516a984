//! The feed: every version that a thread came to, in the order of the commits, and the lines that it wrote.
//!
//! ```text
//! position  thread  version  line  counts
//!        1     ann        0     0  2 3 2     ann 0: lines 0–1, ann 1: lines 2–4, ann 2: lines 5–6
//!        4     bob        0     0  2         bob 0: lines 0–1
//!        5     ann        3     7  4         ann 3: lines 7–10, and as far as ann has come since
//! ```
//!
//! A row begins a run: its thread came to that version, and with each place behind it to the next one, up to the next row. The last run
//! goes as far as its thread has come. So a commit to the same thread as the commit before moves the head, and with
//! it the feed, and writes no row here: how many lines it has is put down in the head, which is written anyway, and
//! moves to the row when the next run begins. What holds:
//!
//! - every version has one place, later commits a greater one, and a place is never used twice;
//! - the head of a thread is never moved but by what is announced here, and what was announced is withdrawn before it is set back;
//! - the counts of a run stand in its row; those of the last run in its row and, behind them, in the head of its thread;
//! - where counts are missing, the log is asked: the feed is a hint.
//!
//! The thread of a run that was withdrawn is [`NOBODY`].

use std::ops::Range;

use rusqlite::{Connection, params};
use selvedge_model::ThreadId;
use selvedge_store::{Commitment, Result};

use crate::rows::{self, bad_row, signed, unsigned};
use crate::schema::database;

mod counts;
mod missing;

pub(crate) use counts::packed;

/// The thread of places that are nobody's.
const NOBODY: i64 = 0;

/// How many places a run has at most, so that a head stays small.
const RUN_MAX: i64 = 32;

/// The columns that say which lines a run has, of `feed AS f` and `heads AS h`.
const LINES: &str = "f.line, f.counts, COALESCE(h.counts, x'')";

/// Lets nobody's begin where rows are missing, and behind the last one if its thread has come further.
pub(crate) const CLOSE_GAPS: &str = "
INSERT INTO feed (position, thread, version)
    SELECT position + 1, 0, 0 FROM feed AS f WHERE NOT EXISTS (SELECT 1 FROM feed WHERE position = f.position + 1)
    AND (EXISTS (SELECT 1 FROM feed WHERE position > f.position)
         OR f.version <> (SELECT version FROM heads WHERE id = f.thread));
";

/// The newest place, and who came to which version there.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    position: i64,
    thread: i64,
    version: i64,
    /// Where its run begins.
    begin: i64,
    /// The counts of its run.
    counts: Vec<u8>,
    /// How many bytes of them stand in the row of the run, and not in the head of the thread.
    in_row: usize,
}

impl Place {
    /// The newest place; must be asked in the transaction that announces, and before it moves a head.
    pub(crate) fn newest(connection: &Connection) -> Result<Self> {
        let lines = LINES;
        let sql = format!(
            "SELECT f.position, f.thread, f.version, h.version, {lines} FROM feed AS f LEFT JOIN heads AS h ON h.id = f.thread \
             WHERE f.position = (SELECT MAX(position) FROM feed)"
        );
        let mut statement = connection.prepare_cached(&sql).map_err(database)?;
        let mut found = statement.query([]).map_err(database)?;
        let Some(row) = found.next().map_err(database)? else {
            return Ok(Self { position: 0, thread: NOBODY, version: 0, begin: 0, counts: Vec::new(), in_row: 0 });
        };
        let run = Run::of(row, None).map_err(database)?;
        let position = run.last();
        let in_row = run.counts.len();
        let version = run.version + (position - run.position);
        let begin = run.position;
        let thread = run.thread;
        Ok(Self { position, thread, version, begin, counts: [run.counts, run.more].concat(), in_row })
    }

    /// Whether this version of a thread is one more place of the run.
    fn goes_on(&self, thread: i64, version: u64) -> bool {
        let places = self.position - self.begin + 1;
        self.thread == thread
            && self.version + 1 == signed(version)
            && places < RUN_MAX
            && counts::len(&self.counts) == unsigned(places)
    }

    /// What the head of a thread must keep of the run when it comes to a version by a commit of these lines, which is to be announced.
    pub(crate) fn kept(&self, thread: i64, version: u64, lines: &Range<u64>) -> Vec<u8> {
        if !self.goes_on(thread, version) {
            return Vec::new();
        }
        let mut kept = self.counts[self.in_row..].to_vec();
        counts::push(&mut kept, lines);
        kept
    }

    /// Tells followers that a thread came to a version by a commit of these lines. Its head must keep what [`Place::kept`] says.
    pub(crate) fn announce(
        &mut self,
        connection: &Connection,
        thread: i64,
        version: u64,
        lines: &Range<u64>,
    ) -> Result<()> {
        let position = self.position + 1;
        if self.goes_on(thread, version) {
            (self.position, self.version) = (position, signed(version));
            counts::push(&mut self.counts, lines);
            return Ok(());
        }
        self.close(connection)?;
        let counts = packed(lines);
        let version = signed(version);
        let in_row = counts.len();
        let sql = "INSERT INTO feed (position, thread, version, line, counts) VALUES (?, ?, ?, ?, ?)";
        rows::execute(connection, sql, params![position, thread, version, signed(lines.start), counts])?;
        *self = Self { position, thread, version, begin: position, counts, in_row };
        Ok(())
    }

    /// The same for a head that was moved before.
    pub(crate) fn announce_moved(
        &mut self,
        connection: &Connection,
        thread: i64,
        version: u64,
        lines: &Range<u64>,
    ) -> Result<()> {
        let kept = self.kept(thread, version, lines);
        self.announce(connection, thread, version, lines)?;
        rows::execute(connection, "UPDATE heads SET counts = ? WHERE id = ?", params![kept, thread])?;
        Ok(())
    }

    /// Moves what the head keeps of the run to its row, before another row is the last one.
    fn close(&self, connection: &Connection) -> Result<()> {
        if self.in_row < self.counts.len() {
            let sql = "UPDATE feed SET counts = ? WHERE position = ?";
            rows::execute(connection, sql, params![self.counts, self.begin])?;
        }
        Ok(())
    }
}

/// The place of the newest commit.
pub(crate) fn position(connection: &Connection) -> Result<u64> {
    Place::newest(connection).map(|newest| unsigned(newest.position))
}

/// A commit that was told of, by the number of its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    position: i64,
    pub(crate) thread: i64,
    name: Option<String>,
    pub(crate) version: i64,
    /// Absent if the row does not say so.
    pub(crate) lines: Option<Range<u64>>,
}

/// Commits behind `position`, in order, at most `limit`; without their lines where no row has them.
fn after(connection: &Connection, position: u64, limit: usize) -> Result<Vec<Commitment>> {
    let commitment = |told: Told| {
        let thread = ThreadId::new(told.name.unwrap_or_default()).map_err(bad_row)?;
        Ok(Commitment::new(unsigned(told.position), thread, unsigned(told.version), told.lines.unwrap_or(0..0)))
    };
    told(connection, "main", position, limit)?.into_iter().map(commitment).collect()
}

/// The same of the database of this name, threads by their numbers.
pub(crate) fn told(connection: &Connection, database_name: &str, position: u64, limit: usize) -> Result<Vec<Told>> {
    let lines = LINES;
    let sql = format!(
        "SELECT f.position, f.thread, f.version, h.version, {lines}, t.thread_id FROM {database_name}.feed AS f \
         LEFT JOIN {database_name}.heads AS h ON h.id = f.thread LEFT JOIN {database_name}.threads AS t ON t.id = f.thread \
         WHERE f.position >= (SELECT COALESCE(MAX(position), 0) FROM {database_name}.feed WHERE position <= ?) \
         ORDER BY f.position"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(database)?;
    let mut found = statement.query([signed(position)]).map_err(database)?;
    let mut told = Vec::new();
    let mut begun: Option<(Run, Option<String>)> = None;
    while told.len() < limit {
        let next = match found.next().map_err(database)? {
            Some(row) => {
                let name: Option<String> = row.get(7).map_err(database)?;
                Some((Run::of(row, begun.as_mut().map(|(run, _)| run)).map_err(database)?, name))
            }
            None => None,
        };
        let is_last = next.is_none();
        if let Some((run, Some(name))) = std::mem::replace(&mut begun, next) {
            let all = run.places(&name).skip_while(|place| place.position <= signed(position));
            told.extend(all.take(limit - told.len()));
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
    /// The number of its first line.
    line: i64,
    /// The counts in its row.
    counts: Vec<u8>,
    /// Those in the head of its thread, if it is the last run.
    more: Vec<u8>,
}

impl Run {
    /// The run that begins at a row of position, thread, version, the version that the thread has now, and [`LINES`]; the one before
    /// it ends there.
    fn of(row: &rusqlite::Row<'_>, before: Option<&mut Self>) -> rusqlite::Result<Self> {
        let (position, version): (i64, i64) = (row.get(0)?, row.get(2)?);
        if let Some(before) = before {
            before.length = position - before.position;
            before.more.clear();
        }
        let head: Option<i64> = row.get(3)?;
        let length = head.map_or(1, |head| head - version + 1).max(1);
        let line = row.get(4)?;
        let counts = row.get(5)?;
        let more = row.get(6)?;
        Ok(Self { position, thread: row.get(1)?, version, length, line, counts, more })
    }

    /// Its last place.
    fn last(&self) -> i64 {
        self.position + self.length - 1
    }

    /// All its places.
    fn places(&self, name: &str) -> impl Iterator<Item = Told> {
        let mut end = unsigned(self.line);
        let mut counts = counts::each(&self.counts).chain(counts::each(&self.more));
        (0..self.length).map(move |number| {
            let lines = counts.next().map(|count| end..end + count);
            end = lines.as_ref().map_or(end, |lines| lines.end);
            let position = self.position + number;
            let version = self.version + number;
            Told { position, thread: self.thread, name: Some(name.to_owned()), version, lines }
        })
    }
}

/// Takes back what followers were told of a thread from a version on, before its head goes there. The newest place stays, as
/// nobody's: it is where the feed goes on.
pub(crate) fn withdraw(connection: &Connection, thread: i64, from_version: u64) -> Result<()> {
    let newest = Place::newest(connection)?;
    let from = signed(from_version);
    if newest.thread == thread && newest.version >= from {
        newest.close(connection)?;
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

/// A query for the newest place of the database of this name; no row if nothing was told.
pub(crate) fn newest(schema: &str) -> String {
    format!(
        "SELECT f.position + COALESCE((SELECT h.version FROM {schema}.heads AS h WHERE h.id = f.thread) - f.version, 0) \
         FROM {schema}.feed AS f ORDER BY f.position DESC LIMIT 1"
    )
}

#[cfg(test)]
mod tests;
