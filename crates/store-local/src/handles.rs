//! Transcripts that stay open between commits, so that a commit opens nothing.
//!
//! A handle is never trusted for what stands at its path: before each use the path is asked whether it still is that file,
//! since another process may have put a rebuilt one in its place, or removed it. The file itself could not tell: it may have a second name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use selvedge_model::ThreadId;

use crate::core::lock;
use crate::disk::DiskFile;

/// How many stay open at most; beyond it all are closed, which costs an opening each.
const OPEN_MAX: usize = 256;

/// Open transcripts by thread.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<ThreadId, Arc<Open>>>,
}

/// A transcript that is open, and where.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) path: PathBuf,
}

impl Handles {
    /// The open transcript of a thread and how long it is, if it still is the file at its path.
    pub(crate) fn get(&self, thread: &ThreadId) -> Option<(Arc<Open>, u64)> {
        let open = lock(&self.open).get(thread).cloned()?;
        match open.file.length_at(&open.path) {
            Ok(Some(length)) => Some((open, length)),
            // Whoever opens it anew finds out what is wrong, and says so.
            _ => {
                self.close(thread);
                None
            }
        }
    }

    /// Keeps a transcript open.
    pub(crate) fn keep(&self, thread: &ThreadId, path: &Path, file: Box<dyn DiskFile>) {
        let mut open = lock(&self.open);
        if open.len() >= OPEN_MAX && !open.contains_key(thread) {
            open.clear();
        }
        open.insert(thread.clone(), Arc::new(Open { file, path: path.to_owned() }));
    }

    pub(crate) fn close(&self, thread: &ThreadId) {
        lock(&self.open).remove(thread);
    }
}
