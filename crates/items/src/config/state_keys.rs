//! The keys of `state_persistence.yaml`; their types are in [`super::state_persistence`].

use super::shape::{Check, Key, Shape};
use super::state_persistence::{Action, OnCompletion, is_known_version};

const STATE: &[Key] = &[
    Key::new("required", Shape::List(&Shape::NAME), "The keys that a snapshot must have, in addition to the schema."),
    Key::new("schema", Shape::Free, "The JSON Schema that every snapshot is checked against."),
];

const DESCRIPTION: Key = Key::new("description", Shape::NAME, "A description for people.");
const PRIORITY: Key = Key::new(
    "priority",
    Shape::Whole { min: 0, max: 1000 },
    "Its priority: from 10 on a snapshot is saved at once, below that it may be delayed.",
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
    Key::new("on_suspend", Shape::Fields(ALWAYS), "When the thread is suspended."),
    Key::new("on_error", Shape::Fields(ALWAYS), "When a run fails."),
    Key::new("on_cancel", Shape::Fields(ALWAYS), "When a run is cancelled."),
];

const RETRY: &[Key] = &[
    Key::new("enabled", Shape::Bool, "Whether a failed save is retried."),
    Key::new("max_attempts", Shape::Whole { min: 1, max: 10 }, "The total number of attempts."),
    Key::new(
        "backoff",
        Shape::Word(&["exponential", "constant"]),
        "Whether the time between two attempts doubles or stays the same.",
    ),
];

const PERFORMANCE: &[Key] = &[
    Key::new("incremental", Shape::Bool, "Whether only the changes since the last snapshot are written."),
    Key::new("compress", Shape::Bool, "Whether snapshots are compressed."),
    Key::new("atomic", Shape::True, "A snapshot is always written as a whole or not at all; it can't be switched off."),
    Key::new("retry", Shape::Fields(RETRY), "How a failed save is retried."),
    Key::new(
        "coalesce",
        Shape::Word(&["auto", "always"]),
        "With `auto`, triggers of low priority are delayed until the log has grown by the size of the last snapshot; with `always` every \
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
        "How many of the newest older snapshots are kept, regardless of their number and age.",
    ),
    Key::new(
        "delete_older_than_days",
        Shape::Whole { min: 0, max: 36_500 },
        "The age from which on the rest is removed.",
    ),
];

const ARCHIVE_PATH: Shape = Shape::Text(Check {
    what: "a folder such as `.ai/agent/threads/{thread_id}/archive/`",
    check: |text| {
        let on_completion = OnCompletion { action: Action::Archive, archive_path: text.to_owned() };
        on_completion.archive_folder().map(drop).map_err(|flaw| flaw.why)
    },
});

const ON_COMPLETION: &[Key] = &[
    Key::new(
        "action",
        Shape::Word(&["archive", "delete", "keep"]),
        "What happens with older snapshots when the thread is completed: they are moved, deleted, or kept.",
    ),
    Key::new("archive_path", ARCHIVE_PATH, "Where they are moved: a folder directly in the thread's own folder."),
];

const RETENTION: &[Key] = &[
    Key::new(
        "max_checkpoints",
        Shape::Whole { min: 0, max: 10_000 },
        "How many older snapshots are kept beside the newest.",
    ),
    Key::new("cleanup", Shape::Fields(CLEANUP), "Which of them are removed."),
    Key::new("on_completion", Shape::Fields(ON_COMPLETION), "What happens with them when the thread is completed."),
];

const SCHEMA_VERSION: Shape = Shape::Text(Check {
    what: "a version such as `1.1.0`, with `1.0` or `1.1` before the last number",
    check: |text| {
        if is_known_version(text) {
            Ok(())
        } else {
            Err("no program could read such a snapshot; use 1.0.x or 1.1.x".to_owned())
        }
    },
});

pub(super) const KEYS: &[Key] = &[
    Key::new("schema_version", SCHEMA_VERSION, "The version of a snapshot's format."),
    Key::new("state", Shape::Fields(STATE), "The content of a snapshot."),
    Key::new("checkpoint", Shape::Fields(CHECKPOINT), "When a snapshot is saved, and how."),
    Key::new("retention", Shape::Fields(RETENTION), "How long older ones are kept."),
];
