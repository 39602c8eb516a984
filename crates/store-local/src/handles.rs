//! Transcripts that stay open between commits, so that a commit opens nothing.
//!
//! A handle is never trusted for what stands at its path: another process may have put a rebuilt file in its place, or removed it. So
//! before a commit the path is asked whether it still is that file. After it the file itself is asked: only one is kept open whose only
//! name is that path, and it has none any more if another one stands there.

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
    /// How long the open transcript of a thread is, if it still is the file at its path, and the only name of that.
    pub(crate) fn look(&self, thread: &ThreadId) -> Option<u64> {
        self.ask(thread, |open| open.file.length_at(&open.path)).map(|(_, length)| length)
    }

    /// The open transcript of a thread and how long it is, if nobody has put another one in its place since it was looked at.
    pub(crate) fn get(&self, thread: &ThreadId) -> Option<(Arc<Open>, u64)> {
        self.ask(thread, |open| open.file.sole_length())
    }

    fn ask(
        &self,
        thread: &ThreadId,
        length: impl FnOnce(&Open) -> std::io::Result<Option<u64>>,
    ) -> Option<(Arc<Open>, u64)> {
        let open = lock(&self.open).get(thread).cloned()?;
        match length(&open) {
            Ok(Some(length)) => Some((open, length)),
            // Whoever opens it anew finds out what is wrong, and says so.
            _ => {
                self.close(thread);
                None
            }
        }
    }

    /// Keeps a transcript open that was just opened at its path, unless it has another name too.
    pub(crate) fn keep(&self, thread: &ThreadId, path: &Path, file: Box<dyn DiskFile>) {
        if !file.sole_length().is_ok_and(|length| length.is_some()) {
            return self.close(thread);
        }
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
