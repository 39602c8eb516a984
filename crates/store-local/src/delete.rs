//! Deleting a thread: a signed tombstone first, then the folder.
//!
//! One transaction removes the thread from every table and inserts its tombstone; from then on the thread is deleted for every process, and
//! a late writer is refused. Writing the tombstone's file and removing the folder follow; if a crash interrupts them, the next process that
//! opens the store finishes them. A folder whose log continues after its tombstone is never removed.

use std::io::BufReader;

use rusqlite::params;
use selvedge_log::{Head, Trust};
use selvedge_model::account::Account;
use selvedge_model::{Status, ThreadId};
use selvedge_store::tombstone::postings_of;
use selvedge_store::{Error, Result, Tombstone};

use crate::core::{Core, Durability, io_error};
use crate::db::Db;
use crate::disk::{self, Disk};
use crate::feed;
use crate::inbox;
use crate::layout::Layout;
use crate::replay::read_log;
use crate::rows::{self, bad_row, signed};
use crate::schema::database;

/// Every table that has rows of a thread, and the column of its id; its feed entries are withdrawn separately.
const TABLES: [(&str, &str); 10] = [
    ("redo", "thread"),
    ("leads", "thread"),
    ("messages", "thread"),
    ("states", "thread"),
    ("runs", "thread"),
    ("requests", "thread"),
    ("answers", "thread"),
    ("erasures", "thread"),
    ("heads", "id"),
    ("threads", "id"),
];

/// Removes the rows of a thread from every table.
pub(crate) fn remove_rows(db: &Db, id: i64) -> Result<()> {
    inbox::remove(db, id)?;
    for (table, column) in TABLES {
        rows::execute(db, &format!("DELETE FROM main.{table} WHERE {column} = ?"), [id])?;
    }
    Ok(())
}

/// Why the folder of a deleted thread is not removed.
pub(crate) const EXCEEDS: &str = "it was deleted, and its log continues after that";

/// Whether the log in a thread's folder is another one than was deleted, or continues after that: then it was deleted in a copy of the
/// store, or its tombstone was copied here.
pub(crate) fn exceeds(
    layout: &Layout,
    disk: &dyn Disk,
    trust: &Trust,
    thread: &ThreadId,
    buried: &Head,
) -> Result<bool> {
    let path = layout.transcript(thread);
    let examined = read_log(disk, layout, thread, trust, None, |_| {}).map_err(io_error("read", &path))?;
    Ok(examined.head().is_some_and(|head| head.log_id != buried.log_id || head.version > buried.version))
}

impl Core {
    pub(crate) fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        let _turn = self.queues.enter(thread, None);
        loop {
            match self.try_delete(thread) {
                // Another process appended meanwhile; the tombstone must include that too.
                Err(Error::Conflict { .. }) => {}
                other => return other,
            }
        }
    }

    fn try_delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        let signing = self.signing()?;
        // The target of a link would not be removed; and a tombstone without a file is lost when the database is.
        crate::layout::check_folder(&self.layout.thread(thread))?;
        self.make_tombstones()?;
        // The tombstone is signed, so its content must come from a sealed row and a log that ends at that head.
        let row = self.read(|connection| rows::existing(connection, thread))?;
        self.refuse_outdated_row(thread, &row)?;
        if row.manifest.status == Status::Running {
            return Err(Error::Running(thread.clone()));
        }
        if let Some(holder) = &row.owner
            && self.is_alive(holder)?
        {
            return Err(Error::LeaseHeld { thread: thread.clone(), holder: holder.clone() });
        }
        let log = self.open_log(thread).map(|opened| BufReader::with_capacity(1 << 16, opened.committed().1));
        let tombstone = Tombstone {
            manifest: row.manifest,
            head: row.head,
            deleted_at: self.clock.now(),
            // Absent if the log can't be read.
            postings: log.ok().and_then(|log| postings_of(log).ok()),
        };
        let value = serde_json::to_value(&tombstone).map_err(bad_row)?;
        let document = tombstone.sign(&signing.signer)?;
        self.write(Durability::Synced, |connection| {
            let sql = "SELECT 1 FROM heads WHERE id = ? AND version = ? AND epoch = ? AND owner IS ?";
            let seen = params![
                row.id,
                signed(tombstone.head.version),
                signed(row.epoch),
                row.owner.as_ref().map(|o| o.as_str())
            ];
            if !connection.prepare_cached(sql).map_err(database)?.exists(seen).map_err(database)? {
                let now = rows::existing(connection, thread)?;
                let expected = tombstone.head.version;
                let actual = now.head.version;
                return Err(Error::Conflict { thread: thread.clone(), expected, actual });
            }
            // Another thread of its chain may have reserved an amount meanwhile.
            let root = tombstone.manifest.chain_root_id.as_str();
            let account = rows::accounts(connection, "thread_id = ?", root)?.pop();
            if let Some(account) = account.filter(Account::is_in_use) {
                return Err(Error::AccountInUse { thread: thread.clone(), account: account.id });
            }
            feed::withdraw(connection, row.id, 0)?;
            remove_rows(connection, row.id)?;
            let sql = "INSERT INTO tombstones (thread_id, tombstone, document, buried) VALUES (?, ?, ?, 0)";
            rows::execute(connection, sql, params![thread.as_str(), value.to_string(), document])?;
            Ok(())
        })?;
        self.forget(thread);
        // The deletion is committed; if the folder can't be removed now, the next process that opens the store removes it.
        _ = self.bury(thread, &document);
        self.notify_waiters();
        Ok(tombstone)
    }

    /// The signed tombstone of a deleted thread; one that fails verification is refused.
    pub(crate) fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>> {
        self.read(|connection| self.tombstone_in(connection, thread))
    }

    /// Whether a thread was deleted, according to a tombstone whose signature holds.
    pub(crate) fn is_deleted(&self, connection: &Db, thread: &ThreadId) -> bool {
        self.tombstone_in(connection, thread).is_ok_and(|tombstone| tombstone.is_some())
    }

    /// The same as [`Core::tombstone`], in the transaction of a connection.
    pub(crate) fn tombstone_in(&self, connection: &Db, thread: &ThreadId) -> Result<Option<Tombstone>> {
        let Some(document) = rows::signed_tombstone(connection, thread)? else { return Ok(None) };
        let help = || "`selvedge doctor` checks all of them; `selvedge reindex` keeps the valid ones".to_owned();
        let verified = Tombstone::verify(thread, document.as_bytes(), &self.trust);
        verified.map(Some).map_err(|bad| bad.into_error(format!("the tombstone of `{thread}`"), help))
    }

    /// Finishes deletions that were interrupted.
    pub(crate) fn finish_deletions(&self) -> Result<()> {
        let unfinished = self.read(|connection| {
            let sql = "SELECT thread_id, document FROM tombstones WHERE buried = 0";
            let mut statement = connection.prepare_cached(sql).map_err(database)?;
            let found = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
            found.map_err(database)?.collect::<rusqlite::Result<Vec<_>>>().map_err(database)
        })?;
        for (thread, document) in unfinished {
            let thread = ThreadId::new(thread).map_err(bad_row)?;
            // Nothing is removed because of a row that is not signed, if the thread has rows, or if another log was deleted.
            match self.tombstone(&thread) {
                Err(error) => self.note_problem(error.to_string()),
                Ok(_) if self.read(|db| Ok(rows::find_any(db, &thread)?.is_some()))? => {
                    self.note_problem(format!("`{thread}` has a tombstone, but is not deleted"));
                }
                Ok(Some(tombstone)) if self.exceeds(&tombstone)? => {
                    self.note_problem(format!("the folder of `{thread}` is kept: {EXCEEDS}"));
                }
                Ok(_) => self.bury(&thread, &document)?,
            }
        }
        Ok(())
    }

    /// Whether the log in the folder of a deleted thread is not the one that was deleted.
    pub(crate) fn exceeds(&self, tombstone: &Tombstone) -> Result<bool> {
        exceeds(&self.layout, &*self.disk, &self.trust, &tombstone.manifest.thread_id, &tombstone.head)
    }

    /// Creates the folder of all tombstones, if it does not exist.
    fn make_tombstones(&self) -> Result<()> {
        let folder = self.layout.tombstones();
        if !crate::layout::check_folder(&folder)? {
            self.disk.make_folder(&folder).map_err(io_error("create", &folder))?;
            self.disk.sync_folder(self.layout.root()).map_err(io_error("sync", self.layout.root()))?;
        }
        Ok(())
    }

    fn bury(&self, thread: &ThreadId, document: &str) -> Result<()> {
        self.make_tombstones()?;
        let path = self.layout.tombstone(thread);
        disk::replace(&*self.disk, &path, document.as_bytes()).map_err(io_error("write", &path))?;
        let folder = self.layout.thread(thread);
        if crate::layout::check_folder(&folder)? {
            self.disk.remove_folder(&folder).map_err(io_error("remove", &folder))?;
            self.disk.sync_folder(self.layout.root()).map_err(io_error("sync", self.layout.root()))?;
        }
        self.leave_search(thread, None)?;
        self.leave_embeddings(thread, None)?;
        let buried: Tombstone = serde_json::from_str(document).map_err(bad_row)?;
        self.leave_pages(&buried.manifest)?;
        self.write(Durability::Lazy, |connection| {
            rows::execute(connection, "UPDATE tombstones SET buried = 1 WHERE thread_id = ?", [thread.as_str()])?;
            Ok(())
        })
    }
}
