//! Estimates how full a model's context window is: from the provider's own token counts, or at four bytes of text per token until there
//! are any.
//!
//! A provider adds tokens of its own to every prompt, even a short one. So its last count is used as it is, and only the text added since
//! is estimated: at the rate at which the counts have grown, or at four bytes per token before they have.
//!
//! ```text
//! tokens ▲            ╱ · estimated, at the rate of growth
//!        │       ·──╱── last count
//!        │   ╱
//!        │╱ ─ ─ ─ ─ ─ ─ what the provider adds
//!        └──────────────▶ bytes
//! ```

use serde::{Deserialize, Serialize};

use crate::event::TurnUsage;

/// How a provider counts tokens, folded from the `usage` events of a log. In integers, so that a value that was read back equals one that
/// was folded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenEstimate {
    /// The model that was called.
    #[serde(default)]
    model: String,
    /// Tokens per additional byte of text.
    #[serde(default)]
    rate: Rate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<Count>,
}

/// A number of tokens per number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Rate {
    tokens: u64,
    bytes: u64,
}

/// A provider's token count for a prompt of `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Count {
    tokens: u64,
    bytes: u64,
}

/// The highest possible rate: no token is shorter than a byte.
const RATE_MAX: f64 = 1.0;
/// The greatest plausible number of bytes per token.
const BYTES_PER_TOKEN_MAX: u64 = 32;

/// How much a prompt must have grown to derive a rate: in a smaller difference, most tokens are the framing of messages.
const GROWTH_BYTES_MIN: u64 = 512;

/// How many tokens a provider may add to a prompt.
const ADDED_TOKENS_MAX: u64 = 256;

impl Default for Rate {
    /// The rate before a provider has counted.
    fn default() -> Self {
        Self { tokens: 1, bytes: 4 }
    }
}

impl Rate {
    /// The rate at which counts have grown, clamped to what is possible.
    fn of_growth(tokens: u64, bytes: u64) -> Self {
        if tokens >= bytes {
            Self { tokens: 1, bytes: 1 }
        } else if tokens.saturating_mul(BYTES_PER_TOKEN_MAX) <= bytes {
            Self { tokens: 1, bytes: BYTES_PER_TOKEN_MAX }
        } else {
            Self { tokens, bytes }
        }
    }

    fn value(self) -> f64 {
        self.tokens as f64 / self.bytes.max(1) as f64
    }
}

impl TokenEstimate {
    /// Whether nothing was counted yet.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the usage of a turn. Counts of another model are discarded.
    pub fn turn(&mut self, usage: &TurnUsage) {
        if usage.prompt_tokens == 0 || usage.prompt_bytes == 0 {
            return;
        }
        if self.model != usage.model {
            *self = Self { model: usage.model.clone(), ..Self::default() };
        }
        self.counted(usage.prompt_tokens, usage.prompt_bytes);
    }

    fn counted(&mut self, tokens: u64, bytes: u64) {
        let now = Count { tokens, bytes };
        match self.last {
            Some(before) if bytes.saturating_sub(before.bytes) >= GROWTH_BYTES_MIN => {
                self.rate = Rate::of_growth(tokens.saturating_sub(before.tokens), bytes - before.bytes);
            }
            Some(_) => {}
            // A higher rate than four bytes per token may come from the tokens that the provider adds.
            None if now.overall() < self.rate.value() => self.rate = Rate { tokens, bytes },
            None => {}
        }
        self.last = Some(now);
    }

    /// The estimated number of tokens of a prompt of `bytes`.
    pub fn tokens(&self, bytes: usize) -> u64 {
        let rate = self.rate.value();
        let counted = self.last.map_or(0.0, |last| last.tokens as f64 - last.bytes as f64 * rate);
        (counted + bytes as f64 * rate).max(0.0).ceil() as u64
    }

    /// The estimated number of tokens of text that is not part of a prompt yet.
    pub fn tokens_of_text(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.rate.value()).ceil() as u64
    }

    /// An upper bound for the number of tokens of a prompt of `bytes`, with room for what the provider adds and for text with a different
    /// rate.
    pub fn tokens_at_most(&self, bytes: usize) -> u64 {
        let bytes = bytes as f64;
        let rate = self.rate.value();
        let tokens = match self.last {
            Some(last) => {
                let steep = last.overall().max(rate) * 1.25;
                let grown = bytes - last.bytes as f64;
                last.tokens as f64 * 1.25 + grown * if grown > 0.0 { steep.min(RATE_MAX) } else { rate }
            }
            None => bytes * rate * 2.0,
        };
        tokens.max(0.0).ceil() as u64 + ADDED_TOKENS_MAX
    }

    /// How many bytes of text certainly fit into this many tokens.
    pub fn bytes(&self, tokens: u64) -> usize {
        let rate = self.rate.value();
        let rate = self.last.map_or(rate, |last| last.overall().max(rate).min(RATE_MAX));
        (tokens as f64 / rate) as usize
    }
}

impl Count {
    /// Tokens per byte, including those that the provider adds.
    fn overall(self) -> f64 {
        self.tokens as f64 / self.bytes as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Cost;

    fn usage(model: &str, prompt_tokens: u64, prompt_bytes: u64) -> TurnUsage {
        TurnUsage {
            model: model.to_owned(),
            cost: Cost::default(),
            cache_read_tokens: 0,
            cache_write_tokens: 0,
            prompt_bytes,
            prompt_tokens,
            estimated: false,
            answered_by: None,
            provider_id: None,
            charged: None,
            session: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn counts_of_another_model_are_discarded_and_counts_survive_a_round_trip() {
        let mut gauge = TokenEstimate::default();
        gauge.turn(&usage("one", 1000, 1000));
        gauge.turn(&usage("one", 2000, 3000));
        let text = serde_json::to_string(&gauge).unwrap();
        assert_eq!(serde_json::from_str::<TokenEstimate>(&text).unwrap(), gauge);
        assert_eq!(gauge.tokens(5000), 3000);
        gauge.turn(&usage("other", 250, 1000));
        assert_eq!(gauge.tokens(5000), 1250);
    }

    #[test]
    fn the_counts_of_a_provider_replace_the_estimate() {
        let mut gauge = TokenEstimate::default();
        assert_eq!((gauge.tokens(400), gauge.bytes(100)), (100, 400));
        gauge.turn(&usage("m", 0, 1000));
        assert_eq!(gauge.tokens(400), 100);
        gauge.counted(500, 1000);
        assert_eq!((gauge.tokens(1000), gauge.bytes(100)), (500, 200));
        // Text with two bytes per token shows as the prompt grows.
        gauge.counted(1500, 3000);
        assert_eq!((gauge.tokens(3000), gauge.tokens(5000), gauge.tokens_of_text(100)), (1500, 2500, 50));
        // Text with eight bytes per token shows at once.
        let mut gauge = TokenEstimate::default();
        gauge.counted(125, 1000);
        assert_eq!((gauge.tokens(2000), gauge.bytes(100)), (250, 800));
    }

    #[test]
    fn tokens_added_to_every_prompt_do_not_raise_the_rate() {
        let mut gauge = TokenEstimate::default();
        gauge.counted(3025, 100);
        assert_eq!(gauge.tokens(100), 3025);
        assert_eq!(gauge.tokens(20_100), 3025 + 5000, "not 600,000");
        assert!(gauge.tokens_at_most(20_100) < 3025 * 2 + 20_000 + ADDED_TOKENS_MAX);
        gauge.counted(8025, 20_100);
        assert_eq!((gauge.tokens(40_100), gauge.tokens_of_text(400)), (13_025, 100));
    }

    #[test]
    fn the_upper_bound_is_never_below_the_estimate() {
        let counts = [(1, 1), (25, 100), (3025, 100), (100, 4000), (4000, 4000)];
        for (first, second) in counts.into_iter().zip(counts.into_iter().skip(1)) {
            let mut gauge = TokenEstimate::default();
            gauge.counted(first.0, first.1);
            gauge.counted(second.0, second.1);
            for bytes in [1, 50, 100, 4000, 1_000_000] {
                assert!(gauge.tokens_at_most(bytes) >= gauge.tokens(bytes), "{first:?} {second:?} {bytes}");
            }
        }
    }
}
