//! How full a model's context is: by the provider's own count where it has one, else by about four bytes of text to a token.
//!
//! A provider adds tokens of its own to every prompt, however short that is. So its last count is taken as it is, and only what came after
//! it is estimated: by how the counts have grown, and before they have by four bytes to a token.
//!
//! ```text
//! tokens ▲            ╱ · estimated, at the rate of growth
//!        │       ·──╱── last count
//!        │   ╱
//!        │╱ ─ ─ ─ ─ ─ ─ what the provider adds
//!        └──────────────▶ bytes
//! ```

/// What is known of how a provider counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauge {
    /// Tokens to a further byte of text.
    rate: f64,
    last: Option<Count>,
}

/// How a provider counted a prompt.
#[derive(Clone, Copy, Debug)]
struct Count {
    tokens: f64,
    bytes: f64,
}

/// How many bytes of text are a token when nobody knows better.
const BYTES_PER_TOKEN: f64 = 4.0;

/// Tokens to a byte of text at the very most: none is shorter than a byte.
const RATE_MAX: f64 = 1.0;
/// Tokens to a byte of text at the very least.
const RATE_MIN: f64 = 1.0 / 32.0;

/// By how many bytes a prompt must have grown to tell a rate: of less, most is what surrounds a message.
const GROWTH_BYTES_MIN: f64 = 512.0;

/// How many tokens a provider adds of its own to a prompt.
const ADDED_TOKENS_MAX: u64 = 256;

impl Default for Gauge {
    fn default() -> Self {
        Self { rate: 1.0 / BYTES_PER_TOKEN, last: None }
    }
}

impl Gauge {
    /// Takes in that a provider counted so many tokens for so many bytes; nothing if it does not count.
    pub(crate) fn counted(&mut self, tokens: u64, bytes: usize) {
        if tokens == 0 || bytes == 0 {
            return;
        }
        let now = Count { tokens: tokens as f64, bytes: bytes as f64 };
        match self.last {
            Some(before) if now.bytes - before.bytes >= GROWTH_BYTES_MIN => {
                let grown = (now.tokens - before.tokens) / (now.bytes - before.bytes);
                self.rate = grown.clamp(RATE_MIN, RATE_MAX);
            }
            Some(_) => {}
            // What is above four bytes to a token may be what the provider adds.
            None => self.rate = self.rate.min(now.overall()),
        }
        self.last = Some(now);
    }

    /// How many tokens a prompt of this many bytes is.
    pub(crate) fn tokens(&self, bytes: usize) -> u64 {
        let counted = self.last.map_or(0.0, |last| last.tokens - last.bytes * self.rate);
        (counted + bytes as f64 * self.rate).max(0.0).ceil() as u64
    }

    /// How many tokens this many bytes are that stand in no prompt yet.
    pub(crate) fn tokens_of_text(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.rate).ceil() as u64
    }

    /// How many tokens a prompt of this many bytes is at the very most, with room for what a provider adds and for text that it counts
    /// otherwise than what came before.
    pub(crate) fn tokens_at_most(&self, bytes: usize) -> u64 {
        let bytes = bytes as f64;
        let tokens = match self.last {
            Some(last) => {
                let rate = last.overall().max(self.rate) * 1.25;
                let grown = bytes - last.bytes;
                last.tokens * 1.25 + grown * if grown > 0.0 { rate.min(RATE_MAX) } else { self.rate }
            }
            None => bytes * self.rate * 2.0,
        };
        tokens.max(0.0).ceil() as u64 + ADDED_TOKENS_MAX
    }

    /// How many bytes of text surely fit into this many tokens.
    pub(crate) fn bytes(&self, tokens: u64) -> usize {
        let rate = self.last.map_or(self.rate, |last| last.overall().max(self.rate).min(RATE_MAX));
        (tokens as f64 / rate) as usize
    }
}

impl Count {
    /// Tokens to a byte, what the provider adds among them.
    fn overall(self) -> f64 {
        self.tokens / self.bytes
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
        assert_eq!((gauge.tokens(1000), gauge.bytes(100)), (500, 200));
        // Text of which a token is two bytes shows as the prompt grows.
        gauge.counted(1500, 3000);
        assert_eq!((gauge.tokens(3000), gauge.tokens(5000), gauge.tokens_of_text(100)), (1500, 2500, 50));
        // Text of which one is eight bytes shows at once.
        let mut gauge = Gauge::default();
        gauge.counted(125, 1000);
        assert_eq!((gauge.tokens(2000), gauge.bytes(100)), (250, 800));
    }

    #[test]
    fn what_a_provider_adds_to_every_prompt_is_not_added_for_every_byte() {
        let mut gauge = Gauge::default();
        gauge.counted(3025, 100);
        assert_eq!(gauge.tokens(100), 3025);
        assert_eq!(gauge.tokens(20_100), 3025 + 5000, "and not six hundred thousand");
        assert!(gauge.tokens_at_most(20_100) < 3025 * 2 + 20_000 + ADDED_TOKENS_MAX);
        gauge.counted(8025, 20_100);
        assert_eq!((gauge.tokens(40_100), gauge.tokens_of_text(400)), (13_025, 100));
    }

    #[test]
    fn the_most_a_prompt_may_be_is_never_less_than_what_it_is_thought_to_be() {
        let counts = [(0, 0), (25, 100), (3025, 100), (100, 4000), (4000, 4000)];
        for (first, second) in counts.into_iter().zip(counts.into_iter().skip(1)) {
            let mut gauge = Gauge::default();
            gauge.counted(first.0, first.1);
            gauge.counted(second.0, second.1);
            for bytes in [1, 50, 100, 4000, 1_000_000] {
                assert!(gauge.tokens_at_most(bytes) >= gauge.tokens(bytes), "{first:?} {second:?} {bytes}");
            }
        }
    }
}
