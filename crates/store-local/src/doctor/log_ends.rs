//! The end of a log: what can be checked without reading all of it.
//!
//! ```text
//! log   |---------------------------------|----- READ_MAX -----| head
//!                                         |        lines  ckpt |
//! ```
//!
//! The last line must be the checkpoint that the database records, correctly signed. Its signature covers the hash of every byte before it.
//! A log no longer than [`READ_MAX`] is hashed whole; of a longer one only the bytes since the state was saved, and only with the key that
//! sealed the running hash there. Either way a changed byte in that range is found.

use std::collections::BTreeSet;
use std::io;

use selvedge_log::hash::RunningHash;
use selvedge_log::line;
use selvedge_log::{Head, Line, checkpoint};
use selvedge_model::event::Checkpoint;
use selvedge_model::{Digest, Event, NamedBlobs};
use selvedge_store::Error;

use super::Examiner;
use crate::disk::{DiskFile, OpenMode};
use crate::overlay::read_fully;
use crate::rows::{self, Row};
use selvedge_store::folded::Folded;
use selvedge_store::saved_state;

/// How much of a log is read at most, unless its last line alone is longer.
pub(super) const READ_MAX: u64 = 256 << 10;
/// The longest possible line of a log is shorter than this.
const LINE_MAX: u64 = 9 << 20;
/// The maximum length of a saved state that is read to get its running hash.
const STATE_MAX: u64 = 1 << 20;
/// How many of a log's last lines are compared by their times.
const LAST_LINES: usize = 8;

/// The end of a log, as far as it was read, without a problem.
pub(super) struct LogEnd<'a> {
    /// The last lines, the newest last.
    pub(super) lines: Vec<Line>,
    /// The blobs that are named in the lines that were read.
    pub(super) named: NamedBlobs,
    /// The signers that occur in the lines that were read.
    pub(super) signers: BTreeSet<Digest>,
    /// The fold of the log, if every byte of it was hashed.
    pub(super) folded: Option<Folded<'a>>,
}

/// Why the end of a log was not accepted at once.
pub(super) enum LogEndProblem {
    Io(io::Error),
    Store(Error),
    Because(&'static str),
}

impl From<io::Error> for LogEndProblem {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Self::Because("it ends too early"),
            _ => Self::Io(error),
        }
    }
}

impl From<Error> for LogEndProblem {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Examiner<'_> {
    /// Checks the end of a log. A signature is verified only if its key is trusted.
    pub(super) fn end<'a>(&self, row: &'a Row) -> Result<LogEnd<'a>, LogEndProblem> {
        let head = &row.head;
        let file = self.core().disk.open(&self.core().layout.transcript(&row.manifest.thread_id), OpenMode::Read)?;
        let (start, bytes) = read_end(&*file, head.bytes)?;
        let last = bytes.strip_suffix(b"\n").ok_or(LogEndProblem::Because("its last line is cut off"))?;
        let last_at = last.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let said = self.checkpoint(&last[last_at..], start + last_at as u64, head)?;
        let is_whole = start == 0;
        if let Some((hash, from)) = self.saved(row, start, is_whole)? {
            let bytes = &bytes[(from - start) as usize..];
            // A state that was saved at the head itself says nothing about the bytes before it.
            if let Some(before) = said.byte_offset.checked_sub(from) {
                agree(hash, bytes.split_at(before as usize), &said, head)?;
            }
        }
        let mut lines = Vec::new();
        let mut named = NamedBlobs::default();
        let mut signers = BTreeSet::from([head.signer]);
        let mut folded = is_whole.then(|| Folded::new(&row.manifest.thread_id));
        // The first line may begin before the bytes that were read.
        let whole_from = if is_whole { 0 } else { bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        let whole = bytes.get(whole_from..bytes.len() - 1).unwrap_or_default();
        let split: Vec<&[u8]> = whole.split(|byte| *byte == b'\n').collect();
        for (index, text) in split.iter().enumerate() {
            let is_last = index + LAST_LINES >= split.len();
            if folded.is_none() && !is_last && !mentions(text, b"\"blob") && !mentions(text, b"\"key_rotated\"") {
                continue;
            }
            let line = line::decode(text).map_err(|_| LogEndProblem::Because("a line can't be read"))?;
            named.take(head.version, &line.event);
            if let Some(folded) = &mut folded {
                folded.line(&line);
            }
            if let Event::KeyRotated(rotated) = &line.event {
                signers.extend([rotated.from, rotated.to]);
            }
            if is_last {
                lines.push(line);
            }
        }
        Ok(LogEnd { lines, named, signers, folded })
    }

    /// The last line, if it is the checkpoint that the database records.
    fn checkpoint(&self, text: &[u8], at: u64, head: &Head) -> Result<Checkpoint, LogEndProblem> {
        let line = line::decode(text).map_err(|_| LogEndProblem::Because("its last line can't be read"))?;
        let Event::Checkpoint(said) = line.event else {
            return Err(LogEndProblem::Because("it does not end with a checkpoint"));
        };
        let agrees = said.version == head.version
            && said.log_id == head.log_id
            && said.epoch == head.epoch
            && said.signer == head.signer
            && said.byte_offset == at
            && line.seq + 1 == head.lines;
        let is_signed = self.core().trust.key(&said.signer).is_none_or(|key| checkpoint::verify(text, key).is_ok());
        if !(agrees && is_signed) {
            return Err(LogEndProblem::Because("its last checkpoint is not the one that the database records"));
        }
        Ok(*said)
    }

    /// A running hash at or after `start`, and its offset: an empty one at the start of the log, else the one that our own key sealed.
    fn saved(&self, row: &Row, start: u64, is_whole: bool) -> Result<Option<(RunningHash, u64)>, LogEndProblem> {
        if is_whole {
            return Ok(Some((RunningHash::new(), 0)));
        }
        let Some(signing) = &self.core().signing else { return Ok(None) };
        let saved = self.core().read(|connection| {
            let size = rows::saved_state_size(connection, row.id)?;
            let fits = size.is_some_and(|(at, length)| at >= start && at <= row.head.bytes && length <= STATE_MAX);
            if fits { rows::saved_state(connection, row.id) } else { Ok(None) }
        })?;
        let opened = saved.and_then(|saved| saved_state::open(&signing.seal, &row.head, &saved));
        Ok(opened.filter(|(_, _, at)| *at <= row.head.bytes && *at >= start).map(|(_, hash, at)| (hash, at)))
    }
}

/// The last bytes of a log, and their offset: at most [`READ_MAX`], or as many as its last line has.
fn read_end(file: &dyn DiskFile, end: u64) -> io::Result<(u64, Vec<u8>)> {
    let mut most = READ_MAX;
    loop {
        let start = end.saturating_sub(most);
        let mut bytes = vec![0; (end - start) as usize];
        if read_fully(file, &mut bytes, start)? < bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let ends = bytes.iter().filter(|byte| **byte == b'\n').take(2).count();
        if start == 0 || ends > 1 {
            return Ok((start, bytes));
        }
        if most > LINE_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        most *= 4;
    }
}

/// Hashes the bytes: those before the checkpoint must match its signed hash, all of them the head in the database.
fn agree(
    mut hash: RunningHash,
    (before, last): (&[u8], &[u8]),
    said: &Checkpoint,
    head: &Head,
) -> Result<(), LogEndProblem> {
    hash.update(before);
    let is_signed = hash.digest() == said.hash;
    hash.update(last);
    if !(is_signed && hash.digest() == head.hash) {
        return Err(LogEndProblem::Because("the bytes before its last checkpoint are not the ones that were signed"));
    }
    Ok(())
}

/// Whether a line may concern this: a blob that it names or that was erased, or a key rotation.
fn mentions(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}
