//! Checks one thread at a time.

use std::collections::{BTreeMap, HashSet};
use std::fs;

use selvedge_log::Line;
use selvedge_log::recovery::Finding as LogFinding;
use selvedge_log::scan::{Damage, Flaw};
use selvedge_log::trust::Status as KeyStatus;
use selvedge_model::{Digest, Status, ThreadId};
use selvedge_store::Snapshots as _;
use selvedge_store::{Error, Result};

use super::blobs::Imported;
use super::log_ends::LogEndProblem;
use super::{Depth, Examiner, Finding, Report, Severity, is_old, is_temporary};
use crate::core::io_error;
use crate::layout::check_folder;
use crate::rows::{self, Row};
use crate::schema::database;
use selvedge_store::folded::Folded;
use selvedge_store::snapshot::shows_another;

/// How far ahead of this machine's clock the time of a line may be, in microseconds.
const AHEAD_MAX: i64 = 300_000_000;
/// How far times may go backwards between two lines before that is reported as a clock set back, in microseconds. Two processes that read
/// the clock and then commit in turn, and a synchronized clock, stay below it.
const BACKWARDS_MAX: i64 = 10_000_000;
/// The default folder for the snapshots of completed threads.
const ARCHIVE: &str = "archive";

/// Pending work in the database, by thread.
pub(super) struct PendingWork {
    /// Threads whose manifest may be older than their row.
    stale: HashSet<i64>,
    /// The number of bytes of redo.
    redo: BTreeMap<i64, u64>,
}

impl Examiner<'_> {
    pub(super) fn pending(&self) -> Result<PendingWork> {
        self.core().read(|connection| {
            let mut statement =
                connection.prepare("SELECT id FROM threads WHERE manifest_stale = 1").map_err(database)?;
            let stale = statement.query_map([], |row| row.get(0)).map_err(database)?;
            let stale = stale.collect::<rusqlite::Result<_>>().map_err(database)?;
            let redo = crate::redo::RedoRows::read(connection)?
                .threads
                .iter()
                .map(|outline| (outline.id, outline.bytes))
                .collect();
            Ok(PendingWork { stale, redo })
        })
    }

    /// Checks the log of a thread and the files beside it; the first that can't be checked ends it.
    fn files(&self, row: &Row, pending: &PendingWork, imported: Option<&Imported>, report: &mut Report) -> Result<()> {
        self.log(row, imported.map(|imported| imported.blobs.as_slice()).unwrap_or_default(), report)?;
        self.manifest(row, pending.stale.contains(&row.id), report)?;
        self.capabilities(row, report)?;
        self.snapshot(row, report)?;
        self.status(row, report)?;
        self.other_files(row, report)
    }

    /// Checks one thread; a failure to check it is a finding too.
    pub(super) fn thread(&self, row: &Row, pending: &PendingWork, imported: Option<&Imported>, report: &mut Report) {
        let thread = &row.manifest.thread_id;
        let looked = self.files(row, pending, imported, report);
        if let Some(bytes) = pending.redo.get(&row.id).filter(|_| report.live_owners == 0) {
            let what = format!("{bytes} committed bytes are not synced in the transcript yet");
            let why = "they are safe in the database, and the next writer or a clean close syncs them";
            report.add(Finding::new(Severity::Note, "redo_pending", thread, what, why));
        }
        for lost in &row.manifest.lost {
            let what = format!("{} of its log: lost since {}", lost.in_words(), lost.since);
            let by = lost.by.as_deref().unwrap_or("another record");
            let why =
                format!("{by} recorded more than the log had when the loss was accepted; the signed log records that");
            report.add(Finding::new(Severity::Note, "versions_lost", thread, what, why));
        }
        if imported.is_some_and(|imported| imported.is_cut_short) {
            let what = "it was imported, and the import is not finished";
            let why = "what was imported is signed; the rest of the file is not imported yet";
            let help = "import the same file again: `selvedge import FILE --format nova` continues where it stopped";
            report.add(Finding::new(Severity::Warning, "import_unfinished", thread, what, why).help(help));
        }
        match looked {
            Err(Error::NoThread(_) | Error::Deleted(_)) | Ok(()) => {}
            Err(error) if rows::is_of_database(&error) => *report.unreadable.entry(error.to_string()).or_default() += 1,
            Err(error) => report.add(Finding::of_error(Severity::Damage, thread, &error)),
        }
    }

    fn log(&self, row: &Row, imported: &[Digest], report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let path = self.core().layout.transcript(thread);
        check_folder(&self.core().layout.thread(thread))?;
        let fits = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() == row.head.bytes);
        // A file that does not have the expected length is read whole.
        if self.depth == Depth::Whole || !fits {
            return self.verify(row, report);
        }
        match self.end(row) {
            Ok(end) => {
                if self.depth == Depth::Ends {
                    let counts = |key: &Digest| self.core().trust.status(key) == Some(KeyStatus::Trusted);
                    for key in end.signers.iter().filter(|key| !counts(key)) {
                        report.untrusted(*key, thread);
                    }
                }
                report.not_read_whole += u64::from(end.folded.is_none());
                if let Some(folded) = &end.folded {
                    self.rows(row, folded, report)?;
                }
                self.times(thread, &end.lines, report);
                self.named_blobs(row, imported, &end.named, report)
            }
            Err(LogEndProblem::Io(error)) => Err(io_error("read", &path)(error)),
            Err(LogEndProblem::Store(error)) => Err(error),
            // Verifying the whole log gives the exact finding.
            Err(LogEndProblem::Because(_)) => self.verify(row, report),
        }
    }

    /// Compares the rows of a thread with its log; a thread that another process wrote to meanwhile is skipped.
    fn rows(&self, row: &Row, folded: &Folded<'_>, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        if let Some(why) = self.core().differs(thread, Some(&row.head), folded)? {
            let finding = LogFinding::Database { why };
            let help = help(thread, &finding);
            let error = Error::Log { thread: thread.clone(), finding };
            let why = "the log is valid; only the database is wrong";
            let found = Finding { why: why.to_owned(), ..Finding::of_error(Severity::Damage, thread, &error) };
            report.add(found.help(help));
        }
        Ok(())
    }

    fn verify(&self, row: &Row, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let mut last = Vec::new();
        let verdict = self.store.verify(thread, &mut |entry| last.clone_from(&entry.lines))?;
        self.times(thread, &last, report);
        for bad in &verdict.bad_blobs {
            let error = Error::Log { thread: thread.clone(), finding: bad.clone().into_finding() };
            let why = "the log itself is valid; the blob was not erased";
            let found = Finding { why: why.to_owned(), ..Finding::of_error(Severity::Damage, thread, &error) };
            report.add(found.help(format!(
                "restore the file from a backup; if it is lost for good, `selvedge erase {thread} {} --reason …` records that in the log",
                bad.blob
            )));
        }
        if !verdict.erased_blobs.is_empty() {
            let names: Vec<_> = verdict.erased_blobs.iter().map(Digest::short).collect();
            let what = format!("{} blob(s) were erased: {}", names.len(), names.join(", "));
            let why = "the log records when and why; it is valid without them";
            report.add(Finding::new(Severity::Note, "blobs_erased", thread, what, why));
        }
        let finding = verdict.judgement.finding;
        let severity = match &finding {
            LogFinding::Sound | LogFinding::Blob { .. } => return Ok(()),
            LogFinding::Damaged(Damage { flaw: Flaw::Untrusted(key) | Flaw::Revoked(key), .. }) => {
                return self.unproven(row, *key, report);
            }
            LogFinding::Foreign { .. } => Severity::Warning,
            _ => Severity::Damage,
        };
        let error = Error::Log { thread: thread.clone(), finding: finding.clone() };
        let proven = match verdict.judgement.unchanged_up_to {
            Some(version) => format!("unchanged up to version {version} since it was signed"),
            None => "nothing of it is proven".to_owned(),
        };
        let help = help(thread, &finding);
        report.add(Finding { why: proven, ..Finding::of_error(severity, thread, &error) }.help(help));
        Ok(())
    }

    /// A log whose signatures are not trusted. Whether it matches the database can be checked without them.
    fn unproven(&self, row: &Row, key: Digest, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        if self.depth != Depth::Unsigned {
            report.untrusted(key, thread);
        }
        let now = self.core().read(|connection| rows::existing(connection, thread))?;
        let why = match self.end(&now) {
            Ok(_) => return Ok(()),
            Err(LogEndProblem::Because(why)) => why.to_owned(),
            Err(LogEndProblem::Io(error)) => error.to_string(),
            Err(LogEndProblem::Store(error)) => return Err(error),
        };
        let what = "its log is not the one that the database records";
        let found = Finding::new(Severity::Damage, "log_damaged", thread, what, why);
        report.add(found.help(FROM_A_COPY));
        Ok(())
    }

    /// Reports times that can't be true: a clock was wrong.
    fn times(&self, thread: &ThreadId, lines: &[Line], report: &mut Report) {
        let Some(last) = lines.last() else { return };
        if last.timestamp.as_micros() - self.clock.now().as_micros() > AHEAD_MAX {
            let what = format!("its last checkpoint has the time {}, which is in the future", last.timestamp);
            let why = "the clock was ahead when it was written, or is slow now; versions define the order, not times";
            report.add(Finding::new(Severity::Warning, "clock_ahead", thread, what, why).help("set the clock"));
        }
        let back = lines.windows(2).map(|pair| pair[0].timestamp.as_micros() - pair[1].timestamp.as_micros()).max();
        if let Some(back) = back.filter(|back| *back > BACKWARDS_MAX) {
            let what = format!("times go back by {} s in its last lines", back / 1_000_000);
            let why = "a clock was set back between two commits; versions define the order, not times";
            report.add(Finding::new(Severity::Note, "clock_backwards", thread, what, why));
        }
    }

    fn manifest(&self, row: &Row, is_stale: bool, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        // Log and manifest have the same signer: an untrusted key is reported once.
        if self.depth == Depth::Unsigned || self.core().trust.status(&row.head.signer) != Some(KeyStatus::Trusted) {
            return Ok(());
        }
        let memory = match self.core().manifest_memory(thread) {
            Ok(Some(memory)) => memory,
            Ok(None) if is_stale => return Ok(()),
            // Its log is missing too, and that is reported for the log.
            Ok(None) if fs::symlink_metadata(self.core().layout.transcript(thread)).is_err() => return Ok(()),
            Ok(None) => {
                self.core().read(|connection| rows::existing(connection, thread))?;
                let why = "it is derived from the log, which is complete without it";
                report.add(
                    Finding::new(Severity::Warning, "manifest_missing", thread, "`thread.json` is missing", why).help(
                        format!("the next write to the thread creates it, and so does `selvedge repair {thread}`"),
                    ),
                );
                return Ok(());
            }
            // Reported for its log already, if that has the same signer.
            Err(Error::UntrustedKey { key, .. }) if report.is_untrusted(&key, thread) => return Ok(()),
            Err(error @ Error::UntrustedKey { .. }) => {
                let why = "it is derived from the log, which is valid without it";
                let help = format!("the next write to the thread replaces it, and so does `selvedge repair {thread}`");
                let found = Finding::new(Severity::Warning, "manifest_untrusted", thread, error.to_string(), why);
                report.add(found.help(help));
                return Ok(());
            }
            Err(Error::Integrity { what, why, .. }) => {
                report.add(
                    Finding::new(Severity::Damage, "manifest_refused", thread, format!("{what} is refused"), why)
                        .help(format!("`selvedge repair {thread}` moves it aside and writes it again")),
                );
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // Another process may have committed since the rows were read.
        let now = self.core().read(|connection| rows::existing(connection, thread))?;
        let end = self.log_end(&now)?;
        let head = now.head;
        if memory.version > end {
            let finding = LogFinding::Truncated { have: Some(end), version: memory.version, by: memory.by };
            let error = Error::Log { thread: thread.clone(), finding };
            report.add(Finding::of_error(Severity::Damage, thread, &error).help(format!(
                "restore log and database from a backup, or accept the loss with `selvedge repair {thread} --accept-loss`"
            )));
        } else if memory.version == head.version && memory.hash.is_some_and(|hash| hash != head.hash) {
            let what = format!("`thread.json` shows another log at version {}", memory.version);
            let why = "its signature is valid, but not for the bytes that the database records";
            report.add(
                Finding::new(Severity::Damage, "thread_file_differs", thread, what, why)
                    .help(format!("`selvedge repair {thread}` moves it aside and writes it again")),
            );
        }
        Ok(())
    }

    /// The version at which a log ends. If the database is behind, the log continues, signed, after the head that the database has: then it
    /// is not the log that is cut off.
    fn log_end(&self, row: &Row) -> Result<u64> {
        match self.core().refuse_outdated_row(&row.manifest.thread_id, row) {
            Ok(()) => Ok(row.head.version),
            Err(Error::Log { finding: LogFinding::DatabaseBehind { file, .. }, .. }) => Ok(file),
            Err(error) => Err(error),
        }
    }

    /// Checks the newest snapshot, which may record more of the log than there is.
    fn snapshot(&self, row: &Row, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        if self.depth == Depth::Unsigned || self.core().trust.status(&row.head.signer) != Some(KeyStatus::Trusted) {
            return Ok(());
        }
        let seen = self.core().newest_snapshot(thread)?;
        // Another process may have committed since the rows were read.
        let now = self.core().read(|connection| rows::existing(connection, thread))?;
        let end = self.log_end(&now)?;
        let head = now.head;
        if let Some(memory) = self.core().snapshot_beyond(thread, seen.as_ref(), end)? {
            let finding = LogFinding::Truncated { have: Some(end), version: memory.version, by: memory.by };
            let error = Error::Log { thread: thread.clone(), finding };
            report.add(Finding::of_error(Severity::Damage, thread, &error).help(format!(
                "restore log and database from a backup, or accept the loss with `selvedge repair {thread} --accept-loss`"
            )));
            return Ok(());
        }
        let bad = match self.core().read_snapshot_memory(thread) {
            Ok(Some(memory)) if memory.version == head.version && memory.hash.is_some_and(|hash| hash != head.hash) => {
                Some(shows_another(memory.version))
            }
            Ok(_) | Err(Error::UntrustedKey { .. }) => None,
            Err(Error::Integrity { why, .. }) => Some(why),
            Err(error) => return Err(error),
        };
        if let Some(why) = bad {
            let what = "`state.json` is refused";
            let help = format!(
                "`selvedge repair {thread}` moves it aside; until then the log is read, which has the same content"
            );
            report.add(Finding::new(Severity::Warning, "snapshot_refused", thread, what, why).help(help));
        }
        Ok(())
    }

    fn capabilities(&self, row: &Row, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        if self.depth == Depth::Unsigned || self.core().trust.status(&row.head.signer) != Some(KeyStatus::Trusted) {
            return Ok(());
        }
        if let Some(why) = self.core().bad_capabilities(thread)? {
            let what = "`capabilities.md` failed verification";
            let help = format!(
                "inspect it; `selvedge repair {thread}` moves it aside, and the next run writes it again from the log"
            );
            report.add(Finding::new(Severity::Damage, "capabilities_refused", thread, what, why).help(help));
        } else if self.lacks_capabilities(row)? {
            let why = "it was written before the thread first ran; the log records what the thread may call";
            let help = "the next run writes it again from the log";
            let what = "`capabilities.md` is missing";
            report.add(Finding::new(Severity::Warning, "capabilities_missing", thread, what, why).help(help));
        }
        Ok(())
    }

    /// Whether a thread should have a capabilities file and has none: it has a directive and has run here. Threads written by other
    /// programs have no such file.
    fn lacks_capabilities(&self, row: &Row) -> Result<bool> {
        let manifest = &row.manifest;
        let is_ordered = manifest.directive.is_some() && manifest.capabilities.is_some();
        // Turns are counted by an engine.
        let has_run = manifest.cost.turns > 0 && is_ordered;
        // A thread that was imported never ran here.
        let is_ours = has_run && !self.core().is_imported(&manifest.thread_id);
        Ok(is_ours && !self.core().has_capabilities(&manifest.thread_id)?)
    }

    fn status(&self, row: &Row, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let holder_lives = row.owner.as_ref().map_or(Ok(false), |owner| self.core().is_alive(owner))?;
        if let Some(owner) = row.owner.as_ref().filter(|_| !holder_lives) {
            let what = format!("its lease is held by {}, which is dead", owner.in_words());
            let why = "the next writer takes it over, under a higher epoch";
            report.add(Finding::new(Severity::Note, "lease_orphaned", thread, what, why));
        }
        let now = || self.core().read(|connection| rows::existing(connection, thread));
        let is_running = row.manifest.status == Status::Running && !row.manifest.is_run_outside();
        if is_running && !holder_lives && now()?.head == row.head {
            let run = row.manifest.run_id.as_ref().map_or_else(String::new, |run| format!(" (run `{run}`)"));
            let what = format!("it is `running`{run}, and no process runs it");
            let why = "its process ended before it recorded the end of the run";
            let help = format!(
                "`selvedge resume {thread}` ends that run and continues; no call that has an outcome is repeated"
            );
            report.add(Finding::new(Severity::Warning, "thread_stalled", thread, what, why).help(help));
        }
        Ok(())
    }

    /// Checks the other files and folders of a thread.
    fn other_files(&self, row: &Row, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let layout = &self.core().layout;
        if let Err(error) = check_folder(&layout.blobs(thread)) {
            let why = "no blob of the thread can be read until that is fixed";
            let found = Finding::new(Severity::Damage, "blobs_refused", thread, error.to_string(), why);
            report.add(found.help("replace it by the folder itself, or restore that from a backup"));
        }
        for error in self.store.blocked_folders(thread, ARCHIVE) {
            let why = "no snapshot can be written or read there; the log has the same content";
            let found = Finding::new(Severity::Warning, "snapshot_folder_refused", thread, error.to_string(), why);
            report.add(found.help("move it away: the folder is created when it is needed"));
        }
        for folder in [layout.thread(thread), layout.blobs(thread)] {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("transcript.quarantine") {
                    let what = format!("unsigned bytes were moved to `{name}`");
                    let why = "the log records that in a `recovery` event; the file is not part of the log";
                    let help = "inspect it, and remove it if you don't need it";
                    report.add(Finding::new(Severity::Note, "quarantined", thread, what, why).help(help));
                } else if is_temporary(&name) && is_old(&entry.path(), &*self.clock) {
                    report.add(left_over(thread, &entry.path().display().to_string()));
                }
            }
        }
        Ok(())
    }
}

/// What to do about a log that can't be repaired.
const FROM_A_COPY: &str = "restore the log from a backup (`selvedge restore` into another folder) or an export; nothing before \
     a log's last checkpoint is ever edited";

/// What to do about a valid log that this program does not understand.
pub(super) const UNDERSTOOD_ELSEWHERE: &str =
    "use the newer Selvedge, or the program, that wrote it; the log is unchanged since it was signed";

/// What helps with a finding.
fn help(thread: &ThreadId, finding: &LogFinding) -> String {
    match finding {
        LogFinding::Foreign { .. } => {
            "the next append by the signer of the thread moves them to a quarantine file".to_owned()
        }
        LogFinding::DatabaseBehind { .. } | LogFinding::Database { .. } => {
            "`selvedge reindex` rebuilds the database from the logs".to_owned()
        }
        LogFinding::Contradicted { .. } => format!("`selvedge repair {thread}` moves it aside and writes it again"),
        LogFinding::Unread(_) => UNDERSTOOD_ELSEWHERE.to_owned(),
        LogFinding::Truncated { have: Some(_), .. } => {
            format!("restore the file from a backup, or accept the loss with `selvedge repair {thread} --accept-loss`")
        }
        LogFinding::Truncated { have: None, .. } => format!(
            "restore its folder from a backup (`selvedge restore` into another folder), or give it up: `selvedge \
             thread delete {thread}` leaves a signed tombstone"
        ),
        _ => format!("{FROM_A_COPY}; `selvedge verify {thread} --explain` shows which versions are still valid"),
    }
}

/// A temporary file that a crash left.
pub(super) fn left_over(subject: impl ToString, path: &str) -> Finding {
    let what = format!("`{path}` is left over");
    let why = "a process died before it was complete; it is never read";
    Finding::new(Severity::Note, "temporary_file", subject, what, why).help("it can be removed")
}
