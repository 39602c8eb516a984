//! The known models, their prices and context windows: `agent/models.yaml`.

use std::collections::BTreeMap;

use selvedge_model::money::{self, Money};
use selvedge_model::price::Price;
use serde::{Deserialize, Serialize};

use super::shape::{Key, Shape};

/// The prefix of models that answer from a script and are free.
const SCRIPTED: &str = "scripted";

/// The known models, their prices and context windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// The models of the tiers that directives and agents name.
    pub tiers: BTreeMap<String, String>,
    /// The known models.
    pub known: Vec<KnownModel>,
}

/// A known model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownModel {
    /// Its provider's name for it.
    pub id: String,
    /// Dollars for a million tokens sent.
    #[serde(with = "money::decimal")]
    pub input: Money,
    /// Dollars for a million tokens received.
    #[serde(with = "money::decimal")]
    pub output: Money,
    /// Dollars for a million tokens read from the provider's cache.
    #[serde(default, with = "money::decimal::option")]
    pub cache_read: Option<Money>,
    /// Dollars for a million tokens written to the provider's cache.
    #[serde(default, with = "money::decimal::option")]
    pub cache_write: Option<Money>,
    /// The size of its context window in tokens.
    #[serde(default)]
    pub context_tokens: Option<u64>,
    /// The most tokens of an answer.
    #[serde(default)]
    pub output_tokens: Option<u64>,
}

impl Models {
    /// The model of a tier.
    pub fn tier(&self, name: &str) -> Option<&str> {
        self.tiers.get(name).map(String::as_str)
    }

    /// The price of a model; `None` if it is not listed. A scripted one is free unless it is listed.
    pub fn price(&self, model: &str) -> Option<Price> {
        let is_scripted = || model.split(':').next() == Some(SCRIPTED);
        match self.get(model) {
            Some(KnownModel { input, output, cache_read, cache_write, .. }) => {
                Some(Price { input: *input, output: *output, cache_read: *cache_read, cache_write: *cache_write })
            }
            None => is_scripted().then(Price::default),
        }
    }

    /// The size of a model's context window in tokens, if it is known.
    pub fn context_tokens(&self, model: &str) -> Option<u64> {
        self.get(model)?.context_tokens
    }

    /// The most tokens of a model's answer, if that is set.
    pub fn output_tokens(&self, model: &str) -> Option<u64> {
        self.get(model)?.output_tokens
    }

    fn get(&self, model: &str) -> Option<&KnownModel> {
        self.known.iter().find(|known| known.id == model)
    }
}

const KNOWN: &[Key] = &[
    Key::new("input", Shape::Dollars, "Dollars for a million tokens sent.").required(),
    Key::new("output", Shape::Dollars, "Dollars for a million tokens received.").required(),
    Key::new(
        "cache_read",
        Shape::Optional(&Shape::Dollars),
        "Dollars for a million tokens read from the provider's cache; the same as `input` by default.",
    ),
    Key::new(
        "cache_write",
        Shape::Optional(&Shape::Dollars),
        "Dollars for a million tokens written to the provider's cache; the same as `input` by default.",
    ),
    Key::new(
        "context_tokens",
        Shape::Optional(&Shape::Whole { min: 1, max: u64::MAX }),
        "The size of its context window in tokens.",
    ),
    Key::new(
        "output_tokens",
        Shape::Optional(&Shape::Whole { min: 1, max: u64::MAX }),
        "The most tokens of an answer; 8192 by default. Their cost is reserved before each call.",
    ),
];

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "tiers",
        Shape::Map(&Shape::NAME),
        "The model of each tier that a directive or an agent may name, such as `fast: scripted`.",
    ),
    Key::new(
        "known",
        Shape::Entries(KNOWN),
        "The known models, by their provider's name for them. A model without a price is refused if there is a spending limit; a \
         scripted one is free unless it is listed here.",
    ),
];
