//! The only module that reads files: below a given folder, step by step, and never through a link.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, open, openat, statat};
use rustix::io::Errno;

use crate::error::{Flaw, ItemError, NOT_PLAIN};

/// The most files and folders that one listing visits.
const ENTRIES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 8;

/// The mark that some editors write before UTF-8.
pub(crate) const BYTE_ORDER_MARK: char = '\u{feff}';

/// Reads the file `steps` below `folder`; `None` if there is none. Every step is opened relative to the previous one, so a link that
/// is swapped in meanwhile is refused too.
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
        return Err(refused(NOT_PLAIN));
    }
    let mut bytes = Vec::new();
    let read = File::from(file).take(bytes_max as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|source| ItemError::Io { file: shown(), source })?;
    if bytes.len() > bytes_max {
        return Err(ItemError::TooLarge { file: shown(), bytes_max });
    }
    Ok(Some(bytes))
}

fn is_link(at: &OwnedFd, step: &str) -> bool {
    statat(at, step, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
}

/// The text of a file, without a byte order mark.
pub(crate) fn text(bytes: Vec<u8>) -> Result<String, Flaw> {
    let text = String::from_utf8(bytes).map_err(|_| Flaw::new("it is not UTF-8").hint("save it as UTF-8"))?;
    Ok(match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

/// A file with the right extension, or a link in the place of one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListedFile {
    /// Its path below the folder, without the extension; that of a link to a folder ends in `/`.
    pub(crate) id: String,
    /// The link, if it is one. It is never followed: reading it is refused.
    pub(crate) link: Option<PathBuf>,
}

/// The regular files below `folder` with this extension, and links that could be or contain some, sorted. Hidden files are skipped.
pub(crate) fn list_below(folder: &Path, ending: &str) -> Result<Vec<ListedFile>, ItemError> {
    let failed = |source| ItemError::Io { file: folder.display().to_string(), source };
    match folder.symlink_metadata() {
        Ok(found) if found.is_dir() => {}
        Ok(found) if found.is_symlink() => {
            return Err(ItemError::Unsafe { file: folder.display().to_string(), why: "it is a link" });
        }
        _ => return Ok(Vec::new()),
    }
    let mut found = Vec::new();
    let mut seen = 0;
    let mut open = vec![(folder.to_owned(), String::new(), 0)];
    while let Some((path, prefix, depth)) = open.pop() {
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            seen += 1;
            if seen > ENTRIES_MAX {
                return Err(failed(io::Error::other("it has more than 10,000 entries")));
            }
            let Ok(name) = entry.file_name().into_string() else { continue };
            let kind = entry.file_type().map_err(failed)?;
            if name.starts_with('.') {
                continue;
            }
            let stem = name.strip_suffix(ending).map(|stem| format!("{prefix}{stem}"));
            let link = kind.is_symlink().then(|| entry.path());
            if kind.is_dir() && depth < DEPTH_MAX {
                open.push((entry.path(), format!("{prefix}{name}/"), depth + 1));
            } else if link.as_ref().is_some_and(|link| link.is_dir()) {
                found.push(ListedFile { id: format!("{prefix}{name}/"), link });
            } else if let Some(id) = stem.filter(|_| kind.is_file() || link.is_some()) {
                found.push(ListedFile { id, link });
            }
        }
    }
    found.sort();
    Ok(found)
}
