//! The folder in which a backup is built: next to the target, under a lock, renamed to the target when complete.

use std::fs;
use std::path::{Path, PathBuf};

use selvedge_store::{Error, Result};

use super::{FILE, HEADS, THREADS, entries};
use crate::core::io_error;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::layout::check_folder;

/// Locked by the process that writes a backup.
const LOCK: &str = "backup.lock";

/// A backup in progress, next to its target.
pub(super) struct Partial {
    pub(super) folder: PathBuf,
    /// Held while this process writes here.
    _lock: Box<dyn DiskFile>,
}

impl Partial {
    /// Starts over in `DIR.partial`, removing what an interrupted backup left there. Any other content is refused.
    pub(super) fn begin(target: &Path, disk: &dyn Disk) -> Result<Self> {
        let unusable = |what: &Path, why: &str, hint: &str| {
            Err(Error::Unusable {
                what: format!("`{}`", what.display()),
                why: why.to_owned(),
                hint: Some(hint.to_owned()),
            })
        };
        let Some(name) = target.file_name() else {
            return unusable(target, "it can't be a new folder", "name a folder that does not exist yet");
        };
        let mut name = name.to_owned();
        name.push(".partial");
        let folder = target.with_file_name(name);
        if check_folder(&folder)? && !entries(&folder)?.iter().all(|name| is_part(&name.to_string_lossy())) {
            let why = "it exists, and is not an interrupted backup";
            return unusable(&folder, why, "move it away, or name another folder");
        }
        disk.make_folder(&folder).map_err(io_error("create", &folder))?;
        let path = folder.join(LOCK);
        let lock = disk.open(&path, OpenMode::Create).map_err(io_error("create", &path))?;
        let is_ours = lock.try_lock().map_err(io_error("lock", &path))?;
        // A process that finished meanwhile has renamed the folder.
        if !is_ours || fs::symlink_metadata(&path).is_err() {
            return unusable(&folder, "another process is writing a backup there", "let it finish");
        }
        for left in entries(&folder)?.iter().filter(|name| name.as_path() != Path::new(LOCK)) {
            let path = folder.join(left);
            let removed =
                if check_folder(&path).unwrap_or(false) { disk.remove_folder(&path) } else { disk.remove(&path) };
            removed.map_err(io_error("remove", &path))?;
        }
        Ok(Self { folder, _lock: lock })
    }

    /// Renames the backup to its target. On return that is durable, if the parent folder can be synced at all.
    pub(super) fn finish(&self, target: &Path, disk: &dyn Disk) -> Result<()> {
        let lock = self.folder.join(LOCK);
        disk.remove(&lock).map_err(io_error("remove", &lock))?;
        disk.sync_folder(&self.folder).map_err(io_error("sync", &self.folder))?;
        // An empty folder may exist at the target; a rename replaces it.
        disk.rename(&self.folder, target).map_err(io_error("put in place", target))?;
        sync_above(disk, target).inspect_err(|_| {
            // Its name is not durable: it must not look like a finished backup.
            _ = disk.rename(target, &self.folder);
        })
    }
}

/// Whether an unfinished backup has a file or folder of this name.
fn is_part(name: &str) -> bool {
    let is_half_written = |file: &str| name.starts_with(&format!(".{file}.")) && name.ends_with(".tmp");
    [THREADS, FILE, HEADS, LOCK].contains(&name) || [FILE, HEADS].into_iter().any(is_half_written)
}

/// Syncs the parent of a new folder, so that its name is durable; a parent that may not be synced is accepted.
fn sync_above(disk: &dyn Disk, folder: &Path) -> Result<()> {
    use std::io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    let Some(above) = folder.parent() else { return Ok(()) };
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    match disk.sync_folder(above) {
        Err(error) if !matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported) => {
            Err(io_error("sync", above)(error))
        }
        _ => Ok(()),
    }
}
