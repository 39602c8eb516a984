//! Looking at everything of a store, changing nothing, and saying what to do.
//!
//! - `threads`: one thread at a time: file, head, manifest, the last lines of its log. `around`: what lies between the threads and
//!   in the database.
//!
//! A finding is data: how bad it is, a stable word, what it is about, what was found, why that is so, and the command that helps.
//! Without `deep` no log is read whole: per thread it takes a look at the file, its last lines, its manifest and its row.
//! Others may go on writing meanwhile; what seems wrong is looked at a second time before it is said.

mod around;
mod threads;

use std::path::Path;
use std::sync::Arc;

use selvedge_model::{Classify, Clock};
use selvedge_store::{Error, Result};
use serde::Serialize;

use crate::core::Core;
use crate::layout::Layout;
use crate::open::{self, Access, LocalStore, Options};
use crate::schema::{self, database};
use crate::{disk, rows};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing need be done.
    Note,
    /// Something wants doing, and nothing is lost.
    Warning,
    /// Something is not what was written or signed.
    Damage,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// A stable word.
    pub code: &'static str,
    /// What it is about: a thread's id, a file, the store.
    pub subject: String,
    /// What was found.
    pub what: String,
    /// Why that is so, or what follows from it.
    pub why: String,
    /// The command that helps, or what to do by hand.
    pub help: Option<String>,
}

impl Finding {
    /// A finding; `help` is added by [`Finding::help`].
    pub fn new(
        severity: Severity,
        code: &'static str,
        subject: impl ToString,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self { severity, code, subject: subject.to_string(), what: what.into(), why: why.into(), help: None }
    }

    /// The same finding with what helps.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// What an error says, as a finding.
    pub fn of_error(severity: Severity, subject: impl ToString, error: &impl Classify) -> Self {
        let why = error.source().map_or_else(|| "it was refused".to_owned(), ToString::to_string);
        let found = Self::new(severity, error.code(), subject, error.to_string(), why);
        Self { help: error.hint(), ..found }
    }
}

/// What a whole examination found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every finding, the worst first.
    pub findings: Vec<Finding>,
    /// The format of the store, if it could be read.
    pub store_format: Option<i64>,
    /// How many threads were looked at.
    pub threads: u64,
    /// How many processes have the store open to write.
    pub live_owners: u64,
}

impl Report {
    /// How bad the worst finding is.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

/// The version of SQLite that is used.
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

/// Looks at everything of a store; `deep` also verifies every log whole. `each` is told how many threads of how many are done.
pub fn examine(options: Options, deep: bool, each: &mut dyn FnMut(u64, u64)) -> Report {
    let mut report = Report::default();
    let layout = Layout::of(&options.project);
    around::room(layout.root(), &mut report);
    report.store_format = open::check_kind(&layout, &*options.disk).ok().map(|kind| kind.format);
    let clock = options.clock.clone();
    match LocalStore::open(Options { access: Access::ReadOnly, ..options }) {
        Ok(store) => {
            let examiner = Examiner { store: &store, deep, clock };
            if let Err(error) = examiner.look(&mut report, each) {
                report.add(Finding::of_error(Severity::Damage, "the store", &error));
            }
        }
        Err(error) => {
            report.add(Finding::of_error(Severity::Damage, "the store", &error));
            around::count_logs(&layout, &mut report);
        }
    }
    report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    report
}

struct Examiner<'a> {
    store: &'a LocalStore,
    deep: bool,
    clock: Arc<dyn Clock>,
}

impl Examiner<'_> {
    fn core(&self) -> &Core {
        &self.store.core
    }

    fn look(&self, report: &mut Report, each: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.format(report)?;
        self.database(report)?;
        self.owners(report)?;
        let found = self.core().read(|connection| rows::select(connection, "1 ORDER BY t.id", []))?;
        let pending = self.pending()?;
        report.threads = found.len() as u64;
        for (index, row) in found.iter().enumerate() {
            self.thread(row, &pending, report);
            each(index as u64 + 1, found.len() as u64);
        }
        self.folders(&found, report)?;
        self.tombstones(report)?;
        self.waiting(report)
    }

    fn format(&self, report: &mut Report) -> Result<()> {
        let in_database = self.core().read(schema::version)?;
        let named = report.store_format.unwrap_or(in_database);
        if named.min(in_database) < schema::FORMAT {
            let (found, current) = (named.min(in_database), schema::FORMAT);
            let error = Error::Outdated { found, current };
            let why = "it can be read, verified and backed up, and not be written";
            let finding = Finding::of_error(Severity::Warning, "the store", &error);
            report.add(Finding { why: why.to_owned(), ..finding });
        }
        Ok(())
    }

    /// SQLite's own look at its file.
    fn database(&self, report: &mut Report) -> Result<()> {
        let said = self.core().read(|connection| {
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)).map_err(database)
        })?;
        if said != "ok" {
            let what = format!("SQLite says: {said}");
            let found = Finding::new(
                Severity::Damage,
                "database_damaged",
                "registry.db",
                what,
                "the logs are not touched by that",
            );
            report.add(found.help("`selvedge reindex` builds it anew from the logs"));
        }
        Ok(())
    }
}

/// Whether a name is that of a file that was to be renamed once it was whole.
fn is_temporary(name: &str) -> bool {
    (name.starts_with('.') && name.ends_with(".tmp")) || name == "transcript.rebuild"
}

/// Whether a file is left over and not just being written: it is older than a minute.
fn is_old(path: &Path, clock: &dyn Clock) -> bool {
    let Ok(modified) = std::fs::symlink_metadata(path).and_then(|found| found.modified()) else { return false };
    let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    clock.now().as_micros().saturating_sub(micros) > 60_000_000
}

/// Reads a signed file whole.
fn read_document(core: &Core, path: &Path) -> std::io::Result<Vec<u8>> {
    disk::read(&*core.disk, path, 64 << 20)
}
