//! Redo: committed bytes that may not be durable in their transcript yet.
//!
//! ```text
//! rows of one thread      |---|     |----|--------|-----|
//!                         stale     └─ the redo ────────┘
//!                                                       head.bytes
//! ```
//!
//! A row whose bytes are durable in its transcript is not deleted but overwritten by a later commit, of any thread: that changes one page
//! of the database where inserting and deleting would change five. So a thread may have stale rows. Invariants, also after a crash:
//!
//! - every committed byte that is not durable in its transcript is in a row;
//! - a row has the bytes that belong at its offset in the log, so writing them there again changes nothing;
//! - rows of a thread become stale from the oldest on, so the redo of a thread is the sequence of rows that leads to its head without a
//!   gap;
//! - the head of a thread names its newest row, and each row the one before it in the log. So the redo of a thread is found without reading
//!   the rows of other threads, and without an index, which every commit would have to update. A name leads to a row of this thread that
//!   ends where the next one begins, or to no row.
//!
//! A process that drained a row of another process may delete it. So a row is overwritten, or deleted, only if it still is the row that was
//! read; if it was deleted, a new one is inserted. Spare rows that are kept while no commits arrive belong to no thread ([`disown`]): while
//! a row leads to the head of a thread, readers take it for bytes that a crash kept from the file, and would take a file that was cut for a
//! whole one.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, params};
use selvedge_store::Result;

use crate::rows::{self, signed, unsigned};
use crate::schema::database;

/// The capacities of reused rows in bytes: with their overhead they fill one or two pages of the database.
const ROOMS: [usize; 2] = [1_990, 4_000];

/// The maximum number of spare rows.
const SPARES_MAX: usize = 4_096;

/// How many spare rows of each size are kept when no commits arrive: about as many as one thread uses between syncs, so that an agent that
/// waits for its model between two commits finds them.
pub(crate) const SPARES_IDLE: usize = 256;

/// The id of no row.
pub(crate) const NONE: i64 = 0;

/// Sets the names in heads and rows.
pub(crate) const LINK: &str = "
UPDATE main.redo SET before = named.before
    FROM (SELECT id, LAG(id, 1, 0) OVER (PARTITION BY thread ORDER BY offset) AS before FROM main.redo) AS named
    WHERE named.id = redo.id;
UPDATE main.heads SET redo = newest.id
    FROM (SELECT id, thread, MAX(offset) FROM main.redo GROUP BY thread) AS newest WHERE newest.thread = heads.id;
";

/// One row, with the fields that show whether it is still the row that was read: an offset in a log is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RedoRow {
    id: i64,
    thread: i64,
    offset: i64,
    /// Its capacity in bytes; none if it is not reused.
    room: Option<usize>,
}

impl RedoRow {
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Whether it belongs to no thread.
    pub(crate) fn is_detached(&self) -> bool {
        self.thread == NO_THREAD
    }

    /// The offset of its bytes in the log.
    pub(crate) fn offset(&self) -> i64 {
        self.offset
    }
}

/// The redo of one thread.
#[derive(Debug, Default)]
pub(crate) struct Redo {
    /// The offset of its first byte.
    pub(crate) from: u64,
    /// Its bytes, without a gap.
    pub(crate) bytes: Vec<u8>,
    /// Its rows.
    pub(crate) rows: Vec<RedoRow>,
}

impl Redo {
    /// The redo of the thread with this row id, whose log has `head_bytes`.
    pub(crate) fn read(connection: &Connection, thread: i64, head_bytes: u64) -> Result<Option<Self>> {
        let mut next = newest(connection, thread)?;
        let sql = "SELECT offset, bytes, before FROM redo WHERE id = ? AND thread = ?";
        let mut statement = connection.prepare_cached(sql).map_err(database)?;
        let mut from = head_bytes;
        let mut pieces = Vec::new();
        let mut rows = Vec::new();
        while next != NONE {
            let row =
                statement.query_row([next, thread], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?, row.get(2)?)));
            let Some((offset, bytes, before)) = row.optional().map_err(database)? else { break };
            let begin = unsigned(offset);
            if bytes.is_empty() || begin + bytes.len() as u64 != from {
                break;
            }
            rows.push(RedoRow { id: next, thread, offset, room: None });
            pieces.push(bytes);
            from = begin;
            next = before;
        }
        pieces.reverse();
        rows.reverse();
        Ok((!rows.is_empty()).then(|| Self { from, bytes: pieces.concat(), rows }))
    }

    /// The same by a search of all rows.
    #[cfg(test)]
    pub(crate) fn search(connection: &Connection, thread: i64, head_bytes: u64) -> Result<Option<Self>> {
        let sql = "SELECT id, offset, bytes FROM redo WHERE thread = ? AND offset < ? ORDER BY offset";
        let mut statement = connection.prepare_cached(sql).map_err(database)?;
        let mut found = statement.query([thread, signed(head_bytes)]).map_err(database)?;
        let mut redo = Self::default();
        while let Some(row) = found.next().map_err(database)? {
            let offset: i64 = row.get(1).map_err(database)?;
            let bytes = row.get_ref(2).and_then(|value| Ok(value.as_blob()?)).map_err(database)?;
            if redo.end() != unsigned(offset) {
                redo = Self { from: unsigned(offset), ..Self::default() };
            }
            redo.bytes.extend_from_slice(bytes);
            redo.rows.push(RedoRow { id: row.get(0).map_err(database)?, thread, offset, room: None });
        }
        Ok((!redo.rows.is_empty() && redo.end() == head_bytes).then_some(redo))
    }

    /// The redo of an outline, if its rows still are those that were read.
    pub(crate) fn of(connection: &Connection, outline: &RedoOutline) -> Result<Option<Self>> {
        let sql = "SELECT bytes FROM redo WHERE id = ? AND thread = ? AND offset = ?";
        let mut statement = connection.prepare_cached(sql).map_err(database)?;
        let mut redo = Self { from: outline.from, rows: outline.rows.clone(), ..Self::default() };
        for row in &outline.rows {
            let bytes =
                statement.query_row([row.id, row.thread, row.offset], |row| row.get::<_, Vec<u8>>(0)).optional();
            let Some(bytes) = bytes.map_err(database)? else { return Ok(None) };
            redo.bytes.extend_from_slice(&bytes);
        }
        Ok((redo.end() == outline.end()).then_some(redo))
    }

    pub(crate) fn end(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }
}

/// All rows.
#[derive(Debug, Default)]
pub(crate) struct RedoRows {
    /// The redo of each thread.
    pub(crate) threads: Vec<RedoOutline>,
    /// RedoRows that are not needed any more.
    pub(crate) stale: Vec<RedoRow>,
}

/// The redo of one thread without its bytes.
#[derive(Debug)]
pub(crate) struct RedoOutline {
    /// The row id of the thread.
    pub(crate) id: i64,
    from: u64,
    /// Its length.
    pub(crate) bytes: u64,
    pub(crate) rows: Vec<RedoRow>,
}

impl RedoOutline {
    /// Where it ends.
    pub(crate) fn end(&self) -> u64 {
        self.from + self.bytes
    }
}

impl RedoRows {
    /// Reads every row, but not its bytes.
    pub(crate) fn read(connection: &Connection) -> Result<Self> {
        let sql = "SELECT id, thread, offset, length(bytes) FROM redo ORDER BY thread, offset";
        let mut statement = connection.prepare_cached(sql).map_err(database)?;
        let mut found = statement.query([]).map_err(database)?;
        let mut all = Self::default();
        let mut open: Option<RedoOutline> = None;
        while let Some(row) = found.next().map_err(database)? {
            let get = |column: usize| row.get::<_, i64>(column).map_err(database);
            let row = RedoRow { id: get(0)?, thread: get(1)?, offset: get(2)?, room: None };
            let length = unsigned(get(3)?);
            let continues = |outline: &RedoOutline| outline.id == row.thread && outline.end() == unsigned(row.offset);
            let outline = match open.take() {
                Some(outline) if continues(&outline) => open.insert(outline),
                other => {
                    all.take(connection, other)?;
                    open.insert(RedoOutline { id: row.thread, from: unsigned(row.offset), bytes: 0, rows: Vec::new() })
                }
            };
            outline.bytes += length;
            outline.rows.push(row);
        }
        all.take(connection, open)?;
        Ok(all)
    }

    /// Adds consecutive rows: if they lead to the head of their thread they are its redo, else they are stale.
    fn take(&mut self, connection: &Connection, outline: Option<RedoOutline>) -> Result<()> {
        let Some(mut outline) = outline else { return Ok(()) };
        let mut statement = connection.prepare_cached("SELECT bytes FROM heads WHERE id = ?").map_err(database)?;
        let head: Option<i64> = statement.query_row([outline.id], |row| row.get(0)).optional().map_err(database)?;
        match head {
            Some(head) if unsigned(head) == outline.end() => self.threads.push(outline),
            _ => self.stale.append(&mut outline.rows),
        }
        Ok(())
    }
}

/// The id of the newest row of a thread, as its head names it.
pub(crate) fn newest(connection: &Connection, thread: i64) -> Result<i64> {
    let mut statement = connection.prepare_cached("SELECT redo FROM heads WHERE id = ?").map_err(database)?;
    let named = statement.query_row([thread], |row| row.get(0)).optional().map_err(database)?;
    Ok(named.unwrap_or(NONE))
}

/// Writes committed bytes: over `spare`, if it still is the row that was read, or in a new row, whose id is then written to the head; the
/// head must name `spare` already. `before` is the row that the head named before.
pub(crate) fn put(
    connection: &Connection,
    spare: Option<RedoRow>,
    (thread, offset): (i64, u64),
    bytes: &[u8],
    before: i64,
) -> Result<RedoRow> {
    let room = room(bytes.len());
    let offset = signed(offset);
    let padding = signed((room.unwrap_or(bytes.len()) - bytes.len()) as u64);
    if let Some(spare) = spare {
        let sql = "UPDATE redo SET thread = ?, offset = ?, bytes = ?, padding = zeroblob(?), before = ? \
                   WHERE id = ? AND thread = ? AND offset = ?";
        let now = params![thread, offset, bytes, padding, before, spare.id, spare.thread, spare.offset];
        if rows::execute(connection, sql, now)? == 1 {
            return Ok(RedoRow { id: spare.id, thread, offset, room });
        }
    }
    let sql = "INSERT INTO redo (thread, offset, bytes, padding, before) VALUES (?, ?, ?, zeroblob(?), ?)";
    rows::execute(connection, sql, params![thread, offset, bytes, padding, before])?;
    let id = connection.last_insert_rowid();
    rows::execute(connection, "UPDATE heads SET redo = ? WHERE id = ?", [id, thread])?;
    Ok(RedoRow { id, thread, offset, room })
}

/// The thread of spare rows.
const NO_THREAD: i64 = 0;

/// Detaches rows from their threads, if they still are those that were read; returns them as they are now.
pub(crate) fn disown(connection: &Connection, rows: &[RedoRow]) -> Result<Vec<RedoRow>> {
    let mut disowned = Vec::with_capacity(rows.len());
    for row in rows {
        let sql = "UPDATE redo SET thread = ? WHERE id = ? AND thread = ? AND offset = ?";
        let is_there = row.thread == NO_THREAD
            || rows::execute(connection, sql, params![NO_THREAD, row.id, row.thread, row.offset])? == 1;
        if is_there {
            disowned.push(RedoRow { thread: NO_THREAD, ..*row });
        }
    }
    Ok(disowned)
}

/// Deletes rows that still are those that were read.
pub(crate) fn delete(connection: &Connection, rows: &[RedoRow]) -> Result<()> {
    for row in rows {
        let sql = "DELETE FROM redo WHERE id = ? AND thread = ? AND offset = ?";
        rows::execute(connection, sql, params![row.id, row.thread, row.offset])?;
    }
    Ok(())
}

/// The capacity of a row for this many bytes; none if it is not reused.
fn room(bytes: usize) -> Option<usize> {
    ROOMS.into_iter().find(|room| bytes <= *room)
}

/// RedoRows of this process whose bytes are durable in their transcripts, to be reused.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    free: [Vec<RedoRow>; ROOMS.len()],
    /// Lent to a transaction that has not ended yet.
    lent: Vec<RedoRow>,
}

impl Spares {
    /// Lends a row with room for this many bytes.
    pub(crate) fn lend(&mut self, bytes: usize) -> Option<RedoRow> {
        let row = self.shelf(room(bytes))?.pop()?;
        self.lent.push(row);
        Some(row)
    }

    /// Forgets a lent row that does not exist any more, whatever the outcome of the transaction.
    pub(crate) fn forget(&mut self, lost: &RedoRow) {
        self.lent.retain(|row| row.id != lost.id);
    }

    /// Ends the loans: rows that were not overwritten are free again. `used` are the ids of those that were.
    pub(crate) fn settle(&mut self, mut used: Vec<i64>) {
        used.sort_unstable();
        for row in std::mem::take(&mut self.lent) {
            if used.binary_search(&row.id).is_err() {
                self.keep(row);
            }
        }
    }

    /// Keeps a row for reuse; false if there are enough, or if it is not of a reusable size.
    pub(crate) fn keep(&mut self, row: RedoRow) -> bool {
        let count: usize = self.free.iter().map(Vec::len).sum();
        match self.shelf(row.room).filter(|_| count < SPARES_MAX) {
            Some(shelf) => {
                shelf.push(row);
                true
            }
            None => false,
        }
    }

    /// Takes every row.
    pub(crate) fn take_all(&mut self) -> Vec<RedoRow> {
        self.free.iter_mut().flat_map(std::mem::take).collect()
    }

    /// Takes every row: those that are kept when no commits read_archive, which were used last, and the others.
    pub(crate) fn take_apart(&mut self) -> (Vec<RedoRow>, Vec<RedoRow>) {
        let mut others = Vec::new();
        for shelf in &mut self.free {
            others.extend(shelf.drain(..shelf.len().saturating_sub(SPARES_IDLE)));
        }
        (self.take_all(), others)
    }

    pub(crate) fn ids(&self) -> HashSet<i64> {
        self.free.iter().flatten().chain(&self.lent).map(|row| row.id).collect()
    }

    fn shelf(&mut self, room: Option<usize>) -> Option<&mut Vec<RedoRow>> {
        let index = ROOMS.iter().position(|known| Some(*known) == room)?;
        self.free.get_mut(index)
    }
}
