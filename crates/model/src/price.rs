//! Prices of tokens.

use serde::{Deserialize, Serialize};

use crate::answer::Usage;
use crate::money::{self, Money};

/// Prices in dollars per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens sent.
    #[serde(default, with = "money::decimal")]
    pub input: Money,
    /// Tokens received.
    #[serde(default, with = "money::decimal")]
    pub output: Money,
    /// Tokens read from the provider's cache; the price of tokens sent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "money::decimal::option")]
    pub cache_read: Option<Money>,
    /// Tokens written to the provider's cache; the price of tokens sent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "money::decimal::option")]
    pub cache_write: Option<Money>,
}

const MILLION: i128 = 1_000_000;

impl Price {
    /// Whether all prices are zero.
    pub fn is_free(&self) -> bool {
        let read = self.cache_read.unwrap_or_default();
        self.input.is_zero()
            && self.output.is_zero()
            && read.is_zero()
            && self.cache_write.unwrap_or_default().is_zero()
    }

    /// The most that a call can cost that sends and receives at most this many tokens, however the provider's cache is used.
    pub fn bound(&self, input_tokens: u64, output_tokens: u64) -> Money {
        let worst = [self.cache_read, self.cache_write].into_iter().flatten().fold(self.input, Money::max);
        let uncached = Self { input: worst, output: self.output, cache_read: None, cache_write: None };
        uncached.cost(&Usage { input_tokens, output_tokens, ..Usage::default() })
    }

    /// The number of tokens, up to `wanted`, that a call can receive without costing more than `money` if it sends `input_tokens`; `None`
    /// if sending alone costs more.
    pub fn affordable(&self, input_tokens: u64, wanted: u64, money: Money) -> Option<u64> {
        let fits = |output_tokens: u64| self.bound(input_tokens, output_tokens) <= money;
        if !fits(0) {
            return None;
        }
        // Binary search for the greatest number that fits.
        let mut low = 0;
        let mut high = wanted;
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Some(low)
    }

    /// The cost of this usage, rounded up to a whole nano-dollar.
    pub fn cost(&self, usage: &Usage) -> Money {
        let cached = usage.cache_read_tokens.saturating_add(usage.cache_write_tokens);
        let plain = usage.input_tokens.saturating_sub(cached);
        let parts = [
            (plain, self.input),
            (usage.output_tokens, self.output),
            (usage.cache_read_tokens, self.cache_read.unwrap_or(self.input)),
            (usage.cache_write_tokens, self.cache_write.unwrap_or(self.input)),
        ];
        let product = |(tokens, price): (u64, Money)| i128::from(tokens).saturating_mul(i128::from(price.nanos()));
        let millionths = parts.into_iter().map(product).fold(0_i128, i128::saturating_add);
        let nanos = millionths.saturating_add(MILLION - 1) / MILLION;
        // A cost that overflows is the largest amount.
        Money::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_from_a_cache_have_their_own_price() {
        let price = Price {
            input: "3".parse().unwrap(),
            output: "15".parse().unwrap(),
            cache_read: Some("0.3".parse().unwrap()),
            cache_write: None,
        };
        let usage =
            Usage { input_tokens: 1_000_000, output_tokens: 200_000, cache_read_tokens: 500_000, ..Usage::default() };
        assert_eq!(price.cost(&usage), "4.65".parse().unwrap());
    }

    #[test]
    fn the_bound_holds_for_every_use_of_the_cache_and_for_every_affordable_call() {
        let price = Price {
            input: "3".parse().unwrap(),
            output: "15".parse().unwrap(),
            cache_read: Some("0.3".parse().unwrap()),
            cache_write: Some("3.75".parse().unwrap()),
        };
        let written = Usage { input_tokens: 1000, output_tokens: 100, cache_write_tokens: 1000, ..Usage::default() };
        assert_eq!(price.bound(1000, 100), price.cost(&written));
        let money: Money = "0.01".parse().unwrap();
        let most = price.affordable(1000, 8192, money).unwrap();
        assert!(price.bound(1000, most) <= money && price.bound(1000, most + 1) > money, "{most}");
        assert_eq!(price.affordable(1000, 10, money), Some(10));
        assert_eq!(price.affordable(1_000_000, 10, money), None);
        assert!(Price::default().is_free() && !price.is_free());
        assert_eq!(Price::default().affordable(9, 10, Money::ZERO), Some(10));
    }

    #[test]
    fn a_fraction_of_a_nano_dollar_is_rounded_up_and_nothing_overflows() {
        let price = Price { input: Money::from_nanos(1).unwrap(), ..Price::default() };
        let one = Usage { input_tokens: 1, ..Usage::default() };
        assert_eq!(price.cost(&one).nanos(), 1);
        assert_eq!(price.cost(&Usage::default()).nanos(), 0);
        let expensive = Price { input: Money::from_nanos(i64::MAX).unwrap(), ..Price::default() };
        assert_eq!(expensive.cost(&Usage { input_tokens: u64::MAX, ..Usage::default() }).nanos(), i64::MAX);
    }
}
