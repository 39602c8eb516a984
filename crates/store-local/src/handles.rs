//! Transcripts that stay open between commits, so that a commit opens nothing.
//!
//! A handle is never trusted for what stands at its path: before each use the path is asked whether it still is that file,
//! since another process may have put a rebuilt one in its place, or removed it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use selvedge_model::ThreadId;

use crate::core::lock;
use crate::disk::DiskFile;

/// How many stay open at most; beyond it all are closed, which costs an opening each.
const OPEN_MAX: usize = 256;

/// Open transcripts by thread.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<ThreadId, Arc<dyn DiskFile>>>,
}

impl Handles {
    /// The open transcript of a thread and how long it is, if it still is the file at `path`.
    pub(crate) fn get(&self, thread: &ThreadId, path: &Path) -> Option<(Arc<dyn DiskFile>, u64)> {
        let file = lock(&self.open).get(thread).cloned()?;
        match file.length_at(path) {
            Ok(Some(length)) => Some((file, length)),
            // Whoever opens it anew finds out what is wrong, and says so.
            _ => {
                self.close(thread);
                None
            }
        }
    }

    /// Keeps a transcript open.
    pub(crate) fn keep(&self, thread: &ThreadId, file: Box<dyn DiskFile>) {
        let mut open = lock(&self.open);
        if open.len() >= OPEN_MAX && !open.contains_key(thread) {
            open.clear();
        }
        open.insert(thread.clone(), file.into());
    }

    pub(crate) fn close(&self, thread: &ThreadId) {
        lock(&self.open).remove(thread);
    }
}
