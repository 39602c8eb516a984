//! Splits a response into the events of an event stream.
//!
//! - Pieces may be cut anywhere: within a line, within a line end, within a character.
//! - Lines end with LF, CR LF or CR. Comments and unknown fields are skipped; the lines of one event's data are joined.
//! - An event is complete at its empty line. What stands after the last one is not an event.
//! - An event is limited in size, and its text must be UTF-8.

use std::ops::Range;

/// The most bytes of one event. A format may repeat the whole answer in its last event.
const EVENT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Why a stream can't be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    /// An event is too large.
    #[error("an event of the stream is larger than {} MB", EVENT_BYTES_MAX / (1024 * 1024))]
    TooLarge,
    /// It is not text.
    #[error("the stream is not UTF-8")]
    NotText,
}

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// Its name; empty if it has none.
    pub(super) name: &'a str,
    /// Its data.
    pub(super) data: &'a str,
}

/// Splits a stream into events.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// The bytes that no line has used yet.
    buffer: Vec<u8>,
    /// Where the next line begins.
    start: usize,
    /// Up to where no line end was found.
    searched: usize,
    /// Whether the last line ended with CR: an LF that follows belongs to it.
    after_cr: bool,
    /// Whether a line was read before: only the first may begin with a byte order mark.
    has_begun: bool,
    name: String,
    data: String,
    has_data: bool,
    /// Whether the event in `name` and `data` was returned already.
    is_returned: bool,
}

impl Splitter {
    /// Takes a piece of the response.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole event, if there is one.
    pub(super) fn next(&mut self) -> Result<Option<Event<'_>>, Broken> {
        if self.is_returned {
            self.name.clear();
            self.data.clear();
            // A large event must not keep its memory for all that follow.
            self.data.shrink_to(64 * 1024);
            self.has_data = false;
            self.is_returned = false;
        }
        while let Some(line) = self.line() {
            if line.is_empty() {
                if self.has_data {
                    self.is_returned = true;
                    return Ok(Some(Event { name: &self.name, data: &self.data }));
                }
                self.name.clear();
            } else {
                self.field(line)?;
            }
        }
        if self.buffer.len() - self.start + self.data.len() > EVENT_BYTES_MAX {
            return Err(Broken::TooLarge);
        }
        if self.start == self.buffer.len() && self.buffer.capacity() > 64 * 1024 {
            self.buffer = Vec::new();
            self.start = 0;
            self.searched = 0;
        }
        Ok(None)
    }

    /// The next whole line, without its end, as a place in the buffer.
    fn line(&mut self) -> Option<Range<usize>> {
        if self.after_cr && self.start < self.buffer.len() {
            self.after_cr = false;
            if self.buffer[self.start] == b'\n' {
                self.start += 1;
                self.searched = self.searched.max(self.start);
            }
        }
        match memchr::memchr2(b'\n', b'\r', &self.buffer[self.searched..]) {
            Some(found) => {
                let end = self.searched + found;
                let mut begin = self.start;
                if !self.has_begun {
                    self.has_begun = true;
                    if self.buffer[begin..end].starts_with(b"\xef\xbb\xbf") {
                        begin += 3;
                    }
                }
                self.after_cr = self.buffer[end] == b'\r';
                self.start = end + 1;
                self.searched = self.start;
                Some(begin..end)
            }
            None => {
                self.searched = self.buffer.len();
                None
            }
        }
    }

    fn field(&mut self, line: Range<usize>) -> Result<(), Broken> {
        let line = &self.buffer[line];
        let (field, value) = match memchr::memchr(b':', line) {
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &b""[..]),
        };
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                if self.data.len() + value.len() > EVENT_BYTES_MAX {
                    return Err(Broken::TooLarge);
                }
                self.data.push_str(text(value)?);
                self.has_data = true;
            }
            b"event" => {
                self.name.clear();
                self.name.push_str(text(value)?);
            }
            // A comment, or a field that no format uses.
            _ => {}
        }
        Ok(())
    }
}

fn text(bytes: &[u8]) -> Result<&str, Broken> {
    std::str::from_utf8(bytes).map_err(|_| Broken::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(bytes: &[u8], size: usize) -> Result<Vec<(String, String)>, Broken> {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        for piece in bytes.chunks(size) {
            splitter.push(piece);
            while let Some(event) = splitter.next()? {
                events.push((event.name.to_owned(), event.data.to_owned()));
            }
        }
        Ok(events)
    }

    #[test]
    fn events_are_the_same_wherever_the_pieces_are_cut() {
        let stream = "\u{feff}event: a\r\ndata: ä🙂\r\n\r\n: a comment\r\rdata:one\ndata:  two\nid: 7\nretry: 1\n\nevent: no data\n\n\
                      data\n\nevent: b\rdata: {\"x\":1}\r\rdata: not ended\n";
        let expected = [("a", "ä🙂"), ("", "one\n two"), ("", ""), ("b", "{\"x\":1}")];
        let expected: Vec<_> = expected.map(|(name, data)| (name.to_owned(), data.to_owned())).into();
        for size in 1..=stream.len() {
            assert_eq!(split(stream.as_bytes(), size).unwrap(), expected, "pieces of {size}");
        }
    }

    #[test]
    fn what_is_not_text_is_broken() {
        assert_eq!(split(b"data: \xff\xfe\n\n", 3), Err(Broken::NotText));
        // Half of a character at the end of a piece is not.
        assert_eq!(split("data: ä\n\n".as_bytes(), 7).unwrap()[0].1, "ä");
    }

    #[test]
    fn an_endless_event_is_broken_and_takes_bounded_memory() {
        let mut splitter = Splitter::default();
        let piece = vec![b'x'; 1024 * 1024];
        splitter.push(b"data: ");
        let refused = (0..100).find(|_| {
            splitter.push(&piece);
            splitter.next().is_err()
        });
        assert_eq!(refused, Some(31));
        let mut splitter = Splitter::default();
        let line = [b"data: ", &piece[..], b"\n"].concat();
        let refused = (0..100).find(|_| {
            splitter.push(&line);
            splitter.next().is_err()
        });
        assert_eq!(refused, Some(31));
    }

    #[test]
    fn a_large_event_does_not_keep_its_memory() {
        let mut splitter = Splitter::default();
        splitter.push(format!("data: {}\n\ndata: x\n\n", "y".repeat(4_000_000)).as_bytes());
        assert_eq!(splitter.next().unwrap().unwrap().data.len(), 4_000_000);
        assert_eq!(splitter.next().unwrap().unwrap().data, "x");
        assert_eq!(splitter.next().unwrap(), None);
        assert!(splitter.data.capacity() + splitter.buffer.capacity() < 200_000);
    }
}
