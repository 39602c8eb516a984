//! What is indexed: passages of the texts of events and blobs.
//!
//! A passage is small enough to be shown and compared, and begins and ends at spaces where it can. Two consecutive passages of one text
//! overlap, so that a phrase at their border is in one of them.

use std::ops::Range;

use selvedge_log::hash::sha256;

/// The kind of a document. More may come; their numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PassageKind {
    /// An event of a thread: a message, the reason of a decision or of the end of a run.
    Message,
    /// Content that was too large for a line of a log.
    Blob,
}

impl PassageKind {
    /// The number that stands for it in an index.
    pub fn number(self) -> i64 {
        match self {
            Self::Message => 0,
            Self::Blob => 1,
        }
    }

    /// The kind of a number.
    pub fn of_number(number: i64) -> Option<Self> {
        [Self::Message, Self::Blob].into_iter().find(|kind| kind.number() == number)
    }
}

/// The most bytes of a passage.
pub const PASSAGE_BYTES_MAX: usize = 4 << 10;
/// How many bytes two consecutive passages share.
const SHARED_BYTES: usize = 200;
/// The most bytes of a blob that are indexed.
pub const BLOB_BYTES_MAX: usize = 1 << 20;

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage<'a> {
    /// The byte of the text at which it begins.
    pub offset: usize,
    /// The part.
    pub text: &'a str,
}

impl Passage<'_> {
    /// A number that changes with the text, to compare what was indexed with what the log has.
    pub fn digest(&self) -> i64 {
        digest(self.text)
    }
}

/// The digest of a text.
pub fn digest(text: &str) -> i64 {
    let bytes = sha256(text.as_bytes()).0;
    i64::from_le_bytes(std::array::from_fn(|at| bytes[at]))
}

/// The passages of a text.
pub fn passages(text: &str) -> impl Iterator<Item = Passage<'_>> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let begin = next?;
        let part = range(text, begin);
        next = (part.end < text.len()).then(|| {
            let back = text.ceil_char_boundary(part.end.saturating_sub(SHARED_BYTES));
            let space = text[back..part.end].find(char::is_whitespace).map_or(back, |at| back + at);
            // It always gets further.
            space.max(text.ceil_char_boundary(begin + 1))
        });
        Some(Passage { offset: part.start, text: &text[part] })
    })
    .filter(|passage| !passage.text.trim().is_empty())
}

/// The bytes of the passage that begins at a byte.
fn range(text: &str, begin: usize) -> Range<usize> {
    let most = text.floor_char_boundary(text.len().min(begin + PASSAGE_BYTES_MAX));
    if most == text.len() {
        return begin..most;
    }
    // At a space in its second half, if there is one.
    let half = text.ceil_char_boundary(begin + PASSAGE_BYTES_MAX / 2);
    begin..text[half..most].rfind(char::is_whitespace).map_or(most, |at| half + at)
}

/// The indexed text of a blob, and whether all of it is indexed; nothing if it is no text.
pub fn text_of_blob(bytes: &[u8]) -> Option<(&str, bool)> {
    let cut = &bytes[..bytes.len().min(BLOB_BYTES_MAX)];
    let text = match std::str::from_utf8(cut) {
        Ok(text) => text,
        // The limit may be inside of a character.
        Err(error) if cut.len() < bytes.len() && error.error_len().is_none() => {
            std::str::from_utf8(&cut[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    (!text.contains('\0')).then_some((text, cut.len() == bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_cover_a_text_and_share_their_borders() {
        for text in ["word ".repeat(3000), "漢".repeat(5000), "x".repeat(9000), "short".to_owned()] {
            let found: Vec<_> = passages(&text).collect();
            let mut end = 0;
            for passage in &found {
                assert!(passage.offset <= end && passage.text.len() <= PASSAGE_BYTES_MAX);
                assert!(passage.offset == 0 || end - passage.offset > SHARED_BYTES / 2, "{} {end}", passage.offset);
                assert_eq!(&text[passage.offset..][..passage.text.len()], passage.text);
                end = passage.offset + passage.text.len();
            }
            assert_eq!(end, text.len(), "{} passages", found.len());
        }
        assert_eq!(passages(" \n ").count(), 0);
    }

    #[test]
    fn only_text_of_a_blob_is_indexed_up_to_a_bound() {
        assert_eq!(text_of_blob(b"plain"), Some(("plain", true)));
        assert_eq!(text_of_blob(b"\xff\xfe"), None);
        assert_eq!(text_of_blob(b"a\0b"), None);
        let long = "é".repeat(BLOB_BYTES_MAX);
        let (text, is_whole) = text_of_blob(long.as_bytes()).unwrap();
        assert_eq!((text.len(), is_whole), (BLOB_BYTES_MAX, false));
        let odd = format!("x{long}");
        assert_eq!(text_of_blob(odd.as_bytes()).unwrap().0.len(), BLOB_BYTES_MAX - 1);
    }
}
