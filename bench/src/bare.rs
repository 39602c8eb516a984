//! The floor: a loop that appends unsigned bytes to a file and syncs it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::Outcome;

/// A file that is appended to.
pub(crate) struct Bare {
    file: File,
    bytes: Vec<u8>,
}

impl Bare {
    pub(crate) fn make(path: &Path) -> Outcome<Self> {
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Self { file, bytes: Vec::new() })
    }

    /// Appends this many bytes; durable on return.
    pub(crate) fn append(&mut self, bytes: usize) -> Outcome<()> {
        self.bytes.resize(bytes, b'x');
        self.file.write_all(&self.bytes)?;
        self.file.sync_data()?;
        Ok(())
    }
}
