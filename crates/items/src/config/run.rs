//! What holds for every run: `agent/run.yaml`.

use serde::{Deserialize, Serialize};

use super::shape::{Key, Say, Shape};

/// What holds for every run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    /// Whether directives, agents and tools that nobody signed may be used.
    pub unsigned: Unsigned,
    /// The variables of the environment that a directive may put into a prompt.
    pub environment: Vec<String>,
}

/// Whether what nobody signed may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsigned {
    /// It may.
    #[default]
    Allow,
    /// It may not.
    Refuse,
}

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "unsigned",
        Shape::Word(&["allow", "refuse"]),
        "Whether directives, agents and tools that nobody signed may be used.",
    )
    .says(Say::MoreCare),
    Key::new(
        "environment",
        Shape::List(&Shape::NAME),
        "The variables of the environment that a directive may put into a prompt by `{env:NAME}`.",
    )
    .says(Say::User),
];
