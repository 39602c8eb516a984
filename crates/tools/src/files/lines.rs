//! Lines of a file, of which each may be longer than memory.

use std::io::{self, BufRead};

/// The beginning of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Its first bytes, with the line break if there was room for it.
    pub(super) text: Vec<u8>,
    /// How many bytes there are in all.
    pub(super) bytes: u64,
}

/// The next line, of which at most this many bytes are kept; none at the end.
pub(super) fn next_line(reader: &mut impl BufRead, bytes_max: usize) -> io::Result<Option<Line>> {
    let mut line = Line { text: Vec::new(), bytes: 0 };
    loop {
        let buffer = match reader.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if buffer.is_empty() {
            return Ok((line.bytes > 0).then_some(line));
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(buffer.len(), |at| at + 1);
        let room = bytes_max.saturating_sub(line.text.len());
        line.text.extend_from_slice(&buffer[..count.min(room)]);
        line.bytes += count as u64;
        reader.consume(count);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_and_the_next_one_is_whole() {
        let mut reader = io::BufReader::with_capacity(3, &b"abcdefgh\nij\n\nk"[..]);
        let mut lines = Vec::new();
        while let Some(Line { text, bytes }) = next_line(&mut reader, 4).unwrap() {
            lines.push((String::from_utf8(text).unwrap(), bytes));
        }
        let lines: Vec<(&str, u64)> = lines.iter().map(|(text, bytes)| (text.as_str(), *bytes)).collect();
        assert_eq!(lines, [("abcd", 9), ("ij\n", 3), ("\n", 1), ("k", 1)]);
    }
}
