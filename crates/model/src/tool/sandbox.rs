//! What a tool's process may reach, as its definition declares it.

use serde::{Deserialize, Deserializer, Serialize};

use crate::event::Fields;

/// The sandbox of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// How much of it must be enforced.
    #[serde(default)]
    pub level: SandboxLevel,
    /// The folders it may read, relative to the project or absolute, besides those of the system's programs; default: the project.
    #[serde(default = "project")]
    pub read: Vec<String>,
    /// The folders it may read and write, besides its private temporary one.
    #[serde(default)]
    pub write: Vec<String>,
    /// Whether it may use the network.
    #[serde(default, deserialize_with = "yes_or_no")]
    pub network: bool,
    /// The most address space of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<u64>,
    /// The largest file that it may write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes_max: Option<u64>,
    /// The most processor time of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_seconds_max: Option<u64>,
    /// The most processes at once.
    #[serde(default = "processes")]
    pub processes_max: u64,
    /// The size of its temporary folder.
    #[serde(default = "temporary")]
    pub temporary_bytes_max: u64,
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            level: SandboxLevel::default(),
            read: project(),
            write: Vec::new(),
            network: false,
            memory_bytes_max: None,
            file_bytes_max: None,
            processor_seconds_max: None,
            processes_max: processes(),
            temporary_bytes_max: temporary(),
        }
    }
}

/// How much of a sandbox must be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxLevel {
    /// Nothing is enforced.
    Off,
    /// What this machine can enforce; the log has what that was.
    #[default]
    Best,
    /// All of it, or the program is not started.
    Required,
}

/// How much of a sandbox is enforced: recorded with the call, before it is dispatched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReached {
    /// What the definition asks for.
    pub requested: SandboxLevel,
    /// How much of that is enforced.
    pub level: ReachedLevel,
    /// How files are restricted; absent if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
    /// `allowed` if the definition allows it; else `none`, `tcp_only` (only TCP is stopped) or `open` (nothing is).
    pub network: String,
    /// What finds processes that leave their group: `pid_namespace` or `subreaper`; absent if nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<String>,
    /// `tmpfs` of the declared size, or `unbounded`; absent if there is no private temporary folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary: Option<String>,
    /// What is not enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl SandboxReached {
    /// The fields of the event that records it.
    pub fn to_fields(&self) -> Fields {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => Fields::new(),
        }
    }
}

/// How much of a sandbox is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReachedLevel {
    /// All that was asked for.
    Full,
    /// A part of it.
    Partial,
    /// Nothing.
    None,
}

impl ReachedLevel {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partial => "partial",
            Self::None => "none",
        }
    }
}

fn project() -> Vec<String> {
    vec![".".to_owned()]
}

fn processes() -> u64 {
    256
}

fn temporary() -> u64 {
    256 << 20
}

/// In YAML with strict booleans, `no` is a word.
fn yes_or_no<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Word {
        Boolean(bool),
        Text(String),
    }
    match Word::deserialize(deserializer)? {
        Word::Boolean(value) => Ok(value),
        Word::Text(text) if text == "yes" => Ok(true),
        Word::Text(text) if text == "no" => Ok(false),
        Word::Text(_) => Err(serde::de::Error::custom("`network` is `yes` or `no`")),
    }
}
