//! Snapshots on disk: `state.json`, older ones in `checkpoints/`, and archived ones.
//!
//! A new snapshot is written to a temporary file and synced; then the newest is copied, compressed, to `checkpoints/`; then the new one is
//! renamed over it, and the folder synced. So there is always a newest one, even after a crash. One that fails verification is not kept
//! when a new one replaces it; a folder of that name is moved aside.

use std::cmp::Reverse;
use std::fs;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use selvedge_log::Head;
use selvedge_log::recovery::Remembered as Memory;
use selvedge_model::ThreadId;
use selvedge_store::snapshot::{
    self, Disposal, LogRest, NEWEST, PACKED, PEEK_BYTES, Replaced, SavedSnapshot, SnapshotFolder, SnapshotInfo,
    VerifiedSnapshot,
};
use selvedge_store::{Error, Result, Snapshots};
use serde_json::Value;

use crate::core::{CachedThread, Core, io_error};
use crate::disk::{self, OpenMode};
use crate::layout::check_folder;
use crate::open::LocalStore;
use crate::replay::read_log;

/// The maximum length of a snapshot.
const BYTES_MAX: u64 = 256 << 20;
/// Fast, and already compresses typical snapshots to a fifth.
const COMPRESSION_LEVEL: u8 = 3;
/// The folder of older snapshots.
pub(crate) const CHECKPOINTS: &str = "checkpoints";

impl Snapshots for LocalStore {
    fn seal(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>> {
        self.core.seal_at(thread, at)
    }

    fn save(&self, thread: &ThreadId, body: &Value) -> Result<SavedSnapshot> {
        self.core.save_snapshot(thread, body)
    }

    fn blocked_folders(&self, thread: &ThreadId, archive: &str) -> Vec<Error> {
        let folder = self.core.layout.thread(thread);
        [CHECKPOINTS, archive].into_iter().filter_map(|name| check_folder(&folder.join(name)).err()).collect()
    }

    fn list_snapshots(&self, thread: &ThreadId, archive: &str) -> Result<Vec<SnapshotInfo>> {
        let folder = self.core.layout.thread(thread);
        let mut kept: Vec<SnapshotInfo> = self.core.newest_file(thread)?.into_iter().collect();
        kept.extend(list(&folder.join(CHECKPOINTS), SnapshotFolder::Older)?);
        kept.extend(list(&folder.join(archive), SnapshotFolder::Archived)?);
        kept.sort_by_key(|kept| (kept.is_snapshot(), Reverse(kept.version), kept.place));
        Ok(kept)
    }

    fn read_snapshot(&self, thread: &ThreadId, kept: &SnapshotInfo, archive: &str) -> Result<VerifiedSnapshot> {
        let path = self.core.snapshot_path(thread, kept, archive);
        self.core.checked_snapshot(thread, kept, &path)
    }

    fn dispose(&self, thread: &ThreadId, kept: &[SnapshotInfo], archive: &str, away: Disposal<'_>) -> Result<()> {
        let core = &self.core;
        for kept in kept {
            let from = core.snapshot_path(thread, kept, archive);
            match away {
                Disposal::Delete => core.disk.remove(&from).map_err(io_error("remove", &from))?,
                Disposal::Archive(folder) => {
                    core.keep_snapshot(thread, &from, kept, folder)?;
                    core.disk.remove(&from).map_err(io_error("remove", &from))?;
                }
            }
        }
        Ok(())
    }

    fn log_after(&self, thread: &ThreadId, at: &Head, seal: &str) -> Result<Option<LogRest>> {
        let core = &self.core;
        // A store that is opened only for reading may have no key, and no seal can be checked without one.
        let Ok(signing) = core.signing() else { return Ok(None) };
        let Some(hash) = snapshot::unseal(&signing.seal, at, seal) else { return Ok(None) };
        let path = core.layout.transcript(thread);
        let opened = core.open_log(thread)?;
        // If that version was lost, the bytes after it do not continue it.
        if opened.row.manifest.lost.iter().any(|lost| lost.contains(at.version)) {
            return Ok(None);
        }
        let (head, mut overlay) = opened.committed();
        if head.log_id != at.log_id || head.segment != at.segment || head.bytes < at.bytes {
            return Ok(None);
        }
        overlay.seek(SeekFrom::Start(at.bytes)).map_err(io_error("read", &path))?;
        let bytes = Box::new(BufReader::with_capacity(1 << 16, overlay));
        Ok(Some(LogRest { hash, head, bytes }))
    }
}

impl Core {
    fn save_snapshot(&self, thread: &ThreadId, body: &Value) -> Result<SavedSnapshot> {
        let folder = self.layout.thread(thread);
        check_folder(&folder)?;
        let (text, hash) = snapshot::sign(thread, body, &self.signing()?.signer, self.clock.now())?;
        let path = folder.join(NEWEST);
        let fresh = folder.join(format!(".{NEWEST}.tmp"));
        self.write_fresh(&fresh, &text)?;
        let placed = self.move_newest_aside(thread, &path).and_then(|before| {
            self.disk.rename(&fresh, &path).map_err(io_error("rename", &fresh))?;
            self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
            Ok(before)
        });
        if placed.is_err() {
            // The previous one is unchanged, or among the older ones.
            _ = self.disk.remove(&fresh);
        }
        placed.map(|before| SavedSnapshot { hash, bytes: text.len() as u64, before })
    }

    /// Copies the newest snapshot to the older ones, if it is valid. A folder of that name is moved aside; anything else is discarded.
    /// Returns what was there.
    fn move_newest_aside(&self, thread: &ThreadId, path: &Path) -> Result<Option<Replaced>> {
        let why = match self.newest_file(thread) {
            Ok(None) => return Ok(None),
            Ok(Some(kept)) if !kept.is_snapshot() => "it is not a snapshot".to_owned(),
            Ok(Some(kept)) => match self.checked_snapshot(thread, &kept, path) {
                Ok(_) => {
                    self.keep_snapshot(thread, path, &kept, CHECKPOINTS)?;
                    return Ok(Some(Replaced::Kept(kept.version)));
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
            let aside = path.with_extension(format!("json.aside-{}", self.clock.now().as_micros()));
            self.disk.rename(path, &aside).map_err(io_error("rename", path))?;
        }
        Ok(Some(Replaced::Bad(why)))
    }

    /// Reads a snapshot and verifies its signature.
    fn checked_snapshot(&self, thread: &ThreadId, kept: &SnapshotInfo, path: &Path) -> Result<VerifiedSnapshot> {
        let stored = disk::read(&*self.disk, path, BYTES_MAX).map_err(io_error("read", path))?;
        let bytes = if kept.name.ends_with(PACKED) { self.unpacked(thread, kept, &stored)? } else { stored };
        snapshot::verify(thread, &kept.name, bytes, &self.trust)
    }

    fn unpacked(&self, thread: &ThreadId, kept: &SnapshotInfo, stored: &[u8]) -> Result<Vec<u8>> {
        let most = usize::try_from(BYTES_MAX).unwrap_or(usize::MAX);
        decompress_to_vec_zlib_with_limit(stored, most).map_err(|_| Error::Integrity {
            what: format!("`{}` of `{thread}`", kept.name),
            why: "it can't be decompressed".to_owned(),
            hint: None,
        })
    }

    /// Copies a snapshot into another folder of its thread, compressed; decompressed, its signed bytes are the same.
    fn keep_snapshot(&self, thread: &ThreadId, from: &Path, kept: &SnapshotInfo, folder: &str) -> Result<()> {
        let folder = self.layout.thread(thread).join(folder);
        if !check_folder(&folder)? {
            self.disk.make_folder(&folder).map_err(io_error("create", &folder))?;
        }
        let name = snapshot::name_of(kept.version, kept.saved_at, kept.base) + PACKED;
        let stored = disk::read(&*self.disk, from, BYTES_MAX).map_err(io_error("read", from))?;
        let packed =
            if kept.name.ends_with(PACKED) { stored } else { compress_to_vec_zlib(&stored, COMPRESSION_LEVEL) };
        let fresh = self.layout.thread(thread).join(format!(".{NEWEST}{PACKED}.tmp"));
        self.write_fresh(&fresh, &packed)?;
        // The folder is not synced: a power failure may lose an older snapshot, and the log has the same content.
        self.disk.rename(&fresh, &folder.join(name)).map_err(io_error("rename", &fresh))
    }

    /// Writes a temporary file, and syncs it.
    fn write_fresh(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.disk.remove(path).map_err(io_error("remove", path))?;
        let file = self.disk.open(path, OpenMode::CreateNew).map_err(io_error("create", path))?;
        let written = file.write_at(bytes, 0).and_then(|()| file.sync()).map_err(io_error("write", path));
        if written.is_err() {
            _ = self.disk.remove(path);
        }
        written
    }

    fn snapshot_path(&self, thread: &ThreadId, kept: &SnapshotInfo, archive: &str) -> PathBuf {
        let folder = self.layout.thread(thread);
        match kept.place {
            SnapshotFolder::Newest => folder.join(NEWEST),
            SnapshotFolder::Older => folder.join(CHECKPOINTS).join(&kept.name),
            SnapshotFolder::Archived => folder.join(archive).join(&kept.name),
        }
    }

    /// The newest snapshot by its header, if the file is a snapshot; its signature is not verified.
    pub(crate) fn newest_snapshot(&self, thread: &ThreadId) -> Result<Option<SnapshotInfo>> {
        Ok(self.newest_file(thread)?.filter(SnapshotInfo::is_snapshot))
    }

    /// The file in place of the newest snapshot, whether it is one or not.
    fn newest_file(&self, thread: &ThreadId) -> Result<Option<SnapshotInfo>> {
        let path = self.layout.thread(thread).join(NEWEST);
        let failed = |error| io_error("read", &path)(error);
        let file = match self.disk.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if disk::is_no_file(&error) => return Ok(Some(SnapshotInfo::not_a_snapshot(0))),
            Err(error) => return Err(failed(error)),
        };
        let length = file.length().map_err(failed)?;
        for most in [PEEK_BYTES as u64, BYTES_MAX] {
            let mut beginning = vec![0; usize::try_from(length.min(most)).unwrap_or(0)];
            let read = file.read_at(&mut beginning, 0).map_err(failed)?;
            if let Some(kept) = snapshot::peek(&beginning[..read], length) {
                return Ok(Some(kept));
            }
            if length <= most {
                break;
            }
        }
        Ok(Some(SnapshotInfo::not_a_snapshot(length)))
    }

    /// The running hash of the log up to `at`, sealed with our key; none if the log has more commits.
    fn seal_at(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>> {
        let is_there = |remembered: &Arc<CachedThread>| remembered.tail.head.as_ref() == Some(at);
        let remembered = match self.remembered(thread).filter(is_there) {
            Some(remembered) => Some(remembered),
            None => self.load_thread(thread)?.map(Arc::new).filter(is_there),
        };
        let Some(remembered) = remembered else { return Ok(None) };
        Ok(Some(snapshot::seal(&self.signing()?.seal, at, &remembered.tail.hash)))
    }

    /// The version and hash that the newest snapshot records; none if it fails verification.
    pub(crate) fn snapshot_memory(&self, thread: &ThreadId) -> Result<Option<Memory>> {
        match self.read_snapshot_memory(thread) {
            Ok(memory) => Ok(memory),
            Err(Error::Integrity { .. } | Error::UntrustedKey { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same, but only if it records more than `version`: only then the whole file is read.
    pub(crate) fn snapshot_beyond(
        &self,
        thread: &ThreadId,
        seen: Option<&SnapshotInfo>,
        version: u64,
    ) -> Result<Option<Memory>> {
        match seen {
            Some(kept) if kept.version > version => Ok(self.snapshot_memory(thread)?.filter(|it| it.version > version)),
            _ => Ok(None),
        }
    }

    /// What is wrong with the newest snapshot, if it contradicts the log or fails verification.
    pub(crate) fn bad_snapshot(&self, thread: &ThreadId) -> Result<Option<String>> {
        let memory = match self.read_snapshot_memory(thread) {
            Ok(Some(memory)) => memory,
            // One of an untrusted key is ignored.
            Ok(None) | Err(Error::UntrustedKey { .. }) => return Ok(None),
            Err(Error::Integrity { why, .. }) => return Ok(Some(why)),
            Err(error) => return Err(error),
        };
        let path = self.layout.transcript(thread);
        let examined = read_log(&*self.disk, &self.layout, thread, &self.trust, Some(memory.version), |_| {});
        let passed = examined.map_err(io_error("read", &path))?.passed;
        let differs = passed.is_some_and(|head| memory.hash.is_some_and(|hash| hash != head.hash));
        Ok(differs.then(|| snapshot::shows_another(memory.version)))
    }

    /// The version and hash that the newest snapshot records, if there is one; one that fails verification is refused.
    pub(crate) fn read_snapshot_memory(&self, thread: &ThreadId) -> Result<Option<Memory>> {
        self.newest_text(thread)?.map(|text| snapshot::memory(thread, text, &self.trust)).transpose()
    }

    /// The bytes of the newest snapshot, unverified; none if it does not exist.
    pub(crate) fn newest_text(&self, thread: &ThreadId) -> Result<Option<Vec<u8>>> {
        let path = self.layout.thread(thread).join(NEWEST);
        match disk::read(&*self.disk, &path, BYTES_MAX) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if disk::is_no_file(&error) => Err(snapshot::damaged(thread, error.to_string())),
            Err(error) => Err(io_error("read", &path)(error)),
        }
    }
}

/// The snapshots in a folder, by their names. If it is not a folder, there are none.
fn list(folder: &Path, place: SnapshotFolder) -> Result<Vec<SnapshotInfo>> {
    match check_folder(folder) {
        Ok(true) => {}
        Ok(false) | Err(Error::Unusable { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let failed = |error: io::Error| io_error("list", folder)(error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let bytes = entry.metadata().map(|found| found.len()).unwrap_or(0);
        found.extend(entry.file_name().to_str().and_then(|name| snapshot::parse_name(place, name, bytes)));
    }
    Ok(found)
}
