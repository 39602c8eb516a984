//! The lines of commits whose row does not say how many they are: the log is asked.

use std::collections::{HashMap, HashSet};
use std::io::BufReader;
use std::ops::Range;

use selvedge_log::{line, lines};
use selvedge_model::{Event, ThreadId};
use selvedge_store::{Commitment, Result};

use crate::core::{Core, io_error};

impl Core {
    /// Commits behind `position`, in order, at most `limit`.
    pub(crate) fn after(&self, position: u64, limit: usize) -> Result<Vec<Commitment>> {
        let mut told = self.read(|connection| super::after(connection, position, limit))?;
        let missing: HashSet<ThreadId> =
            told.iter().filter(|told| told.lines == 0).map(|told| told.thread.clone()).collect();
        for thread in missing {
            // One log that can't be read must not keep a follower from all others.
            let known = self.changesets(&thread).unwrap_or_default();
            for told in told.iter_mut().filter(|told| told.lines == 0 && told.thread == thread) {
                let lines = known.get(&told.version).cloned().unwrap_or_default();
                *told = Commitment::new(told.position, thread.clone(), told.version, lines);
            }
        }
        Ok(told)
    }

    /// The lines of each version of a log; unchecked, for showing.
    fn changesets(&self, thread: &ThreadId) -> Result<HashMap<u64, Range<u64>>> {
        let path = self.layout.transcript(thread);
        let mut reader = BufReader::with_capacity(1 << 16, self.shot(thread)?.committed().1);
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
