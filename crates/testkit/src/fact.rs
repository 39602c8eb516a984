//! What somebody was told by a store, one line each, and so what must be true from then on.

use std::fs::File;
use std::io::Write;

use selvedge_model::{Batch, Classify, CommitKey, Digest, ThreadId};
use selvedge_store::{Commit, Error};
use selvedge_store_local::LocalStore;
use serde::{Deserialize, Serialize};

use crate::Tried;

/// What somebody was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The batch of this key is committed, and its threads came to these versions.
    Committed {
        /// Its key.
        key: CommitKey,
        /// The versions.
        versions: Vec<(ThreadId, u64)>,
    },
    /// The batch of this key was refused, and nothing of it is there.
    Refused {
        /// Its key.
        key: CommitKey,
    },
    /// A thread is at this version at least.
    Reached {
        /// The thread.
        thread: ThreadId,
        /// The version.
        version: u64,
    },
    /// A blob lies beside a thread's log.
    Blob {
        /// The thread.
        thread: ThreadId,
        /// Its name.
        blob: Digest,
    },
    /// The content of a blob is gone for good.
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
    /// A whole backup lies in this folder of the home.
    BackedUp {
        /// The folder's name.
        folder: String,
    },
    /// Something that only the scenario itself understands.
    Own {
        /// What.
        what: String,
    },
}

/// Whoever is told, and remembers; in a child process also on paper.
#[derive(Debug, Default)]
pub struct Teller {
    paper: Option<File>,
    told: Vec<Fact>,
    /// Whether a call that failed is tried once more.
    pub stubborn: bool,
}

impl Teller {
    /// Writes every fact down as well, in one write each.
    pub fn on(paper: File) -> Self {
        Self { paper: Some(paper), ..Self::default() }
    }

    /// What was told so far.
    pub fn told(&self) -> &[Fact] {
        &self.told
    }

    /// Remembers a fact.
    pub fn tell(&mut self, fact: Fact) -> Tried {
        if let Some(paper) = &mut self.paper {
            paper.write_all(format!("{}\n", serde_json::to_string(&fact)?).as_bytes())?;
        }
        self.told.push(fact);
        Ok(())
    }

    /// Does something, once more if it fails and this one is stubborn.
    pub fn attempt<T, E: Into<crate::Trouble>>(&mut self, mut work: impl FnMut() -> Result<T, E>) -> Tried<T> {
        match work() {
            Err(_) if self.stubborn => work().map_err(Into::into),
            other => other.map_err(Into::into),
        }
    }

    /// Closes a store. Closing can't be tried again: what it could not do is done by whoever opens the store next.
    pub fn close(&self, store: LocalStore) -> Tried {
        match store.close() {
            Err(_) if self.stubborn => Ok(()),
            other => Ok(other?),
        }
    }

    /// Commits a batch under a key, and tells what became of it.
    pub fn commit(&mut self, store: &dyn Commit, key: &str, batch: Batch) -> Tried {
        let key = CommitKey::new(key)?;
        let batch = batch.with_key(key.clone());
        let mut tries = if self.stubborn { 2 } else { 1 };
        loop {
            tries -= 1;
            match store.commit(batch.clone()) {
                Ok(committed) => return self.tell(Fact::Committed { key, versions: committed.versions }),
                Err(error) => {
                    if !matches!(error, Error::OutcomeUnknown { .. }) {
                        self.tell(Fact::Refused { key: key.clone() })?;
                    }
                    if tries == 0 {
                        return Err(format!("`{key}` ({}): {error}", error.code()).into());
                    }
                }
            }
        }
    }
}

impl Teller {
    /// Commits a batch that can be made only once, and gives the first answer ever after.
    pub fn commit_once(&mut self, store: &dyn Commit, key: &str, make: impl FnOnce() -> Tried<Batch>) -> Tried {
        let key_id = CommitKey::new(key)?;
        match self.attempt(|| store.outcome(&key_id))? {
            Some(committed) => self.tell(Fact::Committed { key: key_id, versions: committed.versions }),
            None => self.commit(store, key, make()?),
        }
    }
}

/// Reads facts, one a line; a last line that was cut off was told to nobody.
pub fn parse(text: &[u8]) -> Tried<Vec<Fact>> {
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
}
