//! How full a model's context is: by the provider's own count where it has one, else by about four bytes of text to a token.

/// What is known of how a provider counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauge {
    /// Tokens to a byte of text.
    ratio: f64,
    /// Whether a provider has counted.
    is_counted: bool,
}

/// How many bytes of text are a token when nobody knows better.
const BYTES_PER_TOKEN: f64 = 4.0;

/// How many tokens a provider adds of its own to a prompt.
const ADDED_TOKENS_MAX: u64 = 256;

impl Default for Gauge {
    fn default() -> Self {
        Self { ratio: 1.0 / BYTES_PER_TOKEN, is_counted: false }
    }
}

impl Gauge {
    /// Takes in that a provider counted so many tokens for so many bytes; nothing if it does not count.
    pub(crate) fn counted(&mut self, tokens: u64, bytes: usize) {
        if tokens > 0 && bytes > 0 {
            self.ratio = tokens as f64 / bytes as f64;
            self.is_counted = true;
        }
    }

    /// How many tokens this many bytes are.
    pub(crate) fn tokens(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.ratio).ceil() as u64
    }

    /// How many tokens this many bytes are at the very most, with room for what a provider adds and for text that it counts
    /// otherwise than what came before.
    pub(crate) fn tokens_at_most(&self, bytes: usize) -> u64 {
        let headroom = if self.is_counted { 1.25 } else { 2.0 };
        (bytes as f64 * self.ratio * headroom).ceil() as u64 + ADDED_TOKENS_MAX
    }

    /// How many bytes this many tokens are.
    pub(crate) fn bytes(&self, tokens: u64) -> usize {
        (tokens as f64 / self.ratio) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_counts_is_believed() {
        let mut gauge = Gauge::default();
        assert_eq!((gauge.tokens(400), gauge.bytes(100)), (100, 400));
        gauge.counted(0, 1000);
        assert_eq!(gauge.tokens(400), 100);
        gauge.counted(500, 1000);
        assert_eq!((gauge.tokens(400), gauge.bytes(100)), (200, 200));
    }
}
