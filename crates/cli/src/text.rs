//! Formatting for people: times, numbers, untrusted text.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

pub(crate) use selvedge::markdown::clean;
use selvedge_engine::ledger::audit::Cause;
use selvedge_log::Trust;
use selvedge_model::limits::Cost;
use selvedge_model::shell::drives_the_screen;
pub(crate) use selvedge_model::shell::word as shell_word;
use selvedge_model::{Digest, Timestamp};
use serde::Serializer;

/// Why an account is incomplete, and what can be done about it.
pub(crate) fn incomplete(cause: Cause) -> &'static str {
    match cause {
        Cause::NotInStore => "incomplete: logs of its family are not in this store; import the rest of its family",
        Cause::Lost => {
            "incomplete: postings were lost with versions of a log, and all that they may have spent counts as spent"
        }
    }
}

/// A time in the local time zone, to the second.
pub(crate) fn local(time: Timestamp) -> String {
    zoned(time).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A time in the local time zone, to the minute.
pub(crate) fn local_minute(time: Timestamp) -> String {
    zoned(time).strftime("%Y-%m-%d %H:%M").to_string()
}

/// The day of a time in the local time zone, such as `2026-11-18`.
pub(crate) fn local_day(time: Timestamp) -> String {
    zoned(time).strftime("%Y-%m-%d").to_string()
}

/// The beginning of a day, such as `2026-11-18`, in the local time zone.
pub(crate) fn local_midnight(day: &str) -> Option<Timestamp> {
    let day: jiff::civil::Date = day.parse().ok()?;
    let zoned = day.to_zoned(jiff::tz::TimeZone::system()).ok()?;
    Some(Timestamp::from_micros(zoned.timestamp().as_microsecond()))
}

fn zoned(time: Timestamp) -> jiff::Zoned {
    let moment = jiff::Timestamp::from_microsecond(time.as_micros()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    moment.to_zoned(jiff::tz::TimeZone::system())
}

/// A number with its noun: `1 line`, `1,234 lines`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", grouped(number))
}

/// A number with separated thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What was spent, and what a correction subtracted from earlier threads of the chain.
pub(crate) fn spent(cost: &Cost) -> String {
    let Cost { spend, corrected, .. } = cost;
    if corrected.is_empty() {
        format!("${spend}")
    } else {
        format!("${spend}, less ${} of earlier threads", corrected.from.saturating_sub(corrected.to))
    }
}

/// JSON made safe to show: characters that control the terminal are written as JSON escapes, so that it stays the same JSON.
pub(crate) fn clean_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => safe.push('\n'),
            c if drives_the_screen(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string can't fail.
                    _ = write!(safe, "\\u{unit:04x}");
                }
            }
            c => safe.push(c),
        }
    }
    safe
}

/// Text for the terminal, with its colours: every other control sequence is escaped. Untrusted text is cleaned where it is inserted;
/// this is the second line of defence.
pub(crate) fn guarded(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c != '\n' && drives_the_screen(c)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = colour(rest);
        let (taken, left) = rest.split_at(if colour > 0 { colour } else { c.len_utf8() });
        if colour > 0 {
            safe.push_str(taken)
        } else {
            safe.push_str(&clean(taken))
        }
        rest = left;
    }
    Cow::Owned(safe)
}

/// The length in bytes of the colour sequence at the beginning, or 0.
fn colour(text: &str) -> usize {
    let Some(inside) = text.strip_prefix("\u{1b}[") else { return 0 };
    let digits = inside.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    if inside[digits..].starts_with('m') { 2 + digits + 1 } else { 0 }
}

/// Untrusted text on one line of at most `width` characters.
pub(crate) fn one_line(text: &str, width: usize) -> String {
    let text = clean(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    if text.chars().count() <= width {
        return text;
    }
    let cut: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{cut}…")
}

/// A key for people: its short fingerprint, and its owner if known.
pub(crate) fn key(fingerprint: &Digest, trust: &Trust) -> String {
    match owner(fingerprint, trust) {
        Some(owner) => format!("{} ({owner})", fingerprint.short()),
        None => fingerprint.short(),
    }
}

/// The owner of a key, as the user named them.
pub(crate) fn owner<'a>(fingerprint: &Digest, trust: &'a Trust) -> Option<&'a str> {
    trust.iter().find(|(known, _)| *known == fingerprint).map(|(_, key)| key.owner.as_str())
}

/// A path in JSON. Bytes that are not UTF-8 are shown as `�`.
pub(crate) fn in_json<S: Serializer>(path: impl AsRef<Path>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.as_ref().display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_nouns_agree() {
        let texts = [0, 1, 12, 999, 1_000, 1_234_567].map(|number| count(number, "line"));
        assert_eq!(texts, ["0 lines", "1 line", "12 lines", "999 lines", "1,000 lines", "1,234,567 lines"]);
    }

    #[test]
    fn untrusted_text_can_not_control_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\r\u{202e}c\nd"), "a\\u{1b}[2Jb\\r\\u{202e}c\nd");
        assert_eq!(clean_json("\"a\u{9b}2J\u{202e}\"\n"), "\"a\\u009b2J\\u202e\"\n");
        let painted = "\u{1b}[1mbold\u{1b}[0m \u{1b}[2J\u{202e}\u{9b}";
        assert_eq!(guarded(painted), "\u{1b}[1mbold\u{1b}[0m \\u{1b}[2J\\u{202e}\\u{9b}");
        assert!(matches!(guarded("plain\nlines"), Cow::Borrowed(_)));
        assert_eq!(one_line("  two\n  words\tand more ", 9), "two word…");
        assert_eq!(one_line("héllo", 5), "héllo");
    }
}
