//! Opening a file that was named on the command line.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use selvedge_log::strict;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Failure, Result};

/// The most bytes of a state.
const STATE_BYTES_MAX: u64 = 4 << 20;
/// How deeply a state may be nested: a line of a log has a limited depth.
const STATE_DEPTH_MAX: usize = 48;

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

/// The state in a file: one JSON object without duplicate keys.
pub(crate) fn state(context: &Context<'_>, path: &Path) -> Result<Value> {
    let path = context.folder.join(path);
    let mut bytes = Vec::new();
    let read = open(&path)?.take(STATE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::io("read", &path, &error))?;
    let refused = |why: String| {
        let failure = Failure::usage(format!("`{}` is not a state: {why}", path.display()));
        failure.hint("a state is one JSON object, such as {\"notes\": []}")
    };
    if bytes.len() as u64 > STATE_BYTES_MAX {
        return Err(refused("it is longer than 4 MiB".to_owned()));
    }
    let state = strict::parse(&bytes).map_err(|error| refused(error.to_string()))?;
    strict::check_writable(&state, STATE_DEPTH_MAX).map_err(|error| refused(error.to_string()))?;
    if state.is_object() { Ok(state) } else { Err(refused("it is not an object".to_owned())) }
}
