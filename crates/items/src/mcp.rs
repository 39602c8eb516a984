//! Declarations of MCP servers: `config/agent/mcp.yaml` of a project or a user, and the usual `.mcp.json` in a project's folder.
//!
//! ```yaml
//! servers:
//!   files: { command: [npx, -y, "@modelcontextprotocol/server-everything"], environment: [PATH, HOME] }
//!   team: { url: https://example.com/mcp, token: { environment: TEAM_TOKEN } }
//! ```
//!
//! Only parsed and checked here. Nothing that is declared is started before its user approved it.

use std::collections::BTreeMap;

use selvedge_model::event::EffectClass;
use selvedge_model::tool::{McpLaunch, McpServerSpec, McpToken, Risk, SandboxSpec};
use serde::Deserialize;

use crate::error::{Flaw, ItemError};
use crate::library::{Layer, Library};
use crate::read::{self, read_below};
use crate::yaml::{self, parse_yaml};

/// Its path below the folder of a project or a user.
pub const FILE: &str = "config/agent/mcp.yaml";
/// The file of other programs, in the project's folder.
pub const JSON_FILE: &str = ".mcp.json";
const NAME_BYTES_MAX: usize = 32;
const SERVERS_MAX: usize = 100;

/// A declared server.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredServer {
    /// The declaration.
    pub spec: McpServerSpec,
    /// Where it is declared.
    pub layer: Layer,
    /// The file, for display.
    pub file: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    servers: BTreeMap<String, Fields>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    command: Option<Vec<String>>,
    #[serde(default)]
    environment: Vec<String>,
    #[serde(default)]
    variables: BTreeMap<String, String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    token: Option<McpToken>,
    sandbox: Option<SandboxSpec>,
    #[serde(default)]
    classes: BTreeMap<String, EffectClass>,
    risk: Option<Risk>,
    timeout_seconds: Option<u64>,
    message_bytes_max: Option<u64>,
}

/// The file of other programs; what it has beside these is theirs.
#[derive(Deserialize)]
struct JsonFile {
    #[serde(rename = "mcpServers", default)]
    servers: BTreeMap<String, JsonFields>,
}

#[derive(Deserialize)]
struct JsonFields {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// Parses `mcp.yaml`.
pub fn parse(text: &str) -> Result<Vec<McpServerSpec>, Flaw> {
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Vec::new());
    }
    let File { servers } = parse_yaml(text, 1)?;
    if servers.len() > SERVERS_MAX {
        return Err(Flaw::new(format!("it has more than {SERVERS_MAX} servers")));
    }
    servers.into_iter().map(|(name, fields)| fields.into_spec(name)).collect()
}

/// Parses `.mcp.json`.
pub fn parse_json(text: &str) -> Result<Vec<McpServerSpec>, Flaw> {
    let JsonFile { servers } = serde_json::from_str(text).map_err(|error| Flaw::new(error.to_string()))?;
    servers.into_iter().take(SERVERS_MAX).map(|(name, fields)| fields.into_spec(&name)).collect()
}

impl Fields {
    fn into_spec(self, name: String) -> Result<McpServerSpec, Flaw> {
        let launch = match (self.command, self.url) {
            (Some(argv), None) if self.headers.is_empty() && self.token.is_none() => {
                McpLaunch::Command { argv, environment: self.environment, variables: self.variables }
            }
            (None, Some(url)) if self.environment.is_empty() && self.variables.is_empty() && self.sandbox.is_none() => {
                McpLaunch::Url { url, headers: self.headers, token: self.token }
            }
            _ => {
                let flaw =
                    Flaw::new(format!("the server `{}` is neither a command nor an address", name.escape_debug()));
                return Err(flaw.hint("a command has `command`, `environment`, `variables`, `sandbox`; an address has `url`, `headers`, `token`"));
            }
        };
        let mut spec = McpServerSpec::new(name, launch);
        spec.sandbox = self.sandbox;
        spec.classes = self.classes;
        spec.risk = self.risk;
        spec.timeout_seconds = self.timeout_seconds.unwrap_or(spec.timeout_seconds);
        spec.message_bytes_max = self.message_bytes_max.unwrap_or(spec.message_bytes_max);
        check(&spec)?;
        Ok(spec)
    }
}

impl JsonFields {
    fn into_spec(self, name: &str) -> Result<McpServerSpec, Flaw> {
        // Names of other programs may have capitals and underscores.
        let name = name.to_ascii_lowercase().replace(['_', ' ', '.'], "-");
        let (named, variables): (BTreeMap<_, _>, BTreeMap<_, _>) =
            self.env.into_iter().partition(|(name, value)| *value == format!("${{{name}}}"));
        let environment = ["PATH", "HOME"].map(str::to_owned).into_iter().chain(named.into_keys()).collect();
        let launch = match (self.command, self.url) {
            (Some(command), None) => {
                McpLaunch::Command { argv: std::iter::once(command).chain(self.args).collect(), environment, variables }
            }
            (None, Some(url)) => McpLaunch::Url { url, headers: self.headers, token: None },
            _ => {
                return Err(Flaw::new(format!(
                    "the server `{}` is neither a command nor an address",
                    name.escape_debug()
                )));
            }
        };
        let spec = McpServerSpec::new(name, launch);
        check(&spec)?;
        Ok(spec)
    }
}

fn check(spec: &McpServerSpec) -> Result<(), Flaw> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if spec.name.is_empty() || spec.name.len() > NAME_BYTES_MAX || !spec.name.bytes().all(plain) {
        let flaw = Flaw::new(format!("`{}` can't be the name of a server", spec.name.escape_debug()));
        return Err(flaw.hint("use at most 32 of a-z, 0-9 and `-`"));
    }
    let refused = |why: String| Err(Flaw::new(format!("the server `{}`: {why}", spec.name)));
    match &spec.launch {
        McpLaunch::Command { argv, environment, variables } => {
            if argv.first().is_none_or(String::is_empty) || argv.iter().any(|word| word.contains('\0')) {
                return refused("its command has no program, or a NUL".to_owned());
            }
            let is_variable = |name: &String| {
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            };
            if let Some(name) = environment.iter().chain(variables.keys()).find(|name| !is_variable(name)) {
                return refused(format!("`{}` is not the name of a variable", name.escape_debug()));
            }
        }
        McpLaunch::Url { url, .. } => {
            let is_local = ["http://127.0.0.1", "http://localhost", "http://[::1]"].iter().any(|local| {
                url.strip_prefix(local).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
            });
            if !url.starts_with("https://") && !is_local {
                return refused("its address is neither `https://…` nor on this machine".to_owned());
            }
        }
    }
    if spec.timeout_seconds == 0 || spec.message_bytes_max < 1024 {
        return refused("its limits are too small".to_owned());
    }
    Ok(())
}

impl Library {
    /// The declared servers, the project's before the user's, and why others can't be used. A file that was changed after it was signed is
    /// refused.
    pub fn mcp_servers(&self) -> (Vec<DeclaredServer>, Vec<String>) {
        let mut found: Vec<DeclaredServer> = Vec::new();
        let mut notices = Vec::new();
        let files = [self.mcp_yaml(Layer::Project), self.mcp_json(), self.mcp_yaml(Layer::User)];
        for file in files {
            match file {
                Ok(servers) => {
                    let new: Vec<_> = servers
                        .into_iter()
                        .filter(|server| found.iter().all(|other| other.spec.name != server.spec.name))
                        .collect();
                    found.extend(new);
                }
                Err(error) => notices.push(format!("MCP servers can't be used: {error}")),
            }
        }
        (found, notices)
    }

    fn mcp_yaml(&self, layer: Layer) -> Result<Vec<DeclaredServer>, ItemError> {
        let Some((text, source)) = self.config_file(layer, FILE)? else { return Ok(Vec::new()) };
        let refused = |why| ItemError::NotTrusted {
            file: source.file.clone(),
            what: source.what,
            place: source.place.clone(),
            why,
        };
        self.policy.permits(&source.verdict).map_err(refused)?;
        let content = selvedge_log::document::Comment::Hash.unsigned(&text);
        let parsed = parse(&content).map_err(|flaw| ItemError::Invalid { file: source.file.clone(), flaw })?;
        let file = source.file;
        Ok(parsed.into_iter().map(|spec| DeclaredServer { spec, layer, file: file.clone() }).collect())
    }

    fn mcp_json(&self) -> Result<Vec<DeclaredServer>, ItemError> {
        let Some(folder) = self.project.as_deref().and_then(std::path::Path::parent) else { return Ok(Vec::new()) };
        let Some(bytes) = read_below(folder, &[JSON_FILE], yaml::BYTES_MAX)? else { return Ok(Vec::new()) };
        let file = folder.join(JSON_FILE).display().to_string();
        let parsed = read::text(bytes).and_then(|text| parse_json(&text));
        let parsed = parsed.map_err(|flaw| ItemError::Invalid { file: file.clone(), flaw })?;
        let declared = |spec| DeclaredServer { spec, layer: Layer::Project, file: file.clone() };
        Ok(parsed.into_iter().map(declared).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_command_or_an_address() {
        let text = "servers:\n  one: { command: [npx, server], environment: [PATH], sandbox: { network: no } }\n  two: { url: \"https://x.test/mcp\", token: { environment: T } }\n";
        let found = parse(text).unwrap();
        assert_eq!(found.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        assert!(
            matches!(&found[1].launch, McpLaunch::Url { token: Some(McpToken::Environment(name)), .. } if name == "T")
        );
        for bad in [
            "servers: { One: { command: [x] } }",
            "servers: { one: {} }",
            "servers: { one: { command: [x], url: \"https://x\" } }",
            "servers: { one: { url: \"http://example.com\" } }",
            "servers: { one: { url: \"http://127.0.0.1.example.com/\" } }",
            "servers: { one: { command: [] } }",
            "servers: { one: { command: [x], shell: true } }",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse("# nothing\n").unwrap(), []);
    }

    #[test]
    fn the_usual_json_is_read() {
        let text = r#"{"mcpServers": {"My_Files": {"command": "npx", "args": ["-y", "s"], "env": {"TOKEN": "${TOKEN}", "MODE": "1"}}}, "other": 1}"#;
        let found = parse_json(text).unwrap();
        let McpLaunch::Command { argv, environment, variables } = &found[0].launch else { panic!("it is a command") };
        assert_eq!((found[0].name.as_str(), argv.len()), ("my-files", 3));
        assert_eq!((environment.join(" "), variables.len()), ("PATH HOME TOKEN".to_owned(), 1));
    }
}
