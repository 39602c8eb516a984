//! A copy of a thread before it is deleted: its whole folder, synced.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use selvedge_model::ThreadId;
use selvedge_store_local::LocalStore;

use crate::error::{Exit, Failure, Result};

/// Copies a thread's folder into a new one below `archive`; it is on the disk when this returns. A copy that was cut short
/// is begun anew, and one that is whole is not made twice.
pub(super) fn keep(thread: &ThreadId, store: &LocalStore, archive: &Path) -> Result<PathBuf> {
    let (source, target) = (store.thread_folder(thread), archive.join(thread.folder()));
    let failed = |error| Failure::io("archive to", &target, &error);
    fs::create_dir_all(archive).map_err(failed)?;
    if target.symlink_metadata().is_ok() {
        let log = |folder: &Path| fs::read(folder.join("transcript.jsonl")).map_err(failed);
        return match log(&target)? == log(&source)? {
            true => Ok(target),
            false => Err(Failure::new(
                Exit::NotAllowed,
                "archive_exists",
                format!("`{}` is there already, with another log", target.display()),
            )
            .hint("name another folder with --archive")),
        };
    }
    let begun = archive.join(format!(".{}.tmp", thread.folder()));
    if begun.symlink_metadata().is_ok() {
        fs::remove_dir_all(&begun).map_err(failed)?;
    }
    copy(&source, &begun).map_err(failed)?;
    fs::rename(&begun, &target).map_err(failed)?;
    File::open(archive).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(target)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&source, &target)?;
        } else if entry.file_type()?.is_file() {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&target)?;
            io::copy(&mut File::open(&source)?, &mut file)?;
            file.sync_all()?;
        }
    }
    File::open(to)?.sync_all()
}
