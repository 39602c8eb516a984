//! One line of a log: how it is written and which lines are accepted.
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
use selvedge_model::event::LineOrder;
use selvedge_model::{Event, ThreadId, Timestamp};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::fast_line;
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
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

/// A line that is well formed and of a known type, but whose payload this program does not understand.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// Its number within the log, from 0.
    pub seq: u64,
    /// The thread it belongs to.
    pub thread_id: ThreadId,
    /// Its type.
    pub event_type: String,
    /// The position of events of this type in a changeset.
    pub place: LineOrder,
    /// Its payload.
    pub payload: Map<String, Value>,
    /// Why the payload is not understood.
    pub why: String,
}

/// A line as far as it is understood.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly every line is understood, and boxing each would cost time")]
pub enum Decoded {
    /// The whole line.
    Line(Line),
    /// All but its payload.
    Outline(Box<Outline>),
}

/// A line that can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// It is not strict JSON.
    #[error(transparent)]
    NotStrict(#[from] StrictError),
    /// It is JSON, but not a line of a log.
    #[error("not a line of a log: {0}")]
    NotALine(#[from] serde_json::Error),
    /// It would be too long.
    #[error("an event of {bytes} bytes is longer than the {MAX_LINE_BYTES} that a line may have")]
    TooLong {
        /// How long it would be.
        bytes: usize,
    },
    /// The log can't have a higher version.
    #[error("the log has reached the highest possible version, 2^63-1")]
    TooFar,
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
            Self::TooLong { .. } | Self::TooDeep { .. } | Self::TooFar => Kind::Invalid,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NotStrict(_) | Self::NotALine(_) => "invalid_line",
            Self::TooFar => "versions_exhausted",
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

/// Appends one line to `out`, including its `\n`.
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
    // A key that the JSON library interprets itself would make the line unreadable; strict parsing refuses it.
    let mut after_dollars = out[start..].split(|byte| *byte == b'$').skip(1);
    if out[start..].contains(&b'$') && after_dollars.any(|rest| rest.starts_with(&RESERVED_KEYS.as_bytes()[1..])) {
        strict::parse(&out[start..])?;
    }
    out.push(b'\n');
    Ok(())
}

/// Reads one line, given without its `\n`.
pub fn decode(bytes: &[u8]) -> Result<Line, LineError> {
    fast_line::decode(bytes).map_or_else(|| decode_thoroughly(bytes), Ok)
}

/// Reads one line, given without its `\n`, as far as it is understood. Text that is not a line is an error.
pub fn decode_as_far(bytes: &[u8]) -> Result<Decoded, LineError> {
    if let Some(line) = fast_line::decode(bytes) {
        return Ok(Decoded::Line(line));
    }
    let (seq, timestamp, thread_id, fields) = outer(bytes)?;
    let event_type = fields.get("event_type").cloned();
    let payload = fields.get("payload").cloned();
    match serde_json::from_value(Value::Object(fields)) {
        Ok(event) => Ok(Decoded::Line(Line { seq, timestamp, thread_id, event })),
        Err(error) => match (event_type, payload) {
            (Some(Value::String(event_type)), Some(Value::Object(payload))) => match place_of(&event_type) {
                Some(place) => {
                    let why = error.to_string();
                    Ok(Decoded::Outline(Box::new(Outline { seq, thread_id, event_type, place, payload, why })))
                }
                None => Err(error.into()),
            },
            _ => Err(error.into()),
        },
    }
}

/// The position of events of a type in a changeset; `None` if there is no such type.
pub fn place_of(event_type: &str) -> Option<LineOrder> {
    Some(match event_type {
        "recovery" | "key_rotated" => LineOrder::Lead,
        "thread_created" => LineOrder::Birth,
        "run_started" => LineOrder::RunStart,
        "snapshot" => LineOrder::Base,
        "message" => LineOrder::Messages,
        "patch" => LineOrder::Patches,
        "state_action" => LineOrder::Actions,
        "run_finished" => LineOrder::RunEnd,
        "checkpoint" => LineOrder::End,
        other if OTHERS.contains(&other) => LineOrder::Others,
        _ => return None,
    })
}

/// The types without a position of their own.
const OTHERS: [&str; 37] = [
    "call_opened",
    "tool_intent",
    "tool_outcome",
    "suspended",
    "decision",
    "asked",
    "usage",
    "account_opened",
    "reserved",
    "issued",
    "settled",
    "released",
    "corrected",
    "account_closed",
    "account_reopened",
    "reserved_again",
    "account_raised",
    "account_stopped",
    "request_answered",
    "manifest_changed",
    "child_spawned",
    "child_settled",
    "thread_handoff",
    "thread_resumed",
    "context_limit_reached",
    "hook_fired",
    "context_injected",
    "capability_denied",
    "sandboxed",
    "graph_started",
    "step_started",
    "step_completed",
    "foreach_completed",
    "graph_completed",
    "graph_error",
    "graph_cancelled",
    "blob_erased",
];

/// Reads one line through a JSON value; reports what is wrong with it.
pub(crate) fn decode_thoroughly(bytes: &[u8]) -> Result<Line, LineError> {
    let (seq, timestamp, thread_id, fields) = outer(bytes)?;
    let event = serde_json::from_value(Value::Object(fields))?;
    Ok(Line { seq, timestamp, thread_id, event })
}

/// The members of a line; `event_type` and `payload` unparsed.
type Outer = (u64, Timestamp, ThreadId, Map<String, Value>);

fn outer(bytes: &[u8]) -> Result<Outer, LineError> {
    let not_a_line = |why: &str| LineError::NotALine(serde::de::Error::custom(why));
    if bytes.len() >= MAX_LINE_BYTES {
        return Err(StrictError::TooLong { bytes: bytes.len() + 1, bytes_max: MAX_LINE_BYTES }.into());
    }
    if !(bytes.starts_with(b"{") && bytes.ends_with(b"}")) {
        return Err(not_a_line("it does not begin with `{` and end with `}`"));
    }
    let Value::Object(mut fields) = strict::parse(bytes)? else {
        return Err(not_a_line("it is not an object"));
    };
    let mut take = |name: &'static str| {
        fields.remove(name).ok_or_else(|| LineError::NotALine(serde::de::Error::missing_field(name)))
    };
    let seq = serde_json::from_value(take("seq")?)?;
    let claimed = take("timestamp")?;
    let timestamp: Timestamp = serde_json::from_value(claimed.clone())?;
    if claimed != timestamp.to_string().as_str() {
        return Err(not_a_line("its timestamp is not in the canonical form"));
    }
    let thread_id = serde_json::from_value(take("thread_id")?)?;
    if fields.len() != 2 {
        return Err(not_a_line("it has missing or unknown members"));
    }
    Ok((seq, timestamp, thread_id, fields))
}

/// How deeply well-formed JSON is nested, or an upper bound of that within the limit.
fn depth(json: &[u8]) -> usize {
    // Counting the opening brackets is many times faster than tracking them, and gives an upper bound.
    let opened = memchr::memchr2_iter(b'{', b'[', json).count();
    if opened <= MAX_DEPTH {
        return opened;
    }
    let mut depth = 0_usize;
    let mut deepest = 0;
    let mut in_string = false;
    let mut escaped = false;
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
    fn text_that_is_not_a_line_is_refused() {
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

    /// A line that is one byte longer could be read but not written.
    #[test]
    fn the_longest_line_that_can_be_written_is_the_longest_that_can_be_read() {
        let room = MAX_LINE_BYTES - message("").len();
        let longest = message(&"x".repeat(room));
        assert_eq!(longest.len(), MAX_LINE_BYTES);
        assert!(decode(longest.strip_suffix(b"\n").unwrap()).is_ok());
        let longer = [&longest[..longest.len() - 4], b"x\"}}"].concat();
        assert_eq!(longer.len(), MAX_LINE_BYTES);
        assert!(matches!(decode(&longer), Err(LineError::NotStrict(StrictError::TooLong { .. }))));
    }

    #[test]
    fn events_that_are_too_long_or_too_deep_are_not_written() {
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
