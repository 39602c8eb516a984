//! The archive of a thread before it is deleted, as of `selvedge export`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use selvedge_model::ThreadId;
use selvedge_store::Backend;

use crate::error::{Exit, Failure, Result};

/// Writes a thread as an archive in the folder `archive`; it is durable when this returns. A partial one is overwritten, and an
/// identical one is kept. Refused if the thread is not what was signed.
pub(super) fn keep(thread: &ThreadId, store: &dyn Backend, archive: &Path) -> Result<PathBuf> {
    let target = archive.join(format!("{}.tar", thread.folder()));
    let begun = archive.join(format!(".{}.tar.tmp", thread.folder()));
    let failed = |error| Failure::io("archive to", &target, &error);
    fs::create_dir_all(archive).map_err(failed)?;
    let written = write(thread, store, &begun);
    if written.is_err() {
        // The first error is the one to report.
        _ = fs::remove_file(&begun);
    }
    written?;
    if target.symlink_metadata().is_ok() {
        let is_same = same(&begun, &target);
        fs::remove_file(&begun).map_err(failed)?;
        return if is_same.map_err(failed)? {
            Ok(target)
        } else {
            Err(Failure::new(
                Exit::NotAllowed,
                "archive_exists",
                format!("`{}` already exists, with other content", target.display()),
            )
            .hint("name another folder with --archive"))
        };
    }
    fs::rename(&begun, &target).map_err(failed)?;
    File::open(archive).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(target)
}

/// Writes the archive to a new file, synced on return.
fn write(thread: &ThreadId, store: &dyn Backend, path: &Path) -> Result<()> {
    let failed = |error| Failure::io("archive to", path, &error);
    if path.symlink_metadata().is_ok() {
        fs::remove_file(path).map_err(failed)?;
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let mut out = BufWriter::with_capacity(1 << 16, &file);
    store.export(thread, &mut out)?;
    out.flush().and_then(|()| file.sync_all()).map_err(failed)
}

/// Whether two files have the same bytes.
fn same(one: &Path, other: &Path) -> io::Result<bool> {
    let one = File::open(one)?;
    let other = File::open(other)?;
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let mut other = BufReader::new(other).bytes();
    for byte in BufReader::new(one).bytes() {
        if other.next().transpose()? != Some(byte?) {
            return Ok(false);
        }
    }
    Ok(true)
}
