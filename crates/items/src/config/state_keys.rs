//! The keys of `state_persistence.yaml`; their types are in [`super::state_persistence`].

use super::shape::{Check, Key, Shape};
use super::state_persistence::{Action, OnCompletion, is_known_version};

const STATE: &[Key] = &[
    Key::new("required", Shape::List(&Shape::NAME), "What must be in a snapshot, whatever the schema says of it."),
    Key::new("schema", Shape::Free, "The JSON Schema that every snapshot is checked against."),
];

const DESCRIPTION: Key = Key::new("description", Shape::NAME, "What it is, for people.");
const PRIORITY: Key = Key::new(
    "priority",
    Shape::Whole { min: 0, max: 1000 },
    "How much it matters: from 10 on it saves at once, below it may wait.",
);

const TRIGGER: &[Key] = &[Key::new("enabled", Shape::Bool, "Whether a snapshot is saved then."), DESCRIPTION, PRIORITY];

const ALWAYS: &[Key] = &[
    Key::new("enabled", Shape::True, "A snapshot is always saved then; it can't be switched off."),
    DESCRIPTION,
    PRIORITY,
];

const TRIGGERS: &[Key] = &[
    Key::new("pre_turn", Shape::Fields(TRIGGER), "Before the model is called."),
    Key::new("post_llm", Shape::Fields(TRIGGER), "After its answer is committed."),
    Key::new("post_tools", Shape::Fields(TRIGGER), "After the results of its tools are committed."),
    Key::new("on_suspend", Shape::Fields(ALWAYS), "When the thread waits for something."),
    Key::new("on_error", Shape::Fields(ALWAYS), "When a run fails."),
    Key::new("on_cancel", Shape::Fields(ALWAYS), "When a run is stopped."),
];

const RETRY: &[Key] = &[
    Key::new("enabled", Shape::Bool, "Whether a save that failed is tried again."),
    Key::new("max_attempts", Shape::Whole { min: 1, max: 10 }, "How often it is tried in all."),
    Key::new(
        "backoff",
        Shape::Word(&["exponential", "constant"]),
        "Whether the time between two tries doubles or stays.",
    ),
];

const PERFORMANCE: &[Key] = &[
    Key::new("incremental", Shape::Bool, "Whether only what changed since the last snapshot is written."),
    Key::new("compress", Shape::Bool, "Whether snapshots are packed."),
    Key::new("atomic", Shape::True, "A snapshot is always written whole or not at all; it can't be switched off."),
    Key::new("retry", Shape::Fields(RETRY), "What becomes of a save that failed."),
    Key::new(
        "coalesce",
        Shape::Word(&["auto", "always"]),
        "`auto` lets triggers of low priority wait until the log has grown by as much as the last snapshot is long; with `always` every \
         trigger saves.",
    ),
];

const CHECKPOINT: &[Key] = &[
    Key::new("triggers", Shape::Fields(TRIGGERS), "When a snapshot is saved."),
    Key::new("performance", Shape::Fields(PERFORMANCE), "How it is saved."),
];

const CLEANUP: &[Key] = &[
    Key::new("enabled", Shape::Bool, "Whether older snapshots are removed at all."),
    Key::new(
        "keep_last_n",
        Shape::Whole { min: 0, max: 10_000 },
        "The newest of the older ones stay, whatever their number and age.",
    ),
    Key::new("delete_older_than_days", Shape::Whole { min: 0, max: 36_500 }, "From this age on the others go."),
];

const ARCHIVE_PATH: Shape = Shape::Text(Check {
    what: "a folder such as `.ai/agent/threads/{thread_id}/archive/`",
    check: |text| {
        let asked = OnCompletion { action: Action::Archive, archive_path: text.to_owned() };
        asked.archive_folder().map(drop).map_err(|flaw| flaw.why)
    },
});

const ON_COMPLETION: &[Key] = &[
    Key::new(
        "action",
        Shape::Word(&["archive", "delete", "keep"]),
        "What becomes of older snapshots when the thread is completed: they are moved, deleted, or stay.",
    ),
    Key::new("archive_path", ARCHIVE_PATH, "Where they are moved: a folder directly in the thread's own."),
];

const RETENTION: &[Key] = &[
    Key::new(
        "max_checkpoints",
        Shape::Whole { min: 0, max: 10_000 },
        "How many older snapshots are kept beside the newest.",
    ),
    Key::new("cleanup", Shape::Fields(CLEANUP), "Which of them are removed."),
    Key::new("on_completion", Shape::Fields(ON_COMPLETION), "What becomes of them when the thread is completed."),
];

const SCHEMA_VERSION: Shape = Shape::Text(Check {
    what: "a version such as `1.1.0`, with `1.0` or `1.1` before the last number",
    check: |text| match is_known_version(text) {
        true => Ok(()),
        false => Err("nobody could read such a snapshot; 1.0.x and 1.1.x are known".to_owned()),
    },
});

pub(super) const KEYS: &[Key] = &[
    Key::new("schema_version", SCHEMA_VERSION, "The version of a snapshot's format."),
    Key::new("state", Shape::Fields(STATE), "What a snapshot holds."),
    Key::new("checkpoint", Shape::Fields(CHECKPOINT), "When a snapshot is saved, and how."),
    Key::new("retention", Shape::Fields(RETENTION), "How long older ones stay."),
];
