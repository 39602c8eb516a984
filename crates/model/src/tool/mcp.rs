//! An MCP server, as a project or a user declares it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Risk, SandboxSpec};
use crate::event::EffectClass;

/// A server: how it is reached, and what is made of its tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct McpServerSpec {
    /// Its name: `[a-z0-9-]`, at most 32 characters.
    pub name: String,
    /// How it is reached.
    #[serde(flatten)]
    pub launch: McpLaunch,
    /// What its process may reach; absent means everything that the user may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSpec>,
    /// The effect classes of its tools, by their names; `*` for all others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, EffectClass>,
    /// The risk of its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    /// The time limit of a call.
    #[serde(default = "timeout")]
    pub timeout_seconds: u64,
    /// The most bytes of one message of the server.
    #[serde(default = "message")]
    pub message_bytes_max: u64,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McpLaunch {
    /// A program that speaks on its standard input and output.
    Command {
        /// The program and its arguments.
        argv: Vec<String>,
        /// The variables of the user's environment that it gets.
        environment: Vec<String>,
        /// Variables with their values.
        variables: BTreeMap<String, String>,
    },
    /// A server on the network.
    Url {
        /// Its address.
        url: String,
        /// Headers of each request.
        headers: BTreeMap<String, String>,
        /// Where its bearer token comes from.
        token: Option<McpToken>,
    },
}

/// Where a bearer token comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McpToken {
    /// A variable of the environment.
    Environment(String),
    /// A file.
    File(String),
    /// The output of a command; it is run again when the token is refused.
    Command(Vec<String>),
}

/// A tool of a server, as it described it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct McpToolDefinition {
    /// Its name on the server.
    pub name: String,
    /// Its purpose.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: serde_json::Value,
    /// What else the server says about it, such as `readOnlyHint`.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub annotations: serde_json::Value,
}

fn timeout() -> u64 {
    300
}

fn message() -> u64 {
    8 << 20
}

impl McpServerSpec {
    /// A server with the default values.
    pub fn new(name: impl Into<String>, launch: McpLaunch) -> Self {
        Self {
            name: name.into(),
            launch,
            sandbox: None,
            classes: BTreeMap::new(),
            risk: None,
            timeout_seconds: timeout(),
            message_bytes_max: message(),
        }
    }

    /// The effect class of a tool: what the declaration says, else what its approved annotations say, else at most once.
    pub fn class_of(&self, tool: &McpToolDefinition) -> EffectClass {
        let says = |hint: &str| tool.annotations.get(hint).and_then(serde_json::Value::as_bool) == Some(true);
        match self.classes.get(&tool.name).or_else(|| self.classes.get("*")) {
            Some(class) => *class,
            None if says("readOnlyHint") => EffectClass::Pure,
            None if says("idempotentHint") => EffectClass::Idempotent,
            None => EffectClass::AtMostOnce,
        }
    }
}
