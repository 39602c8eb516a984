//! Strict JSON: the only reader for data that was signed or will be.
//!
//! `serde_json` alone keeps the last of two equal keys, so two readers could see different values under one
//! signature. This module reads a text in one pass and returns a value that every careful reader agrees on.
//!
//! It refuses:
//!
//! - more bytes than the limits allow, without reading them;
//! - invalid UTF-8, also in escapes (`\ud800` alone);
//! - the same key twice in one object, at any level;
//! - objects and arrays nested deeper than the limits allow (`[]` is one deep);
//! - anything but white space around the value;
//! - keys that `serde_json` interprets itself ([`RESERVED_KEYS`]): reading such an object as a `Value` for a
//!   second time would replace it by the value of its text, unchecked.
//!
//! An integer beyond 64 bits is read as the nearest double, as in `serde_json`; [`check_canonicalizable`] refuses it.
//! Values that were made elsewhere are passed to [`check_writable`] before they are written, so that they can be read back.

use std::cell::RefCell;
use std::fmt;

use selvedge_model::error::{Classify, Kind};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

/// The longest line of a log.
pub const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;

/// The deepest nesting of a line of a log.
pub const MAX_DEPTH: usize = 64;

/// The start of keys that `serde_json` reserves.
pub const RESERVED_KEYS: &str = "$serde_json::private::";

/// Up to this integer, all integers are exact as doubles.
const MAX_EXACT: u64 = 1 << 53;

/// The limits of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of bytes.
    pub bytes_max: usize,
    /// The maximum nesting of objects and arrays. `serde_json` itself refuses more than 127.
    pub depth_max: usize,
}

impl Limits {
    /// For a line of a log.
    pub const LINE: Self = Self { bytes_max: MAX_LINE_BYTES, depth_max: MAX_DEPTH };
}

/// Why a text or a value is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrictError {
    /// More bytes than allowed.
    #[error("it is {bytes} bytes long, and the limit is {bytes_max}")]
    TooLong {
        /// The number of bytes.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// Invalid UTF-8.
    #[error("it is not UTF-8 at byte {offset}")]
    NotUtf8 {
        /// The position of the first invalid byte.
        offset: usize,
    },
    /// Not JSON, or text after the value.
    #[error("it is not JSON: {why}")]
    Syntax {
        /// What is wrong, with line and column.
        why: String,
    },
    /// The same key twice in one object.
    #[error("the key `{}` appears twice in one object, at line {line} column {column}", .key.escape_debug())]
    DuplicateKey {
        /// The beginning of the key.
        key: String,
        /// The line of the second key, from 1.
        line: usize,
        /// The column after the second key, from 1.
        column: usize,
    },
    /// Nested too deep.
    #[error("it is nested deeper than {depth_max} levels")]
    TooDeep {
        /// The limit.
        depth_max: usize,
    },
    /// A key that `serde_json` would interpret.
    #[error("the key `{}` is reserved", .key.escape_debug())]
    ReservedKey {
        /// The beginning of the key.
        key: String,
    },
    /// JSON, but not of the expected form.
    #[error("it does not have the expected form: {why}")]
    Form {
        /// What was expected.
        why: String,
    },
    /// A number that RFC 8785 would silently round.
    #[error("the number {number} is beyond 2^53 and can't be signed exactly")]
    Inexact {
        /// The number.
        number: String,
    },
}

impl Classify for StrictError {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "json_too_long",
            Self::NotUtf8 { .. } => "json_not_utf8",
            Self::Syntax { .. } => "json_syntax",
            Self::DuplicateKey { .. } => "json_duplicate_key",
            Self::TooDeep { .. } => "json_too_deep",
            Self::ReservedKey { .. } => "json_reserved_key",
            Self::Form { .. } => "json_invalid_fields",
            Self::Inexact { .. } => "json_inexact_number",
        }
    }

    fn hint(&self) -> Option<String> {
        matches!(self, Self::Inexact { .. }).then(|| "write such a number as a string".to_owned())
    }
}

/// Reads one JSON value within the limits of a line.
pub fn parse(bytes: &[u8]) -> Result<Value, StrictError> {
    parse_within(bytes, Limits::LINE)
}

/// Reads one JSON value within these limits.
pub fn parse_within(bytes: &[u8], limits: Limits) -> Result<Value, StrictError> {
    if bytes.len() > limits.bytes_max {
        return Err(StrictError::TooLong { bytes: bytes.len(), bytes_max: limits.bytes_max });
    }
    let text = std::str::from_utf8(bytes).map_err(|e| StrictError::NotUtf8 { offset: e.valid_up_to() })?;
    let refused = RefCell::new(None);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Level { depth: 0, depth_max: limits.depth_max, refused: &refused }.deserialize(&mut deserializer);
    value.and_then(|value| deserializer.end().map(|()| value)).map_err(|error| match refused.take() {
        Some(StrictError::DuplicateKey { key, .. }) => {
            StrictError::DuplicateKey { key, line: error.line(), column: error.column() }
        }
        Some(refused) => refused,
        None => StrictError::Syntax { why: error.to_string() },
    })
}

/// Reads one JSON value within the limits of a line as a `T`.
pub fn parse_as<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StrictError> {
    serde_json::from_value(parse(bytes)?).map_err(|error| StrictError::Form { why: whole_number(error.to_string()) })
}

/// What is wrong with a number that should be a whole one, in words that fit a number beyond 64 bits too: that was read as a double.
fn whole_number(why: String) -> String {
    let is_whole = why.contains("`, expected u64");
    let found = why.split_once("floating point `").and_then(|(_, rest)| rest.split_once('`'));
    match found {
        Some((number, _)) if is_whole => {
            format!("a whole number from 0 to {} is expected, not `{}`", u64::MAX, number.trim_end_matches(".0"))
        }
        _ => why,
    }
}

/// Checks that a value made elsewhere can be read back after it is written: its depth and its keys, not its length.
pub fn check_writable(value: &Value, depth_max: usize) -> Result<(), StrictError> {
    fn check(value: &Value, depth_left: usize, depth_max: usize) -> Result<(), StrictError> {
        let inner = || depth_left.checked_sub(1).ok_or(StrictError::TooDeep { depth_max });
        match value {
            Value::Array(items) => {
                let depth_left = inner()?;
                items.iter().try_for_each(|item| check(item, depth_left, depth_max))
            }
            Value::Object(members) => {
                let depth_left = inner()?;
                members.iter().try_for_each(|(key, member)| {
                    check_key(key)?;
                    check(member, depth_left, depth_max)
                })
            }
            _ => Ok(()),
        }
    }
    check(value, depth_max, depth_max)
}

/// Checks that RFC 8785 keeps every number of the value: none is beyond ±2^53, where integers are rounded.
///
/// Doubles beyond that are refused too, because a longer integer in the text has already become a double here.
pub fn check_canonicalizable(value: &Value) -> Result<(), StrictError> {
    match value {
        Value::Array(items) => items.iter().try_for_each(check_canonicalizable),
        Value::Object(members) => members.values().try_for_each(check_canonicalizable),
        Value::Number(number) if !is_exact(number) => Err(StrictError::Inexact { number: number.to_string() }),
        _ => Ok(()),
    }
}

fn is_exact(number: &Number) -> bool {
    if let Some(unsigned) = number.as_u64() {
        unsigned <= MAX_EXACT
    } else if let Some(signed) = number.as_i64() {
        signed.unsigned_abs() <= MAX_EXACT
    } else {
        // False for values that are not finite; the comparison is exact, because 2^53 is a double.
        number.as_f64().is_some_and(|double| double.abs() <= MAX_EXACT as f64)
    }
}

fn check_key(key: &str) -> Result<(), StrictError> {
    if key.starts_with(RESERVED_KEYS) { Err(StrictError::ReservedKey { key: beginning(key) }) } else { Ok(()) }
}

fn beginning(key: &str) -> String {
    key.chars().take(80).collect()
}

/// Builds the value at one level of nesting. Our own errors are kept in `refused`, because an error that has
/// passed through serde is only text.
#[derive(Clone, Copy)]
struct Level<'a> {
    depth: usize,
    depth_max: usize,
    refused: &'a RefCell<Option<StrictError>>,
}

impl Level<'_> {
    fn refuse<E: serde::de::Error>(&self, why: StrictError) -> E {
        *self.refused.borrow_mut() = Some(why);
        E::custom("refused")
    }

    fn inner<E: serde::de::Error>(&self) -> Result<Self, E> {
        if self.depth == self.depth_max {
            return Err(self.refuse(StrictError::TooDeep { depth_max: self.depth_max }));
        }
        Ok(Self { depth: self.depth + 1, ..*self })
    }
}

impl<'de> DeserializeSeed<'de> for Level<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut members = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            check_key(&key).map_err(|why| self.refuse::<A::Error>(why))?;
            match members.entry(key) {
                Entry::Vacant(slot) => {
                    slot.insert(access.next_value_seed(inner)?);
                }
                Entry::Occupied(slot) => {
                    let twice = StrictError::DuplicateKey { key: beginning(slot.key()), line: 0, column: 0 };
                    return Err(self.refuse(twice));
                }
            }
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn plain_json_is_read_as_serde_json_reads_it() {
        for text in ["null", " [1,-2,3.5e-7,\"\\u00e9\\n\",{}] \n", r#"{"b":{"a":[]},"a":18446744073709551615}"#] {
            assert_eq!(parse(text.as_bytes()), Ok(serde_json::from_str(text).unwrap()));
        }
    }

    #[test]
    fn a_duplicate_key_is_refused_at_any_level_and_reported_with_its_position() {
        let found = parse(br#"{"a":1,"a":2}"#).unwrap_err();
        let StrictError::DuplicateKey { key, line: 1, column } = &found else { panic!("{found:?}") };
        assert_eq!((key.as_str(), *column), ("a", 10));
        for text in [r#"[{"x":{"k":1,"j":2,"k":1}}]"#, r#"{"\u0061":1,"a":1}"#, r#"{"":0,"":0}"#] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().code(), "json_duplicate_key", "{text}");
        }
        assert!(parse(br#"[{"a":1},{"a":2}]"#).is_ok());
    }

    #[test]
    fn sixty_four_levels_are_read_and_sixty_five_are_refused() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let value = parse(nested(64).as_bytes()).unwrap();
        assert_eq!(check_writable(&value, MAX_DEPTH), Ok(()));
        assert_eq!(check_writable(&value, 63), Err(StrictError::TooDeep { depth_max: 63 }));
        assert_eq!(parse(nested(65).as_bytes()), Err(StrictError::TooDeep { depth_max: 64 }));
        assert_eq!(parse("[".repeat(100_000).as_bytes()), Err(StrictError::TooDeep { depth_max: 64 }));
        assert_eq!(parse(r#"{"a":"#.repeat(1000).as_bytes()), Err(StrictError::TooDeep { depth_max: 64 }));
    }

    #[test]
    fn a_line_may_be_eight_mebibytes_long_and_no_longer() {
        let mut line = vec![b' '; MAX_LINE_BYTES];
        line[0] = b'1';
        assert_eq!(parse(&line), Ok(json!(1)));
        line.push(b' ');
        assert_eq!(parse(&line).unwrap_err().code(), "json_too_long");
    }

    #[test]
    fn text_that_is_not_json_is_refused() {
        for text in ["", " ", "{", "1 2", "[1,]", "{\"a\"}", "nul", "01", "NaN", "1e400", "\u{feff}1", "'a'", "{}x"] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().code(), "json_syntax", "{text}");
        }
        assert_eq!(parse(br#""\ud800""#).unwrap_err().code(), "json_syntax");
        assert_eq!(parse(b"\"a\xff\""), Err(StrictError::NotUtf8 { offset: 2 }));
    }

    #[test]
    fn keys_that_serde_json_would_replace_are_refused() {
        let text = br#"{"a":{"$serde_json::private::RawValue":"{\"a\":1,\"a\":2}"}}"#;
        assert_eq!(parse(text).unwrap_err().code(), "json_reserved_key");
        let value = json!([{ "$serde_json::private::Number": "1" }]);
        assert_eq!(check_writable(&value, 64).unwrap_err().code(), "json_reserved_key");
    }

    #[test]
    fn an_unexpected_form_is_distinguished_from_bad_json() {
        assert_eq!(parse_as::<Vec<u8>>(b"[1,2]"), Ok(vec![1, 2]));
        assert_eq!(parse_as::<Vec<u8>>(b"[1,256]").unwrap_err().code(), "json_invalid_fields");
    }

    #[test]
    fn numbers_that_would_be_rounded_are_refused() {
        for exact in ["0", "-0", "0.1", "1e-300", "9007199254740992", "-9007199254740992", "9007199254740992.0"] {
            assert_eq!(check_canonicalizable(&parse(exact.as_bytes()).unwrap()), Ok(()), "{exact}");
        }
        for rounded in ["9007199254740993", "-9007199254740993", "18446744073709551616", "1e16", "-1e300"] {
            let value = json!({ "a": [parse(rounded.as_bytes()).unwrap()] });
            assert_eq!(check_canonicalizable(&value).unwrap_err().code(), "json_inexact_number", "{rounded}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_like_serde_json_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(value) = parse(&bytes) {
                prop_assert_eq!(value, serde_json::from_slice::<Value>(&bytes).unwrap());
            }
        }

        #[test]
        fn json_like_texts_are_read_like_serde_json_or_refused(text in r#"[\[\]{}:,"ab0-9.e \\]{0,24}"#) {
            match (parse(text.as_bytes()), serde_json::from_str::<Value>(&text)) {
                (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
                (Err(StrictError::Syntax { .. }), Err(_)) | (Err(StrictError::DuplicateKey { .. }), _) => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
