//! The fast path of decoding a line: straight into its event, without a JSON value in between.
//!
//! A quick scan of the bytes checks what strict JSON demands beyond JSON itself: no duplicate key, no reserved key, limited depth,
//! nothing that a reader could skip unnoticed. Then the event is deserialised. Everything that is not written as the writer writes it is
//! left to [`line::decode_thoroughly`](crate::line::decode_thoroughly), which is authoritative and reports errors. So this path may accept
//! less than that one, never more.

use selvedge_model::message::{Block, Visibility};
use selvedge_model::{Event, Message, MessageId, RunId, ThreadId, Timestamp};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error;

use crate::line::Line;
use crate::strict::{MAX_DEPTH, MAX_LINE_BYTES, RESERVED_KEYS};

/// The most members that an object may have here: each key is compared with all before it.
const MEMBERS_MAX: usize = 32;
/// The longest number accepted here: without an exponent, none of this length is out of range.
const NUMBER_MAX: usize = 17;

/// Reads one line, given without its `\n`; `None` if it needs the thorough path.
pub(crate) fn decode(bytes: &[u8]) -> Option<Line> {
    // The limit includes the `\n`.
    if bytes.len() >= MAX_LINE_BYTES {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?;
    let mut cursor = Cursor { text, at: 0 };
    cursor.pass("{\"seq\":")?;
    let seq = cursor.whole()?;
    cursor.pass(",\"timestamp\":")?;
    let timestamp = exact(cursor.plain()?)?;
    cursor.pass(",\"thread_id\":")?;
    let thread_id = ThreadId::new(cursor.plain()?).ok()?;
    cursor.pass(",\"event_type\":")?;
    let event_type = cursor.plain()?;
    cursor.pass(",\"payload\":")?;
    let begin = cursor.at;
    // Text messages, most of a log, are read in a single pass.
    if event_type == "message" {
        if let Some(message) = cursor.text_message()
            && cursor.is_closed()
        {
            return Some(Line { seq, timestamp, thread_id, event: Event::Message(message) });
        }
        cursor.at = begin;
    }
    cursor.value(MAX_DEPTH - 1)?;
    let payload = &text[begin..cursor.at];
    if !cursor.is_closed() {
        return None;
    }
    let event = match event_type {
        "message" => Event::Message(serde_json::from_str(payload).ok()?),
        "checkpoint" => Event::Checkpoint(serde_json::from_str(payload).ok()?),
        _ => serde_json::from_str(text).ok()?,
    };
    Some(Line { seq, timestamp, thread_id, event })
}

/// Scans JSON without white space. It need not detect invalid JSON: deserialising does.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn next(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn pass(&mut self, expected: &str) -> Option<()> {
        self.text.as_bytes()[self.at..].starts_with(expected.as_bytes()).then(|| self.at += expected.len())
    }

    fn value(&mut self, depth_left: usize) -> Option<()> {
        match self.next()? {
            b'"' => self.string().map(|_| ()),
            b'{' => self.object(depth_left.checked_sub(1)?),
            b'[' => self.array(depth_left.checked_sub(1)?),
            b'-' | b'0'..=b'9' => self.number().map(|_| ()),
            _ => ["true", "false", "null"].into_iter().find_map(|word| self.pass(word)),
        }
    }

    /// Whether the line ends after its payload.
    fn is_closed(&mut self) -> bool {
        self.pass("}").is_some() && self.at == self.text.len()
    }

    fn object(&mut self, depth_left: usize) -> Option<()> {
        let mut keys = [""; MEMBERS_MAX];
        self.at += 1;
        for count in 0.. {
            if self.pass("}").is_some() {
                return Some(());
            }
            if count > 0 {
                self.pass(",")?;
            }
            let key = self.plain()?;
            if key.starts_with(RESERVED_KEYS) || keys[..count].contains(&key) {
                return None;
            }
            *keys.get_mut(count)? = key;
            self.pass(":")?;
            self.value(depth_left)?;
        }
        None
    }

    fn array(&mut self, depth_left: usize) -> Option<()> {
        self.at += 1;
        let mut is_first = true;
        while self.pass("]").is_none() {
            if !std::mem::replace(&mut is_first, false) {
                self.pass(",")?;
            }
            self.value(depth_left)?;
        }
        Some(())
    }

    /// A number, as text.
    fn number(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(|byte| !matches!(byte, b'-' | b'.' | b'0'..=b'9'))?;
        self.at += length;
        (length <= NUMBER_MAX && !matches!(self.next(), Some(b'e' | b'E'))).then(|| &rest[..length])
    }

    /// A number without sign, fraction or exponent.
    fn whole<T: std::str::FromStr>(&mut self) -> Option<T> {
        let number = self.number()?;
        let is_padded = number.len() > 1 && number.starts_with('0');
        number.parse().ok().filter(|_| !is_padded)
    }

    /// A message of one text, in exactly the form that is written.
    fn text_message(&mut self) -> Option<Message> {
        self.pass("{")?;
        let id = match self.pass("\"id\":") {
            Some(()) => Some(MessageId::new(self.plain()?).ok()?),
            None => None,
        };
        self.pass(if id.is_some() { ",\"role\":" } else { "\"role\":" })?;
        let role = self.word()?;
        self.pass(",\"content\":")?;
        let content = vec![Block::text(self.unescaped()?)];
        let visibility = match self.pass(",\"visibility\":") {
            Some(()) => self.word()?,
            None => Visibility::All,
        };
        let run_id = match self.pass(",\"run_id\":") {
            Some(()) => Some(RunId::new(self.plain()?).ok()?),
            None => None,
        };
        let step = match self.pass(",\"step\":") {
            Some(()) => Some(self.whole()?),
            None => None,
        };
        let marker = match self.pass(",\"marker\":") {
            Some(()) => Some(self.word()?),
            None => None,
        };
        self.pass("}")?;
        Some(Message { id, role, content, visibility, run_id, step, marker })
    }

    /// One of a few enum names.
    fn word<T: Deserialize<'a>>(&mut self) -> Option<T> {
        T::deserialize(IntoDeserializer::<'_, Error>::into_deserializer(self.plain()?)).ok()
    }

    /// A string with its escapes resolved; `None` if an escape is invalid, or if a character should have been escaped.
    fn unescaped(&mut self) -> Option<String> {
        let start = self.at + 1;
        self.string()?;
        let mut rest = &self.text[start..self.at - 1];
        // Without an early exit, so that the compiler can vectorise it.
        if rest.bytes().fold(false, |found, byte| found | (byte < b' ')) {
            return None;
        }
        let mut text = String::with_capacity(rest.len());
        while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
            text.push_str(&rest[..at]);
            let escape = rest.as_bytes().get(at + 1)?;
            let mut end = at + 2;
            text.push(match escape {
                b'n' => '\n',
                b'"' => '"',
                b'\\' => '\\',
                b't' => '\t',
                b'r' => '\r',
                b'/' => '/',
                b'b' => '\u{8}',
                b'f' => '\u{c}',
                b'u' => {
                    end = at + 6;
                    let digits =
                        rest.get(at + 2..end).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
                    u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)?
                }
                _ => return None,
            });
            rest = &rest[end..];
        }
        text.push_str(rest);
        Some(text)
    }

    /// A string without escapes.
    fn plain(&mut self) -> Option<&'a str> {
        self.string()?
    }

    /// A string, returned if it has no escapes; `None` if it has half of a surrogate pair.
    fn string(&mut self) -> Option<Option<&'a str>> {
        self.pass("\"")?;
        let start = self.at;
        let bytes = self.text.as_bytes();
        let mut is_plain = true;
        loop {
            self.at += ordinary(&bytes[self.at..]);
            match self.next()? {
                b'"' => break,
                b'\\' => {}
                _ => continue,
            }
            is_plain = false;
            if matches!(bytes[self.at..], [_, b'u', b'd' | b'D', b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F', ..]) {
                return None;
            }
            self.at = (self.at + 2).min(bytes.len());
        }
        self.at += 1;
        Some(is_plain.then(|| &self.text[start..self.at - 1]))
    }
}

/// The number of bytes before the next quotation mark or backslash.
pub(crate) fn ordinary(bytes: &[u8]) -> usize {
    memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len())
}

/// A time in exactly the form that is written.
fn exact(text: &str) -> Option<Timestamp> {
    let bytes: &[u8; 27] = text.as_bytes().try_into().ok()?;
    let mut at = 0;
    let mut part = |digits: usize, end: u8| {
        let number = bytes[at..at + digits]
            .iter()
            .try_fold(0, |number: i64, byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')));
        at += digits + 1;
        number.filter(|_| bytes[at - 1] == end)
    };
    let year = part(4, b'-')?;
    let month = part(2, b'-')?;
    let day = part(2, b'T')?;
    let hour = part(2, b':')?;
    let minute = part(2, b':')?;
    let second = part(2, b'.')?;
    let micros = part(6, b'Z')?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => return None,
    };
    if year < 1970 || !(1..=days_of_month).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Days since 1970, in years that start in March so that the leap day is their last.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day - 719_469;
    Some(Timestamp::from_micros((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + micros))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use selvedge_model::message::Marker;
    use selvedge_model::{Digest, Role};

    use super::*;
    use crate::line::decode_thoroughly;

    const LINES: [&str; 8] = [
        r#"{"seq":7,"timestamp":"2026-11-15T03:28:58.123456Z","thread_id":"scribe-0123456789ab","event_type":"message","payload":{"id":"m1","role":"user","content":"a \"quoted\"\nline \u00e9"}}"#,
        r#"{"seq":8,"timestamp":"2026-11-15T03:28:58.123456Z","thread_id":"scribe-0123456789ab","event_type":"message","payload":{"role":"assistant","content":[{"type":"tool_call","id":"c1","name":"read","arguments":{"n":-1,"f":1.5,"big":1844674407370955,"nested":[[],{}],"none":null}}]}}"#,
        r#"{"seq":9,"timestamp":"2026-11-15T03:28:58.123456Z","thread_id":"scribe-0123456789ab","event_type":"snapshot","payload":{"state":{"a":[1,2,{"b":true}]}}}"#,
        r#"{"seq":10,"timestamp":"2026-11-15T03:28:58.123456Z","thread_id":"scribe-0123456789ab","event_type":"hook_fired","payload":{"hook":"h","at":1.0}}"#,
        r#"{"seq":5,"timestamp":"2026-11-15T03:28:58.123456Z","thread_id":"scribe-0123456789ab","event_type":"checkpoint","payload":{"version":2,"reason":"UserMessage","epoch":1,"log_id":"0123456789abcdef0123456789abcdef","segment":0,"byte_offset":1000,"hash":"0000000000000000000000000000000000000000000000000000000000000000","settled":false,"signer":"1111111111111111111111111111111111111111111111111111111111111111","sig":"x"}}"#,
        r#"{"seq":6,"timestamp":"2026-11-15T03:28:58.123456Z","thread_id":"scribe-0123456789ab","event_type":"message","payload":{"id":"m1","role":"tool","content":"a \"b\"\n\t\\ \/ \u001b \u20aC","visibility":"internal","run_id":"r1","step":3}}"#,
        r#"{"seq":6,"timestamp":"2026-11-15T03:28:58.123456Z","thread_id":"scribe-0123456789ab","event_type":"message","payload":{"id":"m2","role":"assistant","content":"(stopped by user)","step":3,"marker":"stopped"}}"#,
        r#"{"seq":6,"timestamp":"2026-11-15T03:28:58.123456Z","thread_id":"scribe-0123456789ab","event_type":"message","payload":{"role":"user","content":[{"type":"text","text":"a … z","blob":"0000000000000000000000000000000000000000000000000000000000000000"}]}}"#,
    ];

    /// The fast path reads the same as the thorough one.
    fn agree(bytes: &[u8]) {
        if let Some(direct) = decode(bytes) {
            assert_eq!(decode_thoroughly(bytes).unwrap(), direct, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn ordinary_lines_take_the_fast_path() {
        for line in LINES {
            assert!(decode(line.as_bytes()).is_some(), "{line}");
            agree(line.as_bytes());
        }
    }

    #[test]
    fn lines_that_strict_json_refuses_do_not_take_the_fast_path() {
        let payload = |payload: &str| LINES[3].replace(r#"{"hook":"h","at":1.0}"#, payload);
        let deep = |depth: usize| payload(&format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth)));
        for refused in [
            payload(r#"{"a":1,"a":2}"#),
            payload(r#"{"a":[{"b":1,"\u0062":2}]}"#),
            payload(r#"{"a":{"$serde_json::private::RawValue":"1"}}"#),
            payload(r#"{"a":"\ud800"}"#),
            deep(63),
            LINES[3].replace(r#""seq":10,"#, r#""seq":10,"seq":10,"#),
            LINES[3].replace(r#""seq":10,"#, r#""seq":10,"more":1,"#),
            LINES[3].replace(r#""seq":10,"#, r#""event_type":"hook_fired","seq":10,"#),
            LINES[3].replace(".123456Z", ".123456000Z"),
            LINES[3].replace("58.123456Z", "58.123456+00:00"),
            LINES[3].replace("hook_fired", "no_such_event"),
            format!("{}x", LINES[3]),
            format!(" {}", LINES[3]),
            LINES[0].replace(r#""seq":7,"#, r#""seq":07,"#),
            LINES[0].replace(r#""seq":7,"#, r#""seq":7.0,"#),
            LINES[0].replace(r#""seq":7,"#, r#""seq":-7,"#),
            LINES[5].replace(r#""step":3"#, r#""step":03"#),
            LINES[5].replace(r#""step":3"#, r#""step":4294967296"#),
            LINES[5].replace(r#""step":3"#, r#""step":3,"step":3"#),
            LINES[5].replace(r#""m1""#, r#""""#),
            LINES[6].replace(r#""marker":"stopped""#, r#""marker":"asleep""#),
            LINES[6].replace(r#""marker":"stopped""#, r#""marker":"stopped","marker":"stopped""#),
            LINES[7].replace(r#""blob":"00"#, r#""blob":"0"#),
            LINES[5].replace("internal", "inward"),
            LINES[5].replace(r"\t", "\t"),
            LINES[5].replace(r"\t", "\u{1f}"),
            LINES[5].replace(r"\t", r"\v"),
            LINES[5].replace(r"\t", r"\u12"),
            LINES[5].replace(r"\t", r"\u+123"),
            LINES[5].replace(r"\t", r"\u00é9"),
        ] {
            assert!(decode(refused.as_bytes()).is_none(), "{refused}");
            assert!(decode_thoroughly(refused.as_bytes()).is_err(), "{refused}");
        }
        assert_eq!(decode(deep(62).as_bytes()), decode_thoroughly(deep(62).as_bytes()).ok());
    }

    #[test]
    fn lines_in_another_form_take_the_thorough_path() {
        for line in [
            LINES[0].replace(r#""seq":7,"#, r#""seq": 7,"#),
            LINES[0].replace(r#""id":"m1""#, r#""\u0069d":"m1""#),
            LINES[3].replace(r#""at":1.0"#, r#""at":1e3"#),
            LINES[3].replace(r#""at":1.0"#, r#""at":0.1234567890123456789"#),
            LINES[3].replace(r#""h""#, r#""\ud83d\ude00""#),
        ] {
            assert!(decode(line.as_bytes()).is_none(), "{line}");
            assert!(decode_thoroughly(line.as_bytes()).is_ok(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_time_is_read_as_it_was_written(micros in 0..253_402_300_799_999_999_i64) {
            let time = Timestamp::from_micros(micros);
            prop_assert_eq!(exact(&time.to_string()), Some(time));
        }

        #[test]
        fn a_time_in_another_form_does_not_take_the_fast_path(
            at in 0..27_usize, with in "[0-9:TZ.+ -]",
        ) {
            let mut text = "2024-02-29T23:59:59.999999Z".to_owned();
            text.replace_range(at..=at, &with);
            let thorough = text.parse::<Timestamp>().ok().filter(|time| time.to_string() == text);
            prop_assert_eq!(exact(&text), thorough);
        }

        #[test]
        fn a_text_is_read_as_it_was_written(
            text in any::<String>(), id in prop::option::of("[a-z ]{1,9}"), step in any::<Option<u32>>(),
            marker in prop::option::of(prop_oneof![Just(Marker::Stopped), Just(Marker::Failed)]), blob in any::<Option<[u8; 32]>>(),
        ) {
            let thread = ThreadId::new("scribe-0123456789ab").unwrap();
            let id = id.map(|id| MessageId::new(id).unwrap());
            let content = vec![Block::Text { text, blob: blob.map(Digest) }];
            let message = Message { id, step, marker, content, ..Message::text(Role::User, "") };
            let mut bytes = Vec::new();
            crate::line::encode(&mut bytes, 7, Timestamp::from_micros(0), &thread, &Event::Message(message.clone())).unwrap();
            bytes.pop();
            prop_assert_eq!(decode(&bytes).map(|line| line.event), Some(Event::Message(message)));
            agree(&bytes);
        }

        #[test]
        fn a_changed_line_is_read_the_same_or_not_on_the_fast_path(
            line in 0..LINES.len(), at in any::<prop::sample::Index>(), len in 0..4_usize,
            with in r#"[\[\]{}:,"a0-9.e \\tn]{0,4}"#,
        ) {
            let mut bytes = LINES[line].as_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes.splice(at..(at + len).min(bytes.len()), with.bytes());
            agree(&bytes);
        }
    }
}
