//! Which files were imported before, identified by their content and not by their names.
//!
//! - The commit that creates an imported thread has a key derived from every byte of the file, its manifest included. So the same file is
//!   found under any name by that key, and of two processes that import it at once only one creates a thread.
//! - A file that has grown since has another hash, but begins as it did: the first record of every import has the hash of a short
//!   beginning, and only the records of those that begin alike are read and compared completely. The list of beginnings is read once for
//!   any number of files.
//! - A file with other bytes, grown or with another manifest, continues a thread only if its manifest does not name another thread;
//!   otherwise two files that begin with the same word would become one. Changed fields of its manifest are added.

use std::cmp::Ordering;
use std::io::Read;

use selvedge_log::Trust;
use selvedge_log::hash::{RunningHash, sha256};
use selvedge_model::{CommitKey, Digest, ThreadId};
use selvedge_store::{Filter, Result, Store};
use serde::{Deserialize, Serialize};

use super::error::NovaError;
use super::origin;
use super::record::{self, ImportRecord};
use super::source::Source;
use super::stored_bytes::StoredBytes;
use super::survey::{self, Survey};
use crate::nova_file::Manifest;

/// The length of a file's beginning.
const BEGINNING_BYTES: u64 = 4096;
/// How many threads are listed at once.
const PAGE: usize = 1000;
/// The fields that distinguish threads in manifests of the older format.
const NAMES: [&str; 3] = ["id", "agentId", "createdAt"];

/// The first bytes after the manifest, as they were when the import began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileBeginning {
    pub(super) bytes: u64,
    pub(super) sha256: Digest,
}

/// The thread that a file was imported as, under any name.
pub(super) struct EarlierImport {
    pub(super) thread: ThreadId,
    pub(super) record: ImportRecord,
    pub(super) version: u64,
    /// The file, compared with that record.
    pub(super) survey: Survey,
    /// Whether the thread was created from exactly this file, and has all of it, whatever was added since.
    pub(super) is_had: bool,
}

/// The beginnings of the imported threads of a store.
#[derive(Default)]
pub(super) struct EarlierImports {
    /// Read when first needed. A thread that was imported without a beginning has none.
    entries: Option<Vec<(ThreadId, Option<FileBeginning>)>>,
}

impl EarlierImports {
    /// The thread that has this file, or had it before it grew.
    pub(super) fn find(
        &mut self,
        store: &dyn Store,
        trust: &Trust,
        source: &dyn Source,
        found: &Survey,
    ) -> Result<Option<EarlierImport>, NovaError> {
        if let (_, Some(thread)) = content_key(store, found)?
            && let Some((Some(record), version)) = record::load(store, trust, &thread)?
        {
            let survey = survey::survey(source, Some(&record))?;
            let is_had = match survey.bytes.cmp(&record.bytes) {
                Ordering::Less => has_beginning(store, &thread, &record, &survey),
                Ordering::Equal => record.complete && survey.hash == record.sha256,
                Ordering::Greater => false,
            };
            return Ok(Some(EarlierImport { thread, record, version, survey, is_had }));
        }
        let beginning = first_bytes(source, found)?;
        for (thread, known) in self.entries(store)? {
            if !known.is_none_or(|known| known.fits(&beginning)) {
                continue;
            }
            let loaded = match (record::load(store, trust, thread), known) {
                // An unreadable one may be any; it is an error only if it is known to begin alike.
                (Err(_), None) => continue,
                (loaded, _) => loaded?,
            };
            let Some((Some(record), version)) = loaded else { continue };
            let survey = survey::survey(source, Some(&record))?;
            let begins_alike = record.bytes > 0 && survey.kept_hash == Some(record.sha256);
            if begins_alike && is_one_thread(&record, survey.manifest.as_ref()) {
                return Ok(Some(EarlierImport { thread: thread.clone(), record, version, survey, is_had: false }));
            }
        }
        Ok(None)
    }

    /// Adds what was imported since.
    pub(super) fn add(&mut self, thread: &ThreadId, beginning: FileBeginning) {
        if let Some(entries) = self.entries.as_mut().filter(|known| !known.iter().any(|(id, _)| id == thread)) {
            entries.push((thread.clone(), Some(beginning)));
        }
    }

    fn entries(&mut self, store: &dyn Store) -> Result<&[(ThreadId, Option<FileBeginning>)]> {
        if self.entries.is_none() {
            self.entries = Some(read_entries(store)?);
        }
        Ok(self.entries.as_deref().unwrap_or_default())
    }
}

impl FileBeginning {
    /// The beginning of a file.
    pub(super) fn of(source: &dyn Source, survey: &Survey) -> Result<Self, NovaError> {
        let bytes = first_bytes(source, survey)?;
        Ok(Self { bytes: bytes.len() as u64, sha256: sha256(&bytes) })
    }

    fn fits(self, beginning: &[u8]) -> bool {
        let own = usize::try_from(self.bytes).ok().and_then(|bytes| beginning.get(..bytes));
        self.bytes > 0 && own.is_some_and(|own| sha256(own) == self.sha256)
    }
}

/// The key under which a thread is created from a file, and that thread, if it exists. A deleted thread keeps its key, so the next one has
/// another.
pub(super) fn content_key(store: &dyn Store, survey: &Survey) -> Result<(Option<CommitKey>, Option<ThreadId>)> {
    let mut name = format!("selvedge/import/nova/file\0{}\0{}", survey.head_hash, survey.hash);
    loop {
        let Ok(key) = CommitKey::new(format!("nova:content:{}", sha256(name.as_bytes()))) else {
            return Ok((None, None));
        };
        let created = store.outcome(&key)?.and_then(|committed| committed.versions.into_iter().next());
        match created {
            Some((thread, _)) if store.tombstone(&thread)?.is_some() => name = format!("{name}\0{thread}"),
            Some((thread, _)) => return Ok((Some(key), Some(thread))),
            None => return Ok((Some(key), None)),
        }
    }
}

/// Whether the bytes that a thread stored begin with all of a file's.
fn has_beginning(store: &dyn Store, thread: &ThreadId, record: &ImportRecord, survey: &Survey) -> bool {
    let mut kept = StoredBytes::new(store, thread, record.blobs.clone(), 0).take(survey.bytes);
    let mut hash = RunningHash::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match kept.read(&mut buffer) {
            Ok(0) => return hash.digest() == survey.hash,
            Ok(read) => hash.update(&buffer[..read]),
            // Unreadable bytes are not claimed.
            Err(_) => return false,
        }
    }
}

fn first_bytes(source: &dyn Source, survey: &Survey) -> Result<Vec<u8>, NovaError> {
    let failed = || NovaError::reading(source.name());
    let mut input = source.open().map_err(failed())?;
    survey::skip(&mut *input, survey.head_bytes).map_err(failed())?;
    let mut bytes = Vec::new();
    input.take(BEGINNING_BYTES.min(survey.bytes)).read_to_end(&mut bytes).map_err(failed())?;
    Ok(bytes)
}

fn read_entries(store: &dyn Store) -> Result<Vec<(ThreadId, Option<FileBeginning>)>> {
    let mut entries = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE)?;
        for summary in page.items {
            let thread = summary.manifest.thread_id;
            // A log whose first lines can't be read has no record to compare with.
            if let Ok(Some((record, _))) = origin::first_record(store, &thread) {
                entries.push((thread, record.begins));
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(entries);
        }
    }
}

/// Whether the two manifests may belong to the same thread.
fn is_one_thread(record: &ImportRecord, manifest: Option<&Manifest>) -> bool {
    let before = record.manifest.as_ref();
    let now = manifest.map(Manifest::fields);
    let (Some(before), Some(now)) = (before, now) else { return true };
    NAMES.iter().all(|name| match (before.get(*name), now.get(*name)) {
        (Some(before), Some(now)) => before == now,
        _ => true,
    })
}
