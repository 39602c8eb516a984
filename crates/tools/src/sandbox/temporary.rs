//! The private temporary folder of a process. It is removed with everything in it when this is dropped.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The folders that this process made.
static MADE: AtomicU64 = AtomicU64::new(0);
const ATTEMPTS_MAX: usize = 1000;

/// A temporary folder.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes a folder that only this user may enter.
    pub(super) fn make(inside: &Path, word: &str) -> io::Result<Self> {
        for _ in 0..ATTEMPTS_MAX {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let path = inside.join(format!("selvedge-{word}-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Links in it are removed and not followed. What can't be removed stays.
        let _ = fs::remove_dir_all(&self.0);
    }
}
