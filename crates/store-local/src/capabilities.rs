//! `capabilities.md`: what a thread was offered to call when it first ran, signed, for people and other programs.
//!
//! Written once and never again. It is on the disk, whole, when [`LocalStore::write_capabilities`] returns; after a crash before
//! that it is not there, and whoever runs the thread writes it. What a thread may call stands in its log; so one that was edited changes
//! nothing, but somebody did it, and the thread is not run until somebody has looked.

use std::io;

use selvedge_log::document::{Comment, DocumentKind, sign_text, verify_text};
use selvedge_model::ThreadId;
use selvedge_store::{Error, Result};

use crate::core::{Core, io_error, lock};
use crate::disk;
use crate::layout::check_folder;
use crate::open::LocalStore;

/// What a `capabilities.md` is signed as.
const KIND: DocumentKind = DocumentKind::new("capabilities");
/// How long one may be.
const MOST_BYTES: u64 = 64 << 20;

impl LocalStore {
    /// Signs and writes what a thread may call, unless that was done before; says whether it was written now. One that is there and is
    /// not what was signed is refused.
    pub fn write_capabilities(&self, thread: &ThreadId, body: impl FnOnce() -> String) -> Result<bool> {
        let core = &self.core;
        check_folder(&core.layout.thread(thread))?;
        if core.has_capabilities(thread)? {
            return Ok(false);
        }
        let signer = &core.signing()?.signer;
        let text = sign_text(KIND, thread.as_str(), Comment::Html, &body(), signer, core.clock.now());
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
    /// Whether it was written down what a thread may call; what was is checked.
    pub(crate) fn has_capabilities(&self, thread: &ThreadId) -> Result<bool> {
        let path = self.layout.capabilities(thread);
        let what = || format!("`capabilities.md` of `{thread}`");
        let help = || {
            format!(
                "`selvedge repair {thread}` keeps it aside; what the thread may call stands in its log, and the next run writes it down anew"
            )
        };
        let bytes = match disk::read(&*self.disk, &path, MOST_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) if disk::is_no_file(&error) || error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(Error::Integrity { what: what(), why: error.to_string(), hint: Some(help()) });
            }
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let verified = verify_text(KIND, thread.as_str(), Comment::Html, &bytes, &self.trust);
        verified.map(|_| true).map_err(|error| Error::of_document(what(), &error, help))
    }

    /// What is wrong with what was written down of what a thread may call, if anything is.
    pub(crate) fn bad_capabilities(&self, thread: &ThreadId) -> Result<Option<String>> {
        match self.has_capabilities(thread) {
            Ok(_) => Ok(None),
            Err(Error::Integrity { why, .. }) => Ok(Some(why)),
            Err(Error::Unbelieved { key, .. }) => Ok(Some(format!("key {} does not count", key.short()))),
            Err(error) => Err(error),
        }
    }
}
