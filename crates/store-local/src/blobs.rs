//! Payloads beside a log.

use std::path::Path;

use selvedge_log::hash::RunningHash;
use selvedge_log::recovery::Finding;
use selvedge_model::{Digest, ThreadId};
use selvedge_store::{Error, Result, blob};

use crate::core::{Core, io_error};
use crate::disk::{Disk, How};
use crate::layout::check_folder;
use crate::{disk, rows};

/// How long a blob may be.
const MOST_BYTES: u64 = 1 << 32;

impl Core {
    /// Stores a blob; it and its name are durable on return.
    pub(crate) fn put_blob(&self, thread: &ThreadId, content: &[u8]) -> Result<Digest> {
        self.gate()?;
        self.read(|connection| rows::existing(connection, thread))?;
        let folder = self.layout.blobs(thread);
        check_folder(&self.layout.thread(thread))?;
        if !check_folder(&folder)? {
            self.disk.make_folder(&folder).map_err(io_error("create", &folder))?;
            let above = self.layout.thread(thread);
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
        let path = self.layout.blob(thread, name);
        let stored = match disk::read(&*self.disk, &path, MOST_BYTES) {
            Ok(stored) => stored,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NoBlob { thread: thread.clone(), blob: *name });
            }
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        blob::open(name, &stored).ok_or_else(|| Error::Integrity {
            what: format!("blob {} of `{thread}`", name.short()),
            why: "its content is not what its name says".to_owned(),
            hint: Some("put the file back from a copy".to_owned()),
        })
    }

    /// The first of these blobs that is missing or is not what its name says.
    pub(crate) fn bad_blob(&self, thread: &ThreadId, named: impl Iterator<Item = (Digest, u64)>) -> Option<Finding> {
        for (blob, version) in named {
            let path = self.layout.blob(thread, &blob);
            let why = match hash_file(&*self.disk, &path) {
                Ok(found) if found == blob => continue,
                Ok(_) => "is not what its name says".to_owned(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => "is missing".to_owned(),
                Err(error) => format!("can't be read: {error}"),
            };
            return Some(Finding::Blob { blob, version, why });
        }
        None
    }
}

/// The SHA-256 of a whole file, read in pieces.
pub(crate) fn hash_file(disk: &dyn Disk, path: &Path) -> std::io::Result<Digest> {
    let file = disk.open(path, How::Read)?;
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
