//! JSON as Python's `json.dumps(value, sort_keys=True, separators=(",", ":"))` writes it.
//!
//! - Keys sorted by code points, no white space.
//! - Everything outside printable ASCII as `\uXXXX` in lower case, beyond the first plane as a pair of surrogates.
//! - Numbers with a point or an exponent as Python shows a float: the shortest digits that give the double back, an
//!   exponent of at least two digits below 1e-4 and from 1e16 on, `.0` otherwise if there is no fraction.
//!
//! Python's integers are unbounded and ours are not, and a longer one has become a double once a value is parsed. So
//! integers are checked in the text, and those beyond 2^53, and `-0`, are refused before anything is hashed.

use std::fmt::Write;

use selvedge_log::strict::StrictError;
use serde_json::{Map, Number, Value};

/// The largest integer that every reader agrees on.
const MAX_EXACT: u64 = 1 << 53;

/// The canonical text of an object without its member `left_out`; `text` is its source.
pub(super) fn canonical(value: &Value, left_out: &str, text: &str) -> Result<String, StrictError> {
    check_integers(text)?;
    let mut out = String::with_capacity(text.len());
    match value {
        Value::Object(members) => write_object(&mut out, members, Some(left_out)),
        other => write_value(&mut out, other),
    }
    Ok(out)
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => out.push_str(&number_text(number)),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(members) => write_object(out, members, None),
    }
}

fn write_object(out: &mut String, members: &Map<String, Value>, left_out: Option<&str>) {
    // Strings compare by their UTF-8 bytes, which is the order of code points.
    let mut members: Vec<_> = members.iter().filter(|(key, _)| Some(key.as_str()) != left_out).collect();
    members.sort_unstable_by_key(|(key, _)| key.as_str());
    out.push('{');
    for (index, (key, member)) in members.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_string(out, key);
        out.push(':');
        write_value(out, member);
    }
    out.push('}');
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string can't fail.
                    _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(double) if number.is_f64() => float_text(double),
        _ => number.to_string(),
    }
}

/// What Python's `repr` shows for a finite float.
fn float_text(double: f64) -> String {
    let scientific = format!("{double:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    // Without an exponent Rust writes the shortest digits too, but no `.0`.
    let plain = format!("{double}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// Refuses integers that a reader with doubles would change. The text is known to be valid JSON.
fn check_integers(text: &str) -> Result<(), StrictError> {
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut in_string = false;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => {
                let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let length = bytes[at..].iter().take_while(is_part).count();
                check_integer(&text[at..at + length])?;
                at += length - 1;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

fn check_integer(literal: &str) -> Result<(), StrictError> {
    if literal.contains(['.', 'e', 'E']) {
        return Ok(());
    }
    let digits = literal.trim_start_matches('-');
    let is_exact = digits.parse::<u64>().is_ok_and(|number| number <= MAX_EXACT) && literal != "-0";
    let number = || literal.chars().take(80).collect();
    if is_exact { Ok(()) } else { Err(StrictError::Inexact { number: number() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        canonical(&serde_json::from_str(text).unwrap(), "_signature", text).unwrap()
    }

    #[test]
    fn floats_are_written_as_python_shows_them() {
        // Left: JSON; right: what Python 3 answers to json.dumps(json.loads(…)).
        for (json, python) in [
            ("0.1", "0.1"),
            ("1.0", "1.0"),
            ("-1.0", "-1.0"),
            ("0.0", "0.0"),
            ("-0.0", "-0.0"),
            ("1e-5", "1e-05"),
            ("0.0001", "0.0001"),
            ("0.00012345", "0.00012345"),
            ("0.000012345", "1.2345e-05"),
            ("1e15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("9999999999999998.0", "9999999999999998.0"),
            ("12345678901234567890.0", "1.2345678901234567e+19"),
            ("1.5e300", "1.5e+300"),
            ("5e-324", "5e-324"),
            ("1e100", "1e+100"),
            ("0.30000000000000004", "0.30000000000000004"),
            ("100.25", "100.25"),
            ("1E2", "100.0"),
        ] {
            assert_eq!(written(&format!("[{json}]")), format!("[{python}]"));
        }
    }

    #[test]
    fn strings_are_escaped_and_keys_sorted_as_python_does_it() {
        assert_eq!(written(r#"{"b": 1, "a": [true, null], "B": {}}"#), r#"{"B":{},"a":[true,null],"b":1}"#);
        assert_eq!(written("\"ü€😀\u{7f}\\u0000\""), r#""\u00fc\u20ac\ud83d\ude00\u007f\u0000""#);
        assert_eq!(written(r#""\b\f\n\r\t\/\"\\""#), r#""\b\f\n\r\t/\"\\""#);
        // By code points, not by UTF-16 units: U+FFFD stands before U+1F600.
        assert_eq!(written("{\"😀\":1,\"\u{fffd}\":2}"), r#"{"\ufffd":2,"\ud83d\ude00":1}"#);
        let nested = r#"{"_signature": "x", "a": {"_signature": "y"}}"#;
        assert_eq!(written(nested), r#"{"a":{"_signature":"y"}}"#, "only the top one is left out");
    }

    #[test]
    fn integers_that_other_readers_would_change_are_refused() {
        for good in ["9007199254740992", "-9007199254740992", "0", "1e20", "-0.0", "\"9007199254740993\""] {
            let text = format!("[{good}]");
            assert!(canonical(&serde_json::from_str(&text).unwrap(), "", &text).is_ok(), "{good}");
        }
        for bad in ["9007199254740993", "-9007199254740993", "100000000000000000001", "-0"] {
            for text in [format!("[{bad}]"), format!("{{\"a\\\"\":{bad}}}")] {
                assert!(canonical(&serde_json::from_str(&text).unwrap(), "", &text).is_err(), "{bad}");
            }
        }
    }
}
