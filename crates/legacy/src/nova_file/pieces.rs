//! Splits one line into its pieces.
//!
//! A line should be one object. After a crash it may be the beginning of one followed by a complete one, because the next
//! program appended to a torn line; or several complete ones; or zero bytes with something around them.
//!
//! - Complete objects are taken from the front as long as there are any.
//! - Where none begins, the next one is searched for. It is taken only if it is an event with a time, and only where it can't be a
//!   value inside the torn one: after `"input":` an object may belong to the torn event, because the cut may have been
//!   before or after it. An object that begins and never ends is torn, and its content is not searched.
//! - Zero bytes never occur in JSON; they separate what is around them.
//! - A complete object with half a surrogate pair, or with a number that has no exact representation, is taken; its replaced values
//!   are reported with it.

use std::ops::Range;

use selvedge_log::strict::{self, Limits, MAX_LINE_BYTES};
use selvedge_model::event::Fields;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::DEPTH_MAX;
use super::event::Event;
use super::replacements::{self, Replacements};

/// How often the next object is searched for in one line; a crash does not leave a line with more beginnings.
const TRIES: usize = 1_000;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A piece of a line.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    /// A complete object, its end, and its replaced values.
    Object(Fields, usize, Replacements),
    /// An object that begins and never ends.
    Torn,
    /// Zero bytes.
    Nul,
    /// Something else.
    Invalid,
}

/// The pieces of a line, in order; none if it is blank.
pub(super) fn pieces(line: &[u8]) -> Vec<Piece> {
    let mut found = Vec::new();
    let mut tries = TRIES;
    let mut at = if line.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    while at < line.len() {
        let zeros = line[at..].iter().take_while(|byte| **byte == 0).count();
        if zeros > 0 {
            found.push(Piece::Nul);
            at += zeros;
            continue;
        }
        let end = line[at..].iter().position(|byte| *byte == 0).map_or(line.len(), |length| at + length);
        stretch(line, at..end, &mut tries, &mut found);
        at = end;
    }
    found
}

/// The pieces of a part without zero bytes.
fn stretch(line: &[u8], range: Range<usize>, tries: &mut usize, found: &mut Vec<Piece>) {
    let Range { start: mut at, end } = range;
    loop {
        at += line[at..end].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if at == end {
            return;
        }
        at = match beginning(&line[at..end]) {
            Beginning::Whole(length) => {
                let end = at + length;
                let whole = object(&line[at..end]);
                found.push(whole.map_or(Piece::Invalid, |(fields, replaced)| Piece::Object(fields, end, replaced)));
                end
            }
            _ => {
                let next = at + next_beginning(&line[at..end], tries);
                found.push(fragment(&line[at..next]));
                next
            }
        };
    }
}

/// What begins at the first of these bytes.
enum Beginning {
    /// A complete object of this length.
    Whole(usize),
    /// An object that never ends.
    Endless,
    /// Not an object.
    Nothing,
}

fn beginning(bytes: &[u8]) -> Beginning {
    if !bytes.starts_with(b"{") {
        return Beginning::Nothing;
    }
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => Beginning::Whole(values.byte_offset()),
        Some(Err(error)) if error.is_eof() => Beginning::Endless,
        _ => Beginning::Nothing,
    }
}

fn object(bytes: &[u8]) -> Option<(Fields, Replacements)> {
    let limits = Limits { bytes_max: MAX_LINE_BYTES, depth_max: DEPTH_MAX };
    let whole = replacements::whole_surrogates(bytes);
    let replaced = Replacements { text: whole.is_some(), number: replacements::has_inexact_number(bytes) };
    match strict::parse_within(whole.as_deref().unwrap_or(bytes), limits) {
        Ok(Value::Object(fields)) => Some((fields, replaced)),
        _ => None,
    }
}

fn fragment(bytes: &[u8]) -> Piece {
    if matches!(beginning(bytes), Beginning::Endless) { Piece::Torn } else { Piece::Invalid }
}

/// The position of the next object in bytes that don't begin with one; their length if there is none.
fn next_beginning(bytes: &[u8], tries: &mut usize) -> usize {
    let mut inside = Inside::default();
    for (at, byte) in bytes.iter().enumerate() {
        let may_begin = at > 0 && *byte == b'{' && !inside.expects_value();
        if may_begin && bytes.get(at + 1) == Some(&b'"') && *tries > 0 {
            *tries -= 1;
            match beginning(&bytes[at..]) {
                Beginning::Whole(length) if is_dated_event(&bytes[at..at + length]) => return at,
                Beginning::Endless => return at,
                _ => {}
            }
        }
        inside.take(*byte);
    }
    bytes.len()
}

fn is_dated_event(bytes: &[u8]) -> bool {
    object(bytes).and_then(|(fields, _)| Event::of(fields)).is_some_and(|event| event.timestamp().is_some())
}

/// The state of a JSON text at some byte, as far as it can be derived from a text that breaks off.
#[derive(Default)]
struct Inside {
    around: Vec<u8>,
    in_string: bool,
    escaped: bool,
    last: u8,
}

impl Inside {
    /// Whether the next byte may begin a value inside an array or an object.
    fn expects_value(&self) -> bool {
        let in_array = self.around.last() == Some(&b'[');
        !self.in_string && (self.last == b':' || in_array && matches!(self.last, b'[' | b','))
    }

    fn take(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            self.last = b'"';
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.around.push(byte),
            b'}' | b']' => drop(self.around.pop()),
            byte if byte.is_ascii_whitespace() => return,
            _ => {}
        }
        self.last = byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"{"role":"user","text":"a {\"b\":1}","timestamp":"t"}"#;

    /// One letter per piece: object, torn, nul, invalid.
    fn shape(line: &str) -> String {
        let letter = |piece: Piece| match piece {
            Piece::Object(..) => 'o',
            Piece::Torn => 't',
            Piece::Nul => 'n',
            Piece::Invalid => 'i',
        };
        pieces(line.as_bytes()).into_iter().map(letter).collect()
    }

    #[test]
    fn complete_objects_are_separated() {
        assert_eq!(shape(SAID), "o");
        assert_eq!(shape(&format!(" {SAID}\t{SAID} {SAID}")), "ooo");
        assert_eq!(shape("  \t\r"), "");
        assert_eq!(shape("\u{feff}{}"), "o");
    }

    #[test]
    fn an_event_after_a_torn_one_is_found_wherever_the_cut_was() {
        let torn = r#"{"type":"tool_use","name":"n","timestamp":"t","list":[1,"\u00e4\\"],"text":"x"}"#;
        for cut in 1..torn.len() {
            let expected = match &torn[..cut] {
                // The cut may be before the value or after it.
                open if open.ends_with([':', '[']) || open.ends_with("[1,") => "t",
                _ => "to",
            };
            assert_eq!(shape(&format!("{}{SAID}", &torn[..cut])), expected, "cut at {cut}");
        }
    }

    #[test]
    fn the_content_of_a_torn_event_is_not_taken_for_an_event() {
        assert_eq!(shape(&format!(r#"{{"type":"tool_use","input":{SAID}"#)), "t");
        assert_eq!(shape(&format!(r#"{{"type":"tool_use","input":[{{"a":1}},{SAID}"#)), "t");
        assert_eq!(shape(&format!(r#"{{"text":"cut{{"type":"tool_use","input":{SAID}"#)), "tt");
        assert_eq!(shape(&format!(r#"{{"type":"tool_use","input":{SAID}{SAID}"#)), "to");
        assert_eq!(shape(&format!("[{SAID}]")), "i");
    }

    #[test]
    fn zeros_separate_what_is_around_them() {
        assert_eq!(shape(&format!("\0\0{SAID}\0")), "non");
        assert_eq!(shape(&format!("{{\"type\":\"mes\0\0{SAID}")), "tno");
        assert_eq!(shape("\0"), "n");
    }

    #[test]
    fn content_that_a_strict_reader_refuses_is_invalid() {
        assert_eq!(shape(r#"{"role":"user","role":"user","text":"a"}"#), "i");
        assert_eq!(shape("plain words"), "i");
        assert_eq!(shape(&format!("plain words {SAID}")), "io");
        assert_eq!(shape(&format!("{{\"a\":{}1{}}}", "[".repeat(60), "]".repeat(60))), "i");
        assert_eq!(pieces(b"{\"role\":\"user\",\"text\":\"\xff\"}"), [Piece::Invalid]);
    }

    #[test]
    fn a_line_made_to_be_slow_is_read_fast() {
        let line = r#"{"a":[1,"#.repeat(100_000);
        assert!(shape(&line).len() <= TRIES + 1);
        let line = r#"{"a":"{" "#.repeat(100_000);
        assert!(shape(&line).len() <= TRIES + 1);
    }
}
