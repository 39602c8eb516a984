//! The blobs of a thread: content that is too large for a line of its log, or that must be erasable.
//!
//! Only blobs that the thread's own, verified log names are found here. A file that lies beside the log by chance is none of them.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_log::Trust;
use selvedge_model::blob::NamedBlobs;
use selvedge_model::{Digest, ThreadId};
use selvedge_store::load::each_changeset;
use selvedge_store::search::NotSearched;
use selvedge_store::search::document::text_of_blob;
use selvedge_store::{Error as StoreError, Store};
use serde::Serialize;

use crate::error::Result;

/// The tool with which a model reads a blob of its own thread.
pub const READ_TOOL: &str = "blob_read";

/// The blobs that a thread's log names, those that were erased included, whose names begin with `prefix`. The log is verified on the way.
pub fn blobs_named(store: &dyn Store, trust: &Trust, thread: &ThreadId, prefix: &str) -> Result<BTreeSet<Digest>> {
    let mut named = NamedBlobs::default();
    each_changeset(store, thread, trust, |entry| {
        for line in &entry.lines {
            named.take(entry.head.version, &line.event);
        }
    })?;
    let all = named.must_be_there().map(|(blob, _)| blob).chain(named.erased().iter().copied());
    Ok(all.filter(|blob| blob.to_string().starts_with(prefix)).collect())
}

/// The texts of a thread's blobs, each read once, and a count of what is left out of them.
pub(crate) struct Texts<'a> {
    store: &'a dyn Store,
    thread: &'a ThreadId,
    /// What is left out of each blob that was asked for.
    seen: BTreeMap<Digest, NotSearched>,
}

impl<'a> Texts<'a> {
    pub(crate) fn new(store: &'a dyn Store, thread: &'a ThreadId) -> Self {
        Self { store, thread, seen: BTreeMap::new() }
    }

    /// Passes the text of a blob to `each`, if it has not been before. An erased blob has none.
    pub(crate) fn of(&mut self, blob: &Digest, each: &mut dyn FnMut(&str)) {
        if self.seen.contains_key(blob) {
            return;
        }
        let mut left_out = NotSearched::default();
        match self.store.blob(self.thread, blob) {
            Ok(bytes) => match text_of_blob(&bytes) {
                Some((text, is_whole)) => {
                    left_out.blobs_cut = u64::from(!is_whole);
                    each(text);
                }
                None => left_out.blobs_not_text = 1,
            },
            Err(StoreError::Erased { .. }) => {}
            Err(_) => left_out.blobs_unreadable = 1,
        }
        self.seen.insert(*blob, left_out);
    }

    /// What is left out of the blobs that were asked for.
    pub(crate) fn left_out(&self) -> NotSearched {
        let mut sum = NotSearched::default();
        for left_out in self.seen.values() {
            sum += *left_out;
        }
        sum
    }
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextPart {
    /// The part.
    pub text: String,
    /// The byte at which it begins.
    pub offset: u64,
    /// The byte at which the next part begins; absent if this is the last one.
    pub next: Option<u64>,
    /// How many bytes the whole text has.
    pub bytes: u64,
}

/// The part of a text that begins at a byte, at most this long. A character is never cut: a part that would begin inside of one begins after
/// it, and a part that would end inside of one ends before it. Nothing if the bytes are no text.
pub fn part_of(bytes: &[u8], offset: u64, bytes_max: usize) -> Option<TextPart> {
    let text = std::str::from_utf8(bytes).ok()?;
    let begin = text.ceil_char_boundary(usize::try_from(offset).unwrap_or(usize::MAX).min(text.len()));
    let end = text.floor_char_boundary(begin.saturating_add(bytes_max).min(text.len()));
    // A limit below the length of one character would never get any further.
    let end = if end == begin { text.ceil_char_boundary((begin + 1).min(text.len())) } else { end };
    let next = (end < text.len()).then_some(end as u64);
    Some(TextPart { text: text[begin..end].to_owned(), offset: begin as u64, next, bytes: text.len() as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_text_join_to_the_whole_and_cut_no_character() {
        let text = "aé漢字z".repeat(50);
        for bytes_max in [1, 2, 3, 7, 64, 10_000] {
            let mut joined = String::new();
            let mut next = Some(0);
            while let Some(offset) = next {
                let part = part_of(text.as_bytes(), offset, bytes_max).unwrap();
                assert!(part.text.len() <= bytes_max.max(3) && part.bytes == text.len() as u64);
                joined.push_str(&part.text);
                next = part.next;
            }
            assert_eq!(joined, text, "{bytes_max}");
        }
        assert_eq!(part_of("é".as_bytes(), 1, 10).unwrap().text, "", "the second byte of a character begins nothing");
        assert_eq!(part_of(b"abc", 99, 10).unwrap().next, None);
        assert_eq!(part_of(b"\xff", 0, 10), None);
    }
}
