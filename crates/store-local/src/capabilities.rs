//! `capabilities.md` on disk.
//!
//! It is there, whole, when [`LocalStore::write_capabilities`] returns; after a crash before that it is not there, and the next
//! process that runs the thread writes it.

use std::io;

use selvedge_model::ThreadId;
use selvedge_store::Result;
use selvedge_store::capabilities::{self, BYTES_MAX};

use crate::core::{Core, io_error, lock};
use crate::disk;
use crate::layout::check_folder;
use crate::open::LocalStore;

impl LocalStore {
    /// Signs and writes what a thread may call, unless that was done before; says whether it was written now. One that is there and is
    /// not what was signed is refused.
    pub fn write_capabilities(&self, thread: &ThreadId, body: impl FnOnce() -> String) -> Result<bool> {
        let core = &self.core;
        check_folder(&core.layout.thread(thread))?;
        if core.has_capabilities(thread)? {
            return Ok(false);
        }
        let text = capabilities::sign(thread, &body(), &core.signing()?.signer, core.clock.now());
        let path = core.layout.capabilities(thread);
        // Of several who run a thread for the first time at once, one writes.
        lock(core.gate()?).alone(&core.layout, |_| {
            if core.has_capabilities(thread)? {
                return Ok(false);
            }
            disk::replace(&*core.disk, &path, text.as_bytes()).map_err(io_error("write", &path))?;
            Ok(true)
        })
    }
}

impl Core {
    /// What was written down of what a thread may call, unchecked; nothing if nothing was.
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

    /// Whether it was written down what a thread may call; what was is checked.
    pub(crate) fn has_capabilities(&self, thread: &ThreadId) -> Result<bool> {
        let Some(bytes) = self.capabilities(thread)? else { return Ok(false) };
        capabilities::check_kept(thread, &bytes, &self.trust).map(|()| true)
    }

    /// What is wrong with what was written down of what a thread may call, if anything is.
    pub(crate) fn bad_capabilities(&self, thread: &ThreadId) -> Result<Option<String>> {
        capabilities::bad(self.has_capabilities(thread).map(|_| ()))
    }
}
