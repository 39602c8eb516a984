//! What a thread may use when nobody says: `agent/limits.yaml`. The type is [`selvedge_model::limits::Limits`].

use super::shape::{Key, Shape};

const CEILING: Shape = Shape::Optional(&Shape::Whole { min: 1, max: u64::MAX });
const COUNT: Shape = Shape::Optional(&Shape::COUNT);

pub(super) const KEYS: &[Key] = &[
    Key::new("turns", CEILING, "Calls of the model since somebody last spoke. `null` is no ceiling."),
    Key::new("tokens", CEILING, "Tokens sent and received since somebody last spoke. `null` is no ceiling."),
    Key::new(
        "spend",
        Shape::Optional(&Shape::Dollars),
        "Dollars over the whole life of the thread. `null` is no ceiling.",
    ),
    Key::new("spawns", COUNT, "Children started since somebody last spoke. `null` is no ceiling."),
    Key::new("depth", COUNT, "Levels of children below the thread; 0 may run and start none. `null` is no ceiling."),
    Key::new("duration_seconds", CEILING, "Seconds of running time since somebody last spoke. `null` is no ceiling."),
];
