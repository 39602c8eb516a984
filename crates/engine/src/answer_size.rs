//! Keeps the answer of a model small enough for a line of the log, however much the model says.
//!
//! - An answer of up to [`ANSWER_BYTES_MAX`] is recorded as it is.
//! - Of a larger one the largest blocks are shortened, until it fits: a text keeps its beginning and its end, and the whole is a blob, as
//!   with a large result of a tool. A call whose arguments are that large is not made: the model is told, and the arguments are a blob.
//!   Reasoning and opaque data of that size are dropped, because their provider takes them back unchanged or not at all.
//! - What was received of an answer that was cut or stopped keeps its beginning.

use std::io;

use selvedge_model::message::Block;
use serde_json::Value;

use crate::carryover::{StoreText, shortened, text_of};

/// The most bytes of the blocks of an answer, as JSON: half of what a line may have.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// How many bytes of a shortened text are kept.
const SHOWN_BYTES: usize = 8 << 10;
/// The most bytes that are kept of the text of an answer that was cut or stopped.
pub(crate) const PARTIAL_BYTES_MAX: usize = 1 << 20;
/// Room for the note of how much was left out.
const NOTE_BYTES: usize = 64;

/// The blocks of an answer, shortened until they fit.
pub(crate) fn bounded<E>(mut content: Vec<Block>, put: StoreText<'_, E>) -> Result<Vec<Block>, E> {
    let mut sizes: Vec<usize> = content.iter().map(size).collect();
    while sizes.iter().sum::<usize>() > ANSWER_BYTES_MAX {
        let Some((largest, _)) = sizes.iter().enumerate().max_by_key(|(_, size)| **size) else { break };
        if shorten(&mut content[largest], put)? {
            sizes[largest] = size(&content[largest]);
        } else {
            content.remove(largest);
            sizes.remove(largest);
        }
    }
    Ok(content)
}

/// Shortens a block; false if it can only be dropped.
fn shorten<E>(block: &mut Block, put: StoreText<'_, E>) -> Result<bool, E> {
    match block {
        Block::Text { text, blob: blob @ None } if text.len() > SHOWN_BYTES => {
            let whole = put(text)?;
            *text = shortened(text, SHOWN_BYTES, &whole);
            *blob = Some(whole);
        }
        Block::ToolCall { arguments, blob: blob @ None, .. } => {
            let text = text_of(arguments);
            if text.len() <= SHOWN_BYTES {
                return Ok(false);
            }
            let whole = put(&text)?;
            *blob = Some(whole);
            // Text instead of an object: the call is not made.
            *arguments = Value::String(shortened(&text, SHOWN_BYTES, &whole));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The size of a block as JSON.
fn size(block: &Block) -> usize {
    let mut counter = Counter(0);
    // Neither a block nor the counter can fail.
    _ = serde_json::to_writer(&mut counter, block);
    counter.0
}

/// Counts what is written, and keeps nothing.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The beginning of a text that was cut or stopped. The beginning of that is itself: a replay has the same.
pub(crate) fn beginning(mut text: String) -> String {
    if text.len() > PARTIAL_BYTES_MAX {
        let kept = text.floor_char_boundary(PARTIAL_BYTES_MAX - NOTE_BYTES);
        let left_out = text.len() - kept;
        text.truncate(kept);
        text.push_str(&format!("\n[… {left_out} bytes left out …]"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use selvedge_model::{CallId, Digest};
    use serde_json::json;

    use super::*;

    /// The bounded content, and what was stored.
    fn run(content: Vec<Block>) -> (Vec<Block>, Vec<String>) {
        let mut stored = Vec::new();
        let mut put = |text: &str| {
            stored.push(text.to_owned());
            Ok::<_, Infallible>(Digest([stored.len() as u8; 32]))
        };
        let content = bounded(content, &mut put).unwrap();
        (content, stored)
    }

    fn total(content: &[Block]) -> usize {
        content.iter().map(size).sum()
    }

    #[test]
    fn an_ordinary_answer_is_not_changed() {
        let content = vec![Block::text("x".repeat(3 << 20)), Block::text("y")];
        assert_eq!(run(content.clone()), (content, Vec::new()));
    }

    #[test]
    fn the_largest_texts_go_to_blobs_until_the_rest_fits() {
        let small = "s".repeat(1 << 19);
        let large = "l".repeat(3 << 20);
        let larger = "ä".repeat(3 << 20);
        let (content, stored) = run(vec![Block::text(&*large), Block::text(&*larger), Block::text(&*small)]);
        assert!(stored == [&*larger], "the rest fits then");
        assert!(total(&content) <= ANSWER_BYTES_MAX);
        let Block::Text { text, blob } = &content[1] else { panic!("{content:?}") };
        assert!(*blob == Some(Digest([1; 32])) && text.starts_with("ää") && text.ends_with("ää") && text.len() < 9_000);
        assert_eq!((&content[0], &content[2]), (&Block::text(large), &Block::text(small)));
        // An answer that was recorded is not changed again: a replay has the same.
        assert_eq!(run(content.clone()), (content, Vec::new()));
    }

    /// A control character has six bytes as JSON.
    #[test]
    fn what_counts_is_the_size_as_json() {
        let (content, stored) = run(vec![Block::text("\u{1}".repeat(2 << 20))]);
        assert!(stored.len() == 1 && total(&content) <= ANSWER_BYTES_MAX);
    }

    #[test]
    fn a_call_with_huge_arguments_is_kept_as_one_that_is_not_made() {
        let call = |arguments| Block::tool_call(CallId::new("call_1").unwrap(), "write", arguments);
        let arguments = json!({"text": "z".repeat(5 << 20)});
        let (content, stored) = run(vec![call(arguments.clone()), call(json!({"text": "small"}))]);
        assert_eq!(stored, [arguments.to_string()]);
        let Block::ToolCall { arguments, blob, .. } = &content[0] else { panic!("{content:?}") };
        assert!(arguments.is_string() && blob.is_some());
        assert_eq!(content[1], call(json!({"text": "small"})));
    }

    #[test]
    fn huge_reasoning_and_opaque_data_are_dropped() {
        let thinking = Block::Thinking {
            text: "t".repeat(5 << 20),
            signature: Some("s".to_owned()),
            provider: Some("p".to_owned()),
        };
        assert_eq!(run(vec![thinking, Block::text("a")]), (vec![Block::text("a")], Vec::new()));
    }

    #[test]
    fn the_beginning_of_a_partial_text_ends_at_a_character() {
        let text = "a".to_owned() + &"ä".repeat(PARTIAL_BYTES_MAX);
        let kept = beginning(text);
        assert!(kept.len() <= PARTIAL_BYTES_MAX && kept.ends_with("bytes left out …]"));
        assert_eq!(beginning(kept.clone()), kept);
        assert_eq!(beginning("short".to_owned()), "short");
    }
}
