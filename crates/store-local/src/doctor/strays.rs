//! Folders that no row tells of: what they are, and why nobody knows them.

use std::fs;
use std::path::Path;

use selvedge_log::recovery::Finding as LogFinding;
use selvedge_log::scan::{Damage, Flaw};
use selvedge_model::ThreadId;
use selvedge_store::{Error, Result};

use super::threads::UNDERSTOOD_ELSEWHERE;
use super::{Depth, Examiner, Finding, Report, Severity};
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
                let what = "it was deleted, and a symbolic link stands where its folder was";
                let why = "what lies behind the link was not removed";
                let found = Finding::new(Severity::Damage, "folder_link", name, what, why);
                report.add(found.help("remove the link, and what lies behind it if it is to be gone"));
            }
            (_, true) => {
                let what = "the folder of a deleted thread is still there";
                let why = "deleting it was cut short; the next writing command finishes it";
                report.add(Finding::new(Severity::Warning, "deletion_unfinished", name, what, why));
            }
            (_, _) if is_link => {
                let what = "a symbolic link stands where a thread's folder would";
                let why = "links are never followed: what lies behind it is not looked at, copied or indexed";
                let found = Finding::new(Severity::Damage, "folder_link", name, what, why);
                report.add(
                    found.help("put the folder itself in its place, then `selvedge reindex`; or move the link away"),
                );
            }
            (Some(thread), _) if path.join("transcript.jsonl").exists() => self.stray(&thread, report),
            _ => {
                let why = "it has no log, and belongs to no thread";
                let what = "a folder that is not of this store";
                report.add(Finding::new(Severity::Note, "folder_unknown", name, what, why));
            }
        }
        Ok(())
    }

    /// A log that the database does not know, judged by itself.
    fn stray(&self, thread: &ThreadId, report: &mut Report) {
        let what = "a log lies here that the database does not know";
        let found = match self.store.verify(thread, &mut |_| {}) {
            // It arrived just now.
            Ok(verdict) if verdict.judgement.finding == LogFinding::Sound => return,
            Ok(verdict) => {
                let finding = verdict.judgement.finding;
                let error = Error::Log { thread: thread.clone(), finding: finding.clone() };
                let is_key =
                    matches!(finding, LogFinding::Damaged(Damage { flaw: Flaw::Untrusted(_) | Flaw::Revoked(_), .. }));
                let why = if is_key && self.depth == Depth::Unsigned {
                    "no signature was judged".to_owned()
                } else {
                    why(&finding).unwrap_or_else(|| error.to_string())
                };
                let hint = selvedge_model::Classify::hint(&error);
                Finding::new(Severity::Damage, "thread_unknown", thread, what, why).help(help(thread, &finding, hint))
            }
            Err(error) => {
                let found = Finding::new(Severity::Damage, "thread_unknown", thread, what, error.to_string());
                found.help(FROM_A_BACKUP)
            }
        };
        report.add(found);
    }
}

/// What a log is that is not what its folder says.
fn why(finding: &LogFinding) -> Option<String> {
    match finding {
        LogFinding::Damaged(Damage { flaw: Flaw::Thread(other), .. }) => {
            Some(format!("it is a copy of the log of thread `{other}`, and a log belongs to one thread only"))
        }
        LogFinding::Database { .. } => {
            Some("the log holds; the database is older than the folder, or the folder was put here".to_owned())
        }
        _ => None,
    }
}

/// What to do about a log that is damaged and that no row tells of.
const FROM_A_BACKUP: &str = "put the folder back from a backup (`selvedge restore` into another folder gives it), then `selvedge reindex`; or \
     move it out of the store";

/// What helps, and really does: `reindex` takes in only what holds.
fn help(thread: &ThreadId, finding: &LogFinding, hint: Option<String>) -> String {
    match finding {
        LogFinding::Database { .. } | LogFinding::Foreign { .. } => "`selvedge reindex` takes it in".to_owned(),
        LogFinding::Truncated { have: Some(_), .. } => {
            format!("{FROM_A_BACKUP}; or accept the loss with `selvedge repair {thread} --accept-loss`")
        }
        LogFinding::Contradicted { .. } => {
            format!("move its `thread.json` out of the store, then `selvedge repair {thread}` takes the log in")
        }
        LogFinding::Damaged(Damage { flaw: Flaw::Thread(_), .. }) => "move the folder out of the store".to_owned(),
        LogFinding::Damaged(Damage { flaw: Flaw::Untrusted(_) | Flaw::Revoked(_), .. }) => {
            format!("{}; then `selvedge reindex` takes it in", hint.unwrap_or_default())
        }
        LogFinding::Unread(_) => UNDERSTOOD_ELSEWHERE.to_owned(),
        LogFinding::Blob { .. } => "`selvedge reindex` takes it in; put the blob back from a backup".to_owned(),
        _ => FROM_A_BACKUP.to_owned(),
    }
}
