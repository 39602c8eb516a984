//! Reads lines from any byte of a file, forwards and backwards.
//!
//! These readers verify nothing: they are for verified data, and for finding the end of a log quickly.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use crate::strict::MAX_LINE_BYTES;

/// Reads the next line, including its `\n`; returns `false` at the end. A line that exceeds the limit of a log is an error.
pub fn next_line(reader: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<bool> {
    buffer.clear();
    let read = reader.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', buffer)?;
    if read > MAX_LINE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than a log allows"));
    }
    Ok(read > 0)
}

/// Returns the complete lines of a file from its end to its start, each with its first byte's position and without its `\n`.
/// Bytes after the last `\n` are skipped.
#[derive(Debug)]
pub struct ReverseLines<R> {
    file: R,
    /// The position of the first byte of `block`.
    start: u64,
    block: Vec<u8>,
    /// The number of bytes of `block` that were not returned yet; they end with a `\n`.
    left: usize,
}

const BLOCK: u64 = 64 * 1024;

impl<R: Read + Seek> ReverseLines<R> {
    /// Starts at byte `end`.
    pub fn new(file: R, end: u64) -> io::Result<Self> {
        let mut lines = Self { file, start: end, block: Vec::new(), left: 0 };
        while lines.left == 0 && lines.grow()? {
            lines.left = lines.block.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        }
        Ok(lines)
    }

    /// The line before those returned so far.
    pub fn next_back(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        if self.left == 0 && self.start == 0 {
            return Ok(None);
        }
        loop {
            let body = self.left.saturating_sub(1);
            if let Some(at) = self.block[..body].iter().rposition(|byte| *byte == b'\n') {
                self.left = at + 1;
                return Ok(Some((self.start + at as u64 + 1, &self.block[at + 1..body])));
            }
            if self.start == 0 {
                self.left = 0;
                return Ok(Some((0, &self.block[..body])));
            }
            if self.left > MAX_LINE_BYTES {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than a log allows"));
            }
            self.grow()?;
        }
    }

    /// Reads one more block in front of the current ones.
    fn grow(&mut self) -> io::Result<bool> {
        let size = self.start.min(BLOCK);
        if size == 0 {
            return Ok(false);
        }
        self.start -= size;
        self.file.seek(SeekFrom::Start(self.start))?;
        let mut block = vec![0; size as usize];
        self.file.read_exact(&mut block)?;
        if self.left > 0 {
            self.block.truncate(self.left);
        }
        block.extend_from_slice(&self.block);
        self.block = block;
        if self.left > 0 {
            self.left += size as usize;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn backwards(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut lines = ReverseLines::new(Cursor::new(text), text.len() as u64).unwrap();
        let mut found = Vec::new();
        while let Some((at, line)) = lines.next_back().unwrap() {
            found.push((at, line.to_vec()));
        }
        found
    }

    #[test]
    fn lines_are_returned_from_the_end_with_their_positions() {
        assert_eq!(backwards(b"ab\n\ncd\ntorn"), [(4, b"cd".to_vec()), (3, b"".to_vec()), (0, b"ab".to_vec())]);
        assert_eq!(backwards(b""), []);
        assert_eq!(backwards(b"torn"), []);
        assert_eq!(backwards(b"\n"), [(0, b"".to_vec())]);
    }

    #[test]
    fn lines_longer_than_a_block_are_returned_complete() {
        let long = [vec![b'x'; 200_000], vec![b'\n'], vec![b'y'; 70_000], vec![b'\n'], vec![b'z'; 65_536]].concat();
        let found = backwards(&long);
        assert_eq!(
            found.iter().map(|(at, line)| (*at, line.len())).collect::<Vec<_>>(),
            [(200_001, 70_000), (0, 200_000)]
        );
    }
}
