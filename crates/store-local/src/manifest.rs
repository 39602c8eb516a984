//! `thread.json`: the signed manifest, derived from the log, for people and other programs to read.
//!
//! It records the version and hash of the log that it shows. One that is older than the log, or signed with an untrusted key, is written
//! again. One that is newer shows that the log was cut. One that differs from the log at its own version, or has an invalid signature, is
//! refused. An invalid one is evidence: it is moved aside before a new one replaces it. After a crash in between there is none, and a later
//! commit writes it.

use std::sync::PoisonError;

use rusqlite::OptionalExtension;
use selvedge_log::Trust;
use selvedge_log::recovery::Remembered as Memory;
use selvedge_model::{Manifest, ThreadId};
use selvedge_store::manifest::{self, BYTES_MAX, ParsedManifest};
use selvedge_store::{Error, Result};

use crate::commit::StaleManifest;
use crate::copy_check::MANIFEST;
use crate::core::{Core, Durability, PendingThread, io_error};
use crate::db::Db;
use crate::disk::{self, Disk};
use crate::layout::Layout;
use crate::open::LocalStore;
use crate::rows::{self, Row, bad_row};
use crate::schema::{self, database};
use crate::transcript_repair::free_name;

impl Core {
    /// Writes the manifests of committed threads. One that can't be written stays marked as stale and is written later: a failure here
    /// never fails a commit. Nor does a commit wait for the sync of the folder: that is synced together with the transcript, and until then
    /// the manifest stays marked as stale, so that the next process that opens the store after a power failure writes it.
    pub(crate) fn show_manifests(&self, threads: &[StaleManifest]) {
        for StaleManifest { thread, id } in threads {
            if let Ok(shown) = self.show(thread) {
                let pending = PendingThread { id: *id, manifest: Some(shown), ..PendingThread::default() };
                self.await_sync(thread, pending, 0);
            }
        }
    }

    /// Writes the manifests that a crash left stale.
    pub(crate) fn show_stale_manifests(&self) -> Result<u64> {
        let stale = self.read(|connection| rows::select(connection, "t.manifest_stale = 1", []))?;
        let mut shown = Vec::new();
        for row in &stale {
            if !self.holder_lives(row)?
                && let Ok(manifest) = self.write_manifest(&row.manifest.thread_id)
            {
                shown.push((row.id, manifest));
            }
        }
        if !shown.is_empty() {
            self.write(Durability::Lazy, |connection| {
                shown.iter().try_for_each(|(id, manifest)| mark_shown(connection, *id, manifest))
            })?;
        }
        Ok(shown.len() as u64)
    }

    fn holder_lives(&self, row: &Row) -> Result<bool> {
        row.owner.as_ref().map_or(Ok(false), |owner| self.is_alive(owner))
    }

    /// Writes a thread's manifest, durable on return, and returns what it shows.
    pub(crate) fn write_manifest(&self, thread: &ThreadId) -> Result<String> {
        let shown = self.show(thread)?;
        let folder = self.layout.thread(thread);
        self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
        Ok(shown)
    }

    /// Writes a thread's manifest without syncing its folder, and returns what it shows. Each writer checks afterwards for a newer version,
    /// so of several that write at once the result is never older than any of them knew.
    fn show(&self, thread: &ThreadId) -> Result<String> {
        let row = || self.read(|connection| rows::existing(connection, thread));
        let mut now = row()?;
        loop {
            self.put_manifest(thread, &now)?;
            let shown = serde_json::to_string(&now.manifest).map_err(bad_row)?;
            let later = row()?;
            if !later.manifest.shows_change_since(&now.manifest) {
                return Ok(shown);
            }
            now = later;
        }
    }

    fn put_manifest(&self, thread: &ThreadId, row: &Row) -> Result<()> {
        let text = manifest::sign(&row.manifest, &row.head, &self.signing()?.signer, self.clock.now())?;
        crate::layout::check_folder(&self.layout.thread(thread))?;
        let path = self.layout.manifest(thread);
        self.keep_forged(thread, row.head.version)?;
        disk::put_in_place(&*self.disk, &path, text.as_bytes()).map_err(io_error("write", &path))
    }

    /// Moves a manifest that fails verification aside before a new one is written: it is evidence of tampering.
    fn keep_forged(&self, thread: &ThreadId, version: u64) -> Result<()> {
        let Err(Error::Integrity { why, .. }) = read(&self.layout, &*self.disk, &self.trust, thread) else {
            return Ok(());
        };
        let path = self.layout.manifest(thread);
        let aside = free_name(&path.with_file_name(format!("{MANIFEST}.aside-{version}")));
        self.disk.rename(&path, &aside).map_err(io_error("move aside", &path))?;
        let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.note_problem(format!(
            "{} failed verification ({why}); it was moved to `{name}`, and written again",
            manifest::named(thread)
        ));
        Ok(())
    }

    pub(crate) fn note_problem(&self, what: String) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// The version and hash that a thread's manifest records, if there is one; one with an invalid signature is refused, and one of an
    /// untrusted key is [`Error::UntrustedKey`].
    pub(crate) fn manifest_memory(&self, thread: &ThreadId) -> Result<Option<Memory>> {
        Ok(read(&self.layout, &*self.disk, &self.trust, thread)?.map(|shown| shown.memory))
    }
}

impl LocalStore {
    /// Checks that a thread's `thread.json` is signed with a trusted key and grants exactly what the log grants; `recorded` is the manifest
    /// from the verified log. A missing file is written again from the database, if that agrees with the log; on return it exists.
    pub fn check_manifest(&self, recorded: &Manifest) -> Result<()> {
        let core = &self.core;
        let thread = &recorded.thread_id;
        let row = core.read(|connection| rows::existing(connection, thread))?;
        if !manifest::grants_same(&row.manifest, recorded) {
            return Err(Error::Integrity {
                what: format!("the database row of `{thread}`"),
                why: "it grants the thread other capabilities than its log".to_owned(),
                hint: Some(schema::REBUILD.to_owned()),
            });
        }
        let Some(shown) = read(&core.layout, &*core.disk, &core.trust, thread)? else {
            core.write_manifest(thread)?;
            core.note_problem(manifest::missing(thread));
            return Ok(());
        };
        shown.check(recorded, &row.manifest, row.head.version)
    }
}

impl LocalStore {
    /// Takes the problems that were found and repaired since the last call, as sentences.
    pub fn take_problems(&self) -> Vec<String> {
        std::mem::take(&mut *self.core.problems.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A warning for a thread whose `thread.json` is missing, to show before the thread continues.
    pub fn missing_manifest(&self, thread: &ThreadId) -> Option<String> {
        let is_gone = std::fs::symlink_metadata(self.core.layout.manifest(thread));
        is_gone.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound).then(|| manifest::missing(thread))
    }
}

/// Marks a thread's manifest as written, unless it has changed since.
pub(crate) fn mark_shown(connection: &Db, id: i64, shown: &str) -> Result<()> {
    let sql = "SELECT manifest FROM threads WHERE id = ?";
    let now = connection.prepare_cached(sql).map_err(database)?.query_row([id], |row| row.get::<_, String>(0));
    let now: Manifest = match now.optional().map_err(database)? {
        Some(now) => serde_json::from_str(&now).map_err(bad_row)?,
        None => return Ok(()),
    };
    let shown: Manifest = serde_json::from_str(shown).map_err(bad_row)?;
    if !now.shows_change_since(&shown) {
        rows::execute(connection, "UPDATE threads SET manifest_stale = 0 WHERE id = ?", [id])?;
    }
    Ok(())
}

/// Reads a thread's manifest, if there is one; one with an invalid signature is refused, and one of an untrusted key is
/// [`Error::UntrustedKey`].
pub(crate) fn read(
    layout: &Layout,
    disk: &dyn Disk,
    trust: &Trust,
    thread: &ThreadId,
) -> Result<Option<ParsedManifest>> {
    bytes(layout, disk, thread)?.map(|bytes| manifest::parse(&bytes, trust, thread)).transpose()
}

/// The bytes of a thread's manifest, unverified; none if it does not exist.
pub(crate) fn bytes(layout: &Layout, disk: &dyn Disk, thread: &ThreadId) -> Result<Option<Vec<u8>>> {
    let path = layout.manifest(thread);
    match disk::read(disk, &path, BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        // A link, a pipe, or anything but a plain file: it blocks a new manifest, and nothing is lost with it.
        Err(error) if disk::is_no_file(&error) => Err(manifest::damaged(thread, &error.to_string())),
        Err(error) => Err(io_error("read", &path)(error)),
    }
}
