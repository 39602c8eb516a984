//! Erasing the content of one blob: a signed event first, then the file.
//!
//! The commit of that event inserts a row into `erasures`; from then on the content is never returned, and the log records that it was
//! erased and why. The file is removed after that, and the folder synced. After a crash in between, the next process that opens the store
//! for writing finds the row and removes the file. Nothing is overwritten: on today's disks that proves nothing.

use std::path::Path;

use rusqlite::{OptionalExtension, params};
use selvedge_model::event::BlobErased;
use selvedge_model::{Batch, Changeset, Digest, Event, Expect, LogId, NamedBlobs, Part, ThreadId, Timestamp};
use selvedge_store::seal::SealedRow;
use selvedge_store::{Error, Result};

use crate::core::{Core, Durability, io_error};
use crate::db::Db;
use crate::layout::{check_folder, is_there, listed};
use crate::open::LocalStore;
use crate::rows::{self, Row, bad_row};
use crate::schema::database;
use crate::sealed;

/// A blob whose content was erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erasure {
    /// The blob.
    pub blob: Digest,
    /// Why.
    pub reason: String,
    /// When the erasure was committed.
    pub at: Timestamp,
    /// Whether its file is removed.
    pub done: bool,
}

impl Erasure {
    pub(crate) fn into_error(self, thread: &ThreadId) -> Error {
        Error::Erased { thread: thread.clone(), blob: self.blob, reason: self.reason, at: self.at }
    }
}

/// Inserts an erasure, in the transaction that commits it. Also used to fill a rebuilt database.
pub(crate) fn put(db: &Db, thread: i64, log: &LogId, erased: &BlobErased, at: Timestamp) -> Result<()> {
    let sql = "INSERT INTO erasures (thread, blob, reason, erased_at, done, mark) VALUES (?, ?, ?, ?, 0, ?) \
               ON CONFLICT (thread, blob) DO UPDATE SET reason = excluded.reason, erased_at = excluded.erased_at, \
               done = 0, mark = excluded.mark";
    let reason = erased.reason.as_str();
    let micros = at.as_micros();
    let mark = sealed::mark(db, &SealedRow::Erasure { log, blob: &erased.blob.0, reason, erased_at: micros });
    rows::execute(db, sql, params![thread, &erased.blob.0[..], reason, micros, mark.bytes()])?;
    Ok(())
}

/// Refuses erasures of a thread that fail their seal.
pub(crate) fn check_all(db: &Db, row: &Row) -> Result<()> {
    let sql = "SELECT blob, reason, erased_at, mark FROM erasures WHERE thread = ?";
    let mut statement = db.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([row.id]).map_err(database)?;
    while let Some(one) = found.next().map_err(database)? {
        let blob: Vec<u8> = one.get(0).map_err(database)?;
        let reason: String = one.get(1).map_err(database)?;
        let at: i64 = one.get(2).map_err(database)?;
        let mark: Vec<u8> = one.get(3).map_err(database)?;
        let sealed = SealedRow::Erasure { log: &row.head.log_id, blob: &blob, reason: &reason, erased_at: at };
        sealed::check_of(db, row, &sealed, mark, || "an erased blob".to_owned())?;
    }
    Ok(())
}

impl LocalStore {
    /// Erases the content of a blob. On return the erasure is in the log, the file is removed and its folder synced; the disk itself may
    /// still hold the bytes. Returns the version that records it.
    pub fn erase(&self, thread: &ThreadId, blob: &Digest, reason: &str) -> Result<u64> {
        let core = &self.core;
        core.writer()?;
        if let Some(erasure) = core.erasure(thread, blob)? {
            core.finish_erasures()?;
            return Err(erasure.into_error(thread));
        }
        // Only a blob that exists, or that the log names, can be erased. Erasing a lost one records that it is missing.
        if !is_there(&core.layout.blob(thread, blob))? && !self.names(thread, blob)? {
            return Err(Error::NoBlob { thread: thread.clone(), blob: *blob });
        }
        let event = Event::BlobErased(BlobErased { blob: *blob, reason: reason.to_owned() });
        let part = Part::new(thread.clone(), Expect::Any, Changeset::of_event(event));
        let committed = core.commit(&Batch::of(part))?;
        core.finish_erasures()?;
        Ok(committed.version_of(thread).unwrap_or_default())
    }

    /// Whether the log of a thread names a blob.
    fn names(&self, thread: &ThreadId, blob: &Digest) -> Result<bool> {
        let mut named = NamedBlobs::default();
        self.verify(thread, &mut |entry| {
            for line in &entry.lines {
                named.take(entry.head.version, &line.event);
            }
        })?;
        Ok(named.must_be_there().any(|(name, _)| name == *blob))
    }

    /// The blobs in a thread's folder, in the order of their names.
    pub fn blobs(&self, thread: &ThreadId) -> Result<Vec<Digest>> {
        let folder = self.core.layout.blobs(thread);
        if !check_folder(&folder)? {
            return Ok(Vec::new());
        }
        let entries = listed(&folder)?.into_iter();
        let mut names: Vec<_> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Digest>().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }
}

impl Core {
    /// Whether a blob of a thread that exists was erased.
    pub(crate) fn erasure(&self, thread: &ThreadId, blob: &Digest) -> Result<Option<Erasure>> {
        self.read(|connection| {
            let row = rows::existing(connection, thread)?;
            let sql = "SELECT reason, erased_at, done, mark FROM erasures WHERE thread = ? AND blob = ?";
            let mut statement = connection.prepare_cached(sql).map_err(database)?;
            let found = statement.query_row(params![row.id, &blob.0[..]], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)? == 1, row.get(3)?))
            });
            let Some((reason, at, done, mark)) = found.optional().map_err(database)? else { return Ok(None) };
            let log = &row.head.log_id;
            let sealed = SealedRow::Erasure { log, blob: &blob.0, reason: &reason, erased_at: at };
            sealed::check_of(connection, &row, &sealed, mark, || format!("the erasure of blob {}", blob.short()))?;
            Ok(Some(Erasure { blob: *blob, reason, at: Timestamp::from_micros(at), done }))
        })
    }

    /// Removes the files of blobs that a batch erased. A file that can't be removed now is removed when the store is opened next: the
    /// commit stands.
    pub(crate) fn erase_committed(&self, batch: &Batch) {
        let erases = |part: &Part| part.changeset.events.iter().any(|event| matches!(event, Event::BlobErased(_)));
        if batch.parts.iter().any(erases) {
            _ = self.finish_erasures();
        }
    }

    /// Removes the file of every blob whose erasure was committed and not carried out yet.
    pub(crate) fn finish_erasures(&self) -> Result<()> {
        for (id, thread, blob) in self.unfinished_erasures()? {
            // Nothing is removed because of a row that fails its seal.
            if let Err(error) = self.erasure(&thread, &blob) {
                self.note_problem(error.to_string());
                continue;
            }
            self.remove_blob(&thread, &blob)?;
            self.leave_search(&thread, Some(&blob))?;
            self.leave_embeddings(&thread, Some(&blob))?;
            self.write(Durability::Lazy, |connection| {
                let sql = "UPDATE erasures SET done = 1 WHERE thread = ? AND blob = ?";
                rows::execute(connection, sql, params![id, &blob.0[..]])?;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Erasures that were committed and whose files may still exist.
    pub(crate) fn unfinished_erasures(&self) -> Result<Vec<(i64, ThreadId, Digest)>> {
        self.read(|connection| {
            let sql = "SELECT t.id, t.thread_id, e.blob FROM erasures AS e JOIN threads AS t ON t.id = e.thread WHERE e.done = 0";
            let mut statement = connection.prepare_cached(sql).map_err(database)?;
            let found = statement
                .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, Vec<u8>>(2)?)))
                .map_err(database)?;
            found
                .map(|raw| {
                    let (id, thread, blob) = raw.map_err(database)?;
                    let blob = blob.try_into().map(Digest).map_err(|_| bad_row("a digest has not 32 bytes"))?;
                    Ok((id, ThreadId::new(thread).map_err(bad_row)?, blob))
                })
                .collect()
        })
    }

    /// Removes a blob, and partial copies of it that a crash may have left.
    fn remove_blob(&self, thread: &ThreadId, blob: &Digest) -> Result<()> {
        let folder = self.layout.blobs(thread);
        check_folder(&self.layout.thread(thread))?;
        if !check_folder(&folder)? {
            return Ok(());
        }
        let half_written = format!(".{blob}.");
        for entry in listed(&folder)? {
            if entry.file_name().to_string_lossy().starts_with(&half_written) {
                self.remove_file(&entry.path())?;
            }
        }
        self.remove_file(&self.layout.blob(thread, blob))?;
        self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.disk.remove(path).map_err(io_error("remove", path))
    }
}
