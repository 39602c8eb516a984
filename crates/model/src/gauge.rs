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

use serde::{Deserialize, Serialize};

use crate::event::TurnUsage;

/// What is known of how a provider counts, folded from the `usage` events of a log. In whole numbers, so that it is the same whether it
/// was folded or read back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gauge {
    /// The model that was asked.
    #[serde(default)]
    model: String,
    /// Tokens to a further byte of text.
    #[serde(default)]
    rate: Rate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<Count>,
}

/// So many tokens to so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Rate {
    tokens: u64,
    bytes: u64,
}

/// How a provider counted a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Count {
    tokens: u64,
    bytes: u64,
}

/// Tokens to a byte of text at the very most: none is shorter than a byte.
const RATE_MAX: f64 = 1.0;
/// How many bytes a token has at the very most.
const BYTES_PER_TOKEN_MAX: u64 = 32;

/// By how many bytes a prompt must have grown to tell a rate: of less, most is what surrounds a message.
const GROWTH_BYTES_MIN: u64 = 512;

/// How many tokens a provider adds of its own to a prompt.
const ADDED_TOKENS_MAX: u64 = 256;

impl Default for Rate {
    /// Before any provider has counted.
    fn default() -> Self {
        Self { tokens: 1, bytes: 4 }
    }
}

impl Rate {
    /// The rate at which counts have grown, within what is possible.
    fn of_growth(tokens: u64, bytes: u64) -> Self {
        match () {
            () if tokens >= bytes => Self { tokens: 1, bytes: 1 },
            () if tokens.saturating_mul(BYTES_PER_TOKEN_MAX) <= bytes => Self { tokens: 1, bytes: BYTES_PER_TOKEN_MAX },
            () => Self { tokens, bytes },
        }
    }

    fn value(self) -> f64 {
        self.tokens as f64 / self.bytes.max(1) as f64
    }
}

impl Gauge {
    /// Whether nothing was counted yet.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// Takes in what a turn used. What another model counted says nothing of this one.
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
            // What is above four bytes to a token may be what the provider adds.
            None if now.overall() < self.rate.value() => self.rate = Rate { tokens, bytes },
            None => {}
        }
        self.last = Some(now);
    }

    /// How many tokens a prompt of this many bytes is.
    pub fn tokens(&self, bytes: usize) -> u64 {
        let rate = self.rate.value();
        let counted = self.last.map_or(0.0, |last| last.tokens as f64 - last.bytes as f64 * rate);
        (counted + bytes as f64 * rate).max(0.0).ceil() as u64
    }

    /// How many tokens this many bytes are that stand in no prompt yet.
    pub fn tokens_of_text(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.rate.value()).ceil() as u64
    }

    /// How many tokens a prompt of this many bytes is at the very most, with room for what a provider adds and for text that it counts
    /// otherwise than what came before.
    pub fn tokens_at_most(&self, bytes: usize) -> u64 {
        let (bytes, rate) = (bytes as f64, self.rate.value());
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

    /// How many bytes of text surely fit into this many tokens.
    pub fn bytes(&self, tokens: u64) -> usize {
        let rate = self.rate.value();
        let rate = self.last.map_or(rate, |last| last.overall().max(rate).min(RATE_MAX));
        (tokens as f64 / rate) as usize
    }
}

impl Count {
    /// Tokens to a byte, what the provider adds among them.
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
        }
    }

    #[test]
    fn what_another_model_counted_says_nothing_and_what_was_counted_is_read_back() {
        let mut gauge = Gauge::default();
        gauge.turn(&usage("one", 1000, 1000));
        gauge.turn(&usage("one", 2000, 3000));
        let text = serde_json::to_string(&gauge).unwrap();
        assert_eq!(serde_json::from_str::<Gauge>(&text).unwrap(), gauge);
        assert_eq!(gauge.tokens(5000), 3000);
        gauge.turn(&usage("other", 250, 1000));
        assert_eq!(gauge.tokens(5000), 1250);
    }

    #[test]
    fn a_provider_that_counts_is_believed() {
        let mut gauge = Gauge::default();
        assert_eq!((gauge.tokens(400), gauge.bytes(100)), (100, 400));
        gauge.turn(&usage("m", 0, 1000));
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
        let counts = [(1, 1), (25, 100), (3025, 100), (100, 4000), (4000, 4000)];
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
