//! `capabilities.md`: what a thread was offered to call when it first ran, signed, for people and other programs.
//!
//! Written once and never again. It is on the disk, whole, when [`LocalStore::write_capabilities`] returns; after a crash before
//! that it is not there, and whoever runs the thread writes it.

use std::io;

use selvedge_log::document::{Comment, DocumentKind, sign_text};
use selvedge_model::ThreadId;
use selvedge_store::Result;

use crate::core::io_error;
use crate::disk::{self, How};
use crate::layout::check_folder;
use crate::open::LocalStore;

/// What a `capabilities.md` is signed as.
const KIND: DocumentKind = DocumentKind::new("capabilities");

impl LocalStore {
    /// Signs and writes what a thread may call, unless that was done before; says whether it was written now.
    pub fn write_capabilities(&self, thread: &ThreadId, body: impl FnOnce() -> String) -> Result<bool> {
        let core = &self.core;
        check_folder(&core.layout.thread(thread))?;
        let path = core.layout.capabilities(thread);
        match core.disk.open(&path, How::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("open", &path)(error)),
            Ok(_) => return Ok(false),
        }
        let signer = &core.signing()?.signer;
        let text = sign_text(KIND, thread.as_str(), Comment::Html, &body(), signer, core.clock.now());
        disk::replace(&*core.disk, &path, text.as_bytes()).map_err(io_error("write", &path))?;
        Ok(true)
    }
}
