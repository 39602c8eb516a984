//! `file_write`: replaces a whole file atomically.
//!
//! After a crash the file is the old or the new one, never a blend. An unfinished write leaves a file `.selvedge-HEX` next to it, named by the
//! call's key: the same call, made again, removes it.

use std::fs::File;
use std::io::Write as _;

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, fsync, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use selvedge_model::digest::hex;
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Reconciled, Risk, Started};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::path::{CheckedPath, Folders, Missing, Refused, said};
use crate::error::InvalidTool;
use crate::in_process::{self, InProcessCall};
use crate::schema::Schema;

/// The most bytes that one call may write.
const WRITE_BYTES_MAX: usize = 1024 * 1024;

/// The tool. The same call made twice leaves the same file.
#[derive(Debug)]
pub struct FileWrite {
    folders: Folders,
    spec: ToolSpec,
    schema: Schema,
}

impl FileWrite {
    /// Writes inside `folders`.
    pub fn new(folders: Folders) -> Result<Self, InvalidTool> {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "The file, relative to the project. Missing folders are made."},
                "content": {"type": "string", "description": "Its whole new text."}
            },
            "required": ["path", "content"],
            "additionalProperties": false
        });
        let description = "Writes a text file of the project. Its previous content is replaced.";
        let spec = in_process::spec("file_write", description, schema, EffectClass::Idempotent, Risk::Write);
        Ok(Self { schema: Schema::compile(&spec.name, &spec.input_schema)?, folders, spec })
    }
}

impl Tool for FileWrite {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        let not_started = |why| ToolError::NotStarted { tool: self.spec.name.clone(), why };
        let text = |name: &str| call.arguments[name].as_str().unwrap_or_default();
        let place = self.folders.place(text("path")).map_err(not_started)?;
        let content = text("content").to_owned();
        if content.len() > WRITE_BYTES_MAX {
            let why = format!("{} bytes are more than the {WRITE_BYTES_MAX} that one call may write", content.len());
            return Err(not_started(why));
        }
        let unfinished = unfinished_name(call);
        let folders = self.folders.clone();
        let work = move || write(&folders, &place, &unfinished, content.as_bytes()).unwrap_or_else(Output::error);
        Ok(InProcessCall::boxed(&self.spec.name, work))
    }

    /// Writing again has the same effect, so the outcome need not be known.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        Reconciled::Unsupported
    }
}

fn write(folders: &Folders, place: &CheckedPath, unfinished: &str, content: &[u8]) -> Result<Output, Refused> {
    let path = place.shown();
    let _alone = folders.changing();
    let (folder, name) = folders.open_parent(place, Missing::IsMade)?;
    let mode = old_mode(&folder, name, &path)?;
    replace(&folder, name, unfinished, content, mode).map_err(|errno| said(path.as_ref(), errno))?;
    Ok(Output::text(format!("wrote {} bytes to `{path}`", content.len())))
}

/// The name of the file that is written before it replaces another one.
pub(super) fn unfinished_name(call: &Call) -> String {
    format!(".selvedge-{}", &hex(&Sha256::digest(&call.key))[..24])
}

/// The mode of the existing file, if there is one and it may be replaced.
pub(super) fn old_mode(folder: &OwnedFd, name: &str, path: &str) -> Result<Option<Mode>, Refused> {
    let stat = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(said(path.as_ref(), errno)),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Some(Mode::from_raw_mode(stat.st_mode & 0o777))),
        FileType::Symlink => Err(format!("`{path}` is refused: it is a symbolic link")),
        FileType::Directory => Err(format!("`{path}` is a folder")),
        _ => Err(format!("`{path}` is not a file")),
    }
}

/// Writes a file next to it, syncs it, and renames it into place. After an error it is as before.
pub(super) fn replace(
    folder: &OwnedFd,
    name: &str,
    unfinished: &str,
    content: &[u8],
    mode: Option<Mode>,
) -> Result<(), Errno> {
    let replaced = write_and_rename(folder, name, unfinished, content, mode);
    if replaced.is_err() {
        let _ = unlinkat(folder, unfinished, AtFlags::empty());
    }
    replaced
}

fn write_and_rename(
    folder: &OwnedFd,
    name: &str,
    unfinished: &str,
    content: &[u8],
    mode: Option<Mode>,
) -> Result<(), Errno> {
    match unlinkat(folder, unfinished, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(folder, unfinished, flags, Mode::from_raw_mode(0o666))?);
    if let Some(mode) = mode {
        fchmod(&file, mode)?;
    }
    file.write_all(content).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    fsync(&file)?;
    renameat(folder, unfinished, folder, name)?;
    fsync(folder.as_fd())
}
