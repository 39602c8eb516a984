//! A SHA-256 value as the model sees it: 32 bytes, written as 64 lower-case hex characters.
//!
//! This module computes no hashes; the log does.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 32 bytes, shown, stored and accepted only as 64 lower-case hex characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// A text that is not 64 lower-case hex characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not 64 lower-case hex characters")]
pub struct InvalidDigest(pub String);

impl Digest {
    /// The first 16 hex characters, for display only.
    pub fn short(&self) -> String {
        self.to_string()[..16].to_owned()
    }
}

/// Writes bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Marks a byte that is not a hex digit.
const NO_DIGIT: u8 = 0x80;
/// The value of each byte as a hex digit. Every checkpoint has two digests, so a lookup without branches is worth it.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789abcdef"[value as usize] as usize] = value;
        value += 1;
    }
    digits
};

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let invalid = || InvalidDigest(text.chars().take(80).collect());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(invalid());
        }
        let mut bytes = [0; 32];
        let mut all = 0;
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let high = DIGITS[usize::from(*high)];
            let low = DIGITS[usize::from(*low)];
            all |= high | low;
            *byte = high << 4 | low & 0xf;
        }
        if all & NO_DIGIT == 0 { Ok(Self(bytes)) } else { Err(invalid()) }
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::from_text::parsed(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sixty_four_lower_case_hex_characters_are_a_digest() {
        let text = "00ff".repeat(16);
        assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
        for bad in ["", "00", &"0".repeat(63), &"0".repeat(65), &"00FF".repeat(16), &"zz".repeat(32)] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
