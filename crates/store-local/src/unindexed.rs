//! Folders of threads without rows in the database: left out when it was rebuilt, copied here, or newer than the database.
//!
//! Their logs are signed records all the same, so operations on every thread include them. Nothing is written.

use std::fs;

use selvedge_model::ThreadId;
use selvedge_store::Result;

use crate::core::Core;
use crate::layout::{is_reserved, is_there, listed};
use crate::open::LocalStore;
use crate::rows;

impl LocalStore {
    /// The threads that have a log but no rows in the database, in the order of their ids.
    pub fn unindexed(&self) -> Result<Vec<ThreadId>> {
        self.core.unindexed()
    }

    /// Whether a thread was imported from an archive. The other threads of its family may never have been in this store.
    pub fn is_imported(&self, thread: &ThreadId) -> bool {
        self.core.is_imported(thread)
    }

    /// Whether a thread has a log but no rows in the database.
    pub fn is_unindexed(&self, thread: &ThreadId) -> Result<bool> {
        self.core.is_unindexed(thread)
    }
}

impl Core {
    pub(crate) fn unindexed(&self) -> Result<Vec<ThreadId>> {
        let root = self.layout.root();
        let mut found = Vec::new();
        for entry in listed(root)? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(thread) = ThreadId::from_folder(&name) else { continue };
            if !is_reserved(&name) && self.is_unindexed(&thread)? {
                found.push(thread);
            }
        }
        found.sort();
        Ok(found)
    }

    pub(crate) fn is_unindexed(&self, thread: &ThreadId) -> Result<bool> {
        // A link in place of a folder counts: the operation that opens it reports it.
        let is_link = fs::symlink_metadata(self.layout.thread(thread)).is_ok_and(|found| found.is_symlink());
        if !is_link && !is_there(&self.layout.transcript(thread))? {
            return Ok(false);
        }
        // A tombstone that another program planted hides no log.
        self.read(|connection| Ok(rows::find(connection, thread)?.is_none() && !self.is_deleted(connection, thread)))
    }
}
