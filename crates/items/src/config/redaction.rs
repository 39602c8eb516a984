//! What looks like a secret and never reaches a log: `agent/redaction.yaml`.

use serde::{Deserialize, Serialize};

use super::shape::{Key, Say, Shape};

/// What looks like a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redaction {
    /// The beginnings that give secrets away.
    pub patterns: Vec<SecretPattern>,
}

/// A beginning that gives a secret away, and how much must follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretPattern {
    /// What it is called.
    pub id: String,
    /// How it begins.
    pub prefix: String,
    /// How many letters, digits, `-` and `_` must follow at least.
    #[serde(default = "length_min")]
    pub length_min: usize,
}

fn length_min() -> usize {
    16
}

const PATTERN: &[Key] = &[
    Key::new("prefix", Shape::NAME, "How the secret begins, such as `sk-`.").required(),
    Key::new(
        "length_min",
        Shape::Whole { min: 4, max: 1000 },
        "How many letters, digits, `-` and `_` must follow at least; 16 if nothing is said.",
    ),
];

pub(super) const KEYS: &[Key] = &[Key::new(
    "patterns",
    Shape::Entries(PATTERN),
    "What looks like a secret is taken out before anything is signed or written. Values of variables whose names say that they are \
     secret are taken out anyway.",
)
.says(Say::More)];
