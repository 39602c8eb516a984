//! The stored bytes of a file: blobs, read one after the other.

use std::io::{self, Read};

use selvedge_model::{Digest, ThreadId};
use selvedge_store::{Commit, Logs};

use super::error::NovaError;
use super::record::StoredPiece;
use super::source::Source;

/// The maximum number of bytes of one blob.
const PIECE_BYTES: u64 = 4 * 1024 * 1024;

/// Reads the blobs of an import as one file. A store error is passed on inside the I/O error.
pub(super) struct StoredBytes<'a> {
    logs: &'a dyn Logs,
    thread: &'a ThreadId,
    left: std::vec::IntoIter<StoredPiece>,
    current: io::Cursor<Vec<u8>>,
    skip: u64,
}

impl<'a> StoredBytes<'a> {
    /// Begins at byte `from`.
    pub(super) fn new(logs: &'a dyn Logs, thread: &'a ThreadId, pieces: Vec<StoredPiece>, from: u64) -> Self {
        let mut skip = from;
        let mut pieces = pieces.into_iter().peekable();
        while let Some(passed) = pieces.next_if(|piece| piece.bytes <= skip) {
            skip -= passed.bytes;
        }
        let left = pieces.collect::<Vec<_>>().into_iter();
        Self { logs, thread, left, current: io::Cursor::default(), skip }
    }
}

impl Read for StoredBytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.current.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(piece) = self.left.next() else { return Ok(0) };
            self.current = io::Cursor::default();
            let bytes = self.logs.blob(self.thread, &piece.blob).map_err(io::Error::other)?;
            self.current = io::Cursor::new(bytes);
            self.current.set_position(std::mem::take(&mut self.skip));
        }
    }
}

/// The next piece of at most `most` bytes of a file, in a reused buffer; shorter only at its end.
pub(super) fn next_piece(
    input: &mut dyn Read,
    most: u64,
    buffer: &mut Vec<u8>,
    source: &dyn Source,
) -> Result<(), NovaError> {
    buffer.clear();
    let read = input.take(most.min(PIECE_BYTES)).read_to_end(buffer);
    read.map(drop).map_err(NovaError::reading(source.name()))
}

/// Stores bytes as a blob.
pub(super) fn keep(store: &dyn Commit, thread: &ThreadId, bytes: &[u8]) -> Result<StoredPiece, NovaError> {
    let blob: Digest = store.put_blob(thread, bytes)?;
    Ok(StoredPiece { blob, bytes: bytes.len() as u64 })
}
