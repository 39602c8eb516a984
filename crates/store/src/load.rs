//! Loading a thread: one pass over its log that verifies every hash and the last signature, and folds it.

use std::collections::VecDeque;

use selvedge_log::hash::RunningHash;
use selvedge_log::recovery::{Evidence, Finding, Judgement, Mode, Plan, judge};
use selvedge_log::scan::{ScannedChangeset, Scanner, Signatures, examine};
use selvedge_log::{Head, Line, Trust, line, lines};
use selvedge_model::fold::FoldError;
use selvedge_model::{Thread, ThreadId};

use crate::contract::Logs;
use crate::error::{Error, Result};

/// A thread, folded from its log.
#[derive(Debug)]
pub struct Loaded {
    /// The fold.
    pub thread: Thread,
    /// The head of the log.
    pub head: Head,
}

/// Loads a thread, up to version `up_to` if it is given.
///
/// The result is exactly what was signed: the bytes were hashed against every checkpoint and the last signature was verified against
/// `trust`.
pub fn load(logs: &dyn Logs, thread: &ThreadId, trust: &Trust, up_to: Option<u64>) -> Result<Loaded> {
    load_as(logs, thread, trust, up_to, Mode::Strict).map(|(loaded, _)| loaded)
}

/// Loads a thread for display. In lenient mode, a log is loaded whose bytes agree with every checkpoint but whose signer is not trusted;
/// the finding is returned too, and the thread must not be continued.
pub fn load_as(
    logs: &dyn Logs,
    thread: &ThreadId,
    trust: &Trust,
    up_to: Option<u64>,
    mode: Mode,
) -> Result<(Loaded, Option<Finding>)> {
    let mut folded: Option<Result<Thread, FoldError>> = None;
    let fold = |folded: &mut Option<Result<Thread, FoldError>>, entry: ScannedChangeset| {
        if up_to.is_none_or(|up_to| entry.head.version <= up_to) {
            fold_entry(folded, thread, entry);
        }
    };
    let (head, finding) = match read(logs, thread, trust, Signatures::Last, mode, |entry| fold(&mut folded, entry))? {
        (head, None) => (head, None),
        (_, finding) => {
            folded = None;
            (read(logs, thread, trust, Signatures::Unchecked, mode, |entry| fold(&mut folded, entry))?.0, finding)
        }
    };
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
        // Only versions that are lost are left out of a log.
        Some(up_to) if loaded.version.is_some_and(|version| version < up_to) => {
            Err(Error::VersionLost { thread: thread.clone(), version: up_to })
        }
        _ => Ok((Loaded { thread: loaded, head }, finding)),
    }
}

/// Reads the changesets of a thread in order, for audit, with the same verification as [`load`].
pub fn each_changeset(
    logs: &dyn Logs,
    thread: &ThreadId,
    trust: &Trust,
    each: impl FnMut(ScannedChangeset),
) -> Result<Head> {
    read(logs, thread, trust, Signatures::Last, Mode::Strict, each).map(|(head, _)| head)
}

/// The last lines of a log, at most `count`. Every byte is hashed and compared with the head; only these lines are decoded.
pub fn last_lines(logs: &dyn Logs, thread: &ThreadId, count: usize) -> Result<Vec<Line>> {
    let failed = |source| Error::Io { what: "read the log of", path: thread.as_str().into(), source };
    let (head, mut reader) = logs.transcript(thread)?;
    let mut hash = RunningHash::new();
    let mut last = VecDeque::with_capacity(count + 1);
    let mut buffer = Vec::new();
    while lines::next_line(&mut reader, &mut buffer).map_err(failed)? {
        hash.update(&buffer);
        last.push_back(std::mem::take(&mut buffer));
        if last.len() > count {
            buffer = last.pop_front().unwrap_or_default();
        }
    }
    if hash.digest() != head.hash {
        return Err(Error::Integrity {
            what: format!("the log of `{thread}`"),
            why: "its bytes are not the ones that were signed".to_owned(),
            hint: Some(format!("`selvedge verify {thread} --explain` shows which versions are valid")),
        });
    }
    last.iter().map(|bytes| Ok(line::decode(bytes.strip_suffix(b"\n").unwrap_or(bytes))?)).collect()
}

/// Reads a log; returns its head, and what is wrong with one that may be displayed all the same.
fn read(
    logs: &dyn Logs,
    thread: &ThreadId,
    trust: &Trust,
    signatures: Signatures,
    mode: Mode,
    each: impl FnMut(ScannedChangeset),
) -> Result<(Head, Option<Finding>)> {
    let (head, reader) = logs.transcript(thread)?;
    let scanner = Scanner::new(thread, trust, signatures).watching(Some(head.version));
    let examined = examine(reader, scanner, each).map_err(|source| Error::Io {
        what: "read the log of",
        path: thread.as_str().into(),
        source,
    })?;
    let evidence = Evidence { head: Some(&head), file_bytes: examined.bytes, ..Evidence::default() };
    let Judgement { finding, plan, .. } = judge(&examined, evidence, mode);
    match (finding, plan) {
        (Finding::Sound, _) => Ok((head, None)),
        (finding, Plan::ReadOnly) => Ok((head, Some(finding))),
        (finding, _) => Err(Error::Log { thread: thread.clone(), finding }),
    }
}

fn fold_entry(folded: &mut Option<Result<Thread, FoldError>>, thread: &ThreadId, entry: ScannedChangeset) {
    for line in entry.lines {
        match folded {
            None => *folded = Some(Thread::begin(thread, &line.event, line.timestamp)),
            Some(Err(_)) => return,
            Some(Ok(so_far)) => {
                if let Err(error) = so_far.take(line.event, line.timestamp) {
                    *folded = Some(Err(error));
                }
            }
        }
    }
}
