//! The known models, their prices, context windows and hosts: `agent/models.yaml`.

use std::collections::BTreeMap;

use selvedge_model::money::{self, Money};
use selvedge_model::price::Price;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::providers::{PROVIDER, Provider};
use super::section::InvalidCombination;
use super::shape::{Key, ProjectRule, Shape};

/// The prefix of models that answer from a script and are free.
const SCRIPTED: &str = "scripted";

/// The tokens that an engine requests for an answer if nothing is set.
const OUTPUT_TOKENS: u64 = 8192;

/// The usual tiers, the least capable first. One without a model of its own takes that of the one before.
pub const TIERS: [&str; 4] = ["fast", "general", "high", "max"];

/// The known models, their prices, context windows and hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// The hosts of models.
    pub providers: Vec<Provider>,
    /// The providers that a project may define although the user's keys are sent to them.
    pub project_providers: Vec<String>,
    /// The models of the tiers that directives and agents name.
    pub tiers: BTreeMap<String, String>,
    /// The date of the built-in prices.
    pub prices_of: String,
    /// The known models.
    pub known: Vec<KnownModel>,
}

/// A known model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownModel {
    /// Its full name, such as `anthropic:claude-…`.
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
    /// The most tokens that are requested for an answer.
    #[serde(default)]
    pub output_tokens: Option<u64>,
    /// The most tokens of an answer that the model is capable of.
    #[serde(default)]
    pub output_tokens_max: Option<u64>,
    /// The tokens that it may think before an answer.
    #[serde(default)]
    pub thinking_tokens: Option<u64>,
    /// How much it should reason.
    #[serde(default)]
    pub effort: Option<String>,
    /// The tier that it is used for if `tiers` does not name another model.
    #[serde(default)]
    pub tier: Option<String>,
}

impl KnownModel {
    /// Its price.
    pub fn price(&self) -> Price {
        let Self { input, output, cache_read, cache_write, .. } = self;
        Price { input: *input, output: *output, cache_read: *cache_read, cache_write: *cache_write }
    }
}

impl Models {
    /// The model that is configured for a tier.
    pub fn tier(&self, name: &str) -> Option<&str> {
        self.tiers.get(name).map(String::as_str)
    }

    /// The known models of a tier, the preferred first: those of higher layers come before the built-in ones.
    pub fn of_tier<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a KnownModel> {
        self.known.iter().rev().filter(move |known| known.tier.as_deref() == Some(name))
    }

    /// A provider.
    pub fn provider(&self, id: &str) -> Option<&Provider> {
        self.providers.iter().find(|provider| provider.id == id)
    }

    /// The price of a model; `None` if it is not listed. A scripted one is free unless it is listed.
    pub fn price(&self, model: &str) -> Option<Price> {
        let is_scripted = || model.split(':').next() == Some(SCRIPTED);
        self.find(model).map(KnownModel::price).or_else(|| is_scripted().then(Price::default))
    }

    /// The size of a model's context window in tokens, if it is known.
    pub fn context_tokens(&self, model: &str) -> Option<u64> {
        self.find(model)?.context_tokens
    }

    /// The most tokens to request for a model's answer, if that is set, or if the model is not capable of the default.
    pub fn output_tokens(&self, model: &str) -> Option<u64> {
        let KnownModel { output_tokens, output_tokens_max, .. } = self.find(model)?;
        match (*output_tokens, *output_tokens_max) {
            (Some(wanted), Some(max)) => Some(wanted.min(max)),
            (None, Some(max)) if max < OUTPUT_TOKENS => Some(max),
            (wanted, _) => wanted,
        }
    }

    /// What is known about a model: its own entry, or that of the provider which describes its provider's models.
    pub fn find(&self, model: &str) -> Option<&KnownModel> {
        let listed = |id: &str| self.known.iter().find(|known| known.id == id);
        listed(model).or_else(|| {
            let (provider, name) = model.split_once(':')?;
            let other = self.provider(provider)?.models_as.as_ref()?;
            listed(&format!("{other}:{name}"))
        })
    }
}

/// Reads the section and checks its providers.
pub(super) fn read(value: Value) -> Result<Models, InvalidCombination> {
    let models: Models = serde_json::from_value(value).map_err(InvalidCombination::of)?;
    for provider in &models.providers {
        provider.check()?;
        let unknown = provider.models_as.as_ref().filter(|other| models.provider(other).is_none());
        if let Some(other) = unknown {
            let why = format!("there is no provider `{}`", other.escape_debug());
            return Err(InvalidCombination::at(format!("providers.{}.models_as", provider.id), why));
        }
    }
    Ok(models)
}

const TOKENS: Shape = Shape::Optional(&Shape::Whole { min: 1, max: u64::MAX });

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
    Key::new("context_tokens", TOKENS, "The size of its context window in tokens."),
    Key::new(
        "output_tokens",
        TOKENS,
        "The maximum number of tokens to request for an answer; 8192 by default. Their cost is reserved before each call.",
    ),
    Key::new(
        "output_tokens_max",
        TOKENS,
        "The maximum number of tokens of an answer of the model; no more are requested.",
    ),
    Key::new(
        "thinking_tokens",
        TOKENS,
        "The tokens that it may think before an answer, for formats that have such a limit.",
    ),
    Key::new(
        "effort",
        Shape::Optional(&Shape::NAME),
        "How much it should reason, such as `low`, `medium` or `high`, for formats that have such a setting.",
    ),
    Key::new(
        "tier",
        Shape::Optional(&Shape::NAME),
        "The tier that it is used for if `models.tiers` does not name a model for it and the credentials of its provider are there. If there \
         are several, the last entry counts.",
    ),
];

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "providers",
        Shape::Entries(PROVIDER),
        "The providers of models. A model is named `ID:MODEL`, by the id of its provider and the provider's name for it. A project can add a \
         host that needs no key; it can't change a provider of the user or name a key, unless the user allows it with \
         `models.project_providers`.",
    ),
    Key::new(
        "project_providers",
        Shape::List(&Shape::NAME),
        "The ids of providers that a project's file may define or change, although your key is sent to them then.",
    )
    .project_rule(ProjectRule::Ignored),
    Key::new(
        "tiers",
        Shape::Map(&Shape::NAME),
        "The model of each tier that a directive or an agent may name, such as `fast: scripted`. The usual tiers are `fast`, `general`, \
         `high` and `max`; one that is not set here is chosen from `models.known`.",
    ),
    Key::new("prices_of", Shape::NAME, "The date of the prices that come with the program."),
    Key::new(
        "known",
        Shape::Entries(KNOWN),
        "The known models, by their full names. A model without a price is refused if there is a spending limit; a scripted one is free \
         unless it is listed here.",
    ),
];
