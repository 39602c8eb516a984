//! Agents, which run directives: `.ai/agents/<id>.yaml`.

use serde::{Deserialize, Serialize};

use crate::capability::Permissions;
use crate::directive::ModelChoice;
use crate::error::Flaw;
use crate::yaml::parse_yaml;

/// An agent, which runs directives. Its id is the name of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Its name for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its purpose.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Who it is, as its system prompt says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// How it works, as its system prompt says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instructions: String,
    /// The most it may call; absent means no restriction of its own, unlike an empty set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Permissions>,
    /// Its model, unless a directive or a call names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelChoice>,
}

impl Agent {
    /// Reads an agent.
    pub fn parse(text: &str) -> Result<Self, Flaw> {
        parse_yaml(text, 1)
    }
}
