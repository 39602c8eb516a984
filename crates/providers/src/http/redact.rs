//! Removes known secrets from texts that leave this crate: errors and recordings.

use std::fmt;

use memchr::memmem::Finder;
use secrecy::{ExposeSecret, SecretString};
use selvedge_model::ModelError;

use super::messages::reword;

/// What stands in place of a secret.
const MARK: &[u8] = b"[redacted]";
/// A shorter secret is left alone: it would be found everywhere.
const BYTES_MIN: usize = 6;

/// Knows the secrets of one host.
#[derive(Clone, Default)]
pub(crate) struct SecretFilter {
    /// Every form of every secret, the longest first.
    secrets: Vec<SecretString>,
}

impl SecretFilter {
    pub(crate) fn new(secrets: impl IntoIterator<Item = SecretString>) -> Self {
        let mut all = Vec::new();
        for secret in secrets.into_iter().filter(|secret| secret.expose_secret().len() >= BYTES_MIN) {
            // As it is inside a JSON string, if that differs.
            let quoted = serde_json::to_string(secret.expose_secret()).unwrap_or_default();
            let escaped = quoted.trim_matches('"');
            if escaped != secret.expose_secret() {
                all.push(SecretString::from(escaped));
            }
            all.push(secret);
        }
        all.sort_by_key(|secret| std::cmp::Reverse(secret.expose_secret().len()));
        Self { secrets: all }
    }

    /// The same text without secrets.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            if text.contains(secret.expose_secret()) {
                text = text.replace(secret.expose_secret(), "[redacted]");
            }
        }
        text
    }

    /// The same bytes without secrets.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = FilteredStream::new(self.clone());
        let mut clean = stream.push(bytes);
        clean.extend(stream.end());
        clean
    }

    /// The same error without secrets in its message. Partial content stays: it is the conversation's.
    pub(crate) fn error(&self, error: ModelError) -> ModelError {
        reword(error, |why| self.text(why))
    }
}

impl fmt::Debug for SecretFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrub").field("secrets", &self.secrets.len()).finish()
    }
}

/// Removes secrets from bytes that arrive in pieces: a secret may be split over two of them.
pub(crate) struct FilteredStream {
    filter: SecretFilter,
    /// The end of what arrived, which may be the beginning of a secret.
    held: Vec<u8>,
}

impl FilteredStream {
    pub(crate) fn new(filter: SecretFilter) -> Self {
        Self { filter, held: Vec::new() }
    }

    /// Takes a piece; returns what is certainly clean.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let longest = self.filter.secrets.first().map_or(0, |secret| secret.expose_secret().len());
        self.clean(longest.saturating_sub(1))
    }

    /// The rest.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        self.clean(0)
    }

    /// Returns all but the last `keep` bytes, without secrets. A secret that begins before those is removed whole.
    fn clean(&mut self, keep: usize) -> Vec<u8> {
        let mut clean = Vec::new();
        let mut from = 0;
        while let Some((at, length)) = self.next(from) {
            // A longer secret may begin here, and be incomplete.
            if at + keep >= self.held.len() {
                break;
            }
            clean.extend_from_slice(&self.held[from..at]);
            clean.extend_from_slice(MARK);
            from = at + length;
        }
        let end = self.held.len().saturating_sub(keep).max(from);
        clean.extend_from_slice(&self.held[from..end]);
        self.held.drain(..end);
        clean
    }

    /// The first secret at or after `from`; at the same place, the longest.
    fn next(&self, from: usize) -> Option<(usize, usize)> {
        let found = self.filter.secrets.iter().filter_map(|secret| {
            let secret = secret.expose_secret().as_bytes();
            let at = Finder::new(secret).find(&self.held[from..])?;
            Some((from + at, secret.len()))
        });
        found.min_by_key(|(at, length)| (*at, std::cmp::Reverse(*length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(secrets: &[&str]) -> SecretFilter {
        SecretFilter::new(secrets.iter().map(|secret| SecretString::from(*secret)))
    }

    #[test]
    fn secrets_are_removed_wherever_the_pieces_are_cut() {
        let text = b"a sk-secret-1 b sk-secret c \"sk\\\"quoted\" d sk-secre";
        let filter = filter(&["sk-secret", "sk-secret-1", "sk\"quoted", "abc"]);
        let expected = b"a [redacted] b [redacted] c \"[redacted]\" d sk-secre";
        for size in 1..=text.len() {
            let mut stream = FilteredStream::new(filter.clone());
            let mut clean: Vec<u8> = text.chunks(size).flat_map(|piece| stream.push(piece)).collect();
            clean.extend(stream.end());
            assert_eq!(clean, expected, "pieces of {size}");
        }
        assert_eq!(filter.text(std::str::from_utf8(text).unwrap()).as_bytes(), expected);
        assert_eq!(filter.bytes(text), expected);
    }

    #[test]
    fn errors_are_cleaned_and_content_is_not() {
        use selvedge_model::message::Block;
        let why = "invalid key sk-secret".to_owned();
        let error = ModelError::Cut { why, partial: vec![Block::text("sk-secret")], usage: None };
        let cleaned = filter(&["sk-secret"]).error(error);
        let ModelError::Cut { why, partial, .. } = cleaned else { panic!("the kind of error stays") };
        assert_eq!((why.as_str(), partial), ("invalid key [redacted]", vec![Block::text("sk-secret")]));
        assert_eq!(format!("{:?}", filter(&["sk-secret"])), "Scrub { secrets: 1 }");
    }
}
