//! One thread at a time.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};

use selvedge_log::line;
use selvedge_log::lines::ReverseLines;
use selvedge_log::recovery::Finding as LogFinding;
use selvedge_log::{Line, checkpoint};
use selvedge_model::{Event, Status, ThreadId};
use selvedge_store::{Error, Result};

use super::{Examiner, Finding, Report, Severity, is_old, is_temporary};
use crate::core::io_error;
use crate::disk::{DiskFile, How};
use crate::rows::{self, Row};
use crate::schema::database;

/// How far ahead of this clock a log may claim to be, in microseconds.
const AHEAD_MAX: i64 = 300_000_000;
/// How many of a log's last lines are compared by their times.
const LAST_LINES: usize = 8;

/// What the database has that is still to be done, by thread.
pub(super) struct Pending {
    /// Threads whose manifest may be older than their row.
    stale: HashSet<i64>,
    /// How many bytes of redo.
    redo: BTreeMap<i64, i64>,
}

impl Examiner<'_> {
    pub(super) fn pending(&self) -> Result<Pending> {
        self.core().read(|connection| {
            let mut statement =
                connection.prepare("SELECT id FROM threads WHERE manifest_stale = 1").map_err(database)?;
            let stale = statement.query_map([], |row| row.get(0)).map_err(database)?;
            let stale = stale.collect::<rusqlite::Result<_>>().map_err(database)?;
            let sql = "SELECT thread, SUM(length(bytes)) FROM redo GROUP BY thread";
            let mut statement = connection.prepare(sql).map_err(database)?;
            let redo = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(database)?;
            let redo = redo.collect::<rusqlite::Result<_>>().map_err(database)?;
            Ok(Pending { stale, redo })
        })
    }

    /// Looks at one thread; one that can't be looked at is a finding too.
    pub(super) fn thread(&self, row: &Row, pending: &Pending, report: &mut Report) {
        let thread = &row.manifest.thread_id;
        let looked = self
            .log(row, report)
            .and_then(|()| self.manifest(row, pending.stale.contains(&row.id), report))
            .and_then(|()| self.status(row, report))
            .and_then(|()| self.beside(row, report));
        if let Some(bytes) = pending.redo.get(&row.id).filter(|_| report.live_owners == 0) {
            let what = format!("{bytes} committed bytes are not synced in the transcript yet");
            let why = "they are safe in the database, and the next writer or an orderly close sees to them";
            report.add(Finding::new(Severity::Note, "redo_pending", thread, what, why));
        }
        match looked {
            Err(Error::NoThread(_) | Error::Deleted(_)) | Ok(()) => {}
            Err(error) => report.add(Finding::of_error(Severity::Damage, thread, &error)),
        }
    }

    fn log(&self, row: &Row, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let path = self.core().layout.transcript(thread);
        let fits = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() == row.head.bytes);
        // Whatever is not as long as it should be, just now, is read whole.
        if self.deep || !fits {
            return self.verify(thread, report);
        }
        match self.last_lines(row) {
            Ok(lines) => {
                self.times(thread, &lines, report);
                Ok(())
            }
            Err(Refused::Io(error)) => Err(io_error("read", &path)(error)),
            Err(Refused::Because(_)) => self.verify(thread, report),
        }
    }

    fn verify(&self, thread: &ThreadId, report: &mut Report) -> Result<()> {
        let mut last = Vec::new();
        let verdict = self.store.verify(thread, &mut |entry| last.clone_from(&entry.lines))?;
        self.times(thread, &last, report);
        let severity = match verdict.judgement.finding {
            LogFinding::Sound => return Ok(()),
            LogFinding::Foreign { .. } => Severity::Warning,
            _ => Severity::Damage,
        };
        let finding = verdict.judgement.finding;
        let error = Error::Log { thread: thread.clone(), finding: finding.clone() };
        let proven = match verdict.judgement.unchanged_up_to {
            Some(version) => format!("unchanged up to version {version} since it was signed"),
            None => "nothing of it is proven".to_owned(),
        };
        let help = match finding {
            LogFinding::Foreign { .. } => "the next append moves them to a quarantine file".to_owned(),
            LogFinding::DatabaseBehind { .. } => "`selvedge reindex` builds the database anew from the logs".to_owned(),
            LogFinding::Blob { .. } => "put the file back from a backup".to_owned(),
            LogFinding::Truncated { .. } => format!(
                "put the file back from a backup, or accept the loss with `selvedge repair {thread} --accept-loss`"
            ),
            _ => format!(
                "`selvedge repair {thread}` mends what may be mended; `selvedge verify {thread} --explain` shows what holds"
            ),
        };
        report.add(Finding { why: proven, ..Finding::of_error(severity, thread, &error) }.help(help));
        Ok(())
    }

    /// The last lines of a log, the newest last, if its end is the signed checkpoint that the database tells of.
    fn last_lines(&self, row: &Row) -> Result<Vec<Line>, Refused> {
        let head = &row.head;
        let file = self.core().disk.open(&self.core().layout.transcript(&row.manifest.thread_id), How::Read)?;
        let mut reverse = ReverseLines::new(Seeker { file, at: 0 }, head.bytes)?;
        let mut lines = Vec::new();
        while lines.len() < LAST_LINES
            && let Some((_, bytes)) = reverse.next_back()?
        {
            let line = line::decode(bytes).map_err(|_| Refused::Because("a line can't be read"))?;
            if lines.is_empty() {
                let Event::Checkpoint(said) = &line.event else {
                    return Err(Refused::Because("it does not end with a checkpoint"));
                };
                let agrees = said.version == head.version
                    && said.log_id == head.log_id
                    && said.epoch == head.epoch
                    && said.signer == head.signer
                    && line.seq + 1 == head.lines;
                let key = self.core().trust.key(&said.signer).ok_or(Refused::Because("its signer is not trusted"))?;
                if !agrees || checkpoint::verify(bytes, key).is_err() {
                    return Err(Refused::Because("its last checkpoint is not the one that the database knows"));
                }
            }
            lines.push(line);
        }
        lines.reverse();
        Ok(lines)
    }

    /// Times are claims; claims that can't be true say that a clock was wrong.
    fn times(&self, thread: &ThreadId, lines: &[Line], report: &mut Report) {
        let Some(last) = lines.last() else { return };
        if last.timestamp.as_micros() - self.clock.now().as_micros() > AHEAD_MAX {
            let what = format!("its last checkpoint claims to be of {}, which is still to come", last.timestamp);
            let why =
                "the clock was ahead when it was written, or is behind now; order is told by versions, not by time";
            report.add(Finding::new(Severity::Warning, "clock_ahead", thread, what, why).help("set the clock"));
        }
        if lines.windows(2).any(|pair| pair[1].timestamp < pair[0].timestamp) {
            let why = "a clock was set back between two commits; order is told by versions, not by time";
            report.add(Finding::new(
                Severity::Note,
                "clock_backwards",
                thread,
                "times go backwards in its last lines",
                why,
            ));
        }
    }

    fn manifest(&self, row: &Row, is_stale: bool, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let help = "`selvedge reindex` writes manifests anew from the logs";
        let memory = match self.core().manifest_memory(thread) {
            Ok(Some(memory)) => memory,
            Ok(None) if is_stale => return Ok(()),
            Ok(None) => {
                self.core().read(|connection| rows::existing(connection, thread))?;
                let why = "it is a projection of the log and no part of the record";
                report.add(
                    Finding::new(Severity::Warning, "manifest_missing", thread, "`thread.json` is missing", why)
                        .help(help),
                );
                return Ok(());
            }
            Err(Error::Integrity { what, why, .. }) => {
                report.add(
                    Finding::new(Severity::Damage, "manifest_refused", thread, format!("{what} is refused"), why)
                        .help(help),
                );
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // Somebody may have committed since the rows were read.
        let head = self.core().read(|connection| rows::existing(connection, thread))?.head;
        if memory.version > head.version {
            let finding = LogFinding::Truncated { have: Some(head.version), version: memory.version, by: memory.by };
            let error = Error::Log { thread: thread.clone(), finding };
            report.add(Finding::of_error(Severity::Damage, thread, &error).help(format!(
                "put log and database back from a backup, or accept the loss with `selvedge repair {thread} --accept-loss`"
            )));
        } else if memory.version == head.version && memory.hash.is_some_and(|hash| hash != head.hash) {
            let what = format!("`thread.json` shows another log at version {}", memory.version);
            let why = "it is rightly signed, but not for the bytes that the database tells of";
            report.add(
                Finding::new(Severity::Damage, "contradicted", thread, what, why)
                    .help(format!("`selvedge verify {thread}`")),
            );
        }
        Ok(())
    }

    fn status(&self, row: &Row, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let holder_lives = row.owner.as_ref().map_or(Ok(false), |owner| self.core().is_alive(owner))?;
        if let Some(owner) = row.owner.as_ref().filter(|_| !holder_lives) {
            let what = format!("its lease is held by {owner}, whose process is dead");
            let why = "the next writer takes it over, under a higher epoch";
            report.add(Finding::new(Severity::Note, "lease_orphaned", thread, what, why));
        }
        let now = || self.core().read(|connection| rows::existing(connection, thread));
        if row.manifest.status == Status::Running && !holder_lives && now()?.head == row.head {
            let run = row.manifest.run_id.as_ref().map_or_else(String::new, |run| format!(" (run `{run}`)"));
            let what = format!("it is `running`{run}, and nobody runs it");
            let why = "its process ended without saying how the run ended";
            let help = format!("append how it ended: `selvedge append {thread}` with reason RunFinished");
            report.add(Finding::new(Severity::Warning, "left_running", thread, what, why).help(help));
        }
        Ok(())
    }

    /// What lies in a thread's folder beside what belongs there.
    fn beside(&self, row: &Row, report: &mut Report) -> Result<()> {
        let thread = &row.manifest.thread_id;
        let layout = &self.core().layout;
        for folder in [layout.thread(thread), layout.blobs(thread)] {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("transcript.quarantine") {
                    let what = format!("bytes that nobody signed were put aside in `{name}`");
                    let why = "the log says so in a `recovery` event; the file is no part of the record";
                    let help = "look at it, and remove it when it is of no use";
                    report.add(Finding::new(Severity::Note, "quarantined", thread, what, why).help(help));
                } else if is_temporary(&name) && is_old(&entry.path(), &*self.clock) {
                    report.add(left_over(thread, &entry.path().display().to_string()));
                }
            }
        }
        Ok(())
    }
}

/// A file that a crash left half written.
pub(super) fn left_over(subject: impl ToString, path: &str) -> Finding {
    let what = format!("`{path}` is left over");
    let why = "a process died before it was whole; it means nothing";
    Finding::new(Severity::Note, "left_over", subject, what, why).help("it can be removed")
}

/// Why the end of a log was not accepted at first sight.
enum Refused {
    Io(io::Error),
    #[expect(dead_code, reason = "the log is then verified whole, which says more")]
    Because(&'static str),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Self::Because("it ends too early"),
            _ => Self::Io(error),
        }
    }
}

/// A file that is read where one likes.
struct Seeker {
    file: Box<dyn DiskFile>,
    at: u64,
}

impl Read for Seeker {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Seeker {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.file.length()?.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
