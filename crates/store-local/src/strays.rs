//! Folders of threads that the database does not know: left out when it was rebuilt, copied here, or older than it.
//!
//! Their logs are the record all the same, so whoever looks at every thread looks at these too. Nothing is written.

use std::fs;

use selvedge_model::ThreadId;
use selvedge_store::Result;

use crate::core::Core;
use crate::layout::{is_reserved, is_there, listed};
use crate::open::LocalStore;
use crate::rows;

impl LocalStore {
    /// The threads that have a log here and that the database does not know, in the order of their ids.
    pub fn strays(&self) -> Result<Vec<ThreadId>> {
        self.core.strays()
    }

    /// Whether a thread arrived here in an archive. The others of its family may never have been here.
    pub fn has_arrived(&self, thread: &ThreadId) -> bool {
        self.core.has_arrived(thread)
    }

    /// Whether a thread has a log here that the database does not know.
    pub fn is_stray(&self, thread: &ThreadId) -> Result<bool> {
        self.core.is_stray(thread)
    }
}

impl Core {
    pub(crate) fn strays(&self) -> Result<Vec<ThreadId>> {
        let root = self.layout.root();
        let mut found = Vec::new();
        for entry in listed(root)? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(thread) = ThreadId::from_folder(&name) else { continue };
            if !is_reserved(&name) && self.is_stray(&thread)? {
                found.push(thread);
            }
        }
        found.sort();
        Ok(found)
    }

    pub(crate) fn is_stray(&self, thread: &ThreadId) -> Result<bool> {
        // A link in a folder's place counts, whatever it leads to: whoever looks at it says so.
        let is_link = fs::symlink_metadata(self.layout.thread(thread)).is_ok_and(|found| found.is_symlink());
        if !is_link && !is_there(&self.layout.transcript(thread))? {
            return Ok(false);
        }
        self.read(|connection| {
            Ok(rows::find(connection, thread)?.is_none() && rows::tombstone(connection, thread)?.is_none())
        })
    }
}
