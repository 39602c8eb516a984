//! Observing threads: their bytes, their fold, everything that is visible at once.

use std::io::Read;

use selvedge_log::scan::{ScannedChangeset, Scanner, Signatures, examine};
use selvedge_log::{Head, Line, Trust};
use selvedge_model::account::Account;
use selvedge_model::{Classify, Run, Thread, ThreadId};

use crate::contract::{Filter, Logs, Store, Summary};
use crate::error::{Error, Result};
use crate::load;

/// The exact bytes of a log, and their head.
pub fn bytes_of(store: &impl Logs, thread: &ThreadId) -> (Head, Vec<u8>) {
    let (head, mut reader) = store.transcript(thread).unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    (head, bytes)
}

/// All lines of a log.
pub fn lines_of(store: &impl Logs, thread: &ThreadId) -> Vec<Line> {
    store.read(thread, 0, usize::MAX).unwrap()
}

/// Verifies every signature of a log and that it ends at its head; returns its changesets.
pub fn verified(store: &impl Logs, trust: &Trust, thread: &ThreadId) -> Vec<ScannedChangeset> {
    let (head, bytes) = bytes_of(store, thread);
    let mut entries = Vec::new();
    let scanner = Scanner::new(thread, trust, Signatures::Every);
    let examined = examine(bytes.as_slice(), scanner, |entry| entries.push(entry)).unwrap();
    assert_eq!(examined.damage, None, "every line of `{thread}` must be valid");
    assert_eq!(examined.head(), Some(&head), "the log of `{thread}` must end at its head");
    assert_eq!(bytes.len() as u64, head.bytes, "the log of `{thread}` must have the length of its head");
    entries
}

/// A thread, folded from its log.
pub fn loaded(store: &impl Logs, trust: &Trust, thread: &ThreadId) -> Thread {
    load::load(store, thread, trust, None).unwrap_or_else(|error| panic!("`{thread}` must load: {error}")).thread
}

/// Everything that is visible of some threads, their accounts and the feed.
#[derive(Debug, PartialEq)]
pub struct Observed {
    threads: Vec<Result<ObservedThread, &'static str>>,
    accounts: Vec<Option<Account>>,
    listed: Vec<Summary>,
    position: (u64, u64),
}

#[derive(Debug, PartialEq)]
struct ObservedThread {
    summary: Summary,
    head: Head,
    log: String,
    runs: Vec<Run>,
    requests: Vec<crate::contract::QueuedRequest>,
}

/// Observes everything of `threads`.
pub fn observe(store: &impl Store, threads: &[&ThreadId]) -> Observed {
    let seen = |thread: &ThreadId| -> Result<ObservedThread> {
        let summary = store.get(thread)?;
        let (head, bytes) = bytes_of(store, thread);
        let log = String::from_utf8(bytes).unwrap();
        Ok(ObservedThread { summary, head, log, runs: store.runs(thread)?, requests: store.pending(thread)? })
    };
    Observed {
        threads: threads.iter().map(|thread| seen(thread).map_err(|error: Error| error.code())).collect(),
        accounts: threads.iter().map(|thread| store.account(thread).unwrap()).collect(),
        listed: store.list(&Filter::default(), None, 1_000).unwrap().items,
        position: (store.position().unwrap(), store.newest().unwrap()),
    }
}

/// Checks that `attempt` changes nothing that is visible of `threads`.
#[track_caller]
pub fn leaves_no_trace(store: &impl Store, threads: &[&ThreadId], attempt: impl FnOnce()) {
    let before = observe(store, threads);
    attempt();
    assert_eq!(observe(store, threads), before, "a refused operation must leave no trace");
}
