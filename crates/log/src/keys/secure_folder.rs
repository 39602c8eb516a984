//! Folders of keys and of the trust store, which decide what is trusted. Only their owner may access them.
//!
//! Invariants:
//!
//! - The folder is opened once, without following a symbolic link, and everything in it is accessed through that handle;
//!   what was checked is what is read.
//! - Folder and files belong to the effective user, and their modes have none of the bits that the caller forbids.
//! - A file appears as a whole or not at all: it is written under a temporary name, synced, and then linked to its own, which fails
//!   if that name is taken, or renamed over it. When `create`, `replace` or `remove` returns, file and folder entry are
//!   durable. After a crash a file named `.….tmp` may be left; it is ignored.
//! - After a sync that failed, a later one proves nothing about the same name: a new name is removed again, and the next attempt makes it anew.

use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, linkat, openat, renameat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use zeroize::Zeroizing;

/// Bits that give other users any access.
pub(crate) const ANY_OTHER: u32 = 0o077;

/// Bits that let other users write.
pub(crate) const OTHER_WRITE: u32 = 0o022;

/// What is wrong with a file or folder.
#[derive(Debug)]
pub(crate) enum Problem {
    /// It does not exist.
    Absent,
    /// The name is taken.
    Exists,
    /// Another user may have access to it.
    Unsafe(String),
    /// Its content is invalid.
    Damaged(String),
    /// The operating system reported an error.
    Io(io::Error),
}

/// A problem and the path that has it.
#[derive(Debug)]
pub(crate) struct FolderError {
    pub(crate) path: PathBuf,
    pub(crate) problem: Problem,
}

impl FolderError {
    fn new(path: impl Into<PathBuf>, problem: Problem) -> Self {
        Self { path: path.into(), problem }
    }

    fn io(path: impl Into<PathBuf>, error: impl Into<io::Error>) -> Self {
        Self::new(path, Problem::Io(error.into()))
    }
}

/// A checked, open folder.
pub(crate) struct Folder {
    path: PathBuf,
    handle: File,
}

impl Folder {
    /// Opens a folder whose mode has none of the `forbidden` bits.
    pub(crate) fn open(path: &Path, forbidden: u32) -> Result<Self, FolderError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())) {
            Ok(handle) => File::from(handle),
            Err(Errno::NOENT) => return Err(FolderError::new(path, Problem::Absent)),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let why = "it is a symbolic link or not a folder".to_owned();
                return Err(FolderError::new(path, Problem::Unsafe(why)));
            }
            Err(error) => return Err(FolderError::io(path, error)),
        };
        let metadata = handle.metadata().map_err(|e| FolderError::io(path, e))?;
        check(&metadata, forbidden).map_err(|why| FolderError::new(path, Problem::Unsafe(why)))?;
        Ok(Self { path: path.to_owned(), handle })
    }

    /// Opens a folder. It and its parents are created first if they are missing, with mode 0700.
    pub(crate) fn open_or_create(path: &Path, forbidden: u32) -> Result<Self, FolderError> {
        let missing: Vec<&Path> = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
        for folder in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(folder) {
                Ok(()) => {}
                // Another process created it, or it is a dangling link; opening it will tell.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(FolderError::io(folder, error)),
            }
            let parent = folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent).and_then(|f| f.sync_all()).map_err(|e| {
                // A later sync would prove nothing about this name: the next attempt makes it again.
                _ = std::fs::remove_dir(folder);
                FolderError::io(parent, e)
            })?;
        }
        Self::open(path, forbidden)
    }

    /// The path of a file in the folder, for messages.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The names in the folder, sorted, without those that start with a dot.
    pub(crate) fn names(&self) -> Result<Vec<String>, FolderError> {
        let mut names = Vec::new();
        for entry in retry_on_intr(|| Dir::read_from(&self.handle)).map_err(|e| FolderError::io(&self.path, e))? {
            let entry = entry.map_err(|e| FolderError::io(&self.path, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Whether the name is taken, by any kind of file.
    pub(crate) fn has(&self, name: &str) -> Result<bool, FolderError> {
        match rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(FolderError::io(self.path_of(name), error)),
        }
    }

    /// Reads a file whose mode has none of the `forbidden` bits, at most `bytes_max` of it.
    pub(crate) fn read(&self, name: &str, forbidden: u32, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, FolderError> {
        let path = self.path_of(name);
        let refuse = |why: String| FolderError::new(&path, Problem::Unsafe(why));
        // Non-blocking, so that a pipe in the file's place can't block this process.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match retry_on_intr(|| openat(&self.handle, name, flags, Mode::empty())) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Err(FolderError::new(path, Problem::Absent)),
            Err(Errno::LOOP) => return Err(refuse("it is a symbolic link".to_owned())),
            Err(error) => return Err(FolderError::io(path, error)),
        };
        let metadata = file.metadata().map_err(|e| FolderError::io(&path, e))?;
        if !metadata.is_file() {
            return Err(refuse("it is not a regular file".to_owned()));
        }
        check(&metadata, forbidden).map_err(refuse)?;
        // Allocated at once: a growing buffer would leave copies of a secret in memory.
        let mut bytes = Zeroizing::new(Vec::with_capacity(bytes_max.min(metadata.len()) as usize + 1));
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|e| FolderError::io(&path, e))?;
        if bytes.len() as u64 > bytes_max {
            return Err(FolderError::new(path, Problem::Damaged(format!("it is longer than {bytes_max} bytes"))));
        }
        Ok(bytes)
    }

    /// Writes a new file with exactly this mode. The module describes what is true afterwards.
    pub(crate) fn create(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), FolderError> {
        let path = self.path_of(name);
        let (temporary, file) = self.temporary(name)?;
        let written = write_synced(file, bytes, mode)
            .and_then(|()| Ok(linkat(&self.handle, &temporary, &self.handle, name, AtFlags::empty())?));
        let removed = unlinkat(&self.handle, &temporary, AtFlags::empty());
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Its writer may have died before its name was durable, but the caller will rely on it.
                self.sync()?;
                return Err(FolderError::new(path, Problem::Exists));
            }
            Err(error) => return Err(FolderError::io(path, error)),
        }
        removed.map_err(|e| FolderError::io(self.path_of(&temporary), e))?;
        self.handle.sync_all().map_err(|e| {
            // A later sync would prove nothing about this name: the next attempt makes it again.
            _ = unlinkat(&self.handle, name, AtFlags::empty());
            FolderError::io(&self.path, e)
        })
    }

    /// Writes a file with exactly this mode, replacing an existing one: at every moment the name refers to
    /// the complete old file or the complete new one.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), FolderError> {
        let (temporary, file) = self.temporary(name)?;
        let written =
            write_synced(file, bytes, mode).and_then(|()| Ok(renameat(&self.handle, &temporary, &self.handle, name)?));
        if let Err(error) = written {
            // A leftover file is ignored; the first error is the one to report.
            _ = unlinkat(&self.handle, &temporary, AtFlags::empty());
            return Err(FolderError::io(self.path_of(name), error));
        }
        self.handle.sync_all().map_err(|e| FolderError::io(&self.path, e))
    }

    /// Makes the names in the folder durable.
    pub(crate) fn sync(&self) -> Result<(), FolderError> {
        self.handle.sync_all().map_err(|e| FolderError::io(&self.path, e))
    }

    /// Removes a file; it need not exist.
    pub(crate) fn remove(&self, name: &str) -> Result<(), FolderError> {
        match unlinkat(&self.handle, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.handle.sync_all().map_err(|e| FolderError::io(&self.path, e)),
            Err(error) => Err(FolderError::io(self.path_of(name), error)),
        }
    }

    /// Removes the temporary files of killed writers; only for a caller that knows that no other process writes here.
    pub(crate) fn sweep(&self) -> Result<(), FolderError> {
        for entry in retry_on_intr(|| Dir::read_from(&self.handle)).map_err(|e| FolderError::io(&self.path, e))? {
            let name = entry.map_err(|e| FolderError::io(&self.path, e))?.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') && name.ends_with(".tmp") {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes an empty folder; it need not exist.
    pub(crate) fn remove_folder(&self, name: &str) -> Result<(), FolderError> {
        match unlinkat(&self.handle, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => self.handle.sync_all().map_err(|e| FolderError::io(&self.path, e)),
            Err(error) => Err(FolderError::io(self.path_of(name), error)),
        }
    }

    /// Locks the folder until this handle is dropped; false if another process holds the lock.
    pub(crate) fn try_lock(&self) -> Result<bool, FolderError> {
        match retry_on_intr(|| flock(&self.handle, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(FolderError::io(&self.path, error)),
        }
    }

    /// A new empty file under an unused name.
    fn temporary(&self, name: &str) -> Result<(String, File), FolderError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for attempt in 0..100 {
            let temporary = format!(".{name}.{}.{attempt}.tmp", std::process::id());
            match retry_on_intr(|| openat(&self.handle, &temporary, flags, Mode::RUSR | Mode::WUSR)) {
                Ok(file) => return Ok((temporary, File::from(file))),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(FolderError::io(self.path_of(&temporary), error)),
            }
        }
        let why = io::Error::new(io::ErrorKind::AlreadyExists, "there are a hundred temporary files already");
        Err(FolderError::io(&self.path, why))
    }
}

fn write_synced(mut file: File, bytes: &[u8], mode: u32) -> io::Result<()> {
    file.write_all(bytes)?;
    // Set again, because the umask of the process may have removed bits.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

fn check(metadata: &Metadata, forbidden: u32) -> Result<(), String> {
    judge(metadata.uid(), rustix::process::geteuid().as_raw(), metadata.mode(), forbidden)
}

fn judge(owner: u32, user: u32, mode: u32, forbidden: u32) -> Result<(), String> {
    if owner != user {
        return Err(format!("it belongs to user {owner}, but this process runs as user {user}"));
    }
    if mode & forbidden != 0 {
        let better = mode & 0o777 & !forbidden;
        let mode = mode & 0o777;
        return Err(format!("its mode is {mode:04o}, which gives other users access; use {better:04o}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn another_owner_or_a_loose_mode_is_refused() {
        assert_eq!(judge(1000, 1000, 0o100_600, ANY_OTHER), Ok(()));
        assert_eq!(judge(1000, 1000, 0o100_644, OTHER_WRITE), Ok(()));
        assert!(judge(1001, 1000, 0o100_600, ANY_OTHER).is_err());
        assert!(judge(0, 1000, 0o100_600, ANY_OTHER).is_err());
        for loose in [0o601, 0o602, 0o604, 0o610, 0o620, 0o640] {
            assert!(judge(1000, 1000, loose, ANY_OTHER).is_err(), "{loose:o}");
        }
        let why = judge(1000, 1000, 0o100_664, OTHER_WRITE).unwrap_err();
        assert_eq!(why, "its mode is 0664, which gives other users access; use 0644");
    }

    #[test]
    fn a_file_is_created_once_and_no_temporary_file_is_left() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let folder = Folder::open_or_create(&path, ANY_OTHER).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        folder.create("x", b"first", 0o644).unwrap();
        let again = folder.create("x", b"second", 0o644).unwrap_err();
        assert!(matches!(again.problem, Problem::Exists), "{again:?}");
        assert_eq!(folder.read("x", OTHER_WRITE, 100).unwrap().as_slice(), b"first");
        let all: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(all, ["x"]);
    }

    #[test]
    fn a_temporary_file_left_by_a_crash_is_not_in_the_way() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open_or_create(&root.path().join("a"), ANY_OTHER).unwrap();
        fs::write(folder.path_of(&format!(".x.{}.0.tmp", std::process::id())), "half").unwrap();
        folder.create("x", b"whole", 0o600).unwrap();
        assert_eq!(folder.names().unwrap(), ["x"]);
        assert_eq!(folder.read("x", ANY_OTHER, 100).unwrap().as_slice(), b"whole");
    }

    #[test]
    fn pipes_folders_and_long_files_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open_or_create(&root.path().join("a"), ANY_OTHER).unwrap();
        rustix::fs::mkfifoat(&folder.handle, "pipe", Mode::RUSR | Mode::WUSR).unwrap();
        DirBuilder::new().mode(0o700).create(folder.path_of("folder")).unwrap();
        folder.create("long", &[0; 11], 0o600).unwrap();
        for name in ["pipe", "folder", "long"] {
            let failure = folder.read(name, ANY_OTHER, 10).unwrap_err();
            assert!(matches!(failure.problem, Problem::Unsafe(_) | Problem::Damaged(_)), "{failure:?}");
        }
        assert_eq!(folder.read("long", ANY_OTHER, 11).unwrap().len(), 11);
    }
}
