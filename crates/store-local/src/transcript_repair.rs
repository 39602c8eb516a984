//! Repairs a transcript that does not have the length of its head, before anything is appended to it.
//!
//! Shorter: a process died between commit and drain, so the redo is written. Longer: uncommitted bytes are moved to a quarantine file
//! beside the log, and the next changeset leads with a `recovery` event that records that. Anything else is refused; a log is never edited
//! before its head.

use std::fs;
use std::io::BufReader;

use selvedge_log::hash::RunningHash;
use selvedge_log::recovery::{Evidence, Finding, Mode, Plan, judge};
use selvedge_log::scan::{Scanner, Signatures, examine};
use selvedge_model::event::Recovery;
use selvedge_model::{Event, ThreadId};
use selvedge_store::{Error, Result};

use crate::core::{CachedThread, Core, Durability, io_error, lock};
use crate::disk::OpenMode;
use crate::leading_events;
use crate::overlay::read_fully;
use crate::replay::read_log;
use crate::rows::{self, Row};

impl Core {
    /// Repairs a transcript and returns the thread as it is then.
    pub(crate) fn repair_file(&self, thread: &ThreadId) -> Result<CachedThread> {
        self.forget(thread);
        self.drain_thread(thread)?;
        let opened = self.open_log(thread)?;
        if opened.file_bytes != opened.row.head.bytes {
            let row = opened.row.clone();
            let file_bytes = opened.file_bytes;
            let path = self.layout.transcript(thread);
            let scanner = Scanner::new(thread, &self.trust, Signatures::Every).watching(Some(row.head.version));
            let reader = BufReader::with_capacity(1 << 16, opened.overlay);
            let examined = examine(reader, scanner, |_| {}).map_err(io_error("read", &path))?;
            let evidence = Evidence { head: Some(&row.head), file_bytes, ..Evidence::default() };
            let judged = judge(&examined, evidence, Mode::Strict);
            match (judged.plan, judged.finding) {
                (Plan::GoOn, _) => {}
                (Plan::Quarantine { from }, Finding::Foreign { bytes }) => {
                    self.quarantine(thread, &row, from, bytes)?
                }
                (_, finding) => return Err(Error::Log { thread: thread.clone(), finding }),
            }
        }
        self.load_thread(thread)?.ok_or_else(|| Error::NoThread(thread.to_string()))
    }

    /// Moves the bytes after a head aside. After a crash at any point they are in the log, in the file, or in both, and the next writer
    /// does the same again.
    fn quarantine(&self, thread: &ThreadId, row: &Row, from: u64, bytes: u64) -> Result<()> {
        let path = self.layout.transcript(thread);
        let source = self.disk.open(&path, OpenMode::Write).map_err(io_error("open", &path))?;
        let mut hash = RunningHash::new();
        let name = format!("transcript.quarantine-{}", row.head.version);
        let aside = free_name(&self.layout.thread(thread).join(&name));
        let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = self.disk.open(&aside, OpenMode::CreateNew).map_err(io_error("create", &aside))?;
        let mut buffer = vec![0; 1 << 16];
        let mut done = 0;
        while done < bytes {
            let wanted = buffer.len().min(usize::try_from(bytes - done).unwrap_or(usize::MAX));
            let read =
                read_fully(source.as_ref(), &mut buffer[..wanted], from + done).map_err(io_error("read", &path))?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
            target.write_at(&buffer[..read], done).map_err(io_error("write", &aside))?;
            done += read as u64;
        }
        target.sync().map_err(io_error("sync", &aside))?;
        let folder = self.layout.thread(thread);
        self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
        let found = Recovery {
            found: "foreign_bytes".to_owned(),
            bytes: done,
            quarantine: Some(name),
            hash: Some(hash.digest()),
            ..Recovery::default()
        };
        let event = Event::Recovery(found);
        let mut writer = lock(self.writer()?);
        writer.exclusive(&self.layout, |writer| {
            let written = writer.transaction(&self.layout, Durability::Synced, |connection| {
                let now = rows::existing(connection, thread)?;
                if now.head != row.head {
                    return Ok(false);
                }
                leading_events::put(connection, &now, &event)?;
                Ok(true)
            });
            match written {
                crate::core::TransactionEnd::Known(Ok(true)) => {
                    source.truncate(from).map_err(io_error("truncate", &path))?;
                    source.sync().map_err(io_error("sync", &path))
                }
                // Another process committed meanwhile; the next attempt sees the log as it is now.
                crate::core::TransactionEnd::Known(Ok(false)) => {
                    self.disk.remove(&aside).map_err(io_error("remove", &aside))
                }
                crate::core::TransactionEnd::Known(Err(error)) => Err(error),
                crate::core::TransactionEnd::Unknown(_, why) => Err(Error::OutcomeUnknown { why }),
            }
        })
    }

    /// Refuses a row that is older than its log: the transcript continues, signed, after the head in the database.
    pub(crate) fn refuse_outdated_row(&self, thread: &ThreadId, row: &Row) -> Result<()> {
        let path = self.layout.transcript(thread);
        let length = self.disk.open(&path, OpenMode::Read).and_then(|file| file.length()).unwrap_or(0);
        if length <= row.head.bytes {
            return Ok(());
        }
        // Bytes reach a file after their commit, so a commit that came meanwhile is in the database by now.
        let now = self.read(|db| rows::find_any(db, thread))?;
        if now.is_none_or(|now| now.head.version != row.head.version) {
            return Ok(());
        }
        let read = read_log(&*self.disk, &self.layout, thread, &self.trust, Some(row.head.version), |_| {});
        let examined = read.map_err(io_error("read", &path))?;
        let Some(head) = examined.head().filter(|head| head.version > row.head.version) else { return Ok(()) };
        let finding = Finding::DatabaseBehind { database: row.head.version, file: head.version };
        Err(Error::Log { thread: thread.clone(), finding })
    }
}

/// The first free name: the path itself, or with a number.
pub(crate) fn free_name(path: &std::path::Path) -> std::path::PathBuf {
    // A path that can't be checked may exist, and must not be overwritten.
    let is_absent = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let taken = |path: &std::path::Path| !fs::symlink_metadata(path).is_err_and(is_absent);
    let numbered = |number: u32| {
        path.with_extension(format!("{}.{number}", path.extension().unwrap_or_default().to_string_lossy()))
    };
    if taken(path) {
        (1..).map(numbered).find(|path| !taken(path)).unwrap_or_else(|| path.to_owned())
    } else {
        path.to_owned()
    }
}
