//! Snapshots on disk: `state.json`, older ones in `checkpoints/`, and those that were put away.
//!
//! A snapshot is written beside the newest and synced; then the newest is copied, compressed, to `checkpoints/`, then the new one takes
//! its place, then the folder is synced. So there is always a newest one, whenever the process dies. What is not rightly signed is not
//! kept when a new one takes its place; a folder that stands there is moved beside it.

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
use selvedge_store::snapshot::{self, Away, Before, Behind, GLANCE_BYTES, Kept, NEWEST, PACKED, Place, Read, Saved};
use selvedge_store::{Error, Result, Snapshots};
use serde_json::Value;

use crate::core::{Core, Remembered, io_error};
use crate::disk::{self, How};
use crate::layout::check_folder;
use crate::open::LocalStore;
use crate::replay::read_log;

/// How long a snapshot may be.
const MOST_BYTES: u64 = 256 << 20;
/// Fast, and already a fifth of typical snapshots.
const COMPRESSION_LEVEL: u8 = 3;
/// Where older ones lie.
pub(crate) const CHECKPOINTS: &str = "checkpoints";

impl Snapshots for LocalStore {
    fn seal(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>> {
        self.core.seal_at(thread, at)
    }

    fn save(&self, thread: &ThreadId, body: &Value) -> Result<Saved> {
        self.core.save_snapshot(thread, body)
    }

    fn no_snapshot_folders(&self, thread: &ThreadId, archive: &str) -> Vec<Error> {
        let folder = self.core.layout.thread(thread);
        [CHECKPOINTS, archive].into_iter().filter_map(|name| check_folder(&folder.join(name)).err()).collect()
    }

    fn kept(&self, thread: &ThreadId, archive: &str) -> Result<Vec<Kept>> {
        let folder = self.core.layout.thread(thread);
        let mut kept: Vec<Kept> = self.core.in_place_of_newest(thread)?.into_iter().collect();
        kept.extend(list(&folder.join(CHECKPOINTS), Place::Older)?);
        kept.extend(list(&folder.join(archive), Place::Archived)?);
        kept.sort_by_key(|kept| (kept.is_told(), Reverse(kept.version), kept.place));
        Ok(kept)
    }

    fn read_snapshot(&self, thread: &ThreadId, kept: &Kept, archive: &str) -> Result<Read> {
        let path = self.core.snapshot_path(thread, kept, archive);
        self.core.checked_snapshot(thread, kept, &path)
    }

    fn put_away(&self, thread: &ThreadId, kept: &[Kept], archive: &str, away: Away<'_>) -> Result<()> {
        let core = &self.core;
        for kept in kept {
            let from = core.snapshot_path(thread, kept, archive);
            match away {
                Away::Delete => core.disk.remove(&from).map_err(io_error("remove", &from))?,
                Away::Archive(folder) => {
                    core.keep_snapshot(thread, &from, kept, folder)?;
                    core.disk.remove(&from).map_err(io_error("remove", &from))?;
                }
            }
        }
        Ok(())
    }

    fn behind(&self, thread: &ThreadId, at: &Head, seal: &str) -> Result<Option<Behind>> {
        let core = &self.core;
        // Who only looks has no key, and nobody's word counts without one.
        let Ok(signing) = core.signing() else { return Ok(None) };
        let Some(hash) = snapshot::unseal(&signing.seal, at, seal) else { return Ok(None) };
        let path = core.layout.transcript(thread);
        let shot = core.shot(thread)?;
        // Of a version that is lost nothing follows: what stands there now was written after another one.
        if shot.row.manifest.lost.iter().any(|lost| lost.contains(at.version)) {
            return Ok(None);
        }
        let (head, mut overlay) = shot.committed();
        if head.log_id != at.log_id || head.segment != at.segment || head.bytes < at.bytes {
            return Ok(None);
        }
        overlay.seek(SeekFrom::Start(at.bytes)).map_err(io_error("read", &path))?;
        let bytes = Box::new(BufReader::with_capacity(1 << 16, overlay));
        Ok(Some(Behind { hash, head, bytes }))
    }
}

impl Core {
    fn save_snapshot(&self, thread: &ThreadId, body: &Value) -> Result<Saved> {
        let folder = self.layout.thread(thread);
        check_folder(&folder)?;
        let (text, hash) = snapshot::sign(thread, body, &self.signing()?.signer, self.clock.now())?;
        let path = folder.join(NEWEST);
        let fresh = folder.join(format!(".{NEWEST}.tmp"));
        self.write_fresh(&fresh, &text)?;
        let placed = self.step_aside(thread, &path).and_then(|before| {
            self.disk.rename(&fresh, &path).map_err(io_error("rename", &fresh))?;
            self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
            Ok(before)
        });
        if placed.is_err() {
            // The one before is untouched, or among the older ones.
            _ = self.disk.remove(&fresh);
        }
        placed.map(|before| Saved { hash, bytes: text.len() as u64, before })
    }

    /// Copies the newest snapshot, if it is a good one, among the older ones. A folder in its place is moved out of the way; anything else
    /// that stands there is worth nothing. Gives what stood there.
    fn step_aside(&self, thread: &ThreadId, path: &Path) -> Result<Option<Before>> {
        let why = match self.in_place_of_newest(thread) {
            Ok(None) => return Ok(None),
            Ok(Some(kept)) if !kept.is_told() => "it does not look like a snapshot".to_owned(),
            Ok(Some(kept)) => match self.checked_snapshot(thread, &kept, path) {
                Ok(_) => {
                    self.keep_snapshot(thread, path, &kept, CHECKPOINTS)?;
                    return Ok(Some(Before::Kept(kept.version)));
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
            let aside = path.with_extension(format!("json.aside-{}", self.clock.now().as_micros()));
            self.disk.rename(path, &aside).map_err(io_error("rename", path))?;
        }
        Ok(Some(Before::Bad(why)))
    }

    /// Reads a snapshot and checks its signature.
    fn checked_snapshot(&self, thread: &ThreadId, kept: &Kept, path: &Path) -> Result<Read> {
        let stored = disk::read(&*self.disk, path, MOST_BYTES).map_err(io_error("read", path))?;
        let bytes = if kept.name.ends_with(PACKED) { self.unpacked(thread, kept, &stored)? } else { stored };
        snapshot::verify(thread, &kept.name, bytes, &self.trust)
    }

    fn unpacked(&self, thread: &ThreadId, kept: &Kept, stored: &[u8]) -> Result<Vec<u8>> {
        let most = usize::try_from(MOST_BYTES).unwrap_or(usize::MAX);
        decompress_to_vec_zlib_with_limit(stored, most).map_err(|_| Error::Integrity {
            what: format!("`{}` of `{thread}`", kept.name),
            why: "it can't be decompressed".to_owned(),
            hint: None,
        })
    }

    /// Copies a snapshot into another folder of its thread, compressed: its signed bytes are the same when they are read again.
    fn keep_snapshot(&self, thread: &ThreadId, from: &Path, kept: &Kept, folder: &str) -> Result<()> {
        let folder = self.layout.thread(thread).join(folder);
        if !check_folder(&folder)? {
            self.disk.make_folder(&folder).map_err(io_error("make", &folder))?;
        }
        let name = snapshot::name_of(kept.version, kept.saved_at, kept.base) + PACKED;
        let stored = disk::read(&*self.disk, from, MOST_BYTES).map_err(io_error("read", from))?;
        let packed =
            if kept.name.ends_with(PACKED) { stored } else { compress_to_vec_zlib(&stored, COMPRESSION_LEVEL) };
        let fresh = self.layout.thread(thread).join(format!(".{NEWEST}{PACKED}.tmp"));
        self.write_fresh(&fresh, &packed)?;
        // The folder is not synced: a power cut may lose an older one, and the log says the same.
        self.disk.rename(&fresh, &folder.join(name)).map_err(io_error("rename", &fresh))
    }

    /// Writes a file that nothing refers to yet, and syncs it.
    fn write_fresh(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.disk.remove(path).map_err(io_error("remove", path))?;
        let file = self.disk.open(path, How::MakeNew).map_err(io_error("make", path))?;
        let written = file.write_at(bytes, 0).and_then(|()| file.sync()).map_err(io_error("write", path));
        if written.is_err() {
            _ = self.disk.remove(path);
        }
        written
    }

    fn snapshot_path(&self, thread: &ThreadId, kept: &Kept, archive: &str) -> PathBuf {
        let folder = self.layout.thread(thread);
        match kept.place {
            Place::Newest => folder.join(NEWEST),
            Place::Older => folder.join(CHECKPOINTS).join(&kept.name),
            Place::Archived => folder.join(archive).join(&kept.name),
        }
    }

    /// What the newest snapshot looks like, if there is one that looks like one.
    pub(crate) fn newest_snapshot(&self, thread: &ThreadId) -> Result<Option<Kept>> {
        Ok(self.in_place_of_newest(thread)?.filter(Kept::is_told))
    }

    /// What stands in the place of the newest snapshot, whether it looks like one or not.
    fn in_place_of_newest(&self, thread: &ThreadId) -> Result<Option<Kept>> {
        let path = self.layout.thread(thread).join(NEWEST);
        let failed = |error| io_error("read", &path)(error);
        let file = match self.disk.open(&path, How::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if disk::is_no_file(&error) => return Ok(Some(Kept::unlike(0))),
            Err(error) => return Err(failed(error)),
        };
        let length = file.length().map_err(failed)?;
        for most in [GLANCE_BYTES as u64, MOST_BYTES] {
            let mut beginning = vec![0; usize::try_from(length.min(most)).unwrap_or(0)];
            let read = file.read_at(&mut beginning, 0).map_err(failed)?;
            if let Some(kept) = snapshot::glance(&beginning[..read], length) {
                return Ok(Some(kept));
            }
            if length <= most {
                break;
            }
        }
        Ok(Some(Kept::unlike(length)))
    }

    /// The running hash of the log up to `at`, sealed with our key; nothing if the log has gone on.
    fn seal_at(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>> {
        let is_there = |remembered: &Arc<Remembered>| remembered.tail.head.as_ref() == Some(at);
        let remembered = match self.remembered(thread).filter(is_there) {
            Some(remembered) => Some(remembered),
            None => self.recall(thread)?.map(Arc::new).filter(is_there),
        };
        let Some(remembered) = remembered else { return Ok(None) };
        Ok(Some(snapshot::seal(&self.signing()?.seal, at, &remembered.tail.hash)))
    }

    /// What the newest snapshot remembers of the log; one that is not rightly signed remembers nothing.
    pub(crate) fn snapshot_memory(&self, thread: &ThreadId) -> Result<Option<Memory>> {
        match self.read_snapshot_memory(thread) {
            Ok(memory) => Ok(memory),
            Err(Error::Integrity { .. } | Error::Unbelieved { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same, but only if it remembers more than `version`: then it is read whole, and else only looked at.
    pub(crate) fn snapshot_beyond(
        &self,
        thread: &ThreadId,
        seen: Option<&Kept>,
        version: u64,
    ) -> Result<Option<Memory>> {
        match seen {
            Some(kept) if kept.version > version => Ok(self.snapshot_memory(thread)?.filter(|it| it.version > version)),
            _ => Ok(None),
        }
    }

    /// What is wrong with the newest snapshot, if there is one that was signed and is not what the log says, or not what was signed.
    pub(crate) fn bad_snapshot(&self, thread: &ThreadId) -> Result<Option<String>> {
        let memory = match self.read_snapshot_memory(thread) {
            Ok(Some(memory)) => memory,
            // A key that does not count says nothing.
            Ok(None) | Err(Error::Unbelieved { .. }) => return Ok(None),
            Err(Error::Integrity { why, .. }) => return Ok(Some(why)),
            Err(error) => return Err(error),
        };
        let path = self.layout.transcript(thread);
        let examined = read_log(&*self.disk, &self.layout, thread, &self.trust, Some(memory.version), |_| {});
        let passed = examined.map_err(io_error("read", &path))?.passed;
        let differs = passed.is_some_and(|head| memory.hash.is_some_and(|hash| hash != head.hash));
        Ok(differs.then(|| snapshot::shows_another(memory.version)))
    }

    /// What the newest snapshot remembers of the log, if there is one; one that is not rightly signed is refused.
    pub(crate) fn read_snapshot_memory(&self, thread: &ThreadId) -> Result<Option<Memory>> {
        self.newest_text(thread)?.map(|text| snapshot::memory(thread, text, &self.trust)).transpose()
    }

    /// The bytes of the newest snapshot, unchecked; nothing if there is none.
    pub(crate) fn newest_text(&self, thread: &ThreadId) -> Result<Option<Vec<u8>>> {
        let path = self.layout.thread(thread).join(NEWEST);
        match disk::read(&*self.disk, &path, MOST_BYTES) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if disk::is_no_file(&error) => Err(snapshot::damaged(thread, error.to_string())),
            Err(error) => Err(io_error("read", &path)(error)),
        }
    }
}

/// The snapshots in a folder, as far as their names say that they are some. Something else that stands in its place holds none.
fn list(folder: &Path, place: Place) -> Result<Vec<Kept>> {
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
        found.extend(entry.file_name().to_str().and_then(|name| snapshot::kept_as(place, name, bytes)));
    }
    Ok(found)
}
