//! Walks the files below a folder, without following links and up to a bound.

use rustix::fd::OwnedFd;
use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use selvedge_model::Cancel;

use super::path::{Folders, Refused, said};

/// The most entries that are read; a project may have millions.
const ENTRIES_MAX: usize = 200_000;
const DEPTH_MAX: usize = 64;

/// What the visitor wants after a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Stop,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walked {
    All,
    /// The visitor had enough.
    Stopped,
    /// There were too many entries, or it was cancelled.
    CutShort,
}

/// Visits every file below an open folder, in the order of the names: its path from there, the folder that it is in, and its name. Closed
/// folders are left out.
pub(super) fn walk(
    top: OwnedFd,
    cancel: &Cancel,
    visit: &mut dyn FnMut(&str, &OwnedFd, &str) -> Next,
) -> Result<Walked, Refused> {
    let mut seen = 0;
    let mut open = vec![(String::new(), entries(&top, &mut seen)?, top)];
    while let Some((path, names, folder)) = open.last_mut() {
        let Some((name, is_folder)) = names.pop() else {
            open.pop();
            continue;
        };
        if cancel.said().is_some() || seen > ENTRIES_MAX {
            return Ok(Walked::CutShort);
        }
        let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        if !is_folder {
            if visit(&below, folder, &name) == Next::Stop {
                return Ok(Walked::Stopped);
            }
            continue;
        }
        if Folders::is_closed(&name) || open.len() >= DEPTH_MAX {
            continue;
        }
        let (_, _, folder) = &open[open.len() - 1];
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A folder that is gone by now, or can't be read, has no files.
        let Ok(folder) = openat(folder, name.as_str(), flags, Mode::empty()) else { continue };
        let Ok(names) = entries(&folder, &mut seen) else { continue };
        open.push((below, names, folder));
    }
    Ok(Walked::All)
}

/// The names in a folder, the last one first, and which of them are folders. Links and special files are left out, as are names that are not
/// UTF-8.
fn entries(folder: &OwnedFd, seen: &mut usize) -> Result<Vec<(String, bool)>, Refused> {
    let failed = |errno| said("the folder".as_ref(), errno);
    let mut names = Vec::new();
    for entry in Dir::read_from(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        *seen += 1;
        if *seen > ENTRIES_MAX {
            break;
        }
        let Ok(name) = entry.file_name().to_str() else { continue };
        let kind = match entry.file_type() {
            FileType::Unknown => rustix::fs::statat(folder, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
            kind => kind,
        };
        match kind {
            FileType::Directory if !matches!(name, "." | "..") => names.push((name.to_owned(), true)),
            FileType::RegularFile => names.push((name.to_owned(), false)),
            _ => {}
        }
    }
    names.sort_by(|one, other| other.cmp(one));
    Ok(names)
}
