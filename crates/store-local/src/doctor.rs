//! Checks everything in a store, changes nothing, and says what to do.
//!
//! - `threads`: one thread at a time: file, head, manifest, other files. `log_ends`: the end of a log. `blobs`: whether the blobs that it
//!   names exist. `store_wide`: what is between the threads and in the database. `unindexed`: folders without rows. `folders`: the
//!   folders that must exist, and who may write to them.
//!
//! Other processes may write meanwhile; a problem is checked a second time before it is reported.
//!
//! How much of a log is read is bounded, unless all of it is requested: see [`Depth`]. What was not read is reported.

mod blobs;
mod folders;
mod log_ends;
mod seals;
mod store_wide;
mod threads;
mod unindexed;

use std::path::Path;
use std::sync::Arc;

use selvedge_log::trust::Status;
use selvedge_model::Clock;
use selvedge_store::Result;
pub use selvedge_store::doctor::{Depth, Finding, Report, Severity};

use crate::core::Core;
use crate::layout::Layout;
use crate::open::{self, Access, LocalStore, Options};
use crate::rows::Row;
use crate::schema::{REBUILD, database};
use crate::sealed::{Seal, UNSEALED};
use crate::{disk, rows};

/// The version of SQLite that is used.
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

/// Checks everything in a store. `each` receives how many threads of how many are done.
pub fn examine(options: Options, depth: Depth, each: &mut dyn FnMut(u64, u64)) -> Report {
    let mut report = Report::default();
    let layout = Layout::of(&options.project);
    store_wide::room(layout.root(), &mut report);
    report.store_format = open::check_kind(&layout, &*options.disk).ok().map(|kind| kind.format);
    let clock = options.clock.clone();
    match LocalStore::open(Options { access: Access::ReadOnly, ..options }) {
        Ok(store) => {
            let examiner = Examiner { store: &store, depth, clock };
            let looked = examiner.look(&mut report, each);
            let is_said = report.findings.iter().any(|found| found.code.starts_with("database_"));
            if let Some(error) = looked.err().filter(|error| !(is_said && rows::is_of_database(error))) {
                report.add(Finding::of_error(Severity::Damage, "the store", &error));
            }
        }
        Err(error) => {
            report.add(Finding::of_error(Severity::Damage, "the store", &error));
            store_wide::count_logs(&layout, &mut report);
        }
    }
    report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    report
}

struct Examiner<'a> {
    store: &'a LocalStore,
    depth: Depth,
    clock: Arc<dyn Clock>,
}

impl Examiner<'_> {
    fn core(&self) -> &Core {
        &self.store.core
    }

    fn look(&self, report: &mut Report, each: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.database(report)?;
        self.owners(report)?;
        let found = self.sealed(report)?;
        let pending = self.pending()?;
        let imports = self.imports()?;
        report.threads = found.len() as u64;
        for (index, row) in found.iter().enumerate() {
            self.thread(row, &pending, imports.get(&row.id), report);
            each(index as u64 + 1, found.len() as u64);
        }
        self.unreadable(report);
        self.modes_and_leftovers(&found, report);
        self.folders(&found, report)?;
        self.tombstones(report)?;
        self.seals(&found, report)?;
        self.signers(report);
        self.effects(report)?;
        self.waiting(report)
    }

    /// The rows of all threads, without those whose seal is broken, which are reported once, together.
    fn sealed(&self, report: &mut Report) -> Result<Vec<Row>> {
        let (found, broken): (Vec<_>, Vec<_>) = self.core().read(|db| {
            let found = rows::select_any(db, "1 ORDER BY t.id", [])?;
            Ok(found.into_iter().partition(|row| row.seal(db) != Seal::Broken))
        })?;
        if !broken.is_empty() {
            let names: Vec<_> = broken.iter().map(|row| format!("`{}`", row.manifest.thread_id)).collect();
            let what = format!("the database rows of {} {}", names.join(", "), UNSEALED);
            let why = "such a row is never used to sign, spend or answer";
            report.add(Finding::new(Severity::Damage, "database_differs", "the store", what, why).help(REBUILD));
        }
        Ok(found)
    }

    /// Merges the findings of a database that can't be read into one, however many threads could not be checked.
    fn unreadable(&self, report: &mut Report) {
        let (differing, others) = std::mem::take(&mut report.findings)
            .into_iter()
            .partition::<Vec<_>, _>(|found| found.code == "database_differs" && found.subject != "the store");
        report.findings = others;
        match differing.as_slice() {
            [] => {}
            [_] => report.findings.extend(differing),
            [first, ..] => {
                let names: Vec<_> = differing.iter().map(|found| format!("`{}`", found.subject)).collect();
                let what = format!("the database differs from the logs of {}: {}", names.join(", "), first.what);
                let why = "the logs are valid; only the database is wrong";
                report.add(Finding::new(Severity::Damage, "database_differs", "the store", what, why).help(REBUILD));
            }
        }
        let threads: u64 = report.unreadable.values().sum();
        let Some((first, _)) = std::mem::take(&mut report.unreadable).into_iter().next() else { return };
        if report.findings.iter().any(|found| found.code == "database_damaged") {
            return;
        }
        let what = format!("{first}; {threads} thread(s) could not be checked");
        let why = "the logs are not affected";
        report.add(Finding::new(Severity::Damage, "database_damaged", "registry.db", what, why).help(REBUILD));
    }

    /// Findings that concern several threads: which keys are not trusted, and that no signature was checked.
    fn signers(&self, report: &mut Report) {
        for (key, threads) in std::mem::take(&mut report.untrusted) {
            let short = key.short();
            let (code, trust, help) = match self.core().trust.status(&key) {
                Some(Status::Revoked) => (
                    "log_revoked_key",
                    "which you revoked",
                    format!("if that was a mistake, trust it again: `selvedge keys trust --again {short}`"),
                ),
                _ => (
                    "untrusted_key",
                    "which you do not trust",
                    "trust the key only if you know whose it is: `selvedge keys trust FILE --owner NAME`".to_owned(),
                ),
            };
            let (subject, whose) = match threads.as_slice() {
                [only] => (only.to_string(), "its log or tombstone is".to_owned()),
                many => ("the store".to_owned(), format!("logs or tombstones of {} threads are", many.len())),
            };
            let what = format!("{whose} signed by key {short}, {trust}");
            let why = "nothing that it signed is trusted; the bytes may well be unchanged";
            report.add(Finding::new(Severity::Warning, code, subject, what, why).help(help));
        }
        if self.depth == Depth::Unsigned {
            let why = "the list of your trusted keys can't be read";
            let found =
                Finding::new(Severity::Warning, "signatures_not_checked", "the store", "no signature was checked", why);
            report.add(found.help("repair the list of your trusted keys, then check again"));
        }
    }

    /// SQLite's own check of its file.
    fn database(&self, report: &mut Report) -> Result<()> {
        let said = self.core().read(|connection| {
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)).map_err(database)
        })?;
        if said != "ok" {
            let what = format!("SQLite says: {said}");
            let found =
                Finding::new(Severity::Damage, "database_damaged", "registry.db", what, "the logs are not affected");
            report.add(found.help("`selvedge reindex` rebuilds it from the logs"));
        }
        Ok(())
    }
}

/// Whether a name is that of a temporary file, which is renamed when complete.
fn is_temporary(name: &str) -> bool {
    (name.starts_with('.') && name.ends_with(".tmp")) || name == "transcript.rebuild"
}

/// Whether a file is a leftover and not being written: it is older than a minute.
fn is_old(path: &Path, clock: &dyn Clock) -> bool {
    let Ok(modified) = std::fs::symlink_metadata(path).and_then(|found| found.modified()) else { return false };
    let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    clock.now().as_micros().saturating_sub(micros) > 60_000_000
}

/// Reads a signed file.
fn read_document(core: &Core, path: &Path) -> std::io::Result<Vec<u8>> {
    disk::read(&*core.disk, path, 64 << 20)
}
