//! One thread, copied and verified.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use selvedge_model::{Digest, ThreadId};
use selvedge_store::{Error, Result};
use serde_json::Value;

use super::{BackedUp, BackupRun, Copied, Erasures, copy_bytes, copy_file, entries};
use crate::copy_check::{CopyVerdict, FailedCheck, MANIFEST, belongs, judge_copy};
use crate::core::io_error;
use crate::db::Db;
use crate::disk::{self, OpenMode};
use crate::layout::check_folder;
use crate::redo::Redo;
use crate::rows::{self, Row};

impl BackupRun<'_> {
    /// Copies a thread and verifies the copy. One that can't be read is left out and listed.
    pub(super) fn copy_thread(&self, row: &Row, snapshot: &Db, erased: &Erasures, copied: &mut Copied) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let done = self
            .copy_log(row, snapshot)
            .and_then(|()| self.copy_other_files(row, erased, copied))
            .and_then(|()| judge_copy(thread, &row.head, &self.layout, &self.core.trust, &*self.core.disk));
        match done {
            Ok(judged) => {
                self.note(row, &judged, copied);
                // Acknowledged data that is missing in the copy must be reported.
                if let Err(error) = self.core.refuse_outdated_row(thread, row) {
                    copied.failed_checks.push(FailedCheck::log(thread, error.to_string(), true));
                }
                Ok(())
            }
            // It was deleted during the backup; the copy will record that.
            Err(_) if self.core.read(|live| Ok(self.core.is_deleted(live, thread)))? => Ok(()),
            Err(error) if self.is_fatal(&error) => Err(error),
            Err(error) => {
                let folder = self.layout.thread(thread);
                self.core.disk.remove_folder(&folder).map_err(io_error("remove", &folder))?;
                copied.failed_checks.push(FailedCheck::log(thread, error.to_string(), false));
                Ok(())
            }
        }
    }

    /// Records a copied thread.
    fn note(&self, row: &Row, judged: &CopyVerdict, copied: &mut Copied) {
        let thread = &row.manifest.thread_id;
        let is_there = |path: PathBuf| fs::symlink_metadata(path).map(|found| found.len()).ok();
        let log = is_there(self.layout.transcript(thread));
        let bad = judged.bad(thread, |blob| match blob {
            Some(blob) => is_there(self.layout.blob(thread, blob)).is_some(),
            None => log.is_some(),
        });
        copied.failed_checks.extend(bad);
        copied.blobs += judged.blobs.len() as u64;
        copied.bytes += judged.blobs.iter().filter_map(|blob| is_there(self.layout.blob(thread, blob))).sum::<u64>();
        if let Some(bytes) = log {
            copied.bytes += bytes;
            copied.threads.push(BackedUp { thread_id: thread.clone(), head: row.head.clone() });
        }
    }

    /// Whether the backup itself can't be written, so that no other thread can be copied either.
    fn is_fatal(&self, error: &Error) -> bool {
        match error {
            Error::Io { path, .. } => path.starts_with(self.target),
            Error::Unusable { .. } | Error::Integrity { .. } | Error::Log { .. } => false,
            _ => true,
        }
    }

    /// Copies the committed bytes of a log up to the head in the snapshot: the file, then the redo. If the file is too short, the bytes
    /// that it has.
    fn copy_log(&self, row: &Row, snapshot: &Db) -> Result<()> {
        let thread = &row.manifest.thread_id;
        check_folder(&self.core.layout.thread(thread))?;
        let redo = Redo::read(snapshot, row.id, row.head.bytes)?;
        let redo = redo.unwrap_or_else(|| Redo { from: row.head.bytes, ..Redo::default() });
        let source = self.core.layout.transcript(thread);
        let target = self.layout.transcript(thread);
        let disk = &*self.core.disk;
        let folder = self.layout.thread(thread);
        disk.make_folder(&folder).map_err(io_error("create", &folder))?;
        let from = match disk.open(&source, OpenMode::Read) {
            Ok(from) => Some(from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io_error("open", &source)(error)),
        };
        if from.is_none() && redo.from > 0 {
            return Ok(());
        }
        let to = disk.open(&target, OpenMode::CreateNew).map_err(io_error("create", &target))?;
        let done = match &from {
            Some(from) => copy_bytes((&**from, &source), (&*to, &target), redo.from)?,
            None => 0,
        };
        if done == redo.from {
            to.write_at(&redo.bytes, redo.from).map_err(io_error("write", &target))?;
        }
        to.sync().map_err(io_error("sync", &target))
    }

    /// Manifest, blobs and quarantined bytes.
    fn copy_other_files(&self, row: &Row, erased: &Erasures, copied: &mut Copied) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let disk = &*self.core.disk;
        let from = self.core.layout.thread(thread);
        let to = self.layout.thread(thread);
        if !check_folder(&from)? {
            return Ok(());
        }
        if !self.copy_manifest(row, copied)? {
            copied.stale.push(row.id);
        }
        for entry in entries(&from)? {
            let name = entry.to_string_lossy();
            if belongs(&name) && name != MANIFEST && from.join(&entry) != self.core.layout.transcript(thread) {
                self.copy_readable(&from.join(&entry), &to.join(&entry))?;
            }
        }
        self.copy_blobs(thread, |blob| !erased.contains(&(row.id, blob.0.to_vec())))?;
        let folder = self.layout.thread(thread);
        disk.sync_folder(&folder).map_err(io_error("sync", &folder))
    }

    /// Copies the blobs that are `wanted`. If their folder is a link or a file, it is not entered, and the blobs are missing.
    pub(super) fn copy_blobs(&self, thread: &ThreadId, wanted: impl Fn(&Digest) -> bool) -> Result<()> {
        let disk = &*self.core.disk;
        let from = self.core.layout.blobs(thread);
        let to = self.layout.blobs(thread);
        if !check_folder(&from).unwrap_or(false) {
            return Ok(());
        }
        disk.make_folder(&to).map_err(io_error("create", &to))?;
        for entry in entries(&from)? {
            let Ok(blob) = entry.to_string_lossy().parse::<Digest>() else { continue };
            if wanted(&blob) {
                self.copy_readable(&from.join(&entry), &to.join(&entry))?;
            }
        }
        disk.sync_folder(&to).map_err(io_error("sync", &to))
    }

    /// Copies a file; one that can't be read is missing in the copy. A missing blob that the log names is reported.
    pub(super) fn copy_readable(&self, from: &Path, to: &Path) -> Result<()> {
        match copy_file(&*self.core.disk, from, to) {
            Err(error) if !self.is_fatal(&error) => self.core.disk.remove(to).map_err(io_error("remove", to)),
            other => other.map(|_| ()),
        }
    }

    /// Copies a manifest, unless it shows a version that the copy of the log does not have. One that can't be read is listed.
    fn copy_manifest(&self, row: &Row, copied: &mut Copied) -> Result<bool> {
        let thread = &row.manifest.thread_id;
        let path = self.core.layout.manifest(thread);
        let bytes = match disk::read(&*self.core.disk, &path, 64 << 20) {
            Ok(bytes) => bytes,
            // A new one is written after a restore.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => {
                let why = format!("`{MANIFEST}` of `{thread}` can't be read: {error}");
                copied.failed_checks.push(FailedCheck::file(thread, MANIFEST, why, false));
                return Ok(false);
            }
        };
        let shown = serde_json::from_slice::<Value>(&bytes).ok();
        let shown = shown.and_then(|value| value.get("log_version").and_then(Value::as_u64));
        if shown.is_some_and(|version| version > row.head.version) && self.is_ahead(thread, row)? {
            return Ok(false);
        }
        let target = self.layout.manifest(thread);
        disk::replace(&*self.core.disk, &target, &bytes).map_err(io_error("write", &target))?;
        Ok(true)
    }

    /// Whether commits were added to a thread since the snapshot, so that its manifest may rightly be newer.
    fn is_ahead(&self, thread: &ThreadId, row: &Row) -> Result<bool> {
        let now = self.core.read(|live| rows::find(live, thread))?;
        Ok(now.is_none_or(|now| now.head.version > row.head.version))
    }
}
