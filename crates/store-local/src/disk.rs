//! The only access to files: every write, sync, rename, truncate and lock of this store goes through here, so that the crash laboratory can
//! replace the disk. (SQLite accesses its own files itself.)
//!
//! A call that a signal interrupts is repeated here, so no caller sees that; a read may still return less than was asked for.
//!
//! No symbolic link is followed in the last component of a path: anything but a plain file is refused.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;

/// The mode in which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it must exist.
    Write,
    /// For reading and writing; it is created if it does not exist.
    Create,
    /// For writing; it must not exist.
    CreateNew,
}

/// The operations on a disk that the store needs.
pub trait Disk: Send + Sync + Debug {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>>;

    /// Creates a folder that only its owner may enter, and its parents; an existing one is fine.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Renames a file, replacing any that exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; a missing one is fine.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder and everything in it; a missing one is fine.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// The operations on an open file that the store needs.
pub trait DiskFile: Send + Sync + Debug {
    /// Its length.
    fn length(&self) -> io::Result<u64>;

    /// Its length, if it still is the file at `path`; determined without opening anything.
    fn length_at(&self, path: &Path) -> io::Result<Option<u64>>;

    /// Reads at most as many bytes as fit; zero bytes mean the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Shortens it.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Makes its content durable. After an error it is unknown what was written, and a second attempt proves nothing.
    fn sync(&self) -> io::Result<()>;

    /// Waits for the exclusive lock, which closing the file releases.
    fn lock(&self) -> io::Result<()>;

    /// Takes that lock if it is free.
    fn try_lock(&self) -> io::Result<bool>;

    /// Whether no process holds that lock.
    fn is_unlocked(&self) -> io::Result<bool>;

    /// Releases the lock.
    fn unlock(&self) -> io::Result<()>;
}

/// The machine's own disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        // Non-blocking: opening a named pipe in place of the file would otherwise block for ever.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.read(true).mode(0o600).custom_flags(flags.bits().cast_signed());
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => _ = options.write(true),
            OpenMode::Create => _ = options.write(true).create(true),
            OpenMode::CreateNew => _ = options.write(true).create_new(true),
        }
        let file = options.open(path).map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => not_plain("it is a symbolic link"),
            _ => error,
        })?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(not_plain("it is not a plain file"));
        }
        Ok(Box::new(RealFile { file, identity: (found.dev(), found.ino()) }))
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        absent_is_fine(fs::remove_file(path))
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        absent_is_fine(fs::remove_dir_all(path))
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

fn not_plain(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    /// Device and inode number: which file it is, whatever its name.
    identity: (u64, u64),
}

/// The identity and length of the file at a path. On Linux the modification time is not requested: a request makes the next write record a
/// finer timestamp, in this file and, because that clock is global, in the database's log, whose sync then writes its inode each time.
#[cfg(target_os = "linux")]
fn identity_and_length(path: &Path) -> io::Result<((u64, u64), u64)> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO | StatxFlags::SIZE) {
        Ok(found) => Ok(((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino), found.stx_size)),
        Err(rustix::io::Errno::NOSYS) => whole_identity_and_length(path),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn identity_and_length(path: &Path) -> io::Result<((u64, u64), u64)> {
    whole_identity_and_length(path)
}

fn whole_identity_and_length(path: &Path) -> io::Result<((u64, u64), u64)> {
    fs::symlink_metadata(path).map(|found| ((found.dev(), found.ino()), found.len()))
}

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn length_at(&self, path: &Path) -> io::Result<Option<u64>> {
        match identity_and_length(path) {
            Ok((identity, length)) => Ok((identity == self.identity).then_some(length)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        uninterrupted(|| self.file.read_at(buffer, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn lock(&self) -> io::Result<()> {
        uninterrupted(|| self.file.lock())
    }

    fn try_lock(&self) -> io::Result<bool> {
        uninterrupted(|| answer(self.file.try_lock()))
    }

    fn is_unlocked(&self) -> io::Result<bool> {
        // A shared lock, so that two processes that check at once don't take each other for the holder.
        let free = uninterrupted(|| answer(self.file.try_lock_shared()))?;
        if free {
            self.file.unlock()?;
        }
        Ok(free)
    }

    fn unlock(&self) -> io::Result<()> {
        // A lock that is not released would block every other process for as long as the file is open.
        self.file.unlock().or_else(|_| self.file.unlock())
    }
}

/// Repeats a call that a signal interrupted before it did anything.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn answer(result: Result<(), fs::TryLockError>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Writes a small file atomically: after a crash it is complete or as before; durable on return.
pub fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    put_in_place(disk, path, bytes)?;
    disk.sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// The same without the sync of its folder: until that is synced, a power failure leaves the file that was there before, or none, or this
/// one.
pub(crate) fn put_in_place(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A unique name for every call: several threads may replace the same file at once.
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_file_name(format!(".{name}.{}-{call}.tmp", std::process::id()));
    disk.remove(&temporary)?;
    let file = disk.open(&temporary, OpenMode::CreateNew)?;
    let written = file.write_at(bytes, 0).and_then(|()| file.sync()).and_then(|()| disk.rename(&temporary, path));
    if written.is_err() {
        // The old file is untouched; if the temporary one can't be removed now, the next writer of the same name removes it.
        _ = disk.remove(&temporary);
    }
    written
}

/// Whether a path could not be opened because it is not a plain file.
pub(crate) fn is_no_file(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

/// Reads a small file whole; one longer than `most` is refused.
pub fn read(disk: &dyn Disk, path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let length = file.length()?;
    if length > most {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has {length} bytes; at most {most} are read"),
        ));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_interrupted_is_repeated_and_any_other_failure_is_an_error() {
        let mut answers = vec![Ok(7), Err(io::ErrorKind::Interrupted.into()), Err(io::ErrorKind::Interrupted.into())];
        assert_eq!(uninterrupted(|| answers.pop().unwrap_or(Ok(0))).ok(), Some(7));
        let mut asked = 0;
        let failed = uninterrupted(|| -> io::Result<()> {
            asked += 1;
            Err(io::ErrorKind::TimedOut.into())
        });
        assert_eq!((failed.map_err(|error| error.kind()), asked), (Err(io::ErrorKind::TimedOut), 1));
    }
}
