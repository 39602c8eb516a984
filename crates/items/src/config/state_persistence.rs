//! When snapshots of threads are saved, in which form, and how long older ones are kept: `state_persistence.yaml`, over the defaults in
//! `state_schema.yaml`, which also has the schema of a snapshot.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Flaw;
use crate::yaml::parse_yaml;

/// The defaults, as a file for people.
pub const BUILTIN: &str = include_str!("state_schema.yaml");
/// From this priority on a trigger saves at once, and is not coalesced.
pub const PRIORITY_SYNC: u32 = 10;
/// The folders that may contain the folder of archived snapshots; `{thread_id}` is the thread's.
const ARCHIVE_BELOW: [&str; 2] = [".ai/agent/threads/{thread_id}/", ".ai/threads/{thread_id}/"];
/// Folders of a thread with another purpose.
const TAKEN: [&str; 2] = ["blobs", "checkpoints"];

/// Whether a version of a snapshot's format is known: 1.0 is the published one, 1.1 has the extensions of Selvedge.
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
    /// The content of a snapshot.
    pub state: State,
    /// When one is saved, and how.
    pub checkpoint: SnapshotRules,
    /// How long older ones are kept.
    pub retention: Retention,
}

/// The content of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The keys that it must have, in addition to the schema.
    #[serde(default)]
    pub required: Vec<String>,
    /// A JSON Schema.
    pub schema: Value,
}

/// When a snapshot is saved, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRules {
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
    /// When the thread is suspended.
    pub on_suspend: TriggerRule,
    /// When a run fails.
    pub on_error: TriggerRule,
    /// When a run is cancelled.
    pub on_cancel: TriggerRule,
}

/// The settings of one trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerRule {
    /// Whether it saves.
    pub enabled: bool,
    /// A description for people.
    #[serde(default)]
    pub description: String,
    /// Its priority; from [`PRIORITY_SYNC`] on it saves at once.
    pub priority: u32,
}

/// How a snapshot is saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Performance {
    /// Whether only the changes since the last one are written.
    pub incremental: bool,
    /// Whether it is compressed.
    pub compress: bool,
    /// Whether it is written as a whole or not at all; always true.
    pub atomic: bool,
    /// How a failed save is retried.
    pub retry: Retry,
    /// Whether triggers of low priority are delayed until the log has grown.
    pub coalesce: Coalesce,
}

/// How a failed save is retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Whether it is retried at all.
    pub enabled: bool,
    /// The total number of attempts.
    pub max_attempts: u32,
    /// How the time between two attempts grows.
    pub backoff: Backoff,
}

impl Retry {
    /// The total number of attempts, at least one.
    pub fn attempts(&self) -> u32 {
        if self.enabled { self.max_attempts.max(1) } else { 1 }
    }
}

/// How the time between two attempts grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backoff {
    /// It doubles.
    Exponential,
    /// It stays the same.
    Constant,
}

/// Whether triggers of low priority are delayed until the log has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coalesce {
    /// Until it has grown by the size of the last snapshot.
    Auto,
    /// They are never delayed.
    Always,
}

/// How long older snapshots are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// How many older ones are kept.
    pub max_checkpoints: usize,
    /// Which ones are removed.
    pub cleanup: Cleanup,
    /// What happens with them when the thread is completed.
    pub on_completion: OnCompletion,
}

/// Which older snapshots are removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cleanup {
    /// Whether any are removed.
    pub enabled: bool,
    /// How many of the newest are kept, regardless of their number and age.
    pub keep_last_n: usize,
    /// The age from which on the rest is removed.
    pub delete_older_than_days: u64,
}

/// What happens with snapshots when a thread is completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnCompletion {
    /// The action.
    pub action: Action,
    /// Where they are moved; a folder in the thread's own.
    pub archive_path: String,
}

/// What happens with snapshots when a thread is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// They are moved into a folder.
    Archive,
    /// They are deleted.
    Delete,
    /// They are kept.
    Keep,
}

impl OnCompletion {
    /// The name of the folder, in the thread's own, to which snapshots are moved.
    pub fn archive_folder(&self) -> Result<&str, Flaw> {
        let hint = "write `.ai/agent/threads/{thread_id}/archive/`";
        let name = ARCHIVE_BELOW.iter().find_map(|below| self.archive_path.strip_prefix(below));
        let name = name.map(|name| name.strip_suffix('/').unwrap_or(name)).unwrap_or_default();
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
        if name.is_empty() || !name.bytes().all(is_plain) || TAKEN.contains(&name) {
            return Err(Flaw::new("`archive_path` is not a folder directly in the thread's own").hint(hint));
        }
        Ok(name)
    }
}

impl StatePersistence {
    /// The defaults.
    pub fn builtin() -> Self {
        parse_yaml(BUILTIN, 1).expect("the built-in file is valid")
    }

    /// Reads the merged value of all layers.
    pub fn from_value(value: Value) -> Result<Self, Flaw> {
        let read: Self = serde_json::from_value(value).map_err(|error| Flaw::new(error.to_string()))?;
        read.check()?;
        Ok(read)
    }

    /// Refuses invalid combinations.
    pub fn check(&self) -> Result<(), Flaw> {
        let Triggers { on_suspend, on_error, on_cancel, .. } = &self.checkpoint.triggers;
        for (name, rule) in [("on_suspend", on_suspend), ("on_error", on_error), ("on_cancel", on_cancel)] {
            if !rule.enabled {
                let why = format!(
                    "`checkpoint.triggers.{name}` can't be disabled: a suspended or failed thread is always saved"
                );
                return Err(Flaw::new(why).hint("leave `enabled` out"));
            }
        }
        if !self.checkpoint.performance.atomic {
            let why = "`checkpoint.performance.atomic` can't be false: a snapshot is written as a whole or not at all";
            return Err(Flaw::new(why).hint("leave `atomic` out"));
        }
        self.retention.on_completion.archive_folder().map(|_| ())
    }
}
