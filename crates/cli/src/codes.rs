//! A page for every error code, finding of `doctor`, status and reason: what it means, what usually causes it, and what to do.
//!
//! `table`, `findings` and `statuses` are the one place for these texts. A test collects every code of the sources and compares; another one asks the
//! errors themselves for their exit codes.

mod findings;
mod statuses;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

use crate::error::Exit;

pub(crate) use findings::FINDINGS;
pub(crate) use statuses::WORDS;
pub(crate) use table::PAGES;

/// The page of one code.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    /// The code; it never changes.
    pub(crate) code: &'static str,
    /// The exit codes it comes with, the usual one first.
    #[serde(rename = "exit_codes", serialize_with = "numbers")]
    pub(crate) exits: &'static [Exit],
    /// Whether a retry helps.
    pub(crate) retry: Retry,
    /// What it means; lists show the first sentence.
    pub(crate) meaning: &'static str,
    /// What usually causes it.
    pub(crate) cause: &'static str,
    /// What to do, in the order of trying.
    pub(crate) remedies: &'static [&'static str],
    /// Codes that are easily confused with it, or occur together with it.
    pub(crate) related: &'static [&'static str],
}

/// Whether a retry helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Retry {
    /// It fails again until something is changed.
    Never,
    /// It depends on the operating system's error: see the error's `retryable`.
    Perhaps,
    /// The same request may succeed later.
    Helps,
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "does not help: correct the cause first",
            Self::Perhaps => "may help, once the machine has recovered",
            Self::Helps => "helps",
        })
    }
}

impl Page {
    /// The page of a code.
    pub(crate) fn find(code: &str) -> Option<&'static Self> {
        Self::all().find(|page| page.code == code)
    }

    /// Every page, those of errors first.
    pub(crate) fn all() -> impl Iterator<Item = &'static Self> {
        PAGES.iter().chain(FINDINGS).chain(WORDS)
    }

    /// What the code means, in one sentence.
    pub(crate) fn summary(&self) -> &'static str {
        self.meaning.split_once(". ").map_or(self.meaning, |(first, _)| first).trim_end_matches('.')
    }
}

impl Exit {
    /// The meaning of the exit code.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::NotFound => "not found or ambiguous",
            Self::NotAllowed => "not allowed",
            Self::Conflict => "conflict",
            Self::Integrity => "integrity",
            Self::Decision => "needs a decision",
            Self::Limit => "limit or budget",
            Self::Interrupted => "interrupted",
        }
    }
}

fn numbers<S: serde::Serializer>(exits: &[Exit], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(exits.iter().map(|exit| *exit as u8))
}
