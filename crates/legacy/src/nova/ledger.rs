//! Which files were imported before, told by what they hold and not by what they are called.
//!
//! - The commit that creates an imported thread has a key made of every byte of the file, its manifest included. So the same
//!   file is found under any name by asking for that key, and of two processes that import it at once only one creates a thread.
//! - A file that has grown since has another hash, but begins as it did: the first line of every import tells the hash of
//!   a short beginning, and only the records of those that begin alike are read and compared whole. The list of beginnings is
//!   read once for any number of files.
//! - A file with other bytes, grown or with another manifest, goes on with a thread only if its manifest does not name another
//!   thread; without that, two that begin with the same word would become one. What its manifest says otherwise is added.

use std::cmp::Ordering;
use std::io::Read;

use selvedge_log::Trust;
use selvedge_log::hash::{RunningHash, sha256};
use selvedge_model::{CommitKey, Digest, ThreadId};
use selvedge_store::{Filter, Result, Store};
use serde::{Deserialize, Serialize};

use super::error::NovaError;
use super::kept::KeptBytes;
use super::origin;
use super::record::{self, Record};
use super::source::Source;
use super::survey::{self, Survey};
use crate::nova_file::Manifest;

/// How much of a file its beginning is.
const BEGINNING_BYTES: u64 = 4096;
/// How many threads are listed at once.
const PAGE: usize = 1000;
/// What tells threads apart in the manifests of the older form.
const NAMES: [&str; 3] = ["id", "agentId", "createdAt"];

/// The first bytes behind the manifest, as they were when the import began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Beginning {
    pub(super) bytes: u64,
    pub(super) sha256: Digest,
}

/// The thread that a file was imported as, under whatever name.
pub(super) struct Known {
    pub(super) thread: ThreadId,
    pub(super) record: Record,
    pub(super) version: u64,
    /// The file, held against that record.
    pub(super) survey: Survey,
    /// Whether the thread was made of exactly this file, and has all of it, whatever came since.
    pub(super) is_had: bool,
}

/// What the imported threads of a store begin with.
#[derive(Default)]
pub(super) struct Ledger {
    /// Nothing until somebody asks. A thread that was imported without a beginning has none.
    entries: Option<Vec<(ThreadId, Option<Beginning>)>>,
}

impl Ledger {
    /// The thread that has this file, or had it before it grew.
    pub(super) fn find(
        &mut self,
        store: &dyn Store,
        trust: &Trust,
        source: &dyn Source,
        found: &Survey,
    ) -> Result<Option<Known>, NovaError> {
        if let (_, Some(thread)) = content_key(store, found)?
            && let Some((Some(record), version)) = record::load(store, trust, &thread)?
        {
            let survey = survey::survey(source, Some(&record))?;
            let is_had = match survey.bytes.cmp(&record.bytes) {
                Ordering::Less => has_beginning(store, &thread, &record, &survey),
                Ordering::Equal => record.complete && survey.hash == record.sha256,
                Ordering::Greater => false,
            };
            return Ok(Some(Known { thread, record, version, survey, is_had }));
        }
        let beginning = first_bytes(source, found)?;
        for (thread, known) in self.entries(store)? {
            if !known.is_none_or(|known| known.fits(&beginning)) {
                continue;
            }
            let loaded = match (record::load(store, trust, thread), known) {
                // One that can't be read may be any; it keeps nobody out unless it is known to begin alike.
                (Err(_), None) => continue,
                (loaded, _) => loaded?,
            };
            let Some((Some(record), version)) = loaded else { continue };
            let survey = survey::survey(source, Some(&record))?;
            let begins_alike = record.bytes > 0 && survey.kept_hash == Some(record.sha256);
            if begins_alike && is_one_thread(&record, survey.manifest.as_ref()) {
                return Ok(Some(Known { thread: thread.clone(), record, version, survey, is_had: false }));
            }
        }
        Ok(None)
    }

    /// Takes in what was imported since.
    pub(super) fn add(&mut self, thread: &ThreadId, beginning: Beginning) {
        if let Some(entries) = self.entries.as_mut().filter(|known| !known.iter().any(|(id, _)| id == thread)) {
            entries.push((thread.clone(), Some(beginning)));
        }
    }

    fn entries(&mut self, store: &dyn Store) -> Result<&[(ThreadId, Option<Beginning>)]> {
        if self.entries.is_none() {
            self.entries = Some(read_entries(store)?);
        }
        Ok(self.entries.as_deref().unwrap_or_default())
    }
}

impl Beginning {
    /// What a file begins with.
    pub(super) fn of(source: &dyn Source, survey: &Survey) -> Result<Self, NovaError> {
        let bytes = first_bytes(source, survey)?;
        Ok(Self { bytes: bytes.len() as u64, sha256: sha256(&bytes) })
    }

    fn fits(self, beginning: &[u8]) -> bool {
        let own = usize::try_from(self.bytes).ok().and_then(|bytes| beginning.get(..bytes));
        self.bytes > 0 && own.is_some_and(|own| sha256(own) == self.sha256)
    }
}

/// The key under which a thread is created from a file, and the thread that was, if any was and is still there. One that was deleted keeps its
/// key, so the next one has another.
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

/// Whether the bytes that a thread kept begin with all of a file's.
fn has_beginning(store: &dyn Store, thread: &ThreadId, record: &Record, survey: &Survey) -> bool {
    let mut kept = KeptBytes::new(store, thread, record.blobs.clone(), 0).take(survey.bytes);
    let mut hash = RunningHash::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match kept.read(&mut buffer) {
            Ok(0) => return hash.digest() == survey.hash,
            Ok(read) => hash.update(&buffer[..read]),
            // What can't be read any more is not claimed.
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

fn read_entries(store: &dyn Store) -> Result<Vec<(ThreadId, Option<Beginning>)>> {
    let mut entries = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE)?;
        for summary in page.items {
            let thread = summary.manifest.thread_id;
            // A log whose first lines can't be read has no record that could be compared.
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

/// Whether nothing in the two manifests says that they are of different threads.
fn is_one_thread(record: &Record, manifest: Option<&Manifest>) -> bool {
    let before = record.manifest.as_ref();
    let now = manifest.map(Manifest::fields);
    let (Some(before), Some(now)) = (before, now) else { return true };
    NAMES.iter().all(|name| match (before.get(*name), now.get(*name)) {
        (Some(before), Some(now)) => before == now,
        _ => true,
    })
}
