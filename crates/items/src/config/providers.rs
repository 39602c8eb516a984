//! The hosts of models: `models.providers` in `agent/models.yaml`.
//!
//! A host is data: its wire format, address, credentials and timeouts. Any host that speaks one of the formats is added by an entry.
//!
//! A project is not trusted with the user's keys: its file can add a host that needs no key, but it can't change a provider of a lower
//! layer or name a key, a key file or a key command. The user allows that for single providers with `models.project_providers`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::ConfigError;
use super::load::ParsedFile;
use super::node::{Node, NodeContent};
use super::section::InvalidCombination;
use super::shape::{Check, Key, Shape};
use crate::error::Flaw;
use crate::library::Layer;

/// Names before the colon of a model's name that are not hosts.
const RESERVED: [&str; 3] = ["scripted", "recorded", "tier"];

/// The wire format of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's chat completions.
    Openai,
    /// OpenAI's responses.
    OpenaiResponses,
}

/// A host of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// The first part of its models' names.
    pub id: String,
    /// Its wire format.
    pub format: Format,
    /// Its address.
    pub base_url: String,
    /// The environment variable that overrides its address.
    #[serde(default)]
    pub base_url_env: Option<String>,
    /// The environment variable that has its key.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// The file that has its key.
    #[serde(default)]
    pub api_key_file: Option<String>,
    /// The command that prints its key.
    #[serde(default)]
    pub api_key_command: Option<Vec<String>>,
    /// Headers of each request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The proxy to connect through.
    #[serde(default)]
    pub proxy: Option<String>,
    /// The certificates of a private authority.
    #[serde(default)]
    pub ca_file: Option<String>,
    /// How long requests may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Whether the host may store conversations.
    #[serde(default)]
    pub sessions: bool,
    /// Whether prompts are marked for the host's cache.
    #[serde(default)]
    pub cache: bool,
    /// Fields that are added to each request.
    #[serde(default)]
    pub extra: Map<String, Value>,
    /// The provider whose entries in `models.known` describe its models, too.
    #[serde(default)]
    pub models_as: Option<String>,
}

/// How long the parts of a request may take, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// Until a connection is established.
    pub connect_ms: u64,
    /// From the end of the request to the first byte of the response.
    pub first_byte_ms: u64,
    /// Between two pieces of the response.
    pub idle_ms: u64,
    /// For the whole request.
    pub total_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect_ms: 10_000, first_byte_ms: 300_000, idle_ms: 120_000, total_ms: 1_800_000 }
    }
}

impl Provider {
    /// Whether requests to it carry a key.
    pub fn has_key_source(&self) -> bool {
        self.api_key_env.is_some() || self.api_key_file.is_some() || self.api_key_command.is_some()
    }

    /// Checks what a shape can't.
    pub(super) fn check(&self) -> Result<(), InvalidCombination> {
        let wrong = |key: &str, why: String| InvalidCombination::at(format!("providers.{}{key}", self.id), why);
        let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        if !self.id.bytes().all(plain) {
            return Err(wrong("", "its id must consist of lower-case letters, digits, `_` and `-`".to_owned()));
        }
        if RESERVED.contains(&self.id.as_str()) {
            return Err(wrong("", format!("`{}` is the name of a built-in provider", self.id)));
        }
        let sources =
            [self.api_key_env.is_some(), self.api_key_file.is_some(), self.api_key_command.is_some()].into_iter();
        if sources.filter(|is_set| *is_set).count() > 1 {
            let why = "set only one of `api_key_env`, `api_key_file` and `api_key_command`".to_owned();
            return Err(wrong("", why));
        }
        if self.api_key_command.as_ref().is_some_and(Vec::is_empty) {
            return Err(wrong(".api_key_command", "it is empty".to_owned()));
        }
        Ok(())
    }
}

/// The keys by which a project's file could make the user's credentials leave the machine.
const CREDENTIALS: [&str; 4] = ["api_key_command", "api_key_file", "api_key_env", "base_url_env"];

/// What a project's files say about providers that they may not say.
pub(super) fn check_project(stack: &[ParsedFile]) -> Vec<ConfigError> {
    let lower = |name: &'static str| {
        let roots = stack.iter().filter(|written| written.layer != Layer::Project);
        roots.filter_map(move |written| written.root.field(name)).flat_map(items)
    };
    let allowed: Vec<&str> = lower("project_providers").filter_map(Node::text).collect();
    let known: Vec<&str> = lower("providers").filter_map(Node::id).collect();
    let project = stack.iter().filter(|written| written.layer == Layer::Project);
    let entries = project.filter_map(|written| written.root.field("providers")).flat_map(items);
    let mut errors = Vec::new();
    for entry in entries {
        let Some(id) = entry.id().filter(|id| !allowed.contains(id)) else { continue };
        let credentials = CREDENTIALS.iter().find_map(|name| Some((*name, entry.field(name)?)));
        let refused = match credentials {
            Some((name, field)) => Some((field, format!("a project can't set `{name}` of provider `{id}`"))),
            None if known.contains(&id) => Some((entry, format!("a project can't change provider `{id}`"))),
            None => None,
        };
        errors.extend(refused.map(|(node, why)| denied(node, id, why)));
    }
    errors
}

fn denied(node: &Node, id: &str, why: String) -> ConfigError {
    let hint = format!(
        "if you trust this project with the provider's key, write `project_providers: [{id}]` into `config/agent/models.yaml` of your \
         own folder, or move the entry there"
    );
    let flaw = Flaw::new(format!("{why}: it could run a command, or send your key to another host"));
    ConfigError::Denied { file: node.at.file.to_string(), flaw: flaw.on_line(node.at.line).hint(hint) }
}

fn items(node: &Node) -> &[Node] {
    match &node.content {
        NodeContent::List(items) => items,
        _ => &[],
    }
}

const URL: Shape = Shape::Text(Check {
    what: "an address such as `https://host/v1`",
    check: |text| {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let host = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
        match host {
            None => Err("it must begin with `https://` or `http://`".to_owned()),
            Some("") => Err("it has no host".to_owned()),
            Some(host) if host.contains('@') => Err("credentials don't belong in an address".to_owned()),
            Some(_) if text.contains(char::is_whitespace) => Err("it contains a blank".to_owned()),
            Some(_) => Ok(()),
        }
    },
});

const VARIABLE: Shape = Shape::Text(Check {
    what: "the name of an environment variable",
    check: |text| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !text.is_empty() && text.bytes().all(plain) {
            Ok(())
        } else {
            Err("it must be the name of a variable, not its value".to_owned())
        }
    },
});

const KEY_FILE: Shape = Shape::Text(Check {
    what: "an absolute path, or one that begins with `~/`",
    check: |text| {
        if text.starts_with('/') || text.starts_with("~/") {
            Ok(())
        } else {
            Err("it must be an absolute path, or begin with `~/`".to_owned())
        }
    },
});

const MILLISECONDS: Shape = Shape::Whole { min: 1, max: 86_400_000 };

const TIMEOUTS: &[Key] = &[
    Key::new("connect_ms", MILLISECONDS, "Milliseconds to establish a connection; 10000 by default."),
    Key::new("first_byte_ms", MILLISECONDS, "Milliseconds until the response begins; 300000 by default."),
    Key::new("idle_ms", MILLISECONDS, "Milliseconds between two pieces of a response; 120000 by default."),
    Key::new("total_ms", MILLISECONDS, "Milliseconds for a whole request; 1800000 by default."),
];

pub(super) const PROVIDER: &[Key] = &[
    Key::new(
        "format",
        Shape::Word(&["anthropic", "openai", "openai-responses"]),
        "The wire format: Anthropic's Messages, OpenAI's chat completions, or OpenAI's responses.",
    )
    .required(),
    Key::new(
        "base_url",
        URL,
        "The address of the host. That of the format `anthropic` does not include `/v1`, that of the others does.",
    )
    .required(),
    Key::new("base_url_env", VARIABLE, "An environment variable that overrides the address if it is set."),
    Key::new("api_key_env", VARIABLE, "The environment variable that has the key. Without any key, none is sent."),
    Key::new(
        "api_key_file",
        KEY_FILE,
        "The file that has the key. It must be readable by its owner only, and must not be a link.",
    ),
    Key::new(
        "api_key_command",
        Shape::List(&Shape::NAME),
        "The command that prints the key, as a list of words. It is run when the key is first needed.",
    ),
    Key::new("headers", Shape::Map(&Shape::NAME), "Headers that are added to each request."),
    Key::new("proxy", Shape::NAME, "The proxy to connect through, such as `http://proxy:3128`."),
    Key::new(
        "ca_file",
        Shape::NAME,
        "A file with the certificates (PEM) of a private authority, in addition to those of the system; relative to the project.",
    ),
    Key::new("timeouts", Shape::Fields(TIMEOUTS), "How long requests may take."),
    Key::new(
        "sessions",
        Shape::Bool,
        "Whether the host may store conversations, so that only what is new is sent; `false` by default.",
    ),
    Key::new("cache", Shape::Bool, "Whether prompts are marked for the host's cache; `false` by default."),
    Key::new("extra", Shape::Free, "Fields that are added to each request; `null` removes one."),
    Key::new(
        "models_as",
        Shape::NAME,
        "Another provider whose entries in `models.known` also describe the models of this one.",
    ),
];
