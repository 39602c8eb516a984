//! Folders without rows in the database: what they are, and why they have none.

use std::fs;
use std::path::Path;

use selvedge_log::recovery::Finding as LogFinding;
use selvedge_log::scan::{Damage, Flaw};
use selvedge_model::ThreadId;
use selvedge_store::{Error, Result};

use super::threads::UNDERSTOOD_ELSEWHERE;
use super::{Depth, Examiner, Finding, Report, Severity};
use crate::delete::EXCEEDS;
use crate::rows;

impl Examiner<'_> {
    pub(super) fn unknown_folder(&self, name: &str, path: &Path, report: &mut Report) -> Result<()> {
        let thread = ThreadId::from_folder(name).ok();
        let mut born = false;
        let mut deleted = false;
        if let Some(thread) = &thread {
            (born, deleted) = self.core().read(|connection| {
                Ok((rows::find_any(connection, thread)?.is_some(), rows::tombstone(connection, thread)?.is_some()))
            })?;
        }
        let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        match (thread, deleted) {
            _ if born => {}
            (_, true) if is_link => {
                let what = "it was deleted, and a symbolic link is in place of its folder";
                let why = "the target of the link was not removed";
                let found = Finding::new(Severity::Damage, "folder_link", name, what, why);
                report.add(found.help("remove the link, and its target if that is to be deleted too"));
            }
            (Some(thread), true) if self.is_another_log(&thread) => {
                let why = "it was deleted in a copy of this store, or its tombstone was copied here";
                let found = Finding::new(Severity::Damage, "thread_not_indexed", name, EXCEEDS, why);
                let tombstone = self.core().layout.tombstone(&thread);
                report.add(found.help(format!(
                    "to keep the thread, move `{}` away, then `selvedge reindex`; to delete it, remove its folder",
                    tombstone.display()
                )));
            }
            (_, true) => {
                let what = "the folder of a deleted thread is still there";
                let why = "deleting it was interrupted; the next writing command finishes it";
                report.add(Finding::new(Severity::Warning, "deletion_unfinished", name, what, why));
            }
            (_, _) if is_link => {
                let what = "a symbolic link is in place of a thread's folder";
                let why = "links are never followed: its target is not checked, copied or indexed";
                let found = Finding::new(Severity::Damage, "folder_link", name, what, why);
                report.add(
                    found.help("replace the link by the folder itself, then `selvedge reindex`; or remove the link"),
                );
            }
            (Some(thread), _) if path.join("transcript.jsonl").exists() => self.stray(&thread, report),
            _ => {
                let why = "it has no log, and belongs to no thread";
                let what = "a folder that does not belong to this store";
                report.add(Finding::new(Severity::Note, "folder_unknown", name, what, why));
            }
        }
        Ok(())
    }

    /// Whether the log in the folder of a deleted thread is not the one that was deleted.
    fn is_another_log(&self, thread: &ThreadId) -> bool {
        let core = self.core();
        let tombstone = core.tombstone(thread).ok().flatten();
        tombstone.is_some_and(|tombstone| core.exceeds(&tombstone).unwrap_or(false))
    }

    /// A log without rows in the database, verified by itself.
    fn stray(&self, thread: &ThreadId, report: &mut Report) {
        let what = "its log is not in the database";
        let found = match self.store.verify(thread, &mut |_| {}) {
            // It was imported just now.
            Ok(verdict) if verdict.judgement.finding == LogFinding::Sound => return,
            Ok(verdict) => {
                let finding = verdict.judgement.finding;
                let error = Error::Log { thread: thread.clone(), finding: finding.clone() };
                let is_key =
                    matches!(finding, LogFinding::Damaged(Damage { flaw: Flaw::Untrusted(_) | Flaw::Revoked(_), .. }));
                let why = if is_key && self.depth == Depth::Unsigned {
                    "no signature was checked".to_owned()
                } else {
                    why(&finding).unwrap_or_else(|| error.to_string())
                };
                let hint = selvedge_model::Classify::hint(&error);
                Finding::new(Severity::Damage, "thread_not_indexed", thread, what, why)
                    .help(help(thread, &finding, hint))
            }
            Err(error) => {
                let found = Finding::new(Severity::Damage, "thread_not_indexed", thread, what, error.to_string());
                found.help(FROM_A_BACKUP)
            }
        };
        report.add(found);
    }
}

/// Why a log does not belong to its folder or the database.
fn why(finding: &LogFinding) -> Option<String> {
    match finding {
        LogFinding::Damaged(Damage { flaw: Flaw::Thread(other), .. }) => {
            Some(format!("it is a copy of the log of thread `{other}`, and a log belongs to one thread only"))
        }
        LogFinding::Database { .. } => {
            Some("the log is valid; the database is older than the folder, or the folder was copied here".to_owned())
        }
        _ => None,
    }
}

/// What to do about a damaged log that has no rows.
const FROM_A_BACKUP: &str = "restore the folder from a backup (`selvedge restore` into another folder), then `selvedge reindex`; or \
     move it out of the store";

/// What helps: `reindex` indexes only valid logs.
fn help(thread: &ThreadId, finding: &LogFinding, hint: Option<String>) -> String {
    match finding {
        LogFinding::Database { .. } | LogFinding::Foreign { .. } => "`selvedge reindex` indexes it".to_owned(),
        LogFinding::Truncated { have: Some(_), .. } => {
            format!("{FROM_A_BACKUP}; or accept the loss with `selvedge repair {thread} --accept-loss`")
        }
        LogFinding::Contradicted { .. } => {
            format!("move its `thread.json` out of the store, then `selvedge repair {thread}` indexes the log")
        }
        LogFinding::Damaged(Damage { flaw: Flaw::Thread(_), .. }) => "move the folder out of the store".to_owned(),
        LogFinding::Damaged(Damage { flaw: Flaw::Untrusted(_) | Flaw::Revoked(_), .. }) => {
            format!("{}; then `selvedge reindex` indexes it", hint.unwrap_or_default())
        }
        LogFinding::Unread(_) => UNDERSTOOD_ELSEWHERE.to_owned(),
        LogFinding::Blob { .. } => "`selvedge reindex` indexes it; restore the blob from a backup".to_owned(),
        _ => FROM_A_BACKUP.to_owned(),
    }
}
