//! Output that is kept up to a bound.

use std::collections::VecDeque;

/// The beginning of an output.
#[derive(Debug)]
pub(crate) struct KeptHead {
    bytes: Vec<u8>,
    bytes_max: usize,
    /// How many more bytes came.
    pub(crate) dropped: u64,
}

impl KeptHead {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), bytes_max, dropped: 0 }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let room = self.bytes_max - self.bytes.len();
        let (kept, dropped) = bytes.split_at(room.min(bytes.len()));
        self.bytes.extend_from_slice(kept);
        self.dropped += dropped.len() as u64;
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// The end of an output.
#[derive(Debug)]
pub(crate) struct KeptTail {
    bytes: VecDeque<u8>,
    bytes_max: usize,
}

impl KeptTail {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes: VecDeque::new(), bytes_max }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.bytes_max)..];
        let over = (self.bytes.len() + bytes.len()).saturating_sub(self.bytes_max);
        self.bytes.drain(..over);
        self.bytes.extend(bytes);
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.iter().copied().collect::<Vec<_>>()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_the_beginning_and_a_tail_the_end() {
        let mut head = KeptHead::new(4);
        let mut tail = KeptTail::new(4);
        for part in ["ab", "cde", "", "fghijkl"] {
            head.add(part.as_bytes());
            tail.add(part.as_bytes());
        }
        assert_eq!((head.text().as_str(), head.dropped), ("abcd", 8));
        assert_eq!(tail.text(), "ijkl");
    }
}
