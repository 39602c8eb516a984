//! The blobs of a thread: content that is too large for a line of its log, or that must be erasable.
//!
//! Only blobs that the thread's own, verified log names are found here. A file that lies beside the log by chance is none of them.

use std::collections::BTreeSet;

use selvedge_log::Trust;
use selvedge_model::blob::NamedBlobs;
use selvedge_model::{Digest, ThreadId};
use selvedge_store::Store;
use selvedge_store::load::each_changeset;
use serde::Serialize;

use crate::error::Result;

/// The tool with which a model reads a blob of its own thread.
pub const READ_TOOL: &str = "blob_read";

/// The blobs that a thread's log names, those that were erased included, whose names begin with `prefix`. The log is verified on the way.
pub fn blobs_named(store: &dyn Store, trust: &Trust, thread: &ThreadId, prefix: &str) -> Result<BTreeSet<Digest>> {
    let mut named = NamedBlobs::default();
    each_changeset(store, thread, trust, |entry| {
        entry.lines.iter().for_each(|line| named.take(entry.head.version, &line.event));
    })?;
    let all = named.must_be_there().map(|(blob, _)| blob).chain(named.erased().iter().copied());
    Ok(all.filter(|blob| blob.to_string().starts_with(prefix)).collect())
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
            let (mut joined, mut next) = (String::new(), Some(0));
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
