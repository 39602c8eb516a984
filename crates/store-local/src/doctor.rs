//! Looking at everything of a store, changing nothing, and saying what to do.
//!
//! - `threads`: one thread at a time: file, head, manifest, what lies beside. `ends`: the end of a log. `blobs`: whether what it
//!   names is there. `around`: what lies between the threads and in the database. `strays`: folders that no row tells of. `places`: what must
//!   be there, and who may write it.
//!
//! A finding is data: how bad it is, a stable word, what it is about, what was found, why that is so, and the command that helps.
//! Others may go on writing meanwhile; what seems wrong is looked at a second time before it is said.
//!
//! How much of a log is read is bounded, unless all of it is asked for: see [`Depth`]. What was not read is said.

mod around;
mod blobs;
mod ends;
mod places;
mod strays;
mod threads;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use selvedge_log::trust::Status;
use selvedge_model::{Classify, Clock, Digest, ThreadId};
use selvedge_store::{Error, Result};
use serde::Serialize;

use crate::core::Core;
use crate::layout::Layout;
use crate::open::{self, Access, LocalStore, Options};
use crate::schema::{self, database};
use crate::{disk, rows};

/// How closely logs are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As [`Depth::Ends`], and no signature is judged, because it is not known whose count.
    Unsigned,
    /// Their last lines, the last signature, the hash of the last quarter of a megabyte, and whether the blobs are there that this
    /// much of a log names, and, of each thread, the hash of as many small ones as a megabyte holds. Most logs are no longer than that.
    Ends,
    /// Every byte and every signature of every log, and every byte of every blob it names.
    Whole,
}

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
    /// How many logs were longer than what was read of them.
    pub not_read_whole: u64,
    /// How many blobs were too many or too large to be hashed; they are there.
    pub blobs_not_hashed: u64,
    /// How many processes have the store open to write.
    pub live_owners: u64,
    /// Keys that count no more or never did, and the threads whose logs they signed.
    unbelieved: BTreeMap<Digest, Vec<ThreadId>>,
}

impl Report {
    /// How bad the worst finding is.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Takes in that a log is signed by a key that is not believed; said once for each key.
    fn unbelieved(&mut self, key: Digest, thread: &ThreadId) {
        let threads = self.unbelieved.entry(key).or_default();
        if threads.last() != Some(thread) {
            threads.push(thread.clone());
        }
    }

    /// Whether that was taken in of this key and thread.
    fn is_unbelieved(&self, key: &Digest, thread: &ThreadId) -> bool {
        self.unbelieved.get(key).is_some_and(|threads| threads.contains(thread))
    }
}

/// The version of SQLite that is used.
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

/// Looks at everything of a store. `each` is told how many threads of how many are done.
pub fn examine(options: Options, depth: Depth, each: &mut dyn FnMut(u64, u64)) -> Report {
    let mut report = Report::default();
    let layout = Layout::of(&options.project);
    around::room(layout.root(), &mut report);
    report.store_format = open::check_kind(&layout, &*options.disk).ok().map(|kind| kind.format);
    let clock = options.clock.clone();
    match LocalStore::open(Options { access: Access::ReadOnly, ..options }) {
        Ok(store) => {
            let examiner = Examiner { store: &store, depth, clock };
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
    depth: Depth,
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
        let (pending, imports) = (self.pending()?, self.imports()?);
        report.threads = found.len() as u64;
        for (index, row) in found.iter().enumerate() {
            self.thread(row, &pending, imports.get(&row.id), report);
            each(index as u64 + 1, found.len() as u64);
        }
        self.places(&found, report);
        self.folders(&found, report)?;
        self.tombstones(report)?;
        self.signers(report);
        self.waiting(report)
    }

    /// What could not be said of each thread alone: whose signatures were not believed, and that none was judged.
    fn signers(&self, report: &mut Report) {
        for (key, threads) in std::mem::take(&mut report.unbelieved) {
            let short = key.short();
            let (code, standing, help) = match self.core().trust.status(&key) {
                Some(Status::Revoked) => (
                    "revoked_key",
                    "which you revoked",
                    format!("if that was a mistake, believe it again: `selvedge keys trust --again {short}`"),
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
            let what = format!("{whose} signed by key {short}, {standing}");
            let why = "nothing that it signed is believed; the bytes may well be as they were";
            report.add(Finding::new(Severity::Warning, code, subject, what, why).help(help));
        }
        if self.depth == Depth::Unsigned {
            let why = "it is not known whom you trust";
            let found =
                Finding::new(Severity::Warning, "signatures_unjudged", "the store", "no signature was judged", why);
            report.add(found.help("mend what is said of your trusted keys, then look again"));
        }
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
