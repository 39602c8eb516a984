//! Logs without rows in the database, copied as they are and listed as damaged.

use selvedge_model::ThreadId;
use selvedge_store::Result;
use selvedge_store::error::describe;

use super::{BackupRun, Copied, entries};
use crate::copy_check::{FailedCheck, belongs};
use crate::core::io_error;
use crate::layout::check_folder;
use crate::rows;

impl BackupRun<'_> {
    /// Copies every log that has no rows in the database. It is listed as damaged: no sealed head says where it ends.
    pub(super) fn copy_unindexed(&self, copied: &mut Copied) -> Result<()> {
        for thread in self.core.unindexed()? {
            let why = match self.store.verify(&thread, &mut |_| {}) {
                Ok(verdict) => describe(&thread, &verdict.judgement.finding),
                Err(error) => error.to_string(),
            };
            // It may have been imported while the others were copied: then it belongs to the next backup.
            if self.core.read(|live| rows::find(live, &thread))?.is_some() {
                continue;
            }
            let is_copied = self.copy_stray(&thread)?;
            copied.failed_checks.push(FailedCheck::log(&thread, why, is_copied));
        }
        Ok(())
    }

    /// Copies the readable files of a folder; false if it is not a folder.
    fn copy_stray(&self, thread: &ThreadId) -> Result<bool> {
        let disk = &*self.core.disk;
        let from = self.core.layout.thread(thread);
        let to = self.layout.thread(thread);
        if !check_folder(&from).unwrap_or(false) {
            return Ok(false);
        }
        disk.make_folder(&to).map_err(io_error("create", &to))?;
        for entry in entries(&from)? {
            if belongs(&entry.to_string_lossy()) {
                self.copy_readable(&from.join(&entry), &to.join(&entry))?;
            }
        }
        self.copy_blobs(thread, |_| true)?;
        disk.sync_folder(&to).map_err(io_error("sync", &to))?;
        Ok(true)
    }
}
