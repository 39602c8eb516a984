//! The record of an import, in the thread's state: which file, how much of it, what was found.

use selvedge_log::Trust;
use selvedge_log::hash::sha256;
use selvedge_model::event::Fields;
use selvedge_model::fold::{apply_to_state, empty_state};
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::{Digest, Patch, ThreadId};
use selvedge_store::load::each_changeset;
use selvedge_store::{Error, Logs, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::earlier_imports::FileBeginning;
use crate::nova_file::{Counts, Manifest};

/// The key of the record in the state.
pub const STATE_KEY: &str = "__import";
/// The name of the format in the record.
pub(super) const FORMAT: &str = "nova";
/// A longer manifest is stored completely only as a blob.
const MANIFEST_BYTES_MAX: usize = 64 * 1024;

/// How far the events of a file were imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImportPosition {
    /// Every line before this byte after the head.
    pub(super) bytes: u64,
    /// The number of the line that begins there.
    pub(super) line: u64,
    /// How many objects of that line, which had no end yet.
    pub(super) part: u32,
}

/// A blob that has bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredPiece {
    pub(super) blob: Digest,
    pub(super) bytes: u64,
}

/// The record of an import.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ImportRecord {
    /// `nova`.
    pub(super) format: String,
    /// The name of the file.
    pub(super) source: String,
    /// Always false: the events were not witnessed here.
    pub(super) witnessed: bool,
    /// The thread's id in the file, or the file's name.
    pub(super) original_id: String,
    /// The beginning of the file; only in the first changeset, so that it is found without reading the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) begins: Option<FileBeginning>,
    /// The manifest as the file had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) manifest: Option<Fields>,
    /// Whether unknown fields of the manifest are stored only as a blob, because they were too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) manifest_shortened: bool,
    /// The hash of the head, once everything after it was imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) head_sha256: Option<Digest>,
    /// The blobs that have the head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) head_blobs: Vec<StoredPiece>,
    /// How many bytes after the head are stored.
    pub(super) bytes: u64,
    /// Their hash.
    pub(super) sha256: Digest,
    /// The blobs that have them, in order.
    pub(super) blobs: Vec<StoredPiece>,
    /// How far they were imported.
    pub(super) imported: ImportPosition,
    /// Whether that is all.
    pub(super) complete: bool,
    /// What was found in the whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) counts: Option<Counts>,
    /// Events that fit on no line of a log; they are only in the blobs.
    #[serde(default)]
    pub(super) too_large: u64,
    /// The version at which the import was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) log_version: Option<u64>,
}

impl ImportRecord {
    /// The record of an import that has just begun.
    pub(super) fn begin(source: &str, original_id: &str) -> Self {
        Self {
            format: FORMAT.to_owned(),
            source: source.to_owned(),
            witnessed: false,
            original_id: original_id.to_owned(),
            begins: None,
            manifest: None,
            manifest_shortened: false,
            head_sha256: None,
            head_blobs: Vec::new(),
            bytes: 0,
            sha256: sha256(b""),
            blobs: Vec::new(),
            imported: ImportPosition::default(),
            complete: false,
            counts: None,
            too_large: 0,
            log_version: None,
        }
    }

    /// Sets the current manifest of the file.
    pub(super) fn set_manifest(&mut self, manifest: &Manifest) {
        let mut manifest = manifest.clone();
        let length = serde_json::to_vec(manifest.fields()).map_or(usize::MAX, |bytes| bytes.len());
        self.manifest_shortened = length > MANIFEST_BYTES_MAX;
        if self.manifest_shortened {
            manifest.shorten();
        }
        self.manifest = Some(manifest.fields().clone());
    }

    /// The manifest of the file as it was imported.
    pub(super) fn manifest(&self) -> Option<Manifest> {
        self.manifest.clone().map(Manifest::of)
    }

    /// The patch that begins the record.
    pub(super) fn begin_patch(&self) -> Patch {
        let value = serde_json::to_value(self).unwrap_or_default();
        Patch::new(vec![Op::Set { path: Path::keys([STATE_KEY]), value }]).from_source("import:nova")
    }

    /// The patch that adds one more blob.
    pub(super) fn kept_patch(&self, piece: StoredPiece) -> Patch {
        let blob = serde_json::to_value(piece).unwrap_or_default();
        let append = Op::Append { path: Path::keys([STATE_KEY, "blobs"]), value: blob };
        self.merging([append], &["bytes", "sha256", "complete"])
    }

    /// The patch that records the progress.
    pub(super) fn position_patch(&self) -> Patch {
        self.merging([], &["imported"])
    }

    /// The patch that completes the record: everything but the blobs, which it has.
    pub(super) fn end_patch(&self) -> Patch {
        let all = serde_json::to_value(self).unwrap_or_default();
        let names: Vec<_> = all.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let names: Vec<_> = names.into_iter().filter(|name| *name != "blobs").collect();
        self.merging([], &names)
    }

    /// A patch that sets these members, so that a long list of blobs is not written again with every commit.
    fn merging<const N: usize>(&self, first: [Op; N], names: &[&str]) -> Patch {
        let all = serde_json::to_value(self).unwrap_or_default();
        let member = |name: &&str| all.get(*name).map(|value| ((*name).to_owned(), value.clone()));
        let value = names.iter().filter_map(member).collect();
        let merge = Op::MergeObject { path: Path::keys([STATE_KEY]), value };
        Patch::new(first.into_iter().chain([merge]).collect()).from_source("import:nova")
    }

    /// The record in a state.
    pub(super) fn of(state: &Value) -> Option<Self> {
        let record: Self = serde_json::from_value(state.get(STATE_KEY)?.clone()).ok()?;
        (record.format == FORMAT).then_some(record)
    }
}

/// The record of a thread, and its version; none if there is no such thread. Its messages are not kept in memory.
pub(super) fn load(logs: &dyn Logs, trust: &Trust, thread: &ThreadId) -> Result<Option<(Option<ImportRecord>, u64)>> {
    let mut state = empty_state();
    let mut refused = None;
    let head = each_changeset(logs, thread, trust, |entry| {
        for line in &entry.lines {
            refused = refused.take().or(apply_to_state(&mut state, &line.event).err());
        }
    });
    let head = match head {
        Err(Error::NoThread(_)) => return Ok(None),
        other => other?,
    };
    match refused {
        Some(error) => Err(Error::Fold { thread: thread.clone(), source: error.into() }),
        None => Ok(Some((ImportRecord::of(&state), head.version))),
    }
}
