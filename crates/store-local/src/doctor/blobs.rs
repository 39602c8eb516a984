//! Whether the blobs that a log names exist, as far as that can be checked without reading all of it: those that its end names, and those
//! of an import, which are in the saved state. Whether their content matches their names requires hashing: of each thread, blobs of up to
//! [`HASHED_MAX`] bytes in total are hashed, unless all is requested. The number of blobs that were not hashed is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rusqlite::params;
use selvedge_model::event::Snapshot;
use selvedge_model::{Digest, Event, NamedBlobs};
use selvedge_store::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{Examiner, Finding, Report, Severity};
use crate::blobs::hash_file;
use crate::layout::check_folder;
use crate::rows::{self, Row};
use crate::schema::database;

/// How many bytes of a thread's blobs are hashed.
const HASHED_MAX: u64 = 1 << 20;

/// The import recorded in a saved state.
#[derive(Default)]
pub(super) struct Imported {
    /// The blobs that it names.
    pub(super) blobs: Vec<Digest>,
    /// Whether it was interrupted.
    pub(super) is_cut_short: bool,
}

/// The part of a saved state that is read.
#[derive(Deserialize)]
struct Saved {
    state: Value,
}

impl Examiner<'_> {
    /// The imports recorded in saved states, by thread.
    pub(super) fn imports(&self) -> Result<BTreeMap<i64, Imported>> {
        self.core().read(|connection| {
            let sql = "SELECT thread, state FROM states WHERE instr(state, '\"__import\"') > 0";
            let mut statement = connection.prepare(sql).map_err(database)?;
            let found = statement
                .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))
                .map_err(database)?;
            let mut named = BTreeMap::new();
            for row in found {
                let (thread, text) = row.map_err(database)?;
                // The next writer folds one that can't be read again from the log.
                if let Ok(Saved { state }) = serde_json::from_str(&text) {
                    let is_cut_short = state.pointer("/__import/complete") == Some(&Value::Bool(false));
                    let blobs = Event::Snapshot(Snapshot { state }).blobs();
                    named.insert(thread, Imported { blobs, is_cut_short });
                }
            }
            Ok(named)
        })
    }

    /// Reports blobs that are missing or changed and were not erased.
    pub(super) fn named_blobs(
        &self,
        row: &Row,
        imported: &[Digest],
        named: &NamedBlobs,
        report: &mut Report,
    ) -> Result<()> {
        let core = self.core();
        let thread = &row.manifest.thread_id;
        let named: BTreeSet<Digest> =
            named.must_be_there().map(|(blob, _)| blob).chain(imported.iter().copied()).collect();
        // If their folder is a link or a file, that is reported with the other files of the thread.
        if check_folder(&core.layout.blobs(thread)).is_err() {
            return Ok(());
        }
        let mut left = HASHED_MAX;
        for blob in named {
            let path = core.layout.blob(thread, &blob);
            let length = fs::symlink_metadata(&path).map(|found| found.len());
            let (code, what) = match length {
                Ok(length) if length > left => {
                    report.blobs_not_hashed += 1;
                    continue;
                }
                Ok(length) => {
                    left -= length;
                    match hash_file(&*core.disk, &path) {
                        Ok(hash) if hash == blob => continue,
                        Ok(_) => ("blob_changed", "does not match its name".to_owned()),
                        Err(error) => ("blob_changed", format!("can't be read: {error}")),
                    }
                }
                Err(_) => ("blob_missing", "is missing".to_owned()),
            };
            if self.was_erased(row, &blob)? {
                continue;
            }
            // Its folder may be missing because the thread was deleted meanwhile.
            core.read(|connection| rows::existing(connection, thread))?;
            let what = format!("blob {} {what}", blob.short());
            let why = "its log names it, and does not say that it was erased";
            let found = Finding::new(Severity::Damage, code, thread, what, why);
            report.add(found.help(format!(
                "restore the file from a backup; the log itself is valid; if it is lost for good, `selvedge erase {thread} {blob} \
                --reason …` records that in the log"
            )));
        }
        Ok(())
    }

    fn was_erased(&self, row: &Row, blob: &Digest) -> Result<bool> {
        self.core().read(|connection| {
            let sql = "SELECT 1 FROM erasures WHERE thread = ? AND blob = ?";
            let mut statement = connection.prepare_cached(sql).map_err(database)?;
            statement.exists(params![row.id, &blob.0[..]]).map_err(database)
        })
    }
}
