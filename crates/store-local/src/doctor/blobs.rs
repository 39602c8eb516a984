//! Whether the blobs are there that a log names, as far as that can be told without reading it whole: those that its end names, and
//! those of an import, which stand in the saved state. Whether they are what their names say is told only by hashing them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rusqlite::params;
use selvedge_model::event::Snapshot;
use selvedge_model::{Digest, Event, NamedBlobs};
use selvedge_store::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{Examiner, Finding, Report, Severity};
use crate::rows::{self, Row};
use crate::schema::{self, database};

/// The part of a saved state that is looked at.
#[derive(Deserialize)]
struct Saved {
    state: Value,
}

impl Examiner<'_> {
    /// The blobs that saved states name, by thread.
    pub(super) fn imports(&self) -> Result<BTreeMap<i64, Vec<Digest>>> {
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
                    named.insert(thread, Event::Snapshot(Snapshot { state }).blobs());
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
        let (core, thread) = (self.core(), &row.manifest.thread_id);
        let named: BTreeSet<Digest> =
            named.must_be_there().map(|(blob, _)| blob).chain(imported.iter().copied()).collect();
        for blob in named {
            let is_there = fs::symlink_metadata(core.layout.blob(thread, &blob)).is_ok();
            if is_there || self.was_erased(row, &blob)? {
                continue;
            }
            // Its folder may be gone because it was deleted meanwhile.
            core.read(|connection| rows::existing(connection, thread))?;
            let what = format!("blob {} is missing", blob.short());
            let why = "its log names it, and does not say that it was erased";
            let found = Finding::new(Severity::Damage, "blob_missing", thread, what, why);
            report.add(found.help("put the file back from a backup; the log itself holds"));
        }
        Ok(())
    }

    fn was_erased(&self, row: &Row, blob: &Digest) -> Result<bool> {
        self.core().read(|connection| {
            if !schema::knows_erasures(connection)? {
                return Ok(false);
            }
            let sql = "SELECT 1 FROM erasures WHERE thread = ? AND blob = ?";
            let mut statement = connection.prepare_cached(sql).map_err(database)?;
            statement.exists(params![row.id, &blob.0[..]]).map_err(database)
        })
    }
}
