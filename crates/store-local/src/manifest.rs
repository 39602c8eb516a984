//! `thread.json`: the signed manifest, a projection of the log that people and other programs can read.
//!
//! It names the version and hash of the log it shows. Older than the log, it is written again; newer, it remembers a log
//! that was cut; differing from the log at its own version, or badly signed, it is refused.

use selvedge_log::document::{self, DocumentKind};
use selvedge_log::recovery::Remembered as Memory;
use selvedge_model::{Digest, ThreadId};
use selvedge_store::{Error, Result};
use serde_json::Value;

use crate::commit::Manifested;
use crate::core::{Core, Durability, PendingThread, io_error};
use crate::disk;
use crate::rows::{self, Row, bad_row};

/// What a `thread.json` is signed as.
pub(crate) const KIND: DocumentKind = DocumentKind::new("thread");
/// How long a manifest may be.
const MOST_BYTES: u64 = 64 << 20;

impl Core {
    /// Writes the manifests of committed threads. One that can't be written stays marked as stale and is written later: a
    /// projection never fails a commit.
    pub(crate) fn show_manifests(&self, threads: &[Manifested]) {
        for Manifested { thread, id } in threads {
            if self.write_manifest(thread).is_ok() {
                self.await_sync(thread, PendingThread { id: *id, manifest: true, ..PendingThread::default() }, 0);
            }
        }
    }

    /// Writes manifests that a crash left behind.
    pub(crate) fn show_stale_manifests(&self) -> Result<u64> {
        let stale = self.read(|connection| rows::select(connection, "t.manifest_stale = 1", []))?;
        let mut shown = Vec::new();
        for row in &stale {
            let thread = &row.manifest.thread_id;
            if !self.holder_lives(row)? && self.write_manifest(thread).is_ok() {
                shown.push(row.id);
            }
        }
        if !shown.is_empty() {
            self.write(Durability::Lazy, |connection| {
                for id in &shown {
                    rows::execute(connection, "UPDATE threads SET manifest_stale = 0 WHERE id = ?", [id])?;
                }
                Ok(())
            })?;
        }
        Ok(shown.len() as u64)
    }

    fn holder_lives(&self, row: &Row) -> Result<bool> {
        row.owner.as_ref().map_or(Ok(false), |owner| self.is_alive(owner))
    }

    fn write_manifest(&self, thread: &ThreadId) -> Result<()> {
        let row = self.read(|connection| rows::existing(connection, thread))?;
        let mut value = serde_json::to_value(&row.manifest).map_err(bad_row)?;
        if let Value::Object(fields) = &mut value {
            fields.insert("log_id".to_owned(), row.head.log_id.as_str().into());
            fields.insert("log_version".to_owned(), row.head.version.into());
            fields.insert("log_hash".to_owned(), row.head.hash.to_string().into());
        }
        let signer = &self.signing()?.signer;
        let text = document::sign_json(KIND, thread.as_str(), value, signer, self.clock.now())
            .map_err(|error| damaged(thread, &error.to_string()))?;
        crate::layout::check_folder(&self.layout.thread(thread))?;
        let path = self.layout.manifest(thread);
        disk::replace(&*self.disk, &path, text.as_bytes()).map_err(io_error("write", &path))
    }

    /// What a thread's manifest remembers of its log, if there is one; one that is badly signed is refused.
    pub(crate) fn manifest_memory(&self, thread: &ThreadId) -> Result<Option<Memory>> {
        let path = self.layout.manifest(thread);
        let bytes = match disk::read(&*self.disk, &path, MOST_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let verified = document::verify_json(KIND, thread.as_str(), &bytes, &self.trust)
            .map_err(|error| damaged(thread, &error.to_string()))?;
        let version = verified.value.get("log_version").and_then(Value::as_u64);
        let hash = verified.value.get("log_hash").and_then(Value::as_str).and_then(|hash| hash.parse::<Digest>().ok());
        let version = version.ok_or_else(|| damaged(thread, "it does not say which version of the log it shows"))?;
        Ok(Some(Memory { by: "thread.json".to_owned(), version, hash }))
    }
}

fn damaged(thread: &ThreadId, why: &str) -> Error {
    Error::Integrity {
        what: format!("`thread.json` of `{thread}`"),
        why: why.to_owned(),
        hint: Some(
            "it is a projection of the log: move it away, and the next change of the thread writes it anew".to_owned(),
        ),
    }
}
