//! Reads a file of the older form, line by line and within bounded memory.
//!
//! ```text
//! |------- head -------|----------------- events -----------------|
//! | {"agentId":…}   \n | {…}\n {…}\n {"type":"mes{…}\n {"type":"me |
//!                      0 of the events' bytes        not ended ^
//! ```
//!
//! The head is the manifest's line, with blank lines before it, and is rewritten in place by its program; everything after it
//! is only ever appended. So hash and positions count from the end of the head, and identify a file that has grown.
//! Without a manifest the events begin at the first line that has one.

use std::io::{self, BufRead};

use selvedge_model::Digest;

use super::counts::{Counts, RemarkKind};
use super::event::Event;
use super::lines::Raw;
use super::manifest::Manifest;
use super::pieces::{Piece, pieces};
use super::trace::Trace;

/// The beginning of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The line, from 1.
    pub line: u64,
    /// The object of that line, from 1; more than 1 only after a manifest on the same line.
    pub part: u32,
}

/// One event and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct LocatedEvent {
    /// The line, from 1.
    pub line: u64,
    /// The number of its object in that line, from 1.
    pub part: u32,
    /// The event.
    pub event: Event,
}

/// The content of one line.
#[derive(Clone, Debug, PartialEq)]
pub struct FileLine {
    /// Its number, from 1.
    pub number: u64,
    /// Its start among the events' bytes.
    pub start: u64,
    /// Its end, after its `\n`.
    pub end: u64,
    /// Whether its `\n` was there; without it, more may be appended to this line.
    pub ended: bool,
    /// The number of its last complete object.
    pub parts: u32,
    /// The events that could be separated.
    pub events: Vec<LocatedEvent>,
}

/// Reads a file of the older form.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    raw: Raw,
    next_line: u64,
    counts: Counts,
    manifest: Option<Manifest>,
    head: Trace,
    events: Trace,
    start: Start,
    /// The line that was read to find the end of the head.
    waiting: Option<FileLine>,
}

impl<R: BufRead> Reader<R> {
    /// Starts a file and reads its head.
    pub fn new(input: R) -> io::Result<Self> {
        Self::marking(input, None)
    }

    /// The same, which also remembers the hash of the first `mark` of the events' bytes.
    pub fn marking(input: R, mark: Option<u64>) -> io::Result<Self> {
        let mut reader = Self::starting_at(input, Start { line: 1, part: 1 });
        reader.events = mark.map_or_else(Trace::default, Trace::marking);
        reader.read_head()?;
        Ok(reader)
    }

    /// Starts after a head, or at any line of events.
    pub fn starting_at(input: R, start: Start) -> Self {
        let head = Trace::default();
        let events = Trace::default();
        let raw = Raw::default();
        let counts = Counts::default();
        Self { input, raw, next_line: start.line, counts, manifest: None, head, events, start, waiting: None }
    }

    /// The manifest, if it can be read.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// The number of bytes of the head.
    pub fn head_bytes(&self) -> u64 {
        self.head.bytes()
    }

    /// The hash of the head.
    pub fn head_hash(&self) -> Digest {
        self.head.digest()
    }

    /// The beginning of the events.
    pub fn start(&self) -> Start {
        self.start
    }

    /// The number of the events' bytes that were read.
    pub fn events_bytes(&self) -> u64 {
        self.events.bytes()
    }

    /// The hash of the events' bytes that were read.
    pub fn events_hash(&self) -> Digest {
        self.events.digest()
    }

    /// The hash of the events' bytes before the mark, if there were that many.
    pub fn marked_hash(&self) -> Option<Digest> {
        self.events.marked()
    }

    /// The counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The next line; `None` at the end.
    pub fn next_line(&mut self) -> io::Result<Option<FileLine>> {
        if let Some(line) = self.waiting.take() {
            return Ok(Some(line));
        }
        let start = self.events.bytes();
        if !self.raw.read(&mut self.input, &mut self.events)? {
            return Ok(None);
        }
        let found = if self.raw.too_long {
            None
        } else {
            self.raw.feed(0, &mut self.events);
            Some(pieces(&self.raw.bytes))
        };
        let first_part = if start == 0 { self.start.part } else { 1 };
        Ok(Some(self.take(found, start, first_part)))
    }

    fn read_head(&mut self) -> io::Result<()> {
        while self.raw.read(&mut self.input, &mut self.head)? {
            if self.raw.too_long {
                self.take(None, 0, 1);
                break;
            }
            let mut found = pieces(&self.raw.bytes);
            if found.is_empty() {
                self.raw.feed(0, &mut self.head);
                self.take(Some(found), 0, 1);
                continue;
            }
            self.first_line(&mut found);
            break;
        }
        if self.waiting.is_none() {
            self.start = Start { line: self.next_line, part: 1 };
        }
        Ok(())
    }

    /// Decides where the head ends: after the manifest, before an event, or after a line that is neither.
    fn first_line(&mut self, found: &mut Vec<Piece>) {
        let first = found.iter().position(|piece| matches!(piece, Piece::Object(..)));
        let Some(Piece::Object(fields, end, _)) = first.map(|index| &found[index]) else {
            self.raw.feed(0, &mut self.head);
            self.take(Some(std::mem::take(found)), 0, 1);
            return;
        };
        let is_manifest = Manifest::is_plainly(fields) || Event::of(fields.clone()).is_none();
        if !is_manifest {
            self.start = Start { line: self.next_line, part: 1 };
            self.raw.feed(0, &mut self.events);
            self.waiting = Some(self.take(Some(std::mem::take(found)), 0, 1));
            return;
        }
        let is_alone = first == Some(found.len() - 1);
        let end = *end;
        self.manifest = Some(Manifest::of(fields.clone()));
        if is_alone {
            self.raw.feed(0, &mut self.head);
        } else {
            self.raw.feed_between(0, end, &mut self.head);
            self.raw.feed(end, &mut self.events);
        }
        let start = Start { line: self.next_line, part: 2 };
        let line = self.take(Some(std::mem::take(found)), 0, 1);
        if !is_alone {
            self.start = start;
            self.waiting = Some(line);
        }
    }

    /// Counts the content of a line and keeps its events.
    fn take(&mut self, found: Option<Vec<Piece>>, start: u64, first_part: u32) -> FileLine {
        let number = self.next_line;
        self.next_line += 1;
        self.counts.lines += 1;
        let mut events = Vec::new();
        let mut part = first_part - 1;
        match found {
            None => {
                self.counts.remark(number, RemarkKind::Long);
                self.counts.lost += 1;
            }
            Some(found) if found.is_empty() => self.counts.blank += 1,
            Some(found) => self.take_pieces(number, found, &mut part, &mut events),
        }
        FileLine { number, start, end: self.events.bytes(), ended: self.raw.ended, parts: part, events }
    }

    fn take_pieces(&mut self, number: u64, found: Vec<Piece>, part: &mut u32, events: &mut Vec<LocatedEvent>) {
        let total = found.len();
        let nul = found.iter().filter(|piece| **piece == Piece::Nul).count();
        let mut used = 0;
        let mut replaced = false;
        for piece in found {
            match piece {
                Piece::Object(fields, _, put_right) => {
                    *part += 1;
                    let is_manifest = self.manifest.is_some() && self.counts.manifests == 0;
                    let event = if is_manifest { None } else { Event::of(fields) };
                    if !is_manifest && event.is_none() {
                        self.counts.remark(number, RemarkKind::Invalid);
                        continue;
                    }
                    used += 1;
                    replaced |= put_right.any();
                    self.counts.replaced(number, put_right);
                    match event {
                        None => self.counts.manifests = 1,
                        Some(event) => {
                            self.counts.event(&event);
                            events.push(LocatedEvent { line: number, part: *part, event });
                        }
                    }
                }
                Piece::Torn => self.counts.remark(number, RemarkKind::Torn),
                Piece::Nul => self.counts.remark(number, RemarkKind::Nul),
                Piece::Invalid => self.counts.remark(number, RemarkKind::Invalid),
            }
        }
        match used {
            0 => self.counts.lost += 1,
            1 if total == 1 && replaced => self.counts.repaired_value += 1,
            1 if total == 1 => self.counts.clean += 1,
            1 if total == nul + 1 => self.counts.repaired_nul += 1,
            _ => self.counts.remark(number, RemarkKind::Joined),
        }
    }
}
