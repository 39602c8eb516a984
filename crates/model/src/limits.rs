//! What a thread may use, and what it has used.

use serde::{Deserialize, Serialize};

use crate::money::{self, Money};

/// Ceilings of a thread; an absent one is not set here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Tokens in and out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Dollars.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "money::decimal::option")]
    pub spend: Option<Money>,
    /// Children started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawns: Option<u64>,
    /// Levels of children below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
    /// Seconds of running time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
}

/// What has been used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Model calls.
    #[serde(default)]
    pub turns: u64,
    /// Tokens sent.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens received.
    #[serde(default)]
    pub output_tokens: u64,
    /// Dollars.
    #[serde(default, with = "money::decimal")]
    pub spend: Money,
    /// Milliseconds of running time.
    #[serde(default)]
    pub duration_ms: u64,
}

impl Cost {
    /// Adds another cost to this one; a sum that no longer fits stays at the greatest number.
    pub fn add(&mut self, other: &Self) {
        self.turns = self.turns.saturating_add(other.turns);
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.spend = self.spend.saturating_add(other.spend);
        self.duration_ms = self.duration_ms.saturating_add(other.duration_ms);
    }
}
