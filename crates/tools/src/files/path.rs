//! From a path that a model gave to an open folder and a name in it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, mkdirat, openat, statat};
use rustix::io::Errno;

use crate::error::InvalidTool;

const PATH_BYTES_MAX: usize = 4096;

/// The folders that an agent may use.
#[derive(Clone, Debug)]
pub struct Folders {
    root: PathBuf,
    allowed: Vec<Vec<String>>,
    /// Held while a file is read, changed and replaced, so that edits made at once do not undo each other.
    changing: Arc<Mutex<()>>,
}

/// Folders that are closed wherever they are.
const CLOSED: [&str; 2] = [".ai", ".git"];

/// A path that was checked and may be used.
pub(super) struct CheckedPath {
    segments: Vec<String>,
}

/// Why a path can't be used, written for the model.
pub(super) type Refused = String;

impl Folders {
    /// The folders `allowed` under `root`, which must exist; `.` means all of it. If none are allowed, no path is.
    pub fn new<'a>(root: impl Into<PathBuf>, allowed: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidTool> {
        let root = root.into();
        if !root.is_dir() {
            return Err(InvalidTool::new("files", format!("`{}` is not a folder", root.display())));
        }
        let segments = allowed.into_iter().map(|folder| {
            segments(folder).map_err(|why| InvalidTool::new("files", format!("as an allowed folder, {why}")))
        });
        Ok(Self { root, allowed: segments.collect::<Result<_, _>>()?, changing: Arc::default() })
    }

    /// Checks a path, without reading the disk.
    pub(super) fn place(&self, path: &str) -> Result<CheckedPath, Refused> {
        let segments = segments(path)?;
        if let Some(closed) = segments.iter().find(|segment| Self::is_closed(segment)) {
            return Err(format!("`{path}` is refused: `{closed}` is closed to tools"));
        }
        if self.allowed.iter().any(|folder| segments.starts_with(folder)) {
            return Ok(CheckedPath { segments });
        }
        let allowed: Vec<_> = self.allowed.iter().map(|folder| format!("`{}`", shown(folder))).collect();
        let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
        Err(format!("`{}` is outside the allowed folders; allowed: {allowed}", path.escape_debug()))
    }

    /// Waits until no other call of this process changes a file.
    pub(super) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a name is one of those that are closed wherever they are.
    pub(super) fn is_closed(name: &str) -> bool {
        CLOSED.iter().any(|closed| name.eq_ignore_ascii_case(closed))
    }

    /// Opens the folder that a path names.
    pub(super) fn open_folder(&self, place: &CheckedPath) -> Result<OwnedFd, Refused> {
        self.walk(&place.segments, Missing::IsRefused)
    }

    /// Opens the parent folder of a path, and returns the last name.
    pub(super) fn open_parent<'p>(
        &self,
        place: &'p CheckedPath,
        missing: Missing,
    ) -> Result<(OwnedFd, &'p str), Refused> {
        let Some((name, folders)) = place.segments.split_last() else {
            return Err("`.` is a folder, not a file".to_owned());
        };
        Ok((self.walk(folders, missing)?, name))
    }

    fn walk(&self, segments: &[String], missing: Missing) -> Result<OwnedFd, Refused> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut folder =
            rustix::fs::open(&self.root, flags, Mode::empty()).map_err(|errno| said(Path::new("."), errno))?;
        if missing == Missing::IsRefused && !segments.is_empty() {
            let path = shown(segments);
            match beneath(&folder, &path, flags) {
                Some(Ok(opened)) => return Ok(opened),
                Some(Err(Errno::LOOP)) => return Err(format!("`{path}` is refused: it leads through a symbolic link")),
                Some(Err(errno)) => return Err(said(path.as_ref(), errno)),
                None => {}
            }
        }
        for (index, name) in segments.iter().enumerate() {
            let path = shown(&segments[..=index]);
            if missing == Missing::IsMade {
                match mkdirat(&folder, name.as_str(), Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(said(path.as_ref(), errno)),
                }
            }
            let opened = openat(&folder, name.as_str(), flags | OFlags::NOFOLLOW, Mode::empty());
            folder = opened.map_err(|errno| why_not(&folder, name, &path, errno))?;
        }
        Ok(folder)
    }
}

/// Opens a path below a folder in one step: the kernel follows no link and never leaves the folder. None where it can't do that.
#[cfg(target_os = "linux")]
fn beneath(folder: &OwnedFd, path: &str, flags: OFlags) -> Option<Result<OwnedFd, Errno>> {
    use rustix::fs::{ResolveFlags, openat2};
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(folder, path, flags, Mode::empty(), how) {
        // An old kernel, or a filter of a container that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => None,
        opened => Some(opened),
    }
}

#[cfg(not(target_os = "linux"))]
fn beneath(_: &OwnedFd, _: &str, _: OFlags) -> Option<Result<OwnedFd, Errno>> {
    None
}

/// What to do about folders that do not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    IsMade,
    IsRefused,
}

impl CheckedPath {
    pub(super) fn shown(&self) -> String {
        shown(&self.segments)
    }

    /// A path below this one, as it is shown.
    pub(super) fn joined(&self, below: &str) -> String {
        if self.segments.is_empty() { below.to_owned() } else { format!("{}/{below}", self.shown()) }
    }
}

fn shown(segments: &[String]) -> String {
    if segments.is_empty() { ".".to_owned() } else { segments.join("/") }
}

fn segments(path: &str) -> Result<Vec<String>, Refused> {
    let refused =
        |why: &str| Err(format!("`{}` is refused: {why}", path.chars().take(200).collect::<String>().escape_debug()));
    if path.is_empty() {
        refused("it is empty")
    } else if path.len() > PATH_BYTES_MAX {
        refused("it is too long")
    } else if path.contains('\0') {
        refused("it has a NUL in it")
    } else if path.starts_with('/') {
        refused("it is absolute; paths are relative to the project")
    } else if path.split('/').any(|segment| segment == "..") {
        refused("it has `..` in it")
    } else {
        Ok(path.split('/').filter(|segment| !matches!(*segment, "" | ".")).map(str::to_owned).collect())
    }
}

/// Why a name could not be opened; a link is reported as a link.
pub(super) fn why_not(folder: &OwnedFd, name: &str, path: &str, errno: Errno) -> Refused {
    let is_link = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    if is_link { format!("`{path}` is refused: it is a symbolic link") } else { said(path.as_ref(), errno) }
}

/// The operating system's error about a path, in words.
pub(super) fn said(path: &Path, errno: Errno) -> Refused {
    match errno {
        Errno::NOENT => format!("`{}` does not exist", path.display()),
        Errno::NOTDIR => format!("`{}` is not a folder", path.display()),
        Errno::ISDIR => format!("`{}` is a folder", path.display()),
        errno => format!("`{}` can't be used: {errno}", path.display()),
    }
}
