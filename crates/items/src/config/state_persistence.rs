//! When snapshots of threads are saved, in which form, and how long older ones stay: `state_persistence.yaml`, over the values of
//! `state_schema.yaml`, which also has the schema of a snapshot.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Flaw;
use crate::yaml::parse_yaml;

/// The values that hold when nobody says otherwise, as people read them.
pub const BUILTIN: &str = include_str!("state_schema.yaml");
/// From this priority on a trigger saves at once, and is not coalesced.
pub const PRIORITY_SYNC: u32 = 10;
/// What a folder of archived snapshots may lie under; `{thread_id}` is the thread's.
const ARCHIVE_BELOW: [&str; 2] = [".ai/agent/threads/{thread_id}/", ".ai/threads/{thread_id}/"];
/// Folders of a thread that hold something else.
const TAKEN: [&str; 2] = ["blobs", "checkpoints"];

/// Whether a version of a snapshot's format is one that is known: 1.0 is the published one, 1.1 has what Selvedge adds to it.
pub fn is_known_version(version: &str) -> bool {
    let patch = ["1.0.", "1.1."].iter().find_map(|known| version.strip_prefix(known));
    patch.is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit()))
}

/// How snapshots are made, saved and kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatePersistence {
    /// The version of a snapshot's format.
    pub schema_version: String,
    /// What a snapshot holds.
    pub state: State,
    /// When one is saved, and how.
    pub checkpoint: Checkpoint,
    /// How long older ones stay.
    pub retention: Retention,
}

/// What a snapshot holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// What must be there, whatever the schema says of it.
    #[serde(default)]
    pub required: Vec<String>,
    /// A JSON Schema.
    pub schema: Value,
}

/// When a snapshot is saved, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// When.
    pub triggers: Triggers,
    /// How.
    pub performance: Performance,
}

/// When a snapshot is saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Triggers {
    /// Before the model is called.
    pub pre_turn: TriggerRule,
    /// After its answer is committed.
    pub post_llm: TriggerRule,
    /// After the results of its tools are committed.
    pub post_tools: TriggerRule,
    /// When the thread waits for something.
    pub on_suspend: TriggerRule,
    /// When a run fails.
    pub on_error: TriggerRule,
    /// When a run is stopped.
    pub on_cancel: TriggerRule,
}

/// What holds for one trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerRule {
    /// Whether it saves.
    pub enabled: bool,
    /// What it is, for people.
    #[serde(default)]
    pub description: String,
    /// How much it matters; from [`PRIORITY_SYNC`] on it saves at once.
    pub priority: u32,
}

/// How a snapshot is saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Performance {
    /// Only what changed since the last one.
    pub incremental: bool,
    /// Packed.
    pub compress: bool,
    /// Whole or not at all; it always is.
    pub atomic: bool,
    /// How often it is tried.
    pub retry: Retry,
    /// Whether triggers of low priority wait until the log has grown.
    pub coalesce: Coalesce,
}

/// How often a save is tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Whether it is tried again at all.
    pub enabled: bool,
    /// How often in all.
    pub max_attempts: u32,
    /// How the time between two tries grows.
    pub backoff: Backoff,
}

impl Retry {
    /// How often a save is tried in all, at least once.
    pub fn attempts(&self) -> u32 {
        if self.enabled { self.max_attempts.max(1) } else { 1 }
    }
}

/// How the time between two tries grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backoff {
    /// It doubles.
    Exponential,
    /// It stays.
    Constant,
}

/// Whether triggers of low priority wait until the log has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coalesce {
    /// Until it has grown by as much as the last snapshot is long.
    Auto,
    /// They never wait.
    Always,
}

/// How long older snapshots stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// How many older ones are kept.
    pub max_checkpoints: usize,
    /// What is removed.
    pub cleanup: Cleanup,
    /// What becomes of them when the thread is completed.
    pub on_completion: OnCompletion,
}

/// What is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cleanup {
    /// Whether anything is.
    pub enabled: bool,
    /// The newest of the older ones, which stay whatever their number and age.
    pub keep_last_n: usize,
    /// From this age on the others go.
    pub delete_older_than_days: u64,
}

/// What becomes of snapshots when a thread is completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnCompletion {
    /// What is done.
    pub action: Action,
    /// Where they are moved; a folder of the thread's own.
    pub archive_path: String,
}

/// What is done with snapshots when a thread is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// They are moved into a folder.
    Archive,
    /// They are deleted.
    Delete,
    /// They stay.
    Keep,
}

impl OnCompletion {
    /// The name of the folder, in the thread's own, where snapshots are moved.
    pub fn archive_folder(&self) -> Result<&str, Flaw> {
        let hint = "write `.ai/agent/threads/{thread_id}/archive/`";
        let name = ARCHIVE_BELOW.iter().find_map(|below| self.archive_path.strip_prefix(below));
        let name = name.map(|name| name.strip_suffix('/').unwrap_or(name)).unwrap_or_default();
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
        match !name.is_empty() && name.bytes().all(is_plain) && !TAKEN.contains(&name) {
            true => Ok(name),
            false => Err(Flaw::new("`archive_path` is no folder directly in the thread's own").hint(hint)),
        }
    }
}

impl StatePersistence {
    /// The values that hold when nobody says otherwise.
    pub fn builtin() -> Self {
        parse_yaml(BUILTIN, 1).expect("the file that is shipped is valid")
    }

    /// Understands what all layers say together.
    pub fn from_value(value: Value) -> Result<Self, Flaw> {
        let read: Self = serde_json::from_value(value).map_err(|error| Flaw::new(error.to_string()))?;
        read.check()?;
        Ok(read)
    }

    /// Refuses what can't be meant.
    pub fn check(&self) -> Result<(), Flaw> {
        let Triggers { on_suspend, on_error, on_cancel, .. } = &self.checkpoint.triggers;
        for (name, rule) in [("on_suspend", on_suspend), ("on_error", on_error), ("on_cancel", on_cancel)] {
            if !rule.enabled {
                let why =
                    format!("`checkpoint.triggers.{name}` can't be disabled: what waits or failed is always saved");
                return Err(Flaw::new(why).hint("leave `enabled` out"));
            }
        }
        if !self.checkpoint.performance.atomic {
            let why = "`checkpoint.performance.atomic` can't be false: a snapshot is written whole or not at all";
            return Err(Flaw::new(why).hint("leave `atomic` out"));
        }
        self.retention.on_completion.archive_folder().map(|_| ())
    }
}
