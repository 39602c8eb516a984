//! How long a host asks to wait, from the headers of its response.
//!
//! Dates are compared with the response's own `date` header, so that a wrong clock on either side does not matter. The first of these that
//! is present counts: `retry-after-ms`, `retry-after`, and, for a rate limit, the reset headers of the vendors.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::HeaderMap;

/// The longest wait that is believed.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// The kinds of limits that Anthropic reports, each with `remaining` and `reset`.
const ANTHROPIC_LIMITS: [&str; 4] = ["requests", "tokens", "input-tokens", "output-tokens"];
/// The kinds of limits that OpenAI reports.
const OPENAI_LIMITS: [&str; 2] = ["requests", "tokens"];

/// How long to wait after this response, if its host says so.
pub(super) fn of(status: u16, headers: &HeaderMap) -> Option<Duration> {
    let asked = header(headers, "retry-after-ms").and_then(milliseconds);
    let asked = asked.or_else(|| header(headers, "retry-after").and_then(|text| seconds_or_date(text, headers)));
    let asked = if status == 429 { asked.or_else(|| reset(headers)) } else { asked };
    asked.map(|wait| wait.min(WAIT_MAX))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn milliseconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse::<f64>().ok()? / 1000.0).ok()
}

fn seconds_or_date(text: &str, headers: &HeaderMap) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    wait_until(http_date(text)?, headers)
}

fn http_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// The time from the response's own date to another.
fn wait_until(at: Timestamp, headers: &HeaderMap) -> Option<Duration> {
    let now = http_date(header(headers, "date")?)?;
    Some(Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO))
}

/// The wait until the exhausted limits are reset; if none is said to be exhausted, until all are.
fn reset(headers: &HeaderMap) -> Option<Duration> {
    let mut resets = Vec::new();
    for limit in ANTHROPIC_LIMITS {
        let wait = header(headers, &format!("anthropic-ratelimit-{limit}-reset"))
            .and_then(|text| text.parse::<Timestamp>().ok())
            .and_then(|at| wait_until(at, headers));
        resets
            .extend(wait.map(|wait| (wait, is_exhausted(headers, &format!("anthropic-ratelimit-{limit}-remaining")))));
    }
    for limit in OPENAI_LIMITS {
        let wait = header(headers, &format!("x-ratelimit-reset-{limit}")).and_then(span);
        resets.extend(wait.map(|wait| (wait, is_exhausted(headers, &format!("x-ratelimit-remaining-{limit}")))));
    }
    let wait = header(headers, "x-ratelimit-reset").and_then(|text| seconds_or_epoch(text, headers));
    resets.extend(wait.map(|wait| (wait, is_exhausted(headers, "x-ratelimit-remaining"))));
    let exhausted = resets.iter().filter(|(_, is_exhausted)| *is_exhausted).map(|(wait, _)| *wait).max();
    exhausted.or_else(|| resets.iter().map(|(wait, _)| *wait).max())
}

fn is_exhausted(headers: &HeaderMap, name: &str) -> bool {
    header(headers, name) == Some("0")
}

/// A number of seconds, or a time in seconds or milliseconds since 1970.
fn seconds_or_epoch(text: &str, headers: &HeaderMap) -> Option<Duration> {
    let number = text.parse::<f64>().ok()?;
    match number {
        1e12.. => wait_until(Timestamp::from_millisecond(number as i64).ok()?, headers),
        1e9.. => wait_until(Timestamp::from_second(number as i64).ok()?, headers),
        _ => Duration::try_from_secs_f64(number).ok(),
    }
}

/// A span such as `1s`, `6m0s`, `20ms` or `1h0m0.5s`.
fn span(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|character: char| !character.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        total += Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        rest = after;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    const DATE: (&str, &str) = ("date", "Wed, 18 Nov 2026 09:00:00 GMT");

    fn wait(status: u16, headers: &[(&str, &str)]) -> Option<u64> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap());
        }
        of(status, &map).map(|wait| u64::try_from(wait.as_millis()).unwrap())
    }

    #[test]
    fn seconds_milliseconds_and_dates_are_read() {
        assert_eq!(wait(503, &[("retry-after", "7")]), Some(7000));
        assert_eq!(wait(503, &[("retry-after", "0.5")]), Some(500));
        assert_eq!(wait(429, &[("retry-after", "7"), ("retry-after-ms", "1500")]), Some(1500));
        assert_eq!(wait(429, &[DATE, ("retry-after", "Wed, 18 Nov 2026 09:01:30 GMT")]), Some(90_000));
        assert_eq!(wait(429, &[DATE, ("retry-after", "Wed, 18 Nov 2026 08:00:00 GMT")]), Some(0));
        assert_eq!(wait(429, &[("retry-after", "Wed, 18 Nov 2026 09:01:30 GMT")]), None, "without a date to compare");
        for text in ["-1", "soon", "", "NaN", "1e300"] {
            assert_eq!(wait(429, &[("retry-after", text)]), None, "{text}");
        }
        assert_eq!(wait(429, &[("retry-after", "99999999")]), Some(86_400_000));
    }

    #[test]
    fn the_exhausted_limit_of_a_vendor_decides() {
        let headers = [
            DATE,
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2026-11-18T09:10:00Z"),
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            ("anthropic-ratelimit-input-tokens-reset", "2026-11-18T09:00:12Z"),
        ];
        assert_eq!(wait(429, &headers), Some(12_000));
        assert_eq!(wait(529, &headers), None, "only a rate limit is about limits");
        let headers = [
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-remaining-tokens", "150"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ];
        assert_eq!(wait(429, &headers), Some(1000));
        assert_eq!(wait(429, &headers[1..]), Some(1000).max(wait(429, &headers[3..])));
        assert_eq!(wait(429, &[DATE, ("x-ratelimit-reset", "1794992460000")]), Some(60_000));
        assert_eq!(wait(429, &[DATE, ("x-ratelimit-reset", "1794992460")]), Some(60_000));
    }

    #[test]
    fn spans_are_read() {
        let read = |text| span(text).map(|span| span.as_millis());
        for (text, milliseconds) in
            [("1s", 1000), ("6m0s", 360_000), ("20ms", 20), ("1h2m3.5s", 3_723_500), ("1d", 86_400_000), ("0s", 0)]
        {
            assert_eq!(read(text), Some(milliseconds), "{text}");
        }
        for text in ["", "5", "s", "1y", "1.2.3s", "-1s"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
