//! Files that decide what is believed: keys and the trust store. Only their owner may touch them.
//!
//! Invariants:
//!
//! - The folder is opened once, without following a symbolic link, and everything in it is reached through that handle;
//!   what was checked is what is read.
//! - Folder and files belong to the effective user, and their modes have none of the bits the caller forbids.
//! - A file appears whole or not at all: it is written under another name, synced, and then linked to its own, which fails
//!   if that name is taken, or renamed over it. When `create`, `replace` or `remove` returns, file and folder entry are
//!   on the disk. After a crash a file named `.….tmp` may be left; it means nothing.

use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;
use zeroize::Zeroizing;

/// Bits that let anybody but the owner do anything.
pub(crate) const ANY_OTHER: u32 = 0o077;

/// Bits that let anybody but the owner write.
pub(crate) const OTHER_WRITE: u32 = 0o022;

/// What is wrong with a file or folder.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// There is none.
    Absent,
    /// The name is taken.
    Exists,
    /// It can't be relied on.
    Unsafe(String),
    /// It can't be what it should be.
    Damaged(String),
    /// The operating system failed.
    Io(io::Error),
}

/// A trouble and the path that has it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) path: PathBuf,
    pub(crate) trouble: Trouble,
}

impl Failure {
    fn new(path: impl Into<PathBuf>, trouble: Trouble) -> Self {
        Self { path: path.into(), trouble }
    }

    fn io(path: impl Into<PathBuf>, error: impl Into<io::Error>) -> Self {
        Self::new(path, Trouble::Io(error.into()))
    }
}

/// A checked, open folder.
pub(crate) struct Folder {
    path: PathBuf,
    handle: File,
}

impl Folder {
    /// Opens a folder whose mode has none of the `forbidden` bits.
    pub(crate) fn open(path: &Path, forbidden: u32) -> Result<Self, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(handle) => File::from(handle),
            Err(Errno::NOENT) => return Err(Failure::new(path, Trouble::Absent)),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let why = "it is a symbolic link or no folder".to_owned();
                return Err(Failure::new(path, Trouble::Unsafe(why)));
            }
            Err(error) => return Err(Failure::io(path, error)),
        };
        let metadata = handle.metadata().map_err(|e| Failure::io(path, e))?;
        check(&metadata, forbidden).map_err(|why| Failure::new(path, Trouble::Unsafe(why)))?;
        Ok(Self { path: path.to_owned(), handle })
    }

    /// Opens a folder, and makes it and its parents first if need be, with mode 0700.
    pub(crate) fn open_or_create(path: &Path, forbidden: u32) -> Result<Self, Failure> {
        let missing: Vec<&Path> = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
        for folder in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(folder) {
                Ok(()) => {}
                // Somebody else was first, or it is a dangling link; opening will tell.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Failure::io(folder, error)),
            }
            let parent = folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent).and_then(|f| f.sync_all()).map_err(|e| Failure::io(parent, e))?;
        }
        Self::open(path, forbidden)
    }

    /// The path of a file in the folder, for messages.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The names in the folder, sorted, without those that start with a dot.
    pub(crate) fn names(&self) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle).map_err(|e| Failure::io(&self.path, e))? {
            let entry = entry.map_err(|e| Failure::io(&self.path, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Whether the name is taken, by whatever.
    pub(crate) fn has(&self, name: &str) -> Result<bool, Failure> {
        match rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Failure::io(self.path_of(name), error)),
        }
    }

    /// Reads a file whose mode has none of the `forbidden` bits, at most `bytes_max` of it.
    pub(crate) fn read(&self, name: &str, forbidden: u32, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let path = self.path_of(name);
        let refuse = |why: String| Failure::new(&path, Trouble::Unsafe(why));
        // Not blocking, so that a pipe in place of the file can't hold us up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.handle, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Err(Failure::new(path, Trouble::Absent)),
            Err(Errno::LOOP) => return Err(refuse("it is a symbolic link".to_owned())),
            Err(error) => return Err(Failure::io(path, error)),
        };
        let metadata = file.metadata().map_err(|e| Failure::io(&path, e))?;
        if !metadata.is_file() {
            return Err(refuse("it is not a regular file".to_owned()));
        }
        check(&metadata, forbidden).map_err(refuse)?;
        // Room for all of it at once: a buffer that grows leaves copies of a secret behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(bytes_max.min(metadata.len()) as usize + 1));
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|e| Failure::io(&path, e))?;
        if bytes.len() as u64 > bytes_max {
            return Err(Failure::new(path, Trouble::Damaged(format!("it is longer than {bytes_max} bytes"))));
        }
        Ok(bytes)
    }

    /// Writes a new file with exactly this mode. See the module for what is true afterwards.
    pub(crate) fn create(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), Failure> {
        let path = self.path_of(name);
        let (temporary, file) = self.temporary(name)?;
        let written = write_synced(file, bytes, mode)
            .and_then(|()| Ok(linkat(&self.handle, &temporary, &self.handle, name, AtFlags::empty())?));
        let removed = unlinkat(&self.handle, &temporary, AtFlags::empty());
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Whoever made it may have died before its name was durable, and who is told that it exists relies on it.
                self.sync()?;
                return Err(Failure::new(path, Trouble::Exists));
            }
            Err(error) => return Err(Failure::io(path, error)),
        }
        removed.map_err(|e| Failure::io(self.path_of(&temporary), e))?;
        self.handle.sync_all().map_err(|e| Failure::io(&self.path, e))
    }

    /// Writes a file with exactly this mode, in the place of one that may be there: at every moment the name stands for
    /// the whole old file or the whole new one.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), Failure> {
        let (temporary, file) = self.temporary(name)?;
        let written =
            write_synced(file, bytes, mode).and_then(|()| Ok(renameat(&self.handle, &temporary, &self.handle, name)?));
        if let Err(error) = written {
            // What is left means nothing; the error that counts is the first one.
            _ = unlinkat(&self.handle, &temporary, AtFlags::empty());
            return Err(Failure::io(self.path_of(name), error));
        }
        self.handle.sync_all().map_err(|e| Failure::io(&self.path, e))
    }

    /// Makes the names in the folder durable.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.handle.sync_all().map_err(|e| Failure::io(&self.path, e))
    }

    /// Removes a file; one that is not there is fine.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Failure> {
        match unlinkat(&self.handle, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.handle.sync_all().map_err(|e| Failure::io(&self.path, e)),
            Err(error) => Err(Failure::io(self.path_of(name), error)),
        }
    }

    /// Removes the temporary files that writers left who were killed; only for whoever knows that nobody writes here now.
    pub(crate) fn sweep(&self) -> Result<(), Failure> {
        for entry in Dir::read_from(&self.handle).map_err(|e| Failure::io(&self.path, e))? {
            let name = entry.map_err(|e| Failure::io(&self.path, e))?.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') && name.ends_with(".tmp") {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes an empty folder; one that is not there is fine.
    pub(crate) fn remove_folder(&self, name: &str) -> Result<(), Failure> {
        match unlinkat(&self.handle, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => self.handle.sync_all().map_err(|e| Failure::io(&self.path, e)),
            Err(error) => Err(Failure::io(self.path_of(name), error)),
        }
    }

    /// Locks the folder against others who lock it, until this handle is dropped; false if somebody else has.
    pub(crate) fn try_lock(&self) -> Result<bool, Failure> {
        match flock(&self.handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(Failure::io(&self.path, error)),
        }
    }

    /// A new empty file under a name that nobody else uses.
    fn temporary(&self, name: &str) -> Result<(String, File), Failure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for attempt in 0..100 {
            let temporary = format!(".{name}.{}.{attempt}.tmp", std::process::id());
            match openat(&self.handle, &temporary, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok((temporary, File::from(file))),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(Failure::io(self.path_of(&temporary), error)),
            }
        }
        let why = io::Error::new(io::ErrorKind::AlreadyExists, "a hundred temporary files are in the way");
        Err(Failure::io(&self.path, why))
    }
}

fn write_synced(mut file: File, bytes: &[u8], mode: u32) -> io::Result<()> {
    file.write_all(bytes)?;
    // Set again, because the mask of the process may have taken bits away.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

fn check(metadata: &Metadata, forbidden: u32) -> Result<(), String> {
    judge(metadata.uid(), rustix::process::geteuid().as_raw(), metadata.mode(), forbidden)
}

fn judge(owner: u32, user: u32, mode: u32, forbidden: u32) -> Result<(), String> {
    if owner != user {
        return Err(format!("it belongs to user {owner}, not to user {user} who runs this"));
    }
    if mode & forbidden != 0 {
        let (mode, better) = (mode & 0o777, mode & 0o777 & !forbidden);
        return Err(format!("its mode is {mode:04o}, which lets others in; {better:04o} would do"));
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
        assert_eq!(why, "its mode is 0664, which lets others in; 0644 would do");
    }

    #[test]
    fn a_file_is_created_once_and_leaves_nothing_beside_it() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let folder = Folder::open_or_create(&path, ANY_OTHER).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        folder.create("x", b"first", 0o644).unwrap();
        let again = folder.create("x", b"second", 0o644).unwrap_err();
        assert!(matches!(again.trouble, Trouble::Exists), "{again:?}");
        assert_eq!(folder.read("x", OTHER_WRITE, 100).unwrap().as_slice(), b"first");
        let all: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(all, ["x"]);
    }

    #[test]
    fn a_temporary_file_left_by_a_crash_is_no_obstacle() {
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
            assert!(matches!(failure.trouble, Trouble::Unsafe(_) | Trouble::Damaged(_)), "{failure:?}");
        }
        assert_eq!(folder.read("long", ANY_OTHER, 11).unwrap().len(), 11);
    }
}
