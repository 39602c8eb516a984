//! Agents: who runs a directive. `.ai/agents/<id>.yaml`.

use serde::{Deserialize, Serialize};

use crate::capability::Permissions;
use crate::directive::ModelChoice;
use crate::error::Flaw;
use crate::yaml::parse_yaml;

/// Who runs a directive. The id is the file's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Who it is, in the words that it is told.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// How it goes about things, in the words that it is told.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instructions: String,
    /// What it may call at most; absent means that it says nothing, which is not the same as an empty set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Permissions>,
    /// The model it uses unless a directive or a call wants another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelChoice>,
}

impl Agent {
    /// Reads an agent.
    pub fn parse(text: &str) -> Result<Self, Flaw> {
        parse_yaml(text, 1)
    }
}
