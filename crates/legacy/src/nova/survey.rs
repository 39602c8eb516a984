//! Reads a whole file before anything of it is imported.

use std::io::{self, Read};

use selvedge_model::Digest;
use serde::Serialize;

use super::error::NovaError;
use super::mapping::{fits, is_message};
use super::record::{ImportPosition, ImportRecord};
use super::source::Source;
use crate::nova_file::{Counts, FileLine, Manifest, Reader, Start};

/// What an import adds to a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Added {
    /// Messages.
    pub messages: u64,
    /// Other events.
    pub events: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The content of a file.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) manifest: Option<Manifest>,
    pub(super) head_bytes: u64,
    pub(super) head_hash: Digest,
    pub(super) start: Start,
    pub(super) bytes: u64,
    pub(super) hash: Digest,
    /// The hash of as many bytes as were stored before.
    pub(super) kept_hash: Option<Digest>,
    pub(super) counts: Counts,
    /// What is not imported yet.
    pub(super) added: Added,
    pub(super) too_large: u64,
}

/// Reads only the head of a file.
pub(super) fn manifest(source: &dyn Source) -> Result<Option<Manifest>, NovaError> {
    let reader = source.open().and_then(Reader::new).map_err(NovaError::reading(source.name()))?;
    Ok(reader.manifest().cloned())
}

/// Reads all of a file, of which some may have been imported before.
pub(super) fn survey(source: &dyn Source, before: Option<&ImportRecord>) -> Result<Survey, NovaError> {
    let failed = || NovaError::reading(source.name());
    let input = source.open().map_err(failed())?;
    let mut reader = Reader::marking(input, before.map(|record| record.bytes)).map_err(failed())?;
    let place = before.map_or(ImportPosition::default(), |record| record.imported);
    let mut added = Added::default();
    let mut too_large = 0;
    while let Some(line) = reader.next_line().map_err(failed())? {
        for found in &line.events {
            if !fits(&found.event, line.end - line.start) {
                too_large += 1;
            } else if is_new(&line, found.part, place) {
                if is_message(&found.event) {
                    added.messages += 1;
                } else {
                    added.events += 1;
                }
            }
        }
    }
    added.bytes = reader.events_bytes().saturating_sub(before.map_or(0, |record| record.bytes));
    Ok(Survey {
        manifest: reader.manifest().cloned(),
        head_bytes: reader.head_bytes(),
        head_hash: reader.head_hash(),
        start: reader.start(),
        bytes: reader.events_bytes(),
        hash: reader.events_hash(),
        kept_hash: reader.marked_hash(),
        counts: reader.counts().clone(),
        added,
        too_large,
    })
}

/// Skips this many bytes.
pub(super) fn skip(input: &mut dyn Read, bytes: u64) -> io::Result<()> {
    io::copy(&mut input.take(bytes), &mut io::sink()).map(drop)
}

/// Whether an object of a line is after the position that an import reached.
pub(super) fn is_new(line: &FileLine, part: u32, place: ImportPosition) -> bool {
    line.start > place.bytes || line.start == place.bytes && part > place.part
}

/// The position after a line.
pub(super) fn position_after(line: &FileLine) -> ImportPosition {
    if line.ended {
        ImportPosition { bytes: line.end, line: line.number + 1, part: 0 }
    } else {
        ImportPosition { bytes: line.start, line: line.number, part: line.parts }
    }
}
