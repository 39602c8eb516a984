//! The lines of commits whose counts are missing: they are read from the log.

use std::collections::{HashMap, HashSet};
use std::io::BufReader;
use std::ops::Range;

use selvedge_log::{line, lines};
use selvedge_model::{Event, ThreadId};
use selvedge_store::{FeedEntry, Result};

use crate::core::{Core, io_error};

impl Core {
    /// Commits after `position`, in order, at most `limit`.
    pub(crate) fn after(&self, position: u64, limit: usize) -> Result<Vec<FeedEntry>> {
        let mut entries = self.read(|connection| super::after(connection, position, limit))?;
        let missing: HashSet<ThreadId> =
            entries.iter().filter(|entry| entry.lines == 0).map(|entry| entry.thread.clone()).collect();
        for thread in missing {
            // A log that can't be read must not keep a follower from the others.
            let known = self.changesets(&thread).unwrap_or_default();
            for entry in entries.iter_mut().filter(|entry| entry.lines == 0 && entry.thread == thread) {
                let lines = known.get(&entry.version).cloned().unwrap_or_default();
                *entry = FeedEntry::new(entry.position, thread.clone(), entry.version, lines);
            }
        }
        Ok(entries)
    }

    /// The lines of each version of a log; unverified, for display.
    fn changesets(&self, thread: &ThreadId) -> Result<HashMap<u64, Range<u64>>> {
        let path = self.layout.transcript(thread);
        let mut reader = BufReader::with_capacity(1 << 16, self.open_log(thread)?.committed().1);
        let mut buffer = Vec::new();
        let mut known = HashMap::new();
        let mut first = 0;
        let mut end = 0;
        while lines::next_line(&mut reader, &mut buffer).map_err(io_error("read", &path))? {
            end += 1;
            if let Event::Checkpoint(checkpoint) = line::decode(buffer.strip_suffix(b"\n").unwrap_or(&buffer))?.event {
                known.insert(checkpoint.version, first..end);
                first = end;
            }
        }
        Ok(known)
    }
}
