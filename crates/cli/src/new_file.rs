//! New files, named on the command line or made for the user: never written over another one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::document::refuse_link;
use crate::error::{Exit, Failure, Result};

/// Writes a new file with this mode; durable on return. One that could not be written whole is removed.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let message = format!("`{}` is there already", path.display());
            Failure::new(Exit::Conflict, "file_exists", message).hint("give another name; nothing is overwritten")
        }
        _ => Failure::io("write", path, &error),
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).map_or(PathBuf::from("."), PathBuf::from);
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| File::open(folder)?.sync_all());
    written.map_err(|error| {
        // The failure is reported; a partial file left behind matters less.
        _ = fs::remove_file(path);
        failed(error)
    })
}

/// Writes a new file of a project below `.ai`, with the folders on the way. Items are never read through a link, so none is written through
/// one.
pub(crate) fn write_item(project: &Path, file: &Path, text: &str) -> Result<()> {
    for folder in file.ancestors().skip(1).take_while(|folder| *folder != project) {
        if folder.symlink_metadata().is_ok() {
            refuse_link(folder)?;
        }
    }
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).map_err(|error| Failure::io("create", folder, &error))?;
    write(file, text.as_bytes(), 0o666)
}
