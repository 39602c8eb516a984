//! A consistent copy of a store while other processes write to it.
//!
//! ```text
//! DIR/
//! ├── backup.json      (kind backup) signed if there is a key; written last
//! ├── heads.json       (kind heads) where its logs and accounts end, if there is a key
//! └── threads/         what `.ai/agent/threads` holds: store.json, registry.db, tombstones, one folder per thread
//! ```
//!
//! The database is copied first, as of one moment. Each transcript is then copied up to the head in that copy: bytes before a head never
//! change, and bytes that had not reached the file yet are in the copy's redo. Anything newer than the copy is left out: later commits,
//! later manifests. A thread that is deleted during the backup is deleted in the copy too. A blob that is erased during the backup makes
//! it fail, because a backup must not keep erased content.
//!
//! Each copy is read back and verified: log, blobs, manifest and tombstones. Logs without rows in the database are copied as they are, and
//! are not listed as threads. Damage to one thread does not stop the others from being copied: the damaged files are copied as they are, if
//! they can be read at all, and `backup.json` lists them.
//!
//! It is built in `DIR.partial`, under a lock of its own, and renamed when complete. When this returns every file is synced. After a crash
//! there is at most `DIR.partial`, which the next backup to `DIR` starts over.

mod partial;
mod thread;
mod unindexed;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::params;
use selvedge_log::Head;
use selvedge_log::document::{self, DocumentKind};
use selvedge_log::hash::sha256;
use selvedge_model::{Digest, ThreadId, Timestamp};
use selvedge_store::heads::{self, Heads, LogHead};
use selvedge_store::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::blobs::hash_file;
use crate::copy_check::{FailedCheck, TOMBSTONE, bad_tombstone};
use crate::core::{Core, io_error};
use crate::db::Db;
use crate::disk::{self, Disk, DiskFile, OpenMode};
use crate::layout::{Layout, check_folder, listed};
use crate::open::LocalStore;
use crate::overlay::read_fully;
use crate::rows::{self, bad_row};
use crate::schema::{self, ConnectionMode, database};
use partial::Partial;

/// The document kind of a backup's signature.
pub(crate) const KIND: DocumentKind = DocumentKind::new("backup");
/// The item that a backup's signature names.
pub(crate) const ITEM: &str = "backup";
/// The file that a finished backup has.
pub(crate) const FILE: &str = "backup.json";
/// The list of heads of its logs and accounts.
pub(crate) const HEADS: &str = "heads.json";
/// The folder of a backup with the same content as a store's folder.
pub(crate) const THREADS: &str = "threads";

/// What a backup contains, as recorded in its signed `backup.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// Its random id.
    pub backup_id: String,
    /// When it was begun, by the clock of the process that made it.
    pub made_at: Timestamp,
    /// The format of the store.
    pub store_format: i64,
    /// The SHA-256 of its database.
    pub database: Digest,
    /// The SHA-256 of its `heads.json`, if there was a key to sign one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<Digest>,
    /// Its threads and their heads.
    pub threads: Vec<BackedUp>,
    /// How many blobs it holds.
    pub blobs: u64,
    /// How many bytes its logs and blobs have.
    pub bytes: u64,
    /// Files that failed verification when it was made: copied as they were, or left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_checks: Vec<FailedCheck>,
}

/// One thread of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackedUp {
    /// The thread.
    pub thread_id: ThreadId,
    /// Where its log ends.
    pub head: Head,
}

/// What has been copied, besides the database.
#[derive(Default)]
struct Copied {
    threads: Vec<BackedUp>,
    /// Threads whose `thread.json` was left out because it was newer; it is written again after a restore.
    stale: Vec<i64>,
    blobs: u64,
    bytes: u64,
    failed_checks: Vec<FailedCheck>,
}

impl LocalStore {
    /// Whether there is a key to sign with.
    pub fn can_sign(&self) -> bool {
        self.core.signing.is_some()
    }

    /// Copies the store to a new folder while other processes write; `each` receives how many threads of how many are done. Without a key
    /// to sign with, the backup is not signed; its logs are.
    pub fn backup(&self, target: &Path, each: &mut dyn FnMut(usize, usize)) -> Result<Backup> {
        refuse_existing(target)?;
        let disk = &*self.core.disk;
        let partial = Partial::begin(target, disk)?;
        let work = BackupRun {
            store: self,
            core: &self.core,
            target: &partial.folder,
            layout: Layout::at(partial.folder.join(THREADS)),
        };
        let finished = work.make(each).and_then(|backup| {
            let value = serde_json::to_value(&backup).map_err(bad_row)?;
            let text = match &self.core.signing {
                Some(signing) => {
                    document::sign_json(KIND, ITEM, value, &signing.signer, backup.made_at).map_err(bad_row)?
                }
                None => serde_json::to_string_pretty(&value).map_err(bad_row)? + "\n",
            };
            let path = partial.folder.join(FILE);
            disk::replace(disk, &path, text.as_bytes()).map_err(io_error("write", &path))?;
            partial.finish(target, disk)?;
            Ok(backup)
        });
        if finished.is_err() {
            // A partial backup may hold a blob that was erased meanwhile. If it can't be removed now, the next backup removes it.
            _ = disk.remove_folder(&partial.folder);
        }
        finished
    }
}

/// Refuses a target that is not empty.
fn refuse_existing(target: &Path) -> Result<()> {
    let is_there = check_folder(target)?;
    if is_there && fs::read_dir(target).map_err(io_error("read", target))?.next().is_some() {
        return Err(Error::Unusable {
            what: format!("`{}`", target.display()),
            why: "the folder is not empty, and `backup` never overwrites anything".to_owned(),
            hint: Some("name a folder that does not exist yet".to_owned()),
        });
    }
    Ok(())
}

struct BackupRun<'a> {
    store: &'a LocalStore,
    core: &'a Core,
    target: &'a Path,
    layout: Layout,
}

impl BackupRun<'_> {
    fn make(&self, each: &mut dyn FnMut(usize, usize)) -> Result<Backup> {
        let made_at = self.core.clock.now();
        for folder in [self.target.to_owned(), self.layout.root().to_owned(), self.layout.tombstones()] {
            self.core.disk.make_folder(&folder).map_err(io_error("create", &folder))?;
        }
        let snapshot = self.copy_database()?;
        let found = rows::select_any(&snapshot, "1 ORDER BY t.id", [])?;
        let mut copied = Copied::default();
        let erased = erasures(&snapshot)?;
        for (index, row) in found.iter().enumerate() {
            self.copy_thread(row, &snapshot, &erased, &mut copied)?;
            each(index + 1, found.len());
        }
        self.copy_unindexed(&mut copied)?;
        let deleted = self.deleted_meanwhile(&snapshot)?;
        copied.threads.retain(|thread| !deleted.contains_key(&thread.thread_id));
        copied.failed_checks.retain(|bad| !deleted.contains_key(&bad.thread_id));
        self.refuse_erased_meanwhile(&erased)?;
        let format = schema::version(&snapshot)?;
        self.judge_tombstones(&snapshot, &deleted, &mut copied)?;
        let heads = self.write_heads(&snapshot, &copied, &deleted, made_at)?;
        self.settle_snapshot(snapshot, &copied, &deleted)?;
        let path = self.layout.database();
        let database = hash_file(&*self.core.disk, &path).map_err(io_error("read", &path))?;
        self.copy_small(&self.core.layout.store_file(), &self.layout.store_file())?;
        for folder in [self.layout.tombstones(), self.layout.root().to_owned(), self.target.to_owned()] {
            self.core.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
        }
        let Copied { threads, blobs, bytes, failed_checks, .. } = copied;
        let backup_id = self.core.ids.hex32();
        Ok(Backup { backup_id, made_at, store_format: format, database, heads, threads, blobs, bytes, failed_checks })
    }

    /// Writes the heads of the copied logs, tombstones and accounts, signed; returns the hash of the file. Logs were verified when they
    /// were copied; anything that failed its signature or seal is not listed.
    fn write_heads(
        &self,
        snapshot: &Db,
        copied: &Copied,
        deleted: &BTreeMap<ThreadId, (String, String)>,
        made_at: Timestamp,
    ) -> Result<Option<Digest>> {
        let Some(signing) = &self.core.signing else { return Ok(None) };
        let is_bad =
            |thread: &ThreadId| copied.failed_checks.iter().any(|bad| bad.is_log() && bad.thread_id == *thread);
        let threads = copied.threads.iter().filter(|copy| !is_bad(&copy.thread_id));
        let mut named = Vec::new();
        let heads = Heads {
            version: heads::VERSION,
            store_id: self.store.store_id()?,
            made_at,
            threads: threads.map(|copy| LogHead::new(copy.thread_id.clone(), &copy.head)).collect(),
            tombstones: crate::heads::tombstones(snapshot, &self.core.trust, &mut named)?,
            accounts: crate::heads::accounts(snapshot, &mut named)?
                .into_iter()
                .filter(|account| !deleted.contains_key(&account.account))
                .collect(),
        };
        let text = heads.sign(&signing.signer).map_err(bad_row)?;
        let path = self.target.join(HEADS);
        disk::replace(&*self.core.disk, &path, text.as_bytes()).map_err(io_error("write", &path))?;
        Ok(Some(sha256(text.as_bytes())))
    }

    /// Copies the database as of one moment, while other processes write.
    fn copy_database(&self) -> Result<Db> {
        let path = self.layout.database();
        // Created here, so that it has the mode of every other file; SQLite fills an empty one.
        drop(self.core.disk.open(&path, OpenMode::CreateNew).map_err(io_error("create", &path))?);
        let target = path.to_str().ok_or_else(|| {
            schema::unusable(&format!("`{}`", path.display()), "its name is not UTF-8".to_owned(), None)
        })?;
        let source = Db::open(&self.core.layout.database(), ConnectionMode::Read, None)?;
        source.execute("VACUUM INTO ?", [target]).map_err(database)?;
        // Checked as the store's database is; a copy is sealed again when it is restored.
        Db::open(&path, ConnectionMode::Write, self.core.signing.as_ref().map(|signing| signing.rows.clone()))
    }

    /// Threads of the snapshot that were deleted during the backup, with their tombstones.
    fn deleted_meanwhile(&self, snapshot: &Db) -> Result<BTreeMap<ThreadId, (String, String)>> {
        let known = tombstones(snapshot)?;
        let mut now = self.core.read(tombstones)?;
        now.retain(|thread, _| !known.contains_key(thread));
        Ok(now)
    }

    /// Lists tombstones that fail verification: the row in the database, which is copied, and the file in the store.
    fn judge_tombstones(
        &self,
        snapshot: &Db,
        deleted: &BTreeMap<ThreadId, (String, String)>,
        copied: &mut Copied,
    ) -> Result<()> {
        let known = tombstones(snapshot)?;
        for (thread, (_, document)) in known.iter().chain(deleted) {
            let path = self.core.layout.tombstone(thread);
            let file = disk::read(&*self.core.disk, &path, 64 << 20).ok();
            let bad = [Some(document.as_bytes()), file.as_deref()].into_iter().flatten();
            let bad = bad.filter_map(|document| bad_tombstone(thread, document, &self.core.trust)).next();
            copied.failed_checks.extend(bad.map(|why| FailedCheck::file(thread, TOMBSTONE, why, true)));
        }
        Ok(())
    }

    fn refuse_erased_meanwhile(&self, known: &Erasures) -> Result<()> {
        if !self.core.read(erasures)?.is_subset(known) {
            return Err(Error::Unusable {
                what: "the backup".to_owned(),
                why: "a blob was erased while it was made, and a backup must not keep it".to_owned(),
                hint: Some("nothing was kept; back up again".to_owned()),
            });
        }
        Ok(())
    }

    /// Makes the copied database match the copied files: drained, with no deletion in progress.
    fn settle_snapshot(
        &self,
        snapshot: Db,
        copied: &Copied,
        deleted: &BTreeMap<ThreadId, (String, String)>,
    ) -> Result<()> {
        let work = snapshot.unchecked_transaction().map_err(database)?;
        for (thread, (tombstone, document)) in deleted {
            if let Some(row) = rows::find_any(&work, thread)? {
                bury(&snapshot, row.id)?;
            }
            let sql = "INSERT INTO tombstones (thread_id, tombstone, document, buried) VALUES (?, ?, ?, 1)";
            rows::execute(&work, sql, params![thread.as_str(), tombstone, document])?;
            let folder = self.layout.thread(thread);
            self.core.disk.remove_folder(&folder).map_err(io_error("remove", &folder))?;
        }
        for (thread, (_, document)) in tombstones(&snapshot)? {
            let path = self.layout.tombstone(&thread);
            disk::replace(&*self.core.disk, &path, document.as_bytes()).map_err(io_error("write", &path))?;
        }
        for id in &copied.stale {
            rows::execute(&work, "UPDATE threads SET manifest_stale = 1 WHERE id = ?", [id])?;
        }
        // Heads stay as they were sealed, leases included: a restore derives the rows again, without a lease holder.
        for sql in ["DELETE FROM redo", "UPDATE tombstones SET buried = 1"] {
            rows::execute(&work, sql, [])?;
        }
        work.commit().map_err(database)?;
        snapshot.close()?;
        let path = self.layout.database();
        let file = self.core.disk.open(&path, OpenMode::Write).map_err(io_error("open", &path))?;
        file.sync().map_err(io_error("sync", &path))
    }

    fn copy_small(&self, from: &Path, to: &Path) -> Result<()> {
        let bytes = disk::read(&*self.core.disk, from, 1 << 20).map_err(io_error("read", from))?;
        disk::replace(&*self.core.disk, to, &bytes).map_err(io_error("write", to))
    }
}

/// Takes a thread out of every table, as deleting it does.
pub(crate) fn bury(connection: &Db, id: i64) -> Result<()> {
    crate::feed::withdraw(connection, id, 0)?;
    crate::delete::remove_rows(connection, id)
}

/// Every tombstone: its content, and the signed file.
fn tombstones(connection: &Db) -> Result<BTreeMap<ThreadId, (String, String)>> {
    let mut statement =
        connection.prepare_cached("SELECT thread_id, tombstone, document FROM tombstones").map_err(database)?;
    let found = statement
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?)))
        .map_err(database)?;
    found
        .map(|raw| {
            let (thread, tombstone, document) = raw.map_err(database)?;
            Ok((ThreadId::new(thread).map_err(bad_row)?, (tombstone, document)))
        })
        .collect()
}

/// Threads and blobs.
type Erasures = BTreeSet<(i64, Vec<u8>)>;

/// Every erased blob.
fn erasures(connection: &Db) -> Result<Erasures> {
    // Erasures of threads that were deleted since are deleted with them.
    let mut statement = connection.prepare_cached("SELECT thread, blob FROM erasures").map_err(database)?;
    let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(database)?;
    found.collect::<rusqlite::Result<_>>().map_err(database)
}

/// The names in a folder.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    Ok(listed(folder)?.into_iter().map(|entry| PathBuf::from(entry.file_name())).collect())
}

/// Copies a file to a new one, synced on return; returns its length.
pub(crate) fn copy_file(disk: &dyn Disk, from: &Path, to: &Path) -> Result<u64> {
    let source = disk.open(from, OpenMode::Read).map_err(io_error("open", from))?;
    let target = disk.open(to, OpenMode::CreateNew).map_err(io_error("create", to))?;
    let copied = copy_bytes((&*source, from), (&*target, to), u64::MAX)?;
    target.sync().map_err(io_error("sync", to))?;
    Ok(copied)
}

/// Copies at most the first `length` bytes of a file; returns how many were copied.
fn copy_bytes(from: (&dyn DiskFile, &Path), to: (&dyn DiskFile, &Path), length: u64) -> Result<u64> {
    let mut buffer = vec![0; 1 << 16];
    let mut done = 0;
    while done < length {
        let wanted = buffer.len().min(usize::try_from(length - done).unwrap_or(usize::MAX));
        let read = read_fully(from.0, &mut buffer[..wanted], done).map_err(io_error("read", from.1))?;
        if read == 0 {
            break;
        }
        to.0.write_at(&buffer[..read], done).map_err(io_error("write", to.1))?;
        done += read as u64;
    }
    Ok(done)
}
