//! Transcripts that stay open between commits, so that a commit opens nothing.
//!
//! Before each use of a handle the path is checked to still name that file, because another process may have replaced it by a rebuilt one,
//! or removed it. The file itself does not show that: it may have a second name.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use selvedge_model::ThreadId;

use crate::core::lock;
use crate::disk::DiskFile;
use crate::lru::LruMap;

/// The maximum number of open transcripts, and the maximum share of this process's file limit: the rest is for the database, for readers
/// and for the program around the store. Beyond it the least recently used one is closed.
const OPEN_MAX: usize = 256;
const OPEN_SHARE: u64 = 4;

/// OpenTranscript transcripts by thread.
#[derive(Debug)]
pub(crate) struct Handles {
    most: usize,
    open: Mutex<LruMap<Arc<OpenTranscript>>>,
}

/// An open transcript, and its path.
#[derive(Debug)]
pub(crate) struct OpenTranscript {
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) path: PathBuf,
}

impl Default for Handles {
    fn default() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share = limit.map_or(OPEN_MAX, |limit| usize::try_from(limit / OPEN_SHARE).unwrap_or(OPEN_MAX));
        Self { most: share.min(OPEN_MAX), open: Mutex::default() }
    }
}

impl Handles {
    /// The open transcript of a thread and how long it is, if it still is the file at its path.
    pub(crate) fn get(&self, thread: &ThreadId) -> Option<(Arc<OpenTranscript>, u64)> {
        let open = lock(&self.open).get(thread).cloned()?;
        match open.file.length_at(&open.path) {
            Ok(Some(length)) => Some((open, length)),
            // The caller opens it again, and reports what is wrong.
            _ => {
                self.close(thread);
                None
            }
        }
    }

    /// Keeps a transcript open.
    pub(crate) fn keep(&self, thread: &ThreadId, path: &Path, file: Box<dyn DiskFile>) {
        let kept = Arc::new(OpenTranscript { file, path: path.to_owned() });
        let mut open = lock(&self.open);
        open.insert(thread, kept);
        let closed = open.drop_oldest(self.most);
        // Closed after the lock is released, because closing takes time.
        drop(open);
        drop(closed);
    }

    pub(crate) fn close(&self, thread: &ThreadId) {
        let closed = lock(&self.open).remove(thread);
        drop(closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, OpenMode, RealDisk};

    #[test]
    fn beyond_the_maximum_the_least_recently_used_file_is_closed_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let handles = Handles { most: 3, ..Handles::default() };
        let thread = |number: usize| ThreadId::new(format!("t-{number}")).unwrap();
        let keep = |number: usize| {
            let path = folder.path().join(number.to_string());
            handles.keep(&thread(number), &path, RealDisk.open(&path, OpenMode::Create).unwrap());
        };
        (0..3).for_each(keep);
        assert!(handles.get(&thread(0)).is_some());
        keep(3);
        let open: Vec<usize> = (0..4).filter(|number| handles.get(&thread(*number)).is_some()).collect();
        assert_eq!(open, [0, 2, 3]);
        (4..100).for_each(keep);
        assert_eq!((0..100).filter(|number| handles.get(&thread(*number)).is_some()).count(), 3);
    }
}
