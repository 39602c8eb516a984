//! Whether the blobs are there that a log names, as far as that can be told without reading it whole: those that its end names, and
//! those of an import, which stand in the saved state. Whether they are what their names say is told only by hashing them: of each thread
//! as many as [`HASHED_MAX`] bytes hold, unless all is asked for. How many were not is said.

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

/// What a saved state says of an import.
#[derive(Default)]
pub(super) struct Imported {
    /// The blobs that it names.
    pub(super) blobs: Vec<Digest>,
    /// Whether it was not finished.
    pub(super) is_cut_short: bool,
}

/// The part of a saved state that is looked at.
#[derive(Deserialize)]
struct Saved {
    state: Value,
}

impl Examiner<'_> {
    /// What saved states say of imports, by thread.
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
                // One that can't be read is folded anew from the log by the next writer.
                if let Ok(Saved { state }) = serde_json::from_str(&text) {
                    let is_cut_short = state.pointer("/__import/complete") == Some(&Value::Bool(false));
                    let blobs = Event::Snapshot(Snapshot { state }).blobs();
                    named.insert(thread, Imported { blobs, is_cut_short });
                }
            }
            Ok(named)
        })
    }

    /// Names the blobs that are not there and that nobody erased.
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
        // What stands in the place of their folder is said with what lies beside the log.
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
                        Ok(_) => ("blob_changed", "is not what its name says".to_owned()),
                        Err(error) => ("blob_changed", format!("can't be read: {error}")),
                    }
                }
                Err(_) => ("blob_missing", "is missing".to_owned()),
            };
            if self.was_erased(row, &blob)? {
                continue;
            }
            // Its folder may be gone because it was deleted meanwhile.
            core.read(|connection| rows::existing(connection, thread))?;
            let what = format!("blob {} {what}", blob.short());
            let why = "its log names it, and does not say that it was erased";
            let found = Finding::new(Severity::Damage, code, thread, what, why);
            report.add(found.help(format!(
                "put the file back from a backup; the log itself holds; if it is lost for good, `selvedge erase {thread} {blob} \
                 --reason …` says so in the log"
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
