//! Payloads that are stored beside a log.

use std::io::{self, BufReader, Read};
use std::path::Path;

use selvedge_log::hash::RunningHash;
use selvedge_model::{Digest, ThreadId};
use selvedge_store::{Error, Result, blob};

use crate::core::{Core, io_error};
use crate::disk::{Disk, OpenMode};
use crate::layout::{Layout, check_folder};
use crate::overlay::Overlay;
use crate::{disk, rows};

/// The maximum length of a blob.
const BYTES_MAX: u64 = 1 << 32;

impl Core {
    /// Stores a blob; it and its name are durable on return. Blobs may be stored before their thread is created, because its first
    /// changeset may name them. If the thread is never created, a folder without a log is left, which is ignored.
    pub(crate) fn put_blob(&self, thread: &ThreadId, content: &[u8]) -> Result<Digest> {
        self.writer()?;
        let folder = self.layout.blobs(thread);
        let is_new = match self.read(|connection| rows::existing(connection, thread)) {
            Err(Error::NoThread(_)) => true,
            found => found.map(|_| false)?,
        };
        let above = self.layout.thread(thread);
        if !check_folder(&above)? && is_new {
            self.disk.make_folder(&above).map_err(io_error("create", &above))?;
        }
        if !check_folder(&folder)? {
            self.disk.make_folder(&folder).map_err(io_error("create", &folder))?;
        }
        // Every name down to the blob: after a power failure the redo restores a log and its folder, but no blob in it. Each time, because
        // the process that created a folder may have died before its name was durable.
        for above in [self.layout.root().to_owned(), self.layout.thread(thread)] {
            self.disk.sync_folder(&above).map_err(io_error("sync", &above))?;
        }
        let (name, stored) = blob::seal(content, &*self.ids);
        let path = self.layout.blob(thread, &name);
        disk::replace(&*self.disk, &path, &stored).map_err(io_error("write", &path))?;
        Ok(name)
    }

    pub(crate) fn blob(&self, thread: &ThreadId, name: &Digest) -> Result<Vec<u8>> {
        if let Some(erasure) = self.erasure(thread, name)? {
            return Err(erasure.into_error(thread));
        }
        check_folder(&self.layout.thread(thread))?;
        check_folder(&self.layout.blobs(thread))?;
        let path = self.layout.blob(thread, name);
        let stored = match disk::read(&*self.disk, &path, BYTES_MAX) {
            Ok(stored) => stored,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NoBlob { thread: thread.clone(), blob: *name });
            }
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        blob::open(name, &stored).ok_or_else(|| Error::Integrity {
            what: format!("blob {} of `{thread}`", name.short()),
            why: "its content is not what its name says".to_owned(),
            hint: Some("restore the file from a copy".to_owned()),
        })
    }
}

/// Opens a blob as it is stored; returns its length too.
pub(crate) fn open_blob(
    layout: &Layout,
    disk: &dyn Disk,
    thread: &ThreadId,
    blob: &Digest,
) -> io::Result<(u64, Box<dyn Read + Send>)> {
    // The target of a link may be anything, and may change.
    check_folder(&layout.blobs(thread)).map_err(io::Error::other)?;
    let file = disk.open(&layout.blob(thread, blob), OpenMode::Read)?;
    let whole = Overlay::of_file(Some(file))?;
    Ok((whole.end(), Box::new(BufReader::with_capacity(1 << 16, whole))))
}

/// The SHA-256 of a whole file, read in pieces.
pub(crate) fn hash_file(disk: &dyn Disk, path: &Path) -> std::io::Result<Digest> {
    let file = disk.open(path, OpenMode::Read)?;
    let mut hash = RunningHash::new();
    let mut buffer = vec![0; 1 << 16];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => return Ok(hash.digest()),
            read => {
                hash.update(&buffer[..read]);
                at += read as u64;
            }
        }
    }
}
