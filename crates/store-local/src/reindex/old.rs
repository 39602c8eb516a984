//! The database that is to be replaced: what it has not drained, and what no log tells of.

use std::fs;
use std::path::PathBuf;

use rusqlite::{Connection, params};
use selvedge_model::ThreadId;
use selvedge_model::account::AccountId;
use selvedge_store::Result;

use super::{Reindexed, check_whole, companions, is_unreadable, refuse_readers};
use crate::core::io_error;
use crate::disk::Disk;
use crate::drain::{lacking, write_transcript};
use crate::feed;
use crate::layout::Layout;
use crate::redo::{self, Redo, Rows};
use crate::rows::{self, Row, bad_row, signed};
use crate::schema::{self, Use, database};
use crate::settle::free_name;

/// The database that is to be replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Old {
    /// There is none.
    Absent,
    /// There is something that is no database any more.
    Unreadable,
    /// It can be read, and everything it had committed is in the transcripts; its format.
    Readable(i64),
}

impl Old {
    /// Looks at the database. On return everything it had committed is durable in the transcripts.
    pub(super) fn look(layout: &Layout, disk: &dyn Disk, result: &mut Reindexed) -> Result<Self> {
        let path = layout.database();
        if fs::symlink_metadata(&path).is_err() {
            result.notices.push("there was no database: requests that were not consumed and bytes that were committed but not yet written to a transcript, if there were any, are gone".to_owned());
            return Ok(Self::Absent);
        }
        match Self::read(layout, disk, result) {
            Err(error) if is_unreadable(&error) => {
                result.notices.push(format!("the old database could not be read ({error}): its requests, and bytes that were committed but not yet written to a transcript, could not be carried over; it is kept aside"));
                Ok(Self::Unreadable)
            }
            other => other,
        }
    }

    fn read(layout: &Layout, disk: &dyn Disk, result: &mut Reindexed) -> Result<Self> {
        let (connection, format) = schema::open_any(&layout.database(), Use::Write)?;
        check_whole(&connection)?;
        for outline in Rows::read(&connection)?.threads {
            let thread = rows::name(&connection, outline.id)?;
            let Some(redo) = Redo::of(&connection, &outline)? else { continue };
            match drain(layout, disk, &thread, &redo) {
                Ok(bytes) => result.drained_bytes += bytes,
                Err(error) => result.notices.push(format!("thread `{thread}` could not be drained: {error}")),
            }
        }
        // The file alone holds everything from here on, so that what lies beside it can go.
        let fold = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], fold).map_err(database)?;
        drop(connection);
        if busy != 0 {
            refuse_readers(&layout.database())?;
        }
        Ok(Self::Readable(format))
    }

    /// Makes the old database readable beside the new one.
    pub(super) fn attach(&self, new: &Connection, layout: &Layout) -> Result<()> {
        if matches!(self, Self::Readable(_)) {
            let path = layout.database().to_string_lossy().into_owned();
            new.execute("ATTACH ? AS old", [path]).map_err(database)?;
        }
        Ok(())
    }

    /// A thread as the old database has it.
    pub(super) fn row(&self, new: &Connection, thread: &ThreadId) -> Result<Option<Row>> {
        if !matches!(self, Self::Readable(_)) {
            return Ok(None);
        }
        let tables = "old.threads AS t JOIN old.heads AS h ON h.id = t.id";
        let sql = format!("SELECT {} FROM {tables} WHERE t.thread_id = ?", rows::COLUMNS);
        let mut statement = new.prepare_cached(&sql).map_err(database)?;
        let mut found = statement.query_map([thread.as_str()], rows::raw).map_err(database)?;
        found.next().map(|raw| rows::row(raw.map_err(database)?)).transpose()
    }

    /// The threads that the old database has, in the order of their creation.
    pub(super) fn threads(&self, new: &Connection) -> Result<Vec<ThreadId>> {
        if !matches!(self, Self::Readable(_)) {
            return Ok(Vec::new());
        }
        let mut statement = new.prepare("SELECT thread_id FROM old.threads ORDER BY id").map_err(database)?;
        let found = statement.query_map([], |row| row.get::<_, String>(0)).map_err(database)?;
        found.map(|name| ThreadId::new(name.map_err(database)?).map_err(bad_row)).collect()
    }

    /// Takes over what belongs to a thread and stands in no log: requests and what the next changeset must lead with, with their seals.
    /// Gives how many requests there were. What a store of format 5 has of either is not sealed, and is left behind.
    pub(super) fn carry_requests(&self, new: &Connection, old_id: i64, id: i64) -> Result<u64> {
        if !matches!(self, Self::Readable(6..)) {
            return Ok(0);
        }
        let columns = "request_id, kind, posted_at, body, mark";
        let requests = format!(
            "INSERT INTO main.requests (thread, {columns}) SELECT ?, {columns} FROM old.requests WHERE thread = ? ORDER BY id"
        );
        let count = rows::execute(new, &requests, [id, old_id])?;
        let leads = "INSERT INTO main.leads (thread, event, mark) SELECT ?, event, mark FROM old.leads WHERE thread = ? ORDER BY id";
        rows::execute(new, leads, [id, old_id])?;
        Ok(count as u64)
    }

    /// Takes over a thread as it was; gives how many requests it has, or nothing if it was not known.
    pub(super) fn carry_thread(&self, new: &Connection, thread: &ThreadId) -> Result<Option<u64>> {
        let Some(row) = self.row(new, thread)? else { return Ok(None) };
        let sql = "INSERT INTO main.threads (thread_id, hex, log_id, manifest, manifest_stale) \
                   SELECT thread_id, hex, log_id, manifest, manifest_stale FROM old.threads WHERE id = ?";
        rows::execute(new, sql, [row.id])?;
        let id = new.last_insert_rowid();
        let columns = "version, lines, bytes, hash, segment, signer, head_epoch, sealed, epoch, owner, updated_at";
        let sql = format!("INSERT INTO main.heads (id, {columns}) SELECT ?, {columns} FROM old.heads WHERE id = ?");
        rows::execute(new, &sql, [id, row.id])?;
        let tables = [
            ("redo", "offset, bytes", "id"),
            ("messages", "message_id, digest", "message_id"),
            ("states", "version, bytes, state", "version"),
            ("runs", "run_id, parent_run_id, meta, created_at, updated_at", "id"),
            ("erasures", "blob, reason, erased_at, done", "blob"),
        ];
        for (table, columns, order) in tables {
            let sql = format!(
                "INSERT INTO main.{table} (thread, {columns}) SELECT ?, {columns} FROM old.{table} WHERE thread = ? ORDER BY {order}"
            );
            rows::execute(new, &sql, [id, row.id])?;
        }
        new.execute_batch(redo::LINK).map_err(database)?;
        if let Self::Readable(format) = self {
            let told = feed::told(new, ("old", *format), 0, usize::MAX)?;
            for told in told.into_iter().filter(|told| told.thread == row.id) {
                let sql = "INSERT INTO main.feed (thread, version, line, counts) VALUES (?, ?, ?, ?)";
                let (line, counts) =
                    told.lines.map_or_else(Default::default, |lines| (signed(lines.start), feed::packed(&lines)));
                rows::execute(new, sql, params![id, told.version, line, counts])?;
            }
        }
        if matches!(self, Self::Readable(6..)) {
            let sql = "INSERT INTO main.answers (chain_root, request_id, thread, version) \
                       SELECT chain_root, request_id, ?, version FROM old.answers WHERE thread = ? ON CONFLICT DO NOTHING";
            rows::execute(new, sql, [id, row.id])?;
        }
        self.carry_requests(new, row.id, id).map(Some)
    }

    /// Takes over answers to keys that stand in no log any more.
    pub(super) fn carry_keys(&self, new: &Connection) -> Result<()> {
        if matches!(self, Self::Readable(_)) {
            let sql = "INSERT INTO main.keys (key, request, answer) SELECT key, request, answer FROM old.keys WHERE true ON CONFLICT DO NOTHING";
            rows::execute(new, sql, [])?;
        }
        Ok(())
    }

    /// Takes over accounts that the old database knows further, or wholly where the logs have a gap; what stays incomplete
    /// is given back.
    pub(super) fn carry_accounts(&self, new: &Connection, incomplete: Vec<AccountId>) -> Result<Vec<AccountId>> {
        if !matches!(self, Self::Readable(_)) {
            return Ok(incomplete);
        }
        let further = "SELECT o.thread_id FROM old.budget_ledger AS o LEFT JOIN main.budget_ledger AS n USING (thread_id) \
                       WHERE n.version IS NULL OR n.version < o.version";
        let mut statement = new.prepare(further).map_err(database)?;
        let found = statement.query_map([], |row| row.get::<_, String>(0)).map_err(database)?;
        let mut taken = found.collect::<rusqlite::Result<Vec<_>>>().map_err(database)?;
        let mut left = Vec::new();
        for account in incomplete {
            let sql = "SELECT 1 FROM old.budget_ledger AS o JOIN main.budget_ledger AS n USING (thread_id) \
                       WHERE thread_id = ? AND o.version >= n.version";
            match new.prepare_cached(sql).map_err(database)?.exists([account.as_str()]).map_err(database)? {
                true => taken.push(account.to_string()),
                false => left.push(account),
            }
        }
        let columns =
            "thread_id, parent_id, max_spend, own_spend, children_spend, reserved_spend, open, status, version";
        for account in taken {
            for (table, column, columns) in
                [("budget_ledger", "thread_id", columns), ("reservations", "account", "account, reservation, body")]
            {
                rows::execute(new, &format!("DELETE FROM main.{table} WHERE {column} = ?"), [&account])?;
                let sql = format!(
                    "INSERT INTO main.{table} ({columns}) SELECT {columns} FROM old.{table} WHERE {column} = ?"
                );
                rows::execute(new, &sql, [&account])?;
            }
        }
        Ok(left)
    }

    /// Lets the feed go on behind every place it had, so that nobody who followed it misses anything.
    pub(super) fn carry_position(&self, new: &Connection) -> Result<()> {
        if matches!(self, Self::Readable(_)) {
            let newest = feed::newest("old");
            let sql = format!(
                "INSERT INTO main.feed (position, thread, version) SELECT ({newest}), 0, 0 WHERE ({newest}) IS NOT NULL"
            );
            rows::execute(new, &sql, [])?;
        }
        Ok(())
    }

    /// Takes away what lies in the way of the new database. One that can't be read is kept aside.
    pub(super) fn make_way(&self, layout: &Layout, disk: &dyn Disk, result: &mut Reindexed) -> Result<()> {
        let path = layout.database();
        if matches!(self, Self::Readable(_)) {
            refuse_readers(&path)?;
            for beside in companions(&path) {
                disk.remove(&beside).map_err(io_error("remove", &beside))?;
            }
            return Ok(());
        }
        let aside = free_name(&layout.root().join("registry.db.unreadable"));
        let pairs = companions(&path).into_iter().zip(companions(&aside)).chain([(path, aside)]);
        for (from, to) in pairs.collect::<Vec<(PathBuf, PathBuf)>>() {
            if fs::symlink_metadata(&from).is_ok() {
                disk.rename(&from, &to).map_err(io_error("move aside", &from))?;
                result.notices.push(format!("`{}` is kept as `{}`", from.display(), to.display()));
            }
        }
        Ok(())
    }
}

/// Writes redo into its transcript and makes it durable there; gives how many bytes were missing.
fn drain(layout: &Layout, disk: &dyn Disk, thread: &ThreadId, redo: &Redo) -> Result<u64> {
    let missing = lacking(layout, disk, thread, redo.from, &redo.bytes)?;
    let path = layout.transcript(thread);
    write_transcript(layout, disk, thread, redo.from, &redo.bytes)?.sync().map_err(io_error("sync", &path))?;
    for folder in [layout.thread(thread), layout.root().to_owned()] {
        disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
    }
    Ok(missing)
}
