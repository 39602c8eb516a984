//! Erasing the content of one blob: a signed event first, then the file.
//!
//! The commit that says so puts a row into `erasures`; from then on nobody is given the content, and the log says that it
//! was erased and why. The file is unlinked after that, and the folder synced. Killed in between, whoever opens the store
//! next to write finds the row and does the rest. Nothing is overwritten: on today's disks that proves nothing.

use std::fs;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};
use selvedge_model::event::BlobErased;
use selvedge_model::{Batch, Changeset, Digest, Event, Expect, NamedBlobs, Part, ThreadId, Timestamp};
use selvedge_store::{Error, Result};

use crate::core::{Core, Durability, io_error};
use crate::layout::check_folder;
use crate::open::LocalStore;
use crate::rows::{self, bad_row};
use crate::schema::database;

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
pub(crate) fn put(connection: &Connection, thread: i64, erased: &BlobErased, at: Timestamp) -> Result<()> {
    let sql = "INSERT INTO erasures (thread, blob, reason, erased_at, done) VALUES (?, ?, ?, ?, 0) \
               ON CONFLICT (thread, blob) DO UPDATE SET done = 0";
    rows::execute(connection, sql, params![thread, &erased.blob.0[..], erased.reason, at.as_micros()])?;
    Ok(())
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
        if fs::symlink_metadata(core.layout.blob(thread, blob)).is_err() && !self.names(thread, blob)? {
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
        let entries = fs::read_dir(&folder).map_err(io_error("read", &folder))?;
        let mut names: Vec<_> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<Digest>().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }
}

impl Core {
    /// Whether a blob of a thread that exists was erased.
    pub(crate) fn erasure(&self, thread: &ThreadId, blob: &Digest) -> Result<Option<Erasure>> {
        self.read(|connection| {
            let row = rows::existing(connection, thread)?;
            let sql = "SELECT reason, erased_at, done FROM erasures WHERE thread = ? AND blob = ?";
            let mut statement = connection.prepare_cached(sql).map_err(database)?;
            let found = statement.query_row(params![row.id, &blob.0[..]], |row| {
                let at = Timestamp::from_micros(row.get(1)?);
                Ok(Erasure { blob: *blob, reason: row.get(0)?, at, done: row.get::<_, i64>(2)? == 1 })
            });
            found.optional().map_err(database)
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
        for entry in fs::read_dir(&folder).map_err(io_error("read", &folder))?.flatten() {
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
