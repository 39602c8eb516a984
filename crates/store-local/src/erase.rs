//! Erasing the content of one blob: a signed event first, then the file.
//!
//! The commit that says so puts a row into `erasures`; from then on nobody is given the content, and the log says that it
//! was erased and why. The file is unlinked after that, and the folder synced. Killed in between, whoever opens the store
//! next to write finds the row and does the rest. Nothing is overwritten: on today's disks that proves nothing.

use std::path::Path;

use rusqlite::{OptionalExtension, params};
use selvedge_model::event::BlobErased;
use selvedge_model::{Batch, Changeset, Digest, Event, Expect, LogId, NamedBlobs, Part, ThreadId, Timestamp};
use selvedge_store::{Error, Result};

use crate::core::{Core, Durability, io_error};
use crate::db::Db;
use crate::layout::{check_folder, is_there, listed};
use crate::open::LocalStore;
use crate::rows::{self, Row, bad_row};
use crate::schema::database;
use crate::sealed::{self, Indexed};

/// A blob whose content was erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erasure {
    /// The blob.
    pub blob: Digest,
    /// Why.
    pub reason: String,
    /// When that was committed.
    pub at: Timestamp,
    /// Whether its file is gone too.
    pub done: bool,
}

impl Erasure {
    pub(crate) fn into_error(self, thread: &ThreadId) -> Error {
        Error::Erased { thread: thread.clone(), blob: self.blob, reason: self.reason, at: self.at }
    }
}

/// Notes that a blob is erased, in the transaction that commits it. Also what a rebuilt database is filled with.
pub(crate) fn put(db: &Db, thread: i64, log: &LogId, erased: &BlobErased, at: Timestamp) -> Result<()> {
    let sql = "INSERT INTO erasures (thread, blob, reason, erased_at, done, mark) VALUES (?, ?, ?, ?, 0, ?) \
               ON CONFLICT (thread, blob) DO UPDATE SET reason = excluded.reason, erased_at = excluded.erased_at, \
               done = 0, mark = excluded.mark";
    let reason = erased.reason.as_str();
    let micros = at.as_micros();
    let mark =
        Indexed { table: "erasures", fields: &fields(log, &erased.blob, reason, &micros.to_be_bytes()) }.mark(db);
    rows::execute(db, sql, params![thread, &erased.blob.0[..], reason, micros, mark.bytes()])?;
    Ok(())
}

/// Refuses erasures of a thread that another program put down.
pub(crate) fn check_all(db: &Db, row: &Row) -> Result<()> {
    let sql = "SELECT blob, reason, erased_at, mark FROM erasures WHERE thread = ?";
    let mut statement = db.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([row.id]).map_err(database)?;
    while let Some(one) = found.next().map_err(database)? {
        let (blob, reason): (Vec<u8>, String) = (one.get(0).map_err(database)?, one.get(1).map_err(database)?);
        let (at, mark): (i64, Vec<u8>) = (one.get(2).map_err(database)?, one.get(3).map_err(database)?);
        let at = at.to_be_bytes();
        let fields = [sealed::log(&row.head.log_id), &blob, reason.as_bytes(), &at];
        let what = || "an erased blob".to_owned();
        Indexed { table: "erasures", fields: &fields }.check_of(db, row, mark, what)?;
    }
    Ok(())
}

/// What the mark of an erasure covers.
fn fields<'a>(log: &'a LogId, blob: &'a Digest, reason: &'a str, at: &'a [u8; 8]) -> [&'a [u8]; 4] {
    [sealed::log(log), &blob.0, reason.as_bytes(), at]
}

impl LocalStore {
    /// Erases the content of a blob. On return the log says so, the file is gone and its folder synced; what the disk
    /// itself still holds is another matter. Gives the version that says it.
    pub fn erase(&self, thread: &ThreadId, blob: &Digest, reason: &str) -> Result<u64> {
        let core = &self.core;
        core.gate()?;
        if let Some(erasure) = core.erasure(thread, blob)? {
            core.finish_erasures()?;
            return Err(erasure.into_error(thread));
        }
        // What nobody ever named can't be erased. What is named and lost can: the log says then that it is to be missing.
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
            entry.lines.iter().for_each(|line| named.take(entry.head.version, &line.event));
        })?;
        Ok(named.must_be_there().any(|(name, _)| name == *blob))
    }

    /// The blobs that lie beside a thread's log, in the order of their names.
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
            let micros = at.to_be_bytes();
            let indexed = Indexed { table: "erasures", fields: &fields(&row.head.log_id, blob, &reason, &micros) };
            indexed.check_of(connection, &row, mark, || format!("the erasure of blob {}", blob.short()))?;
            Ok(Some(Erasure { blob: *blob, reason, at: Timestamp::from_micros(at), done }))
        })
    }

    /// Takes the files of what a batch erased. A file that can't be removed now is removed by the next opener: what was
    /// committed stays committed.
    pub(crate) fn erase_committed(&self, batch: &Batch) {
        let erases = |part: &Part| part.changeset.events.iter().any(|event| matches!(event, Event::BlobErased(_)));
        if batch.parts.iter().any(erases) {
            _ = self.finish_erasures();
        }
    }

    /// Removes the file of every blob whose erasure was committed and not carried out yet.
    pub(crate) fn finish_erasures(&self) -> Result<()> {
        for (id, thread, blob) in self.unfinished_erasures()? {
            // Nothing is removed on the word of a row that another program wrote.
            if let Err(error) = self.erasure(&thread, &blob) {
                self.note_amiss(error.to_string());
                continue;
            }
            self.remove_blob(&thread, &blob)?;
            self.write(Durability::Lazy, |connection| {
                let sql = "UPDATE erasures SET done = 1 WHERE thread = ? AND blob = ?";
                rows::execute(connection, sql, params![id, &blob.0[..]])?;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Erasures that were committed and whose files may still be there.
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

    /// Unlinks a blob, and whatever half-written copy a crash may have left of it.
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
