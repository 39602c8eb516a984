//! The baseline: a loop that appends the same bytes to a file and syncs it, without signing or checking.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::Outcome;

/// A file that is appended to.
pub(crate) struct Bare {
    file: File,
    /// What is appended, in turn, and again from the first.
    changesets: Vec<Vec<u8>>,
    next: usize,
}

impl Bare {
    pub(crate) fn make(path: &Path, changesets: Vec<Vec<u8>>) -> Outcome<Self> {
        if changesets.is_empty() {
            return Err("a bare loop has nothing to write".into());
        }
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Self { file, changesets, next: 0 })
    }

    /// Appends the next bytes; durable on return.
    pub(crate) fn append(&mut self) -> Outcome<()> {
        let bytes = &self.changesets[self.next % self.changesets.len()];
        self.next += 1;
        self.file.write_all(bytes)?;
        self.file.sync_data()?;
        Ok(())
    }
}
