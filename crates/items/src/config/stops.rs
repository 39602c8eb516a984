//! When a run is stopped although the model would continue: `agent/stops.yaml`.

use serde::{Deserialize, Serialize};

use super::shape::{Key, Shape};

/// When a run is stopped although the model would continue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stops {
    /// After this many consecutive turns in which every tool failed; 0 means never.
    pub consecutive_errors: u64,
    /// After this many consecutive turns that call the same tools with the same arguments; 0 means never, and 1 is refused.
    pub repeated_calls: u64,
    /// After a round in which one of these tools was called.
    pub stop_on_tools: Vec<String>,
    /// After an answer that contains one of these texts.
    pub content_match: Vec<String>,
}

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "consecutive_errors",
        Shape::COUNT,
        "Stop after this many consecutive turns in which every tool call failed. 0 means never. Counted from the last message of a user, through decisions and resumes without a message.",
    ),
    Key::new(
        "repeated_calls",
        Shape::NeverOr(2),
        "Stop after this many consecutive turns that call the same tools with the same arguments. 0 means never; a first turn repeats nothing, so the minimum is 2. Counted from the last message of a user, through decisions and resumes without a message.",
    ),
    Key::new(
        "stop_on_tools",
        Shape::List(&Shape::NAME),
        "Stop after a turn in which one of these tools was called, by the name that the model uses.",
    ),
    Key::new(
        "content_match",
        Shape::List(&Shape::NAME),
        "Stop after an answer that contains one of these texts exactly.",
    ),
];
