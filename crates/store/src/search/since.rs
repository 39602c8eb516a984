//! The times that a `since:` filter and a `--since` option understand.

use selvedge_model::Timestamp;

/// Microseconds of a unit.
fn unit(name: &str) -> Option<i64> {
    let seconds = match name {
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        "w" => 7 * 24 * 60 * 60,
        _ => return None,
    };
    Some(seconds * 1_000_000)
}

/// A time: `30m`, `12h`, `7d` or `2w` before now, a day such as `2026-11-18`, which begins as `midnight` says, or a whole time such as
/// `2026-11-18T09:30:00Z`. Nothing for any other text.
pub fn since(text: &str, now: Timestamp, midnight: &dyn Fn(&str) -> Option<Timestamp>) -> Option<Timestamp> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if let (Ok(number), Some(unit)) = (text[..digits].parse::<i64>(), unit(&text[digits..])) {
        return Some(Timestamp::from_micros(now.as_micros().saturating_sub(number.saturating_mul(unit))));
    }
    let is_day = text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    if is_day { midnight(text) } else { text.parse().ok() }
}

/// The beginning of a day in UTC.
pub fn utc_midnight(day: &str) -> Option<Timestamp> {
    format!("{day}T00:00:00Z").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_days_and_times_are_understood_and_nothing_else() {
        let now: Timestamp = "2026-11-18T12:00:00Z".parse().unwrap();
        let read = |text: &str| since(text, now, &utc_midnight).map(|time| time.to_string());
        for (text, wanted) in [
            ("30m", "2026-11-18T11:30:00.000000Z"),
            ("12h", "2026-11-18T00:00:00.000000Z"),
            ("2w", "2026-11-04T12:00:00.000000Z"),
            ("2026-11-17", "2026-11-17T00:00:00.000000Z"),
            ("2026-11-17T01:00:00Z", "2026-11-17T01:00:00.000000Z"),
        ] {
            assert_eq!(read(text).as_deref(), Some(wanted), "{text}");
        }
        for text in ["", "m", "7", "7y", "yesterday", "2026-13-40", "-7d", "漢"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert!(since("99999999999999999d", now, &utc_midnight).is_some(), "long ago");
    }
}
