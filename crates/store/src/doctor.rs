//! The findings of an examination of a store, for any backend.
//!
//! A finding is data: its severity, a stable code, its subject, what was found, why, and the command that helps.

use std::collections::BTreeMap;

use selvedge_model::{Classify, Digest, ThreadId};
use serde::Serialize;

/// How much of each log is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As [`Depth::Ends`], without checking signatures, because the trusted keys can't be read.
    Unsigned,
    /// Their last lines, the last signature, the hash of the last quarter of a megabyte, whether the blobs exist that this part of a log
    /// names, and the hashes of up to a megabyte of small blobs of each thread. Most logs are no longer than that.
    Ends,
    /// Every byte and every signature of every log, and every byte of every blob it names.
    Whole,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// For information; nothing needs to be done.
    Note,
    /// Something should be done, and nothing is lost.
    Warning,
    /// Something is not what was written or signed.
    Damage,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// A stable code.
    pub code: &'static str,
    /// Its subject: a thread's id, a file, the store.
    pub subject: String,
    /// What was found.
    pub what: String,
    /// The reason, or what follows from it.
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

    /// An error as a finding.
    pub fn of_error(severity: Severity, subject: impl ToString, error: &impl Classify) -> Self {
        let why = error.source().map_or_else(|| "it was refused".to_owned(), ToString::to_string);
        let found = Self::new(severity, error.code(), subject, error.to_string(), why);
        Self { help: error.hint(), ..found }
    }
}

/// The result of an examination.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every finding, the worst first.
    pub findings: Vec<Finding>,
    /// The format of the store, if it could be read.
    pub store_format: Option<i64>,
    /// How many threads were checked.
    pub threads: u64,
    /// How many logs were longer than what was read of them.
    pub not_read_whole: u64,
    /// How many blobs were too many or too large to be hashed; they exist.
    pub blobs_not_hashed: u64,
    /// How many processes have the store open for writing.
    pub live_owners: u64,
    /// What is wrong with the database, and how many threads could not be checked because of that.
    pub unreadable: BTreeMap<String, u64>,
    /// Keys that are not trusted, and the threads whose logs they signed.
    pub untrusted: BTreeMap<Digest, Vec<ThreadId>>,
}

impl Report {
    /// The highest severity.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// Adds a finding.
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Records that a log is signed by an untrusted key; reported once for each key.
    pub fn untrusted(&mut self, key: Digest, thread: &ThreadId) {
        let threads = self.untrusted.entry(key).or_default();
        if threads.last() != Some(thread) {
            threads.push(thread.clone());
        }
    }

    /// Whether that was recorded for this key and thread.
    pub fn is_untrusted(&self, key: &Digest, thread: &ThreadId) -> bool {
        self.untrusted.get(key).is_some_and(|threads| threads.contains(thread))
    }
}
