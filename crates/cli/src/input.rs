//! Opening a file that was named on the command line.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::{Failure, Result};

/// Opens a regular file for reading. Anything else is refused: opening a pipe would wait for a writer.
pub(crate) fn open(path: &Path) -> Result<File> {
    let failed = |error: io::Error| Failure::io("read", path, &error);
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_file() {
        return Ok(file);
    }
    Err(not_regular(path))
}

/// The refusal of a pipe, a device or a folder where a file is needed.
pub(crate) fn not_regular(path: &Path) -> Failure {
    let failure = Failure::usage(format!("`{}` is not a regular file", path.display()));
    failure.hint("write the content of a pipe or a device to a file first")
}

/// Reads a small text file whole.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text).map_err(|error| Failure::io("read", path, &error))?;
    Ok(text)
}
