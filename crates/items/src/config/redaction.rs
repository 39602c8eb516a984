//! Patterns of secrets, which never reach a log: `agent/redaction.yaml`.

use serde::{Deserialize, Serialize};

use super::shape::{Key, ProjectRule, Shape};

/// Patterns of secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redaction {
    /// The patterns.
    pub patterns: Vec<SecretPattern>,
}

/// A prefix of secrets, and how much must follow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretPattern {
    /// Its id.
    pub id: String,
    /// The prefix.
    pub prefix: String,
    /// The minimum number of letters, digits, `-` and `_` that must follow.
    #[serde(default = "length_min")]
    pub length_min: usize,
}

fn length_min() -> usize {
    16
}

const PATTERN: &[Key] = &[
    Key::new("prefix", Shape::NAME, "The prefix of the secret, such as `sk-`.").required(),
    Key::new(
        "length_min",
        Shape::Whole { min: 4, max: 1000 },
        "The minimum number of letters, digits, `-` and `_` that must follow; 16 by default.",
    ),
];

pub(super) const KEYS: &[Key] = &[Key::new(
    "patterns",
    Shape::Entries(PATTERN),
    "Text that matches a pattern is redacted before anything is signed or written. Values of environment variables whose names suggest a \
     secret are always redacted.",
)
.project_rule(ProjectRule::AddOnly)];
