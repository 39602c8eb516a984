//! The one place that reads files: below a folder that was handed over, step by step, and never through a link.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, open, openat, statat};
use rustix::io::Errno;

use crate::error::ItemError;

/// The most files and folders that are looked at in one list.
const ENTRIES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 8;

/// Reads the file `steps` below `folder`; nothing if there is none. Every step is opened from the one before, so a link that
/// is put in its place meanwhile is refused too.
pub(crate) fn read_below(folder: &Path, steps: &[&str], bytes_max: usize) -> Result<Option<Vec<u8>>, ItemError> {
    let shown = || steps.iter().fold(folder.to_owned(), |path, step| path.join(step)).display().to_string();
    let failed = |errno: Errno| ItemError::Io { file: shown(), source: io::Error::from(errno) };
    let refused = |why| ItemError::Unsafe { file: shown(), why };
    let folder_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at: OwnedFd = match open(folder, folder_flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    let Some((name, folders)) = steps.split_last() else { return Ok(None) };
    for step in folders {
        at = match openat(&at, *step, folder_flags | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) if is_link(&at, step) => {
                return Err(refused("a link is on the way to it"));
            }
            Err(Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match openat(&at, *name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(refused("it is a link")),
        Err(errno) => return Err(failed(errno)),
    };
    if FileType::from_raw_mode(fstat(&file).map_err(failed)?.st_mode) != FileType::RegularFile {
        return Err(refused("it is no plain file"));
    }
    let mut bytes = Vec::new();
    let read = File::from(file).take(bytes_max as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|source| ItemError::Io { file: shown(), source })?;
    match bytes.len() <= bytes_max {
        true => Ok(Some(bytes)),
        false => Err(refused("it is larger than an item may be")),
    }
}

fn is_link(at: &OwnedFd, step: &str) -> bool {
    statat(at, step, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
}

/// The paths below `folder` of plain files with this ending, without the ending, sorted. Links and hidden files are passed over.
pub(crate) fn list_below(folder: &Path, ending: &str) -> Result<Vec<String>, ItemError> {
    let failed = |source| ItemError::Io { file: folder.display().to_string(), source };
    if !folder.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let mut seen = 0;
    let mut open = vec![(folder.to_owned(), String::new(), 0)];
    while let Some((path, prefix, depth)) = open.pop() {
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            seen += 1;
            if seen > ENTRIES_MAX {
                return Err(failed(io::Error::other("it holds more than 10,000 entries")));
            }
            let Ok(name) = entry.file_name().into_string() else { continue };
            let kind = entry.file_type().map_err(failed)?;
            if name.starts_with('.') {
                continue;
            }
            if kind.is_dir() && depth < DEPTH_MAX {
                open.push((entry.path(), format!("{prefix}{name}/"), depth + 1));
            } else if kind.is_file()
                && let Some(stem) = name.strip_suffix(ending)
            {
                found.push(format!("{prefix}{stem}"));
            }
        }
    }
    found.sort();
    Ok(found)
}
