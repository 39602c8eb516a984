//! Values in a complete object that can't be kept as written: half of a surrogate pair, and a number that has no exact
//! representation here. Both are replaced by the nearest value and reported: nothing is changed silently.

/// What was replaced in one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Replacements {
    /// Half a surrogate pair became U+FFFD.
    pub(super) text: bool,
    /// A number became the nearest representable one.
    pub(super) number: bool,
}

impl Replacements {
    pub(super) fn any(self) -> bool {
        self.text || self.number
    }
}

/// The same JSON with `\ufffd` for every half of a surrogate pair, of the same length; `None` if there is none.
pub(super) fn whole_surrogates(json: &[u8]) -> Option<Vec<u8>> {
    let mut replaced: Option<Vec<u8>> = None;
    let mut at = 0;
    // Only strings have backslashes.
    while let Some(next) = json[at..].iter().position(|byte| *byte == b'\\') {
        at += next;
        at += match (escaped(json, at), escaped(json, at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                replaced.get_or_insert_with(|| json.to_vec())[at..at + 6].copy_from_slice(br"\ufffd");
                6
            }
            (Some(_), _) => 6,
            (None, _) => 2,
        };
        at = at.min(json.len());
    }
    replaced
}

/// The code unit of a `\uXXXX` at this position.
fn escaped(json: &[u8], at: usize) -> Option<u16> {
    let hex = json.get(at..at + 6)?.strip_prefix(br"\u")?;
    u16::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}

/// Whether JSON has a number that changes when it is read.
pub(super) fn has_inexact_number(json: &[u8]) -> bool {
    let mut at = 0;
    while at < json.len() {
        let length = match json[at] {
            b'"' => string_length(&json[at..]),
            b'-' | b'0'..=b'9' => {
                let of_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let length = json[at..].iter().take_while(of_number).count();
                if !is_exact(&json[at..at + length]) {
                    return true;
                }
                length
            }
            _ => 1,
        };
        at += length;
    }
    false
}

fn string_length(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = json.get(at) {
        at += match byte {
            b'"' => return at + 1,
            b'\\' => 2,
            _ => 1,
        };
    }
    at
}

fn is_exact(number: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(number) else { return false };
    // Most numbers are short, and those are exact.
    if text.len() <= 15 && !text.contains(['e', 'E']) {
        return true;
    }
    let read = serde_json::from_str::<serde_json::Number>(text).map(|number| number.to_string());
    read.is_ok_and(|read| decimal(&read) == decimal(text))
}

/// A number as its digits, without zeros at either end, and the power of ten of its last digit.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (is_negative, mantissa) = mantissa.strip_prefix('-').map_or((false, mantissa), |rest| (true, rest));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{before}{after}");
    let short = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len() - short.len()).ok()?;
    let short = short.trim_start_matches('0');
    let power: i64 = power.parse().ok()?;
    let power = power.checked_sub(i64::try_from(after.len()).ok()?)?.checked_add(zeros)?;
    Some((is_negative, short.to_owned(), if short.is_empty() { 0 } else { power }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_surrogate_pair_is_replaced_and_a_whole_one_is_not() {
        let replaced = |json: &str| whole_surrogates(json.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(replaced(r#"{"a":"\ud83c\udf75 \u00e4 \\ud800 \n"}"#), None);
        assert_eq!(replaced(r#"{"a":"\ud83c"}"#).as_deref(), Some(r#"{"a":"\ufffd"}"#));
        assert_eq!(replaced(r#"{"a":"\uDF75x"}"#).as_deref(), Some(r#"{"a":"\ufffdx"}"#));
        assert_eq!(replaced(r#"{"a":"\ud83c\ud83c\udf75"}"#).as_deref(), Some(r#"{"a":"\ufffd\ud83c\udf75"}"#));
        assert_eq!(replaced(r#"{"a":"\\\ud83c\u0041"}"#).as_deref(), Some(r#"{"a":"\\\ufffd\u0041"}"#));
        assert_eq!(replaced(r#""\"#), None);
    }

    #[test]
    fn a_number_that_would_change_is_found() {
        for exact in [
            "0",
            "-0",
            "1.0",
            "1e2",
            "18446744073709551615",
            "-9223372036854775808",
            "9007199254740993",
            "0.1",
            "1E+2",
            "100000000000000000000",
            "1.5e300",
            "0.30000000000000004",
            "123456789012345678",
            "0e5",
            "1.000000000000000000",
        ] {
            assert!(!has_inexact_number(format!("[{exact}]").as_bytes()), "{exact}");
        }
        for inexact in [
            "18446744073709551617",
            "-9223372036854775809",
            "123456789012345678901",
            "0.12345678901234567890123",
            "1e-400",
        ] {
            assert!(has_inexact_number(format!("[{inexact}]").as_bytes()), "{inexact}");
        }
        assert!(!has_inexact_number(br#"{"18446744073709551617":"123456789012345678901 \" 18446744073709551617"}"#));
    }
}
