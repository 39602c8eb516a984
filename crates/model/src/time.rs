//! Time as a claim: when its writer says that something happened. Versions and sequence numbers define the order, never time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment in UTC with microseconds, written `2026-11-15T03:28:58.123456Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

/// A text that is not a UTC time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a time such as 2026-11-15T03:28:58.123456Z")]
pub struct InvalidTimestamp(pub String);

impl Timestamp {
    /// The time `micros` microseconds after 1970, clamped to the years that can be written.
    pub fn from_micros(micros: i64) -> Self {
        let clamp = |t: jiff::Timestamp| t.as_microsecond();
        Self(micros.clamp(clamp(jiff::Timestamp::UNIX_EPOCH), clamp(jiff::Timestamp::MAX)))
    }

    /// Microseconds since 1970.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// The same time without its fraction of a second.
    pub fn whole_seconds(self) -> Self {
        Self(self.0 - self.0.rem_euclid(1_000_000))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = jiff::Timestamp::from_microsecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        write!(f, "{time:.6}")
    }
}

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        let time: jiff::Timestamp = text.parse().map_err(|_| InvalidTimestamp(text.chars().take(80).collect()))?;
        Ok(Self::from_micros(time.as_microsecond()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::from_text::parsed(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_with_six_digits_and_read_back() {
        let time = Timestamp::from_micros(1_794_710_938_000_120);
        assert_eq!(time.to_string(), "2026-11-15T02:48:58.000120Z");
        assert_eq!(time.to_string().parse(), Ok(time));
        assert_eq!(time.whole_seconds().to_string(), "2026-11-15T02:48:58.000000Z");
        assert!("yesterday".parse::<Timestamp>().is_err());
    }
}
