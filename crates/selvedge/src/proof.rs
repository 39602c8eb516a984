//! Verifying and exporting threads.

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use selvedge_log::recovery::Finding;
use selvedge_model::{Classify, Digest, ThreadId};
use selvedge_store::{Backend, Error as StoreError};

use crate::error::{Error, Result};

/// What the signatures of a thread prove.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Proof {
    /// The thread.
    pub thread: ThreadId,
    /// Whether the log is exactly what was signed by keys that are trusted, and every blob that it names is what it was.
    pub is_sound: bool,
    /// The stable code of the finding; `sound` if there is none.
    pub code: &'static str,
    /// The finding, as a sentence.
    pub finding: String,
    /// The keys that signed it, in order of rotation, and how many changesets each signed.
    pub signers: Vec<(Digest, u64)>,
    /// How many lines are valid.
    pub lines: u64,
    /// How many bytes are valid.
    pub bytes: u64,
}

/// A thread that was exported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Archive {
    /// The thread.
    pub thread: ThreadId,
    /// The version that the archive has.
    pub version: u64,
    /// How many blobs it has.
    pub blobs: u64,
    /// The keys that signed the log.
    pub signers: Vec<Digest>,
}

pub(crate) fn verify(store: &dyn Backend, thread: &ThreadId) -> Result<Proof> {
    let verdict = store.verify(thread, &mut |_| {})?;
    let finding = verdict.judgement.finding;
    let is_sound = finding == Finding::Sound;
    let found = StoreError::Log { thread: thread.clone(), finding };
    Ok(Proof {
        is_sound: is_sound && verdict.bad_blobs.is_empty(),
        code: if is_sound { "sound" } else { found.code() },
        finding: if is_sound { "the log is exactly what was signed".to_owned() } else { found.to_string() },
        thread: verdict.thread,
        signers: verdict.signers,
        lines: verdict.lines,
        bytes: verdict.bytes,
    })
}

pub(crate) fn export(store: &dyn Backend, thread: &ThreadId, path: &Path) -> Result<Archive> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| Error::io("create", path, error))?;
    let written = write(store, thread, &file, path);
    if written.is_err() {
        // The first error is the one to report.
        _ = fs::remove_file(path);
    }
    written
}

fn write(store: &dyn Backend, thread: &ThreadId, file: &fs::File, path: &Path) -> Result<Archive> {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    let exported = store.export(thread, &mut out)?;
    let synced = out.flush().and_then(|()| file.sync_all()).and_then(|()| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => fs::File::open(folder)?.sync_all(),
        _ => fs::File::open(".")?.sync_all(),
    });
    synced.map_err(|error| Error::io("write", path, error))?;
    let version = exported.head.version;
    let blobs = exported.blobs;
    let signers = exported.signers;
    Ok(Archive { thread: exported.thread, version, blobs, signers })
}
