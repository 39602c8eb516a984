//! `thread.json`: the signed manifest, a projection of the log that people and other programs can read.
//!
//! It names the version and hash of the log it shows. Older than the log, or signed by a key that does not count, it is
//! written again; newer, it remembers a log that was cut; differing from the log at its own version, or badly signed, it is refused.
//! One that is badly signed is evidence: it is moved aside before a new one takes its place. Killed in between, there is none, and a
//! later commit writes it.

use rusqlite::OptionalExtension;
use selvedge_log::Trust;
use selvedge_log::recovery::Remembered as Memory;
use selvedge_model::{Manifest, ThreadId};
use selvedge_store::manifest::{self, BYTES_MAX, Shown};
use selvedge_store::{Error, Result};

use crate::commit::Manifested;
use crate::copied::MANIFEST;
use crate::core::{Core, Durability, PendingThread, io_error};
use crate::db::Db;
use crate::disk::{self, Disk};
use crate::layout::Layout;
use crate::open::LocalStore;
use crate::rows::{self, Row, bad_row};
use crate::schema::{self, database};
use crate::settle::free_name;

impl Core {
    /// Writes the manifests of committed threads. One that can't be written stays marked as stale and is written later: a
    /// projection never fails a commit. Nor does a commit wait for its folder: that is synced together with the transcript, and until then
    /// the manifest counts as stale, so that the next process to open the store after a power cut writes it.
    pub(crate) fn show_manifests(&self, threads: &[Manifested]) {
        for Manifested { thread, id } in threads {
            if let Ok(shown) = self.show(thread) {
                let pending = PendingThread { id: *id, manifest: Some(shown), ..PendingThread::default() };
                self.await_sync(thread, pending, 0);
            }
        }
    }

    /// Writes manifests that a crash left behind.
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

    /// Writes a thread's manifest, durable on return, and gives what it shows.
    pub(crate) fn write_manifest(&self, thread: &ThreadId) -> Result<String> {
        let shown = self.show(thread)?;
        let folder = self.layout.thread(thread);
        self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
        Ok(shown)
    }

    /// Puts a thread's manifest in its place and gives what it shows; its folder is not synced. Of several who write at once, the last one
    /// to put its file in place looks again, so that what stays is never older than what any of them knew.
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

    /// Keeps a manifest that is not what was signed beside the one that is about to be written: it shows what somebody tried.
    fn keep_forged(&self, thread: &ThreadId, version: u64) -> Result<()> {
        let Err(Error::Integrity { why, .. }) = read(&self.layout, &*self.disk, &self.trust, thread) else {
            return Ok(());
        };
        let path = self.layout.manifest(thread);
        let aside = free_name(&path.with_file_name(format!("{MANIFEST}.aside-{version}")));
        self.disk.rename(&path, &aside).map_err(io_error("move aside", &path))?;
        let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.note_amiss(format!(
            "{} was not what was signed ({why}); it is kept as `{name}`, and written anew",
            manifest::named(thread)
        ));
        Ok(())
    }

    /// Keeps something that was found amiss until it is asked for; the same is kept once.
    pub(crate) fn note_amiss(&self, what: String) {
        self.amiss.note(what);
    }

    /// What a thread's manifest remembers of its log, if there is one; one that is badly signed is refused, and one of a key that does
    /// not count is [`Error::Unbelieved`].
    pub(crate) fn manifest_memory(&self, thread: &ThreadId) -> Result<Option<Memory>> {
        Ok(read(&self.layout, &*self.disk, &self.trust, thread)?.map(|shown| shown.memory))
    }
}

impl LocalStore {
    /// Whether a thread's `thread.json` is signed by a key that counts and says of what the thread may do just what its log says;
    /// `recorded` is what the verified log says. One that is not there is a projection that is written anew, by a database that agrees
    /// with the log, before anybody goes by it; on return it is there.
    pub fn vouch(&self, recorded: &Manifest) -> Result<()> {
        let core = &self.core;
        let thread = &recorded.thread_id;
        let row = core.read(|connection| rows::existing(connection, thread))?;
        if !manifest::may_same(&row.manifest, recorded) {
            return Err(Error::Integrity {
                what: format!("what the database has of `{thread}`"),
                why: "it says that the thread may do something else than its log says".to_owned(),
                hint: Some(schema::REBUILD.to_owned()),
            });
        }
        let Some(shown) = read(&core.layout, &*core.disk, &core.trust, thread)? else {
            core.write_manifest(thread)?;
            core.note_amiss(manifest::missing(thread));
            return Ok(());
        };
        shown.check(recorded, &row.manifest, row.head.version)
    }
}

impl LocalStore {
    /// What was found amiss and mended on the way since this was last asked, in words.
    pub fn take_amiss(&self) -> Vec<String> {
        self.core.amiss.take()
    }

    /// What is to be said before a thread that has been shown goes on, if its `thread.json` is gone.
    pub fn missing_manifest(&self, thread: &ThreadId) -> Option<String> {
        let is_gone = std::fs::symlink_metadata(self.core.layout.manifest(thread));
        is_gone.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound).then(|| manifest::missing(thread))
    }
}

/// Notes that a thread's manifest is shown, unless it has changed since.
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

/// Reads a thread's manifest, if there is one; one that is badly signed is refused, and one of a key that does not count is
/// [`Error::Unbelieved`].
pub(crate) fn read(layout: &Layout, disk: &dyn Disk, trust: &Trust, thread: &ThreadId) -> Result<Option<Shown>> {
    bytes(layout, disk, thread)?.map(|bytes| manifest::parse(&bytes, trust, thread)).transpose()
}

/// The bytes of a thread's manifest, unchecked; nothing if there is none.
pub(crate) fn bytes(layout: &Layout, disk: &dyn Disk, thread: &ThreadId) -> Result<Option<Vec<u8>>> {
    let path = layout.manifest(thread);
    match disk::read(disk, &path, BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        // A link, a pipe, or something else that is no file of ours: it is in the way of a new one, and nothing is lost with it.
        Err(error) if disk::is_no_file(&error) => Err(manifest::damaged(thread, &error.to_string())),
        Err(error) => Err(io_error("read", &path)(error)),
    }
}
