//! Verifies one thread in a copy of a store: its log against the head that the copy records, its blobs against their names, its
//! `thread.json` against the log; or the tombstone of a deleted thread.
//!
//! Used both when a backup is made and when it is restored. Nothing is written.

use std::collections::BTreeSet;

use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_log::{Head, Trust};
use selvedge_model::{Digest, NamedBlobs, ThreadId};
use selvedge_store::error::describe;
use selvedge_store::verify::{BadBlob, bad_blobs};
use selvedge_store::{Error, Result, Tombstone};
use serde::{Deserialize, Serialize};

use crate::backup::entries;
use crate::blobs::{hash_file, open_blob};
use crate::core::io_error;
use crate::disk::Disk;
use crate::layout::{Layout, check_folder};
use crate::manifest;
use crate::replay::read_log;

/// Something that failed verification: a thread's log, one of its blobs, its `thread.json` or its tombstone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCheck {
    /// The thread.
    pub thread_id: ThreadId,
    /// The blob, if it is not the log itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
    /// The file, if it is neither: `thread.json` or `tombstone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// What is wrong, as a sentence.
    pub why: String,
    /// Whether it was copied as it is; otherwise it was left out.
    pub copied: bool,
}

/// The name of a thread's manifest.
pub(crate) const MANIFEST: &str = "thread.json";
/// The `file` of a bad tombstone.
pub(crate) const TOMBSTONE: &str = "tombstone";

impl FailedCheck {
    /// A log that failed verification.
    pub(crate) fn log(thread: &ThreadId, why: String, copied: bool) -> Self {
        Self { thread_id: thread.clone(), blob: None, file: None, why, copied }
    }

    /// A file beside the log that failed verification.
    pub(crate) fn file(thread: &ThreadId, file: &str, why: String, copied: bool) -> Self {
        Self { file: Some(file.to_owned()), ..Self::log(thread, why, copied) }
    }

    /// Whether it is the log itself.
    pub(crate) fn is_log(&self) -> bool {
        self.blob.is_none() && self.file.is_none()
    }
}

/// The verdict on a copied thread.
pub(crate) struct CopyVerdict {
    /// Its log.
    pub(crate) finding: Finding,
    /// What is wrong with its `thread.json`, if there is one.
    pub(crate) bad_manifest: Option<String>,
    /// Blobs that its log names and that are missing or changed.
    pub(crate) bad_blobs: Vec<BadBlob>,
    /// Its blobs that match their names and were not erased.
    pub(crate) blobs: BTreeSet<Digest>,
}

impl CopyVerdict {
    /// The failures to report; `is_there` says what was copied.
    pub(crate) fn bad(&self, thread: &ThreadId, is_there: impl Fn(Option<&Digest>) -> bool) -> Vec<FailedCheck> {
        let is_copied = is_there(None);
        let log = (self.finding != Finding::Sound)
            .then(|| FailedCheck::log(thread, describe(thread, &self.finding), is_copied));
        let manifest = self.bad_manifest.iter().map(|why| {
            let why = format!("`{MANIFEST}` of `{thread}` failed verification: {why}");
            FailedCheck::file(thread, MANIFEST, why, is_copied)
        });
        let blobs = self.bad_blobs.iter().map(|bad| FailedCheck {
            blob: Some(bad.blob),
            ..FailedCheck::log(thread, describe(thread, &bad.clone().into_finding()), is_there(Some(&bad.blob)))
        });
        log.into_iter().chain(manifest).chain(blobs).collect()
    }
}

/// Verifies a copied thread: every hash and signature of its log up to `head`, and every blob.
pub(crate) fn judge_copy(
    thread: &ThreadId,
    head: &Head,
    layout: &Layout,
    trust: &Trust,
    disk: &dyn Disk,
) -> Result<CopyVerdict> {
    let path = layout.transcript(thread);
    check_folder(&layout.thread(thread))?;
    let mut named = NamedBlobs::default();
    let shown = manifest::read(layout, disk, trust, thread);
    let shown_version = shown.as_ref().ok().and_then(|shown| Some(shown.as_ref()?.memory.version));
    let mut shown_hash = None;
    let read = read_log(disk, layout, thread, trust, Some(head.version), |entry| {
        if shown_version == Some(entry.head.version) {
            shown_hash = Some(entry.head.hash);
        }
        for line in &entry.lines {
            named.take(entry.head.version, &line.event);
        }
    });
    let examined = read.map_err(io_error("read", &path))?;
    let evidence = Evidence { head: Some(head), file_bytes: examined.bytes, ..Evidence::default() };
    let finding = judge(&examined, evidence, Mode::Strict).finding;
    // A log that failed verification says nothing about its manifest.
    let bad_manifest = match shown {
        _ if finding != Finding::Sound => None,
        Err(Error::Integrity { why, .. }) => Some(why),
        Err(error) => Some(error.to_string()),
        Ok(Some(shown)) if shown_hash.is_none() => {
            Some(format!("it shows version {}, which the log does not have", shown.memory.version))
        }
        Ok(Some(shown)) if shown.memory.hash.is_some_and(|hash| Some(hash) != shown_hash) => {
            Some("it shows another log".to_owned())
        }
        Ok(_) => None,
    };
    let mut blobs = BTreeSet::new();
    let folder = layout.blobs(thread);
    // If it is not a folder, all named blobs are missing.
    if check_folder(&folder).unwrap_or(false) {
        for name in entries(&folder)? {
            let Ok(blob) = name.to_string_lossy().parse::<Digest>() else { continue };
            if !named.erased().contains(&blob) && hash_file(disk, &folder.join(&name)).is_ok_and(|hash| hash == blob) {
                blobs.insert(blob);
            }
        }
    }
    let is_complete = named.must_be_there().all(|(blob, _)| blobs.contains(&blob));
    let bad_blobs =
        if is_complete { Vec::new() } else { bad_blobs(&named, |blob| Ok(open_blob(layout, disk, thread, blob)?.1)) };
    Ok(CopyVerdict { finding, bad_manifest, bad_blobs, blobs })
}

/// What is wrong with the signed file of a tombstone, if anything.
pub(crate) fn bad_tombstone(thread: &ThreadId, document: &[u8], trust: &Trust) -> Option<String> {
    let refused = Tombstone::verify(thread, document, trust).err()?;
    Some(format!("the tombstone of `{thread}` failed verification: {refused}"))
}

/// Whether a file of this name in a thread's folder is copied with the log.
pub(crate) fn belongs(name: &str) -> bool {
    ["transcript.jsonl", MANIFEST, "capabilities.md"].contains(&name) || name.starts_with("transcript.quarantine")
}
