//! Payloads beside a log.

use selvedge_model::{Digest, ThreadId};
use selvedge_store::{Error, Result, blob};

use crate::core::{Core, io_error};
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
        self.read(|connection| rows::existing(connection, thread))?;
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
}
