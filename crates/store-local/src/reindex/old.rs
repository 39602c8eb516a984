//! The database that is to be replaced: its redo, and what is in no log.

use std::path::PathBuf;

use rusqlite::{Connection, params};
use selvedge_log::Trust;
use selvedge_model::ThreadId;
use selvedge_store::Result;

use super::{Rebuild, Reindexed, check_whole, companions, is_unreadable, refuse_readers};
use crate::anchor;
use crate::core::io_error;
use crate::db::{Db, Sealer};
use crate::disk::Disk;
use crate::drain::{MissingBytes, check_redo, missing_bytes, write_transcript};
use crate::feed;
use crate::layout::{Layout, is_there};
use crate::redo::{self, Redo, RedoRows};
use crate::rows::{self, Row, bad_row, signed};
use crate::schema::{self, ConnectionMode, database};
use crate::schema_check::SchemaDifferences;
use crate::sealed::Seal;
use crate::transcript_repair::free_name;

/// The database that is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldDatabase {
    /// There is none.
    Absent,
    /// There is a file that is not a readable database.
    Unreadable,
    /// It has an older format. Everything it had committed is in the transcripts, and nothing else of it is used: its rows are not sealed.
    Outdated,
    /// It can be read, and everything it had committed is in the transcripts.
    Readable,
}

impl OldDatabase {
    /// Reads the database. On return everything it had committed is durable in the transcripts.
    pub(super) fn inspect(layout: &Layout, disk: &dyn Disk, trust: &Trust, result: &mut Reindexed) -> Result<Self> {
        let path = layout.database();
        if !is_there(&path)? {
            result.notices.push("there was no database: requests that were not consumed and bytes that were committed but not yet written to a transcript, if there were any, are lost".to_owned());
            return Ok(Self::Absent);
        }
        // A temporary read error looks like damage: only a database that fails twice is moved aside.
        let read = match Self::read(layout, disk, trust, result) {
            Err(error) if is_unreadable(&error) => Self::read(layout, disk, trust, result),
            read => read,
        };
        match read {
            Err(error) if is_unreadable(&error) => {
                result.notices.push(format!("the old database could not be read ({error}): its requests, and bytes that were committed but not yet written to a transcript, could not be carried over; it is moved aside"));
                Ok(Self::Unreadable)
            }
            other => other,
        }
    }

    fn read(layout: &Layout, disk: &dyn Disk, trust: &Trust, result: &mut Reindexed) -> Result<Self> {
        let (connection, format) = schema::open_any(&layout.database(), ConnectionMode::Write)?;
        check_whole(&connection)?;
        for outline in RedoRows::read(&connection)?.threads {
            let thread = match rows::name(&connection, outline.id) {
                Ok(thread) => thread,
                Err(error) => {
                    result.notices.push(format!("redo of the old database belongs to no thread: {error}"));
                    continue;
                }
            };
            let Some(redo) = Redo::of(&connection, &outline)? else { continue };
            match drain(layout, disk, trust, &thread, &redo) {
                Ok(bytes) => result.drained_bytes += bytes,
                Err(error) => result.notices.push(format!("thread `{thread}` could not be drained: {error}")),
            }
        }
        let misshapen =
            if format == schema::FORMAT { SchemaDifferences::of(&connection)? } else { SchemaDifferences::default() };
        // The file alone holds everything from here on, so that what lies beside it can go.
        let fold = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], fold).map_err(database)?;
        drop(connection);
        if busy != 0 {
            refuse_readers(&layout.database())?;
        }
        if let Some(why) = misshapen.why() {
            let is_known = misshapen.altered.is_empty();
            let rest =
                "what it had committed is in the transcripts; requests that were not consumed must be sent again";
            let rest = if is_known { "only what is sealed in it counts" } else { rest };
            result.notices.push(format!("`registry.db`: {why}; {rest}"));
            if !is_known {
                return Ok(Self::Unreadable);
            }
        }
        if format == schema::FORMAT {
            return Ok(Self::Readable);
        }
        let lost = "requests that were not consumed must be sent again";
        result.notices.push(format!("the old database had format {format}, whose rows are not sealed: {lost}"));
        Ok(Self::Outdated)
    }

    /// Attaches the old database to the new one.
    pub(super) fn attach(&self, new: &Connection, layout: &Layout) -> Result<()> {
        if matches!(self, Self::Readable) {
            let path = layout.database().to_string_lossy().into_owned();
            new.execute("ATTACH ? AS old", [path]).map_err(database)?;
        }
        Ok(())
    }

    /// Whether the row of every head was sealed with the key for this store. Without a key nothing can be checked.
    pub(super) fn is_sealed(&self, layout: &Layout, rebuild: &Rebuild, store: &str) -> Result<bool> {
        let Some(signer) = &rebuild.signer else { return Ok(true) };
        let db = Db::open_old(&layout.database(), Some(Sealer::new(signer, store)))?;
        let is_sealed = !schema::is_unsealed(&db)?
            && SchemaDifferences::of(&db)?.why().is_none()
            && anchor::check_all(&db).is_ok()
            && rows::select_any(&db, "1 ORDER BY t.id", [])?.iter().all(|row| row.seal(&db) == Seal::Holds);
        db.close()?;
        Ok(is_sealed)
    }

    /// The threads that the old database has, in the order of their creation.
    pub(super) fn threads(&self, new: &Connection) -> Result<Vec<ThreadId>> {
        if !matches!(self, Self::Readable) {
            return Ok(Vec::new());
        }
        let mut statement = new.prepare("SELECT thread_id FROM old.threads ORDER BY id").map_err(database)?;
        let found = statement.query_map([], |row| row.get::<_, String>(0)).map_err(database)?;
        found.map(|name| ThreadId::new(name.map_err(database)?).map_err(bad_row)).collect()
    }

    /// Carries over the rows of a thread unchanged; returns the new row of its head.
    pub(super) fn carry_rows(&self, new: &Db, row: &Row) -> Result<Row> {
        let sql = "INSERT INTO main.threads (thread_id, log_id, manifest, manifest_stale) \
                   SELECT thread_id, log_id, manifest, manifest_stale FROM old.threads WHERE id = ?";
        rows::execute(new, sql, [row.id])?;
        let id = new.last_insert_rowid();
        let columns =
            "version, lines, bytes, hash, segment, signer, head_epoch, sealed, epoch, owner, updated_at, posted";
        let sql = format!(
            "INSERT INTO main.heads (id, {columns}, heard, leads, anchor, mark) SELECT ?, {columns}, ?, 0, ?, ? FROM old.heads WHERE id = ?"
        );
        let row_now = Row { id, leads: 0, anchor: anchor::epoch(new)?, ..row.clone() }.sealed(new.seals());
        let heard = rows::consumed_text(&row.consumed)?;
        rows::execute(new, &sql, params![id, heard, signed(row_now.anchor), row_now.mark.bytes(), row.id])?;
        let tables = [
            ("messages", "message_id, digest, mark", "message_id"),
            ("states", "version, bytes, state", "version"),
            ("runs", "run_id, parent_run_id, meta, created_at, updated_at, mark", "id"),
            ("redo", "offset, bytes, padding", "offset"),
            ("erasures", "blob, reason, erased_at, done, mark", "blob"),
        ];
        for (table, columns, order) in tables {
            let sql = format!(
                "INSERT INTO main.{table} (thread, {columns}) SELECT ?, {columns} FROM old.{table} WHERE thread = ? ORDER BY {order}"
            );
            rows::execute(new, &sql, [id, row.id])?;
        }
        new.execute_batch(redo::LINK).map_err(database)?;
        let entries = feed::entries(new, "old", 0, usize::MAX)?;
        for entry in entries.into_iter().filter(|entry| entry.thread == row.id) {
            let sql = "INSERT INTO main.feed (thread, version, line, counts) VALUES (?, ?, ?, ?)";
            let (line, counts) =
                entry.lines.map_or_else(Default::default, |lines| (signed(lines.start), feed::packed(&lines)));
            rows::execute(new, sql, params![id, entry.version, line, counts])?;
        }
        let sql = "INSERT INTO main.answers (chain_root, request_id, thread, version, mark) \
                   SELECT chain_root, request_id, ?, version, mark FROM old.answers WHERE thread = ? ON CONFLICT DO NOTHING";
        rows::execute(new, sql, [id, row.id])?;
        Ok(row_now)
    }

    /// The names that this query returns: what the new database lacks or has in an older version.
    pub(super) fn beyond(&self, new: &Connection, sql: &str) -> Result<Vec<String>> {
        if !matches!(self, Self::Readable) {
            return Ok(Vec::new());
        }
        let mut statement = new.prepare(sql).map_err(database)?;
        let found = statement.query_map([], |row| row.get::<_, String>(0)).map_err(database)?;
        found.collect::<rusqlite::Result<Vec<_>>>().map_err(database)
    }

    /// Continues the feed after its newest position in the old database, so that no follower misses anything. A position that can't be
    /// right is left out.
    pub(super) fn carry_position(&self, new: &Connection) -> Result<()> {
        if matches!(self, Self::Readable) {
            let newest = feed::newest("old");
            let sql = format!(
                "INSERT INTO main.feed (position, thread, version) SELECT ({newest}), 0, 0 WHERE ({newest}) BETWEEN 0 AND {}",
                crate::schema_check::COUNTER_MAX
            );
            rows::execute(new, &sql, [])?;
        }
        Ok(())
    }

    /// Moves the old database out of the way of the new one. An unreadable one is kept.
    pub(super) fn move_aside(&self, layout: &Layout, disk: &dyn Disk, result: &mut Reindexed) -> Result<()> {
        let path = layout.database();
        if matches!(self, Self::Readable | Self::Outdated) {
            refuse_readers(&path)?;
            for beside in companions(&path) {
                disk.remove(&beside).map_err(io_error("remove", &beside))?;
            }
            return Ok(());
        }
        let aside = free_name(&layout.root().join("registry.db.unreadable"));
        let pairs = companions(&path).into_iter().zip(companions(&aside)).chain([(path, aside)]);
        for (from, to) in pairs.collect::<Vec<(PathBuf, PathBuf)>>() {
            if is_there(&from)? {
                disk.rename(&from, &to).map_err(io_error("move aside", &from))?;
                result.notices.push(format!("`{}` was moved to `{}`", from.display(), to.display()));
            }
        }
        Ok(())
    }
}

/// Writes redo into its transcript and makes it durable there; returns how many bytes were missing.
fn drain(layout: &Layout, disk: &dyn Disk, trust: &Trust, thread: &ThreadId, redo: &Redo) -> Result<u64> {
    let MissingBytes { bytes: missing, overwrites } = missing_bytes(layout, disk, thread, redo)?;
    if overwrites {
        check_redo(layout, disk, trust, thread, redo)?;
    }
    let path = layout.transcript(thread);
    write_transcript(layout, disk, thread, redo.from, &redo.bytes)?.sync().map_err(io_error("sync", &path))?;
    for folder in [layout.thread(thread), layout.root().to_owned()] {
        disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
    }
    Ok(missing)
}
