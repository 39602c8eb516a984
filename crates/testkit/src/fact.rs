//! Facts that a store has acknowledged, one per line, which must be true from then on.

use std::fs::File;
use std::io::Write;

use selvedge_model::{Batch, Classify, CommitKey, Digest, ThreadId};
use selvedge_store::{Commit, Error};
use selvedge_store_local::LocalStore;
use serde::{Deserialize, Serialize};

use crate::LabResult;

/// The prefix of a line that reports why the first attempt failed.
pub const FIRST_TRY: &str = "the first try failed: ";

/// Reports why an attempt failed that is retried.
#[allow(clippy::print_stderr, reason = "the laboratory reads it")]
fn first_try(why: &str) {
    eprintln!("{FIRST_TRY}{}", why.replace('\n', " "));
}

/// An error with all its causes.
pub fn chain(error: &crate::LabError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        text += &format!(": {deeper}");
        cause = deeper.source();
    }
    text
}

/// An acknowledged fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The batch with this key is committed, and its threads have these versions.
    Committed {
        /// Its key.
        key: CommitKey,
        /// The versions.
        versions: Vec<(ThreadId, u64)>,
    },
    /// The batch with this key was refused, and nothing of it is present.
    Refused {
        /// Its key.
        key: CommitKey,
    },
    /// A thread has at least this version.
    Reached {
        /// The thread.
        thread: ThreadId,
        /// The version.
        version: u64,
    },
    /// A blob is stored beside a thread's log.
    Blob {
        /// The thread.
        thread: ThreadId,
        /// Its name.
        blob: Digest,
    },
    /// The content of a blob is permanently deleted.
    Erased {
        /// The thread.
        thread: ThreadId,
        /// Its name.
        blob: Digest,
    },
    /// A thread is deleted.
    Deleted {
        /// The thread.
        thread: ThreadId,
    },
    /// This key signs now.
    Signs {
        /// Its fingerprint.
        fingerprint: Digest,
    },
    /// A complete backup is in this folder of the home.
    BackedUp {
        /// The folder's name.
        folder: String,
    },
    /// A fact that only the scenario itself understands.
    Own {
        /// The fact.
        what: String,
    },
}

/// Records acknowledged facts, in memory and, in a child process, in a file.
#[derive(Debug, Default)]
pub struct FactRecorder {
    file: Option<File>,
    facts: Vec<Fact>,
    /// Whether a failed call is retried once.
    pub retries: bool,
}

impl FactRecorder {
    /// Also writes every fact to a file, in one write each.
    pub fn on(file: File) -> Self {
        Self { file: Some(file), ..Self::default() }
    }

    /// The facts so far.
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// Records a fact.
    pub fn record(&mut self, fact: Fact) -> LabResult {
        if let Some(file) = &mut self.file {
            file.write_all(format!("{}\n", serde_json::to_string(&fact)?).as_bytes())?;
        }
        self.facts.push(fact);
        Ok(())
    }

    /// Executes `work`, and retries it once if it fails and retries are on.
    pub fn attempt<T, E: Into<crate::LabError>>(&mut self, mut work: impl FnMut() -> Result<T, E>) -> LabResult<T> {
        match work() {
            Err(error) if self.retries => {
                first_try(&chain(&error.into()));
                work().map_err(Into::into)
            }
            other => other.map_err(Into::into),
        }
    }

    /// Closes a store. Closing can't be retried: the next process that opens the store completes it.
    pub fn close(&self, store: LocalStore) -> LabResult {
        match store.close() {
            Err(error) if self.retries => {
                first_try(&chain(&error.into()));
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Commits a batch under a key, and records the outcome.
    pub fn commit(&mut self, store: &dyn Commit, key: &str, batch: Batch) -> LabResult {
        let key = CommitKey::new(key)?;
        let batch = batch.with_key(key.clone());
        let mut tries = if self.retries { 2 } else { 1 };
        loop {
            tries -= 1;
            match store.commit(batch.clone()) {
                Ok(committed) => return self.record(Fact::Committed { key, versions: committed.versions }),
                Err(error) => {
                    if !matches!(error, Error::OutcomeUnknown { .. }) {
                        self.record(Fact::Refused { key: key.clone() })?;
                    }
                    let message = format!("`{key}` ({}): {error}", error.code());
                    if tries == 0 {
                        return Err(message.into());
                    }
                    first_try(&chain(&error.into()));
                }
            }
        }
    }
}

impl FactRecorder {
    /// Commits a batch that can be built only once; later calls return the first outcome.
    pub fn commit_once(&mut self, store: &dyn Commit, key: &str, make: impl FnOnce() -> LabResult<Batch>) -> LabResult {
        let key_id = CommitKey::new(key)?;
        match self.attempt(|| store.outcome(&key_id))? {
            Some(committed) => self.record(Fact::Committed { key: key_id, versions: committed.versions }),
            None => self.commit(store, key, make()?),
        }
    }
}

/// Parses facts, one per line; an incomplete last line was not acknowledged.
pub fn parse(text: &[u8]) -> LabResult<Vec<Fact>> {
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
}
