//! One thread in a copy of a store: its log against the head that the copy tells of, and its blobs against their names.
//!
//! What a backup says of itself and what is restored from it are judged here alike. Nothing is written.

use std::collections::BTreeSet;

use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_log::{Head, Trust};
use selvedge_model::{Digest, NamedBlobs, ThreadId};
use selvedge_store::Result;
use selvedge_store::error::describe;
use serde::{Deserialize, Serialize};

use crate::backup::entries;
use crate::blobs::{BadBlob, bad_blobs, hash_file};
use crate::core::io_error;
use crate::disk::Disk;
use crate::layout::{Layout, check_folder};
use crate::replay::read_log;

/// Something that is not what was signed: a thread's log, or one of its blobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bad {
    /// The thread.
    pub thread_id: ThreadId,
    /// The blob, if it is not the log itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
    /// What is wrong, as a sentence.
    pub why: String,
    /// Whether it was copied as it is; otherwise it was left out.
    pub copied: bool,
}

/// What was found out about a copied thread.
pub(crate) struct Judged {
    /// Its log.
    pub(crate) finding: Finding,
    /// Blobs that its log names and that are not there as they were named.
    pub(crate) bad_blobs: Vec<BadBlob>,
    /// The files among its blobs that are what their names say, and that nobody erased.
    pub(crate) blobs: BTreeSet<Digest>,
}

impl Judged {
    /// What is to be said of it; `is_there` tells what was copied.
    pub(crate) fn bad(&self, thread: &ThreadId, is_there: impl Fn(Option<&Digest>) -> bool) -> Vec<Bad> {
        let log = (self.finding != Finding::Sound).then(|| Bad {
            thread_id: thread.clone(),
            blob: None,
            why: describe(thread, &self.finding),
            copied: is_there(None),
        });
        let blobs = self.bad_blobs.iter().map(|bad| Bad {
            thread_id: thread.clone(),
            blob: Some(bad.blob),
            why: describe(thread, &bad.clone().into_finding()),
            copied: is_there(Some(&bad.blob)),
        });
        log.into_iter().chain(blobs).collect()
    }
}

/// Judges a copied thread: every hash and signature of its log up to `head`, and every blob.
pub(crate) fn judge_copy(
    thread: &ThreadId,
    head: &Head,
    layout: &Layout,
    trust: &Trust,
    disk: &dyn Disk,
) -> Result<Judged> {
    let path = layout.transcript(thread);
    check_folder(&layout.thread(thread))?;
    let mut named = NamedBlobs::default();
    let read = read_log(disk, layout, thread, trust, Some(head.version), |entry| {
        entry.lines.iter().for_each(|line| named.take(entry.head.version, &line.event));
    });
    let examined = read.map_err(io_error("read", &path))?;
    let evidence = Evidence { head: Some(head), file_bytes: examined.bytes, ..Evidence::default() };
    let finding = judge(&examined, evidence, Mode::Strict).finding;
    let mut blobs = BTreeSet::new();
    let folder = layout.blobs(thread);
    if check_folder(&folder)? {
        for name in entries(&folder)? {
            let Ok(blob) = name.to_string_lossy().parse::<Digest>() else { continue };
            if !named.erased().contains(&blob) && hash_file(disk, &folder.join(&name)).is_ok_and(|hash| hash == blob) {
                blobs.insert(blob);
            }
        }
    }
    let bad_blobs = match named.must_be_there().all(|(blob, _)| blobs.contains(&blob)) {
        true => Vec::new(),
        false => bad_blobs(layout, disk, thread, &named),
    };
    Ok(Judged { finding, bad_blobs, blobs })
}
