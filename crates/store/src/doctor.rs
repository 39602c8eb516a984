//! What an examination of a store finds, whatever the backend.
//!
//! A finding is data: how bad it is, a stable word, what it is about, what was found, why that is so, and the command that helps.

use std::collections::BTreeMap;

use selvedge_model::{Classify, Digest, ThreadId};
use serde::Serialize;

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
    /// What is wrong with the database, and how many threads can't be told of because of that.
    pub unreadable: BTreeMap<String, u64>,
    /// Keys that count no more or never did, and the threads whose logs they signed.
    pub unbelieved: BTreeMap<Digest, Vec<ThreadId>>,
}

impl Report {
    /// How bad the worst finding is.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// Takes a finding in.
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Takes in that a log is signed by a key that is not believed; said once for each key.
    pub fn unbelieved(&mut self, key: Digest, thread: &ThreadId) {
        let threads = self.unbelieved.entry(key).or_default();
        if threads.last() != Some(thread) {
            threads.push(thread.clone());
        }
    }

    /// Whether that was taken in of this key and thread.
    pub fn is_unbelieved(&self, key: &Digest, thread: &ThreadId) -> bool {
        self.unbelieved.get(key).is_some_and(|threads| threads.contains(thread))
    }
}
