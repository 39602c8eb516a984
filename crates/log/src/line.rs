//! One line of a log: how it is written and what is accepted back.
//!
//! A line is one JSON object in UTF-8 with its fields in this order, ended by `\n`:
//!
//! ```text
//! {"seq":7,"timestamp":"2026-11-15T03:28:58.123456Z","thread_id":"scribe-0123456789ab","event_type":"message","payload":{…}}
//! ```
//!
//! Refused, when written and when read: a line over 8 MiB, nesting deeper than 64, duplicate keys, invalid UTF-8,
//! unknown fields, unknown event types.

use selvedge_model::error::{Classify, Kind};
use selvedge_model::{Event, ThreadId, Timestamp};
use serde::Serialize;
use serde_json::Value;

use crate::direct;
use crate::strict::{self, MAX_DEPTH, MAX_LINE_BYTES, RESERVED_KEYS, StrictError};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Its number within the log, from 0.
    pub seq: u64,
    /// When its writer claims it was written.
    pub timestamp: Timestamp,
    /// The thread it belongs to.
    pub thread_id: ThreadId,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// A line that can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// It is not JSON as strictly as a log needs it.
    #[error(transparent)]
    NotStrict(#[from] StrictError),
    /// It is JSON, but no line of a log.
    #[error("not a line of a log: {0}")]
    NotALine(#[from] serde_json::Error),
    /// It would be too long.
    #[error("an event of {bytes} bytes is longer than the {MAX_LINE_BYTES} that a line may have")]
    TooLong {
        /// How long it would be.
        bytes: usize,
    },
    /// It would be nested too deeply.
    #[error("an event is nested {depth} deep; a line may be nested {MAX_DEPTH} deep")]
    TooDeep {
        /// How deep it would be.
        depth: usize,
    },
}

impl Classify for LineError {
    fn kind(&self) -> Kind {
        match self {
            Self::NotStrict(_) | Self::NotALine(_) => Kind::Integrity,
            Self::TooLong { .. } | Self::TooDeep { .. } => Kind::Invalid,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NotStrict(_) | Self::NotALine(_) => "bad_line",
            Self::TooLong { .. } => "line_too_long",
            Self::TooDeep { .. } => "line_too_deep",
        }
    }

    fn hint(&self) -> Option<String> {
        matches!(self, Self::TooLong { .. }).then(|| "put large content into a blob and refer to it".to_owned())
    }
}

#[derive(Serialize)]
struct Borrowed<'a> {
    seq: u64,
    timestamp: Timestamp,
    thread_id: &'a ThreadId,
    #[serde(flatten)]
    event: &'a Event,
}

/// Appends one line to `out`, its `\n` included.
pub fn encode(
    out: &mut Vec<u8>,
    seq: u64,
    timestamp: Timestamp,
    thread_id: &ThreadId,
    event: &Event,
) -> Result<(), LineError> {
    let start = out.len();
    serde_json::to_writer(&mut *out, &Borrowed { seq, timestamp, thread_id, event })?;
    let bytes = out.len() - start + 1;
    if bytes > MAX_LINE_BYTES {
        return Err(LineError::TooLong { bytes });
    }
    let depth = depth(&out[start..]);
    if depth > MAX_DEPTH {
        return Err(LineError::TooDeep { depth });
    }
    // A key that the JSON library gives a meaning of its own would make the line unreadable; strict parsing refuses it.
    let mut behind_dollars = out[start..].split(|byte| *byte == b'$').skip(1);
    if out[start..].contains(&b'$') && behind_dollars.any(|rest| rest.starts_with(&RESERVED_KEYS.as_bytes()[1..])) {
        strict::parse(&out[start..])?;
    }
    out.push(b'\n');
    Ok(())
}

/// Reads one line, given without its `\n`.
pub fn decode(bytes: &[u8]) -> Result<Line, LineError> {
    direct::decode(bytes).map_or_else(|| decode_thoroughly(bytes), Ok)
}

/// Reads one line by way of a JSON value; says what is wrong with it.
pub(crate) fn decode_thoroughly(bytes: &[u8]) -> Result<Line, LineError> {
    let not_a_line = |why: &str| LineError::NotALine(serde::de::Error::custom(why));
    if !(bytes.starts_with(b"{") && bytes.ends_with(b"}")) {
        return Err(not_a_line("it does not begin with `{` and end with `}`"));
    }
    let Value::Object(mut fields) = strict::parse(bytes)? else {
        return Err(not_a_line("it is no object"));
    };
    let mut take = |name: &'static str| {
        fields.remove(name).ok_or_else(|| LineError::NotALine(serde::de::Error::missing_field(name)))
    };
    let seq = serde_json::from_value(take("seq")?)?;
    let claimed = take("timestamp")?;
    let timestamp: Timestamp = serde_json::from_value(claimed.clone())?;
    if claimed != timestamp.to_string().as_str() {
        return Err(not_a_line("its timestamp is not of the one form that is written"));
    }
    let thread_id = serde_json::from_value(take("thread_id")?)?;
    if fields.len() != 2 {
        return Err(not_a_line("it has missing or unknown members"));
    }
    let event = serde_json::from_value(Value::Object(fields))?;
    Ok(Line { seq, timestamp, thread_id, event })
}

/// How deeply well-formed JSON is nested, or more than that if it is not too deep.
fn depth(json: &[u8]) -> usize {
    // What opens few things is not nested deeply; counting is many times faster than following.
    let opened = memchr::memchr2_iter(b'{', b'[', json).count();
    if opened <= MAX_DEPTH {
        return opened;
    }
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in json {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'{' | b'[') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use selvedge_model::{Message, Role};

    use super::*;

    fn message(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let thread = ThreadId::new("scribe-0123456789ab").unwrap();
        encode(&mut out, 7, Timestamp::from_micros(0), &thread, &Event::Message(Message::text(Role::User, text)))
            .unwrap();
        out
    }

    #[test]
    fn a_line_is_written_in_the_documented_order_and_read_back() {
        let bytes = message("a \"quoted\"\nline {[\\");
        assert_eq!(
            String::from_utf8(bytes.clone()).unwrap(),
            "{\"seq\":7,\"timestamp\":\"1970-01-01T00:00:00.000000Z\",\"thread_id\":\"scribe-0123456789ab\",\
             \"event_type\":\"message\",\"payload\":{\"role\":\"user\",\"content\":\"a \\\"quoted\\\"\\nline {[\\\\\"}}\n"
        );
        let line = decode(bytes.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!(line.seq, 7);
        assert!(matches!(line.event, Event::Message(m) if m.plain_text().ends_with("{[\\")));
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for bad in [
            "",
            "{}",
            "[1]",
            r#"{"seq":1}"#,
            r#"{"seq":1,"seq":2,"timestamp":"1970-01-01T00:00:00Z","thread_id":"t","event_type":"patch","payload":{"ops":[]}}"#,
            r#"{"seq":1,"timestamp":"1970-01-01T00:00:00Z","thread_id":"t","event_type":"no_such_event","payload":{}}"#,
            r#"{"seq":-1,"timestamp":"1970-01-01T00:00:00Z","thread_id":"t","event_type":"patch","payload":{"ops":[]}}"#,
            r#"{"seq":1,"timestamp":"1970-01-01T00:00:00Z","thread_id":"../t","event_type":"patch","payload":{"ops":[]}}"#,
        ] {
            assert!(decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_too_long_or_too_deep_is_not_written() {
        let thread = ThreadId::new("t").unwrap();
        let at = Timestamp::from_micros(0);
        let mut out = Vec::new();
        let long = Event::Message(Message::text(Role::User, "x".repeat(MAX_LINE_BYTES)));
        assert!(matches!(encode(&mut out, 0, at, &thread, &long), Err(LineError::TooLong { .. })));
        let mut state = serde_json::Value::Null;
        for _ in 0..70 {
            state = serde_json::json!([state]);
        }
        let state_with_reserved_key = serde_json::json!({"$serde_json::private::RawValue": 1});
        let reserved = Event::Snapshot(selvedge_model::event::Snapshot { state: state_with_reserved_key });
        assert!(matches!(encode(&mut out, 0, at, &thread, &reserved), Err(LineError::NotStrict(_))));
        let deep = Event::Snapshot(selvedge_model::event::Snapshot { state });
        assert!(matches!(encode(&mut out, 0, at, &thread, &deep), Err(LineError::TooDeep { .. })));
    }
}
