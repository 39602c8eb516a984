//! What is between the threads: folders, tombstones, owners, pending work in the database, and the disk itself.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use selvedge_log::document::{self, DocumentError};
use selvedge_model::{Digest, OwnerId, ThreadId};
use selvedge_store::{Result, tombstone};

use super::threads::left_over;
use super::{Depth, Examiner, Finding, Report, Severity, is_old, is_temporary, read_document};
use crate::db::Db;
use crate::layout::{Layout, is_reserved};
use crate::leading_events::{self, LeadingEvents};
use crate::rows::{self, Row, bad_row};
use crate::schema::{self, database};

/// Free space below this is too little to work with.
const ROOM_BYTES_MIN: u64 = 64 << 20;

/// Reports a disk that is nearly full.
pub(super) fn room(root: &Path, report: &mut Report) {
    let Ok(found) = rustix::fs::statvfs(root) else { return };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let all = found.f_blocks.saturating_mul(found.f_frsize);
    report.findings.extend(too_little(free, all));
}

fn too_little(free: u64, all: u64) -> Option<Finding> {
    let what = format!("{} MB are free", free >> 20);
    let why = "a commit that does not fit is refused; no acknowledged data is lost";
    let found = Finding::new(Severity::Warning, "disk_nearly_full", "the disk", what, why).help("free some space");
    (free < ROOM_BYTES_MIN || free < all / 100).then_some(found)
}

/// Reports how many logs there are, when the database can't be read.
pub(super) fn count_logs(layout: &Layout, report: &mut Report) {
    let Ok(entries) = fs::read_dir(layout.root()) else { return };
    let logs = entries.flatten().filter(|entry| entry.path().join("transcript.jsonl").is_file()).count();
    if logs > 0 {
        let what = match logs {
            1 => "there is a log, which was not checked".to_owned(),
            _ => format!("there are {logs} logs, which were not checked"),
        };
        let why = "they are the record, and do not need the database to be verified";
        report.add(Finding::new(Severity::Note, "logs_not_checked", "the store", what, why));
    }
}

impl Examiner<'_> {
    /// Reports folders without rows. (A row without a folder is reported with its thread.)
    pub(super) fn folders(&self, known: &[Row], report: &mut Report) -> Result<()> {
        let root = self.core().layout.root();
        let known: HashSet<String> = known.iter().map(|row| row.manifest.thread_id.folder()).collect();
        let Ok(entries) = fs::read_dir(root) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // A link counts as a folder; one in place of a known thread's folder is reported with the thread.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_symlink());
            if is_temporary(&name) && is_old(&entry.path(), &*self.clock) {
                report.add(left_over("the store", &entry.path().display().to_string()));
            } else if is_folder && !is_reserved(name.as_str()) && !known.contains(&name) {
                self.unknown_folder(&name, &entry.path(), report)?;
            }
        }
        Ok(())
    }

    /// Effects whose last attempt failed.
    pub(super) fn effects(&self, report: &mut Report) -> Result<()> {
        for (effect, failure, unreadable) in self.store.effect_failures()? {
            let name = effect.as_str();
            if let Some(failure) = failure {
                let what = format!("the effect `{name}` failed at {}: {}", failure.at, failure.why);
                let why = "no answer depends on it; it is tried again after the next run";
                report.add(Finding::new(Severity::Warning, "effect_failed", "the store", what, why));
            }
            if unreadable > 0 {
                let what = format!("the effect `{name}` left out {unreadable} commit(s) whose logs could not be read");
                let why = "what it writes is derived from the logs";
                let found = Finding::new(Severity::Warning, "effect_incomplete", "the store", what, why);
                // Not the records themselves: those of deleted threads can't be derived again.
                let state = format!(".ai/agent/threads/effects/{name}.json");
                report.add(found.help(format!("repair the logs, then remove `{state}`: what is missing is added")));
            }
        }
        Ok(())
    }

    pub(super) fn tombstones(&self, report: &mut Report) -> Result<()> {
        let core = self.core();
        let known = core.read(|connection| {
            let mut statement = connection.prepare("SELECT thread_id, buried FROM tombstones").map_err(database)?;
            let found = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)));
            found.map_err(database)?.collect::<rusqlite::Result<Vec<_>>>().map_err(database)
        })?;
        let mut files = HashSet::new();
        for (thread, buried) in known {
            let thread = ThreadId::new(thread).map_err(bad_row)?;
            let path = core.layout.tombstone(&thread);
            files.insert(path.clone());
            match read_document(core, &path) {
                // Without trusted keys the file can't be judged; that is reported with the keys.
                Ok(_) if self.depth == Depth::Unsigned => {}
                Ok(bytes) => match document::verify_json(tombstone::KIND, thread.as_str(), &bytes, &core.trust) {
                    Ok(_) => {}
                    Err(DocumentError::UntrustedKey { fingerprint } | DocumentError::RevokedKey { fingerprint }) => {
                        report.untrusted(fingerprint, &thread)
                    }
                    Err(error) => {
                        let what = format!("its tombstone `{}` is refused", path.display());
                        let found =
                            Finding::new(Severity::Damage, "tombstone_refused", &thread, what, error.to_string());
                        report
                            .add(found.help("restore the file from a backup; the database still records the deletion"));
                    }
                },
                Err(_) if buried == 0 => {
                    let why = "deleting it was interrupted; the next writing command finishes it";
                    report.add(Finding::new(
                        Severity::Warning,
                        "deletion_unfinished",
                        &thread,
                        "its tombstone is not written yet",
                        why,
                    ));
                }
                Err(error) => {
                    let what = format!("its tombstone `{}` can't be read", path.display());
                    let found = Finding::new(Severity::Damage, "tombstone_missing", &thread, what, error.to_string());
                    report.add(
                        found.help(
                            "`selvedge reindex` writes it again from the database; without it, a database that is rebuilt from the logs alone loses the deletion",
                        ),
                    );
                }
            }
        }
        let Ok(entries) = fs::read_dir(core.layout.tombstones()) else { return Ok(()) };
        for entry in entries.flatten().filter(|entry| !files.contains(&entry.path())) {
            let path = entry.path();
            if is_temporary(&entry.file_name().to_string_lossy()) {
                if is_old(&path, &*self.clock) {
                    report.add(left_over("the store", &path.display().to_string()));
                }
            } else if let Some((key, thread)) = self.untrusted_tombstone(&path) {
                report.untrusted(key, &thread);
            } else if is_old(&path, &*self.clock) {
                let what = format!("the tombstone `{}` is not in the database", path.display());
                let why = "the database is older than the file, or the file was copied here";
                report.add(
                    Finding::new(Severity::Damage, "tombstone_not_indexed", "the store", what, why)
                        .help("`selvedge reindex`"),
                );
            }
        }
        Ok(())
    }

    /// The key and thread of a tombstone that is not in the database because its key is not trusted.
    fn untrusted_tombstone(&self, path: &Path) -> Option<(Digest, ThreadId)> {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let thread = ThreadId::from_folder(name.strip_suffix(".json")?).ok()?;
        let bytes = read_document(self.core(), path).ok()?;
        match document::verify_json(tombstone::KIND, thread.as_str(), &bytes, &self.core().trust) {
            Err(DocumentError::UntrustedKey { fingerprint } | DocumentError::RevokedKey { fingerprint }) => {
                Some((fingerprint, thread)).filter(|_| self.depth != Depth::Unsigned)
            }
            _ => None,
        }
    }

    pub(super) fn owners(&self, report: &mut Report) -> Result<()> {
        let Ok(entries) = fs::read_dir(self.core().layout.owners()) else { return Ok(()) };
        let mut dead = 0;
        for entry in entries.flatten() {
            let Ok(owner) = OwnerId::new(entry.file_name().to_string_lossy()) else { continue };
            match self.core().is_alive(&owner) {
                Ok(true) => report.live_owners += 1,
                Ok(false) => dead += 1,
                // Not a plain file, so no owner created it.
                Err(error) => {
                    let what = format!("`{}` is not the lock file of a process", entry.path().display());
                    let found = Finding::new(Severity::Note, "wrong_owner", "the store", what, error.to_string());
                    report.add(found.help("it can be removed"));
                }
            }
        }
        if dead > 0 {
            let what = match dead {
                1 => "a process ended without closing the store".to_owned(),
                _ => format!("{dead} processes ended without closing the store"),
            };
            let why = "their files in `owners` are removed by the next writing command";
            report.add(Finding::new(Severity::Note, "processes_dead", "the store", what, why));
        }
        Ok(())
    }

    /// The lines that the next changesets of threads begin with. Without a key nothing can be said about seals.
    fn leads(&self, connection: &Db) -> Result<Vec<(String, LeadingEvents)>> {
        let mut found = Vec::new();
        for row in rows::select_any(connection, "t.id IN (SELECT thread FROM leads) OR h.leads > 0 ORDER BY t.id", [])?
        {
            let leads = leading_events::read(connection, &row)?;
            let is_known = self.core().signing.is_some();
            let unsealed = if is_known { leads.unsealed } else { 0 };
            found.push((row.manifest.thread_id.to_string(), LeadingEvents { unsealed, ..leads }));
        }
        Ok(found)
    }

    /// Reports pending work in the database.
    pub(super) fn waiting(&self, report: &mut Report) -> Result<()> {
        let (requests, leads) = self.core().read(|connection| Ok((waiting(connection)?, self.leads(connection)?)))?;
        for (thread, count) in requests {
            let why = "a request is consumed by the process that holds the thread, with its next commit";
            report.add(Finding::new(
                Severity::Note,
                "requests_queued",
                thread,
                format!("{count} request(s) wait to be consumed"),
                why,
            ));
        }
        for (thread, LeadingEvents { unsealed, .. }) in leads.iter().filter(|(_, leads)| leads.unsealed > 0) {
            let what = format!("{unsealed} event(s) that wait to be recorded were not sealed with your key");
            let why = "a program other than Selvedge wrote them, or they were sealed with a key that is not available; they are never recorded";
            report.add(Finding::new(Severity::Damage, "pending_event_unsealed", thread, what, why));
        }
        for (thread, LeadingEvents { missing, .. }) in leads.iter().filter(|(_, leads)| leads.missing > 0) {
            let what = format!("{missing} event(s) that waited to be recorded were removed from the database");
            let why = "the next changeset can't record what was found and repaired before it";
            report.add(Finding::new(Severity::Damage, "pending_event_missing", thread, what, why));
        }
        for (thread, leads) in leads.iter().filter(|(_, leads)| leads.rows.len() > leads.unsealed) {
            let count = leads.rows.len() - leads.unsealed;
            let why = "the next changeset begins with what was found and repaired, signed";
            report.add(Finding::new(
                Severity::Note,
                "pending_event",
                thread,
                format!("{count} event(s) wait to be recorded"),
                why,
            ));
        }
        for (_, thread, blob) in self.core().unfinished_erasures()? {
            let what = format!("the content of blob {} is to be erased, and may still be there", blob.short());
            let why = "erasing it was interrupted; the next writing command finishes it";
            let found = Finding::new(Severity::Warning, "erasure_unfinished", &thread, what, why);
            report.add(found.help("run any writing command, such as `selvedge thread rename`"));
        }
        Ok(())
    }
}

/// How many requests wait, by thread.
fn waiting(connection: &Db) -> Result<Vec<(String, i64)>> {
    if schema::version(connection)? < schema::FORMAT {
        return Ok(Vec::new());
    }
    let sql = "SELECT t.thread_id, COUNT(*) FROM requests AS x JOIN threads AS t ON t.id = x.thread GROUP BY t.id ORDER BY t.id";
    let mut statement = connection.prepare(sql).map_err(database)?;
    let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(database)?;
    found.collect::<rusqlite::Result<_>>().map_err(database)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nearly_full_disk_is_reported() {
        let mb = 1 << 20;
        let gb = 1 << 30;
        assert_eq!(too_little(10 * gb, 100 * gb), None);
        assert_eq!(too_little(64 * mb, gb), None);
        for (free, all) in [(0, 0), (63 * mb, gb), (gb, 101 * gb)] {
            let found = too_little(free, all).unwrap();
            assert_eq!((found.severity, found.code), (Severity::Warning, "disk_nearly_full"), "{free} of {all}");
        }
    }
}
