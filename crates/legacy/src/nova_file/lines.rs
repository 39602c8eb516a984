//! One line within bounded memory.
//!
//! A crash may leave any number of zero bytes in place of a line, so a run of them is stored as a single one and its
//! length. A line that is too long even so is skipped and not stored.

use std::io::{self, BufRead};

use selvedge_log::strict::MAX_LINE_BYTES;

use super::trace::Trace;

/// How many runs of zero bytes one line may have; no crash leaves more.
const STRETCHES_MAX: usize = 10_000;

/// One line, without its `\n`, with each run of zero bytes stored as one byte.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub(super) bytes: Vec<u8>,
    /// The position of each stored run, and its length.
    zeros: Vec<(usize, u64)>,
    /// Whether its `\n` was there.
    pub(super) ended: bool,
    /// Whether it was too long; then nothing is stored and the trace was fed.
    pub(super) too_long: bool,
}

impl Raw {
    /// Reads the next line; false at the end of the input. The trace is fed only if the line is too long to be stored.
    pub(super) fn read(&mut self, input: &mut impl BufRead, trace: &mut Trace) -> io::Result<bool> {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 20);
        self.zeros.clear();
        self.ended = false;
        self.too_long = false;
        let mut any = false;
        while !self.ended {
            let available = match input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                break;
            }
            any = true;
            let end = available.iter().position(|byte| *byte == b'\n');
            let (some, used) = match end {
                Some(at) => (&available[..at], at + 1),
                None => (available, available.len()),
            };
            self.ended = end.is_some();
            if self.too_long {
                trace.feed(&available[..used]);
            } else {
                self.hold(some);
                if self.bytes.len() > MAX_LINE_BYTES || self.zeros.len() > STRETCHES_MAX {
                    self.too_long = true;
                    self.feed(0, trace);
                }
            }
            input.consume(used);
        }
        if self.too_long {
            self.bytes = Vec::new();
            self.zeros = Vec::new();
        }
        Ok(any)
    }

    fn hold(&mut self, some: &[u8]) {
        let mut rest = some;
        while let Some(at) = rest.iter().position(|byte| *byte == 0) {
            self.bytes.extend_from_slice(&rest[..at]);
            let count = rest[at..].iter().take_while(|byte| **byte == 0).count();
            match self.zeros.last_mut() {
                Some((held, length)) if *held + 1 == self.bytes.len() => *length += count as u64,
                _ => {
                    self.zeros.push((self.bytes.len(), count as u64));
                    self.bytes.push(0);
                }
            }
            rest = &rest[at + count..];
        }
        self.bytes.extend_from_slice(rest);
    }

    /// Feeds the trace with what was read, from the stored byte `from` on, exactly as it was.
    pub(super) fn feed(&self, from: usize, trace: &mut Trace) {
        self.feed_between(from, self.bytes.len(), trace);
        if self.ended {
            trace.feed(b"\n");
        }
    }

    /// Feeds the trace with what was read between two stored bytes, exactly as it was.
    pub(super) fn feed_between(&self, from: usize, to: usize, trace: &mut Trace) {
        let mut at = from;
        for (held, length) in self.zeros.iter().filter(|(held, _)| (from..to).contains(held)) {
            trace.feed(&self.bytes[at..*held]);
            trace.feed_zeros(*length);
            at = held + 1;
        }
        trace.feed(&self.bytes[at..to]);
    }
}
