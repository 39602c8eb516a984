//! The default limits of a thread: `agent/limits.yaml`. The type is [`selvedge_model::limits::Limits`].

use super::shape::{Key, Shape};

const CEILING: Shape = Shape::Optional(&Shape::Whole { min: 1, max: u64::MAX });
const COUNT: Shape = Shape::Optional(&Shape::COUNT);

pub(super) const KEYS: &[Key] = &[
    Key::new("turns", CEILING, "Calls of the model since the last message of a user. `null` means no limit."),
    Key::new("tokens", CEILING, "Tokens sent and received since the last message of a user. `null` means no limit."),
    Key::new(
        "spend",
        Shape::Optional(&Shape::Dollars),
        "Dollars over the whole life of the thread. `null` means no limit.",
    ),
    Key::new("spawns", COUNT, "Children started since the last message of a user. `null` means no limit."),
    Key::new(
        "depth",
        COUNT,
        "Levels of children below the thread; with 0 it can run but start none. `null` means no limit.",
    ),
    Key::new(
        "duration_seconds",
        CEILING,
        "Seconds of running time since the last message of a user. `null` means no limit.",
    ),
];
