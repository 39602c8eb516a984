//! Which models there are, what they cost and how much they can be told: `agent/models.yaml`.

use std::collections::BTreeMap;

use selvedge_model::money::{self, Money};
use selvedge_model::price::Price;
use serde::{Deserialize, Serialize};

use super::shape::{Key, Shape};

/// How the names of models begin that answer from a script and cost nothing.
const SCRIPTED: &str = "scripted";

/// Which models there are, what they cost and how much they can be told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// The models behind the tiers that directives and agents name.
    pub tiers: BTreeMap<String, String>,
    /// What is known of models.
    pub known: Vec<KnownModel>,
}

/// What is known of a model.
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
    /// How many tokens of conversation it can be given.
    #[serde(default)]
    pub context_tokens: Option<u64>,
    /// How many tokens an answer of it may have.
    #[serde(default)]
    pub output_tokens: Option<u64>,
}

impl Models {
    /// The model behind a tier.
    pub fn tier(&self, name: &str) -> Option<&str> {
        self.tiers.get(name).map(String::as_str)
    }

    /// What a model costs; nothing is known of one that is not listed. A scripted one is free unless it is listed.
    pub fn price(&self, model: &str) -> Option<Price> {
        let is_scripted = || model.split(':').next() == Some(SCRIPTED);
        match self.get(model) {
            Some(KnownModel { input, output, cache_read, cache_write, .. }) => {
                Some(Price { input: *input, output: *output, cache_read: *cache_read, cache_write: *cache_write })
            }
            None => is_scripted().then(Price::default),
        }
    }

    /// How many tokens of conversation a model can be given, if that is known.
    pub fn context_tokens(&self, model: &str) -> Option<u64> {
        self.get(model)?.context_tokens
    }

    /// How many tokens an answer of a model may have, if that is set.
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
        "Dollars for a million tokens read from the provider's cache; as `input` if nothing is said.",
    ),
    Key::new(
        "cache_write",
        Shape::Optional(&Shape::Dollars),
        "Dollars for a million tokens written to the provider's cache; as `input` if nothing is said.",
    ),
    Key::new(
        "context_tokens",
        Shape::Optional(&Shape::Whole { min: 1, max: u64::MAX }),
        "How many tokens of conversation it can be given.",
    ),
    Key::new(
        "output_tokens",
        Shape::Optional(&Shape::Whole { min: 1, max: u64::MAX }),
        "How many tokens an answer of it may have; 8192 if nothing is said. What they cost is reserved before each call.",
    ),
];

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "tiers",
        Shape::Map(&Shape::NAME),
        "The model behind each tier that a directive or an agent may name, such as `fast: scripted`.",
    ),
    Key::new(
        "known",
        Shape::Entries(KNOWN),
        "What is known of models, by their provider's name for them. A model without a price is refused under a ceiling of dollars; a \
         scripted one costs nothing unless it is listed here.",
    ),
];
