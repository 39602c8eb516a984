//! Loading a thread: one pass over its log, every hash and the last signature checked, folded on the way.

use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_log::scan::{Entry, Scanner, Signatures, examine};
use selvedge_log::{Head, Trust};
use selvedge_model::fold::FoldError;
use selvedge_model::{Thread, ThreadId};

use crate::contract::Logs;
use crate::error::{Error, Result};

/// A thread as its log tells it.
#[derive(Debug)]
pub struct Loaded {
    /// The fold.
    pub thread: Thread,
    /// Where the log ends.
    pub head: Head,
}

/// Loads a thread, up to version `up_to` if it is given.
///
/// What is returned is exactly what was signed: the bytes were hashed against every checkpoint and the last signature
/// was checked against `trust`.
pub fn load(logs: &dyn Logs, thread: &ThreadId, trust: &Trust, up_to: Option<u64>) -> Result<Loaded> {
    let mut folded: Option<Result<Thread, FoldError>> = None;
    let head = each_changeset(logs, thread, trust, |entry| {
        if up_to.is_none_or(|up_to| entry.head.version <= up_to) {
            fold_entry(&mut folded, thread, &entry);
        }
    })?;
    let broken = |source: FoldError| Error::Integrity {
        what: format!("the log of `{thread}` is signed, but does not fold"),
        why: source.to_string(),
        hint: Some(format!("`selvedge state {thread} --at VERSION` shows an earlier version")),
    };
    let loaded = folded.unwrap_or(Err(FoldError::NotBorn)).map_err(broken)?;
    match up_to {
        Some(up_to) if up_to > head.version => {
            Err(Error::NoVersion { thread: thread.clone(), version: up_to, latest: head.version })
        }
        _ => Ok(Loaded { thread: loaded, head }),
    }
}

/// Reads the changesets of a thread in order, for audit, with the same checks as [`load`].
pub fn each_changeset(logs: &dyn Logs, thread: &ThreadId, trust: &Trust, each: impl FnMut(Entry)) -> Result<Head> {
    let (head, reader) = logs.transcript(thread)?;
    let scanner = Scanner::new(thread, trust, Signatures::Last).watching(Some(head.version));
    let examined = examine(reader, scanner, each).map_err(|source| Error::Io {
        what: "read the log of",
        path: thread.as_str().into(),
        source,
    })?;
    let evidence = Evidence { head: Some(&head), file_bytes: examined.bytes, ..Evidence::default() };
    match judge(&examined, evidence, Mode::Strict).finding {
        Finding::Sound => Ok(head),
        finding => Err(Error::Log { thread: thread.clone(), finding }),
    }
}

fn fold_entry(folded: &mut Option<Result<Thread, FoldError>>, thread: &ThreadId, entry: &Entry) {
    for line in &entry.lines {
        let next = match folded.take() {
            None => Thread::begin(thread, &line.event, line.timestamp),
            Some(Ok(mut so_far)) => so_far.apply(&line.event, line.timestamp).map(|()| so_far),
            Some(Err(error)) => Err(error),
        };
        *folded = Some(next);
    }
}
