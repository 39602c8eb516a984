//! The feed: every version of every thread, in the order of the commits, and the lines of each.
//!
//! ```text
//! position  thread  version  line  counts
//!        1     ann        0     0  2 3 2     ann 0: lines 0–1, ann 1: lines 2–4, ann 2: lines 5–6
//!        4     bob        0     0  2         bob 0: lines 0–1
//!        5     ann        3     7  4         ann 3: lines 7–10, and further versions up to the head of ann
//! ```
//!
//! A row begins a run: the versions of one thread at consecutive positions, up to the next row. The last run extends to the head of its
//! thread. So a commit to the same thread as the commit before moves the head, and with it the feed, and writes no row here: its number of
//! lines is stored in the head, which is written anyway, and moves to the row when the next run begins. Invariants:
//!
//! - every version has one position, later commits a greater one, and a position is never used twice;
//! - the head of a thread only moves forward when the version is announced here, and its positions are withdrawn before it is set back;
//! - the counts of a run are in its row; those of the last run are in its row and, after them, in the head of its thread;
//! - where counts are missing, they are read from the log: the feed is a hint.
//!
//! The thread of a run that was withdrawn is [`NO_THREAD`].

use std::ops::Range;

use rusqlite::{Connection, params};
use selvedge_model::ThreadId;
use selvedge_store::{FeedEntry, Result};

use crate::rows::{self, bad_row, signed, unsigned};
use crate::schema::database;

mod counts;
mod missing;

pub(crate) use counts::packed;

/// The thread of withdrawn positions.
const NO_THREAD: i64 = 0;

/// The maximum number of positions of a run, so that a head stays small.
const RUN_MAX: i64 = 32;

/// The columns that define the lines of a run, of `feed AS f` and `heads AS h`.
const LINES: &str = "f.line, f.counts, COALESCE(h.counts, x'')";

/// Fills gaps between rows with withdrawn positions, and adds one after the last row if the head of its thread is at another version.
pub(crate) const CLOSE_GAPS: &str = "
INSERT INTO feed (position, thread, version)
    SELECT position + 1, 0, 0 FROM feed AS f WHERE NOT EXISTS (SELECT 1 FROM feed WHERE position = f.position + 1)
    AND (EXISTS (SELECT 1 FROM feed WHERE position > f.position)
         OR f.version <> (SELECT version FROM heads WHERE id = f.thread));
";

/// The newest position, and the version of a thread at it.
#[derive(Clone, Debug)]
pub(crate) struct FeedEnd {
    position: i64,
    thread: i64,
    version: i64,
    /// The first position of its run.
    begin: i64,
    /// The counts of its run.
    counts: Vec<u8>,
    /// How many bytes of them are in the row of the run, and not in the head of the thread.
    in_row: usize,
}

impl FeedEnd {
    /// Reads the newest position; must be called in the transaction that announces, before a head is moved.
    pub(crate) fn newest(connection: &Connection) -> Result<Self> {
        let lines = LINES;
        let sql = format!(
            "SELECT f.position, f.thread, f.version, h.version, {lines} FROM feed AS f LEFT JOIN heads AS h ON h.id = f.thread \
             WHERE f.position = (SELECT MAX(position) FROM feed)"
        );
        let mut statement = connection.prepare_cached(&sql).map_err(database)?;
        let mut found = statement.query([]).map_err(database)?;
        let Some(row) = found.next().map_err(database)? else {
            return Ok(Self { position: 0, thread: NO_THREAD, version: 0, begin: 0, counts: Vec::new(), in_row: 0 });
        };
        let run = Run::of(row, None).map_err(database)?;
        let position = run.last();
        let in_row = run.counts.len();
        let version = run.version.saturating_add(position - run.position);
        let begin = run.position;
        let thread = run.thread;
        Ok(Self { position, thread, version, begin, counts: [run.counts, run.more].concat(), in_row })
    }

    /// Whether this version of a thread extends the run.
    fn extends_run(&self, thread: i64, version: u64) -> bool {
        let places = (self.position - self.begin).saturating_add(1);
        self.thread == thread
            && self.version.checked_add(1) == Some(signed(version))
            && places < RUN_MAX
            && counts::len(&self.counts) == unsigned(places)
    }

    /// The counts that the head of a thread must store when a commit of these lines, which is to be announced, moves it to a version.
    pub(crate) fn head_counts(&self, thread: i64, version: u64, lines: &Range<u64>) -> Vec<u8> {
        if !self.extends_run(thread, version) {
            return Vec::new();
        }
        let mut kept = self.counts[self.in_row..].to_vec();
        counts::push(&mut kept, lines);
        kept
    }

    /// Announces a version of a thread, committed with these lines. Its head must store the counts that [`FeedEnd::head_counts`] returns.
    pub(crate) fn announce(
        &mut self,
        connection: &Connection,
        thread: i64,
        version: u64,
        lines: &Range<u64>,
    ) -> Result<()> {
        let position = self.position.saturating_add(1);
        if self.extends_run(thread, version) {
            self.position = position;
            self.version = signed(version);
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

    /// The same for a head that has been moved already.
    pub(crate) fn announce_moved(
        &mut self,
        connection: &Connection,
        thread: i64,
        version: u64,
        lines: &Range<u64>,
    ) -> Result<()> {
        let kept = self.head_counts(thread, version, lines);
        self.announce(connection, thread, version, lines)?;
        rows::execute(connection, "UPDATE heads SET counts = ? WHERE id = ?", params![kept, thread])?;
        Ok(())
    }

    /// Moves the counts in the head to the row of the run, before another row becomes the last one.
    fn close(&self, connection: &Connection) -> Result<()> {
        if self.in_row < self.counts.len() {
            let sql = "UPDATE feed SET counts = ? WHERE position = ?";
            rows::execute(connection, sql, params![self.counts, self.begin])?;
        }
        Ok(())
    }
}

/// The position of the newest commit.
pub(crate) fn position(connection: &Connection) -> Result<u64> {
    FeedEnd::newest(connection).map(|newest| unsigned(newest.position))
}

/// A commit in the feed, with the row id of its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeedRow {
    position: i64,
    pub(crate) thread: i64,
    name: Option<String>,
    pub(crate) version: i64,
    /// Absent if the counts are missing.
    pub(crate) lines: Option<Range<u64>>,
}

/// Commits after `position`, in order, at most `limit`; without their lines where the counts are missing.
fn after(connection: &Connection, position: u64, limit: usize) -> Result<Vec<FeedEntry>> {
    let commitment = |entry: FeedRow| {
        let thread = ThreadId::new(entry.name.unwrap_or_default()).map_err(bad_row)?;
        Ok(FeedEntry::new(unsigned(entry.position), thread, unsigned(entry.version), entry.lines.unwrap_or(0..0)))
    };
    entries(connection, "main", position, limit)?.into_iter().map(commitment).collect()
}

/// The same from the database of this name, with row ids of threads.
pub(crate) fn entries(
    connection: &Connection,
    database_name: &str,
    position: u64,
    limit: usize,
) -> Result<Vec<FeedRow>> {
    let lines = LINES;
    let sql = format!(
        "SELECT f.position, f.thread, f.version, h.version, {lines}, t.thread_id FROM {database_name}.feed AS f \
         LEFT JOIN {database_name}.heads AS h ON h.id = f.thread LEFT JOIN {database_name}.threads AS t ON t.id = f.thread \
         WHERE f.position >= (SELECT COALESCE(MAX(position), 0) FROM {database_name}.feed WHERE position <= ?) \
         ORDER BY f.position"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(database)?;
    let mut found = statement.query([signed(position)]).map_err(database)?;
    let mut entries = Vec::new();
    let mut begun: Option<(Run, Option<String>)> = None;
    while entries.len() < limit {
        let next = match found.next().map_err(database)? {
            Some(row) => {
                let name: Option<String> = row.get(7).map_err(database)?;
                Some((Run::of(row, begun.as_mut().map(|(run, _)| run)).map_err(database)?, name))
            }
            None => None,
        };
        let is_last = next.is_none();
        if let Some((run, Some(name))) = std::mem::replace(&mut begun, next) {
            let all = run.entries(&name).skip_while(|entry| entry.position <= signed(position));
            entries.extend(all.take(limit - entries.len()));
        }
        if is_last {
            break;
        }
    }
    Ok(entries)
}

/// One row of the feed.
struct Run {
    position: i64,
    thread: i64,
    version: i64,
    /// Its number of positions.
    length: i64,
    /// The number of its first line.
    line: i64,
    /// The counts in its row.
    counts: Vec<u8>,
    /// Those in the head of its thread, if it is the last run.
    more: Vec<u8>,
}

impl Run {
    /// The run that begins at a row of position, thread, version, the current version of the thread, and [`LINES`]; the previous run ends
    /// there.
    fn of(row: &rusqlite::Row<'_>, before: Option<&mut Self>) -> rusqlite::Result<Self> {
        let position: i64 = row.get(0)?;
        let version: i64 = row.get(2)?;
        if let Some(before) = before {
            before.length = position.saturating_sub(before.position);
            before.more.clear();
        }
        let head: Option<i64> = row.get(3)?;
        let length = head.map_or(1, |head| head.saturating_sub(version).saturating_add(1)).max(1);
        let line = row.get(4)?;
        let counts = row.get(5)?;
        let more = row.get(6)?;
        Ok(Self { position, thread: row.get(1)?, version, length, line, counts, more })
    }

    /// Its last position.
    fn last(&self) -> i64 {
        self.position.saturating_add(self.length - 1)
    }

    /// All its commits.
    fn entries(&self, name: &str) -> impl Iterator<Item = FeedRow> {
        let mut end = unsigned(self.line);
        let mut counts = counts::each(&self.counts).chain(counts::each(&self.more));
        (0..self.length).map(move |number| {
            let lines = counts.next().map(|count| end..end + count);
            end = lines.as_ref().map_or(end, |lines| lines.end);
            let position = self.position.saturating_add(number);
            let version = self.version.saturating_add(number);
            FeedRow { position, thread: self.thread, name: Some(name.to_owned()), version, lines }
        })
    }
}

/// Withdraws the positions of a thread from a version on, before its head is set back. The newest position stays, without a thread: the
/// feed continues after it.
pub(crate) fn withdraw(connection: &Connection, thread: i64, from_version: u64) -> Result<()> {
    let newest = FeedEnd::newest(connection)?;
    let from = signed(from_version);
    if newest.thread == thread && newest.version >= from {
        newest.close(connection)?;
        let sql = "INSERT OR REPLACE INTO feed (position, thread, version) VALUES (?, ?, 0)";
        rows::execute(connection, sql, params![newest.position, NO_THREAD])?;
    }
    // Where a run extends beyond the part that stays, a withdrawn run begins.
    let sql = "INSERT INTO feed (position, thread, version) SELECT position + ?2 - version, ?3, 0 FROM feed AS f \
               WHERE thread = ?1 AND version < ?2 \
                   AND (SELECT MIN(position) FROM feed WHERE position > f.position) > position + ?2 - version";
    rows::execute(connection, sql, params![thread, from, NO_THREAD])?;
    let sql = "UPDATE feed SET thread = ?3 WHERE thread = ?1 AND version >= ?2";
    rows::execute(connection, sql, params![thread, from, NO_THREAD])?;
    // Of consecutive withdrawn rows only the first is needed, and the newest position.
    let sql = "DELETE FROM feed AS f WHERE thread = ?1 AND position < (SELECT MAX(position) FROM feed) AND ?1 = COALESCE( \
                   (SELECT thread FROM feed WHERE position < f.position ORDER BY position DESC LIMIT 1), ?1)";
    rows::execute(connection, sql, params![NO_THREAD])?;
    Ok(())
}

/// A query for the newest position in the database of this name; no row if the feed is empty.
pub(crate) fn newest(schema: &str) -> String {
    format!(
        "SELECT f.position + COALESCE((SELECT h.version FROM {schema}.heads AS h WHERE h.id = f.thread) - f.version, 0) \
         FROM {schema}.feed AS f ORDER BY f.position DESC LIMIT 1"
    )
}

#[cfg(test)]
mod tests;
