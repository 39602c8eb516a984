//! `capabilities.md` on disk.
//!
//! When [`LocalStore::write_capabilities`] returns, the file is complete; after a crash before that it does not exist, and the next process
//! that runs the thread writes it.

use std::io;

use selvedge_model::ThreadId;
use selvedge_store::Result;
use selvedge_store::capabilities::{self, BYTES_MAX};

use crate::core::{Core, io_error, lock};
use crate::disk;
use crate::layout::check_folder;
use crate::open::LocalStore;

impl LocalStore {
    /// Signs and writes the capabilities of a thread, unless the file exists; returns whether it was written now. An existing file that
    /// fails verification is refused.
    pub fn write_capabilities(&self, thread: &ThreadId, body: impl FnOnce() -> String) -> Result<bool> {
        let core = &self.core;
        check_folder(&core.layout.thread(thread))?;
        if core.has_capabilities(thread)? {
            return Ok(false);
        }
        let text = capabilities::sign(thread, &body(), &core.signing()?.signer, core.clock.now());
        let path = core.layout.capabilities(thread);
        // Of several processes that run a thread for the first time at once, one writes.
        lock(core.writer()?).exclusive(&core.layout, |_| {
            if core.has_capabilities(thread)? {
                return Ok(false);
            }
            disk::replace(&*core.disk, &path, text.as_bytes()).map_err(io_error("write", &path))?;
            Ok(true)
        })
    }
}

impl Core {
    /// The capabilities file of a thread, unverified; none if it was not written.
    pub(crate) fn capabilities(&self, thread: &ThreadId) -> Result<Option<Vec<u8>>> {
        let path = self.layout.capabilities(thread);
        match disk::read(&*self.disk, &path, BYTES_MAX) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if disk::is_no_file(&error) || error.kind() == io::ErrorKind::FileTooLarge => {
                Err(capabilities::damaged(thread, &error.to_string()))
            }
            Err(error) => Err(io_error("read", &path)(error)),
        }
    }

    /// Whether a thread has a capabilities file; an existing one is verified.
    pub(crate) fn has_capabilities(&self, thread: &ThreadId) -> Result<bool> {
        let Some(bytes) = self.capabilities(thread)? else { return Ok(false) };
        capabilities::check_kept(thread, &bytes, &self.trust).map(|()| true)
    }

    /// What is wrong with the capabilities file of a thread, if anything.
    pub(crate) fn bad_capabilities(&self, thread: &ThreadId) -> Result<Option<String>> {
        capabilities::bad(self.has_capabilities(thread).map(|_| ()))
    }
}
