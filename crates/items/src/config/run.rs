//! Settings for every run: `agent/run.yaml`.

use serde::{Deserialize, Serialize};

use super::shape::{Key, ProjectRule, Shape};

/// Settings for every run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    /// Whether unsigned directives, agents and tools may be used.
    pub unsigned: Unsigned,
    /// The environment variables that a directive may insert into a prompt.
    pub environment: Vec<String>,
}

/// Whether unsigned items may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsigned {
    /// They may be used.
    #[default]
    Allow,
    /// They are refused.
    Refuse,
}

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "unsigned",
        Shape::Word(&["allow", "refuse"]),
        "Whether unsigned directives, agents and tools may be used.",
    )
    .project_rule(ProjectRule::Stricter),
    Key::new(
        "environment",
        Shape::List(&Shape::NAME),
        "The environment variables that a directive may insert into a prompt with `{env:NAME}`.",
    )
    .project_rule(ProjectRule::Ignored),
];
