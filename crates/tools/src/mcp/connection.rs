//! A server that was greeted.

use std::sync::Arc;
use std::time::Duration;

use selvedge_model::Cancel;
use selvedge_model::tool::{McpLaunch, McpServerSpec, McpToolDefinition, SandboxReached};
use serde_json::{Value, json};

use super::definition;
use super::http::Http;
use super::message::{Era, Failed, LEGACY_KNOWN, MODERN, greeting, taken};
use super::servers::McpEnvironment;
use super::stdio::Stdio;
use crate::command::find_program;
use crate::process::{Confinement, Gated, ProcessSpec};
use crate::sandbox;

/// How long a server may take for its first answer; programs that are downloaded first take long.
const START_MAX: Duration = Duration::from_secs(60);
/// How long a server may take to say that it does not know the newer era. One that never answers is of the older one.
const PROBE_MAX: Duration = Duration::from_secs(5);
const PAGES_MAX: usize = 50;
const TOOLS_MAX: usize = 1000;

enum Link {
    Stdio(Stdio),
    Http(Http),
}

/// A server that was greeted, and the tools that it offers now.
pub(super) struct Connection {
    link: Arc<Link>,
    era: Era,
    pub(super) tools: Vec<McpToolDefinition>,
}

impl Connection {
    /// Starts a server or reaches it, and asks what it offers.
    pub(super) fn open(spec: &McpServerSpec, around: &McpEnvironment, cancel: &Cancel) -> Result<Self, String> {
        let mut link = Link::open(spec, around)?;
        let probe = link.request("server/discover", json!({}), &Era::Modern, cancel, PROBE_MAX);
        let era = match probe {
            Ok(found) if speaks_modern(&found) => Era::Modern,
            Err(Failed::Cancelled) => return Err("it was cancelled".to_owned()),
            Err(failed) if failed.is_modern() => {
                return Err(format!("it does not speak MCP {MODERN} nor an older version: {failed}"));
            }
            _ => {
                if !link.is_alive() {
                    // It died of the question.
                    link = Link::open(spec, around)?;
                }
                link.greet(cancel)?
            }
        };
        let mut connection = Self { link: Arc::new(link), era, tools: Vec::new() };
        connection.tools = connection.list(cancel)?;
        Ok(connection)
    }

    /// The same server with the tools that it offers now.
    pub(super) fn with_tools(&self, tools: Vec<McpToolDefinition>) -> Self {
        Self { link: self.link.clone(), era: self.era.clone(), tools }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.link.is_alive()
    }

    /// Whether the server said that its tools are others now.
    pub(super) fn have_tools_changed(&self) -> bool {
        matches!(&*self.link, Link::Stdio(stdio) if stdio.have_tools_changed())
    }

    /// The version that is spoken.
    pub(super) fn version(&self) -> &str {
        match &self.era {
            Era::Modern => MODERN,
            Era::Legacy(version) => version,
        }
    }

    /// The tools that it offers now.
    pub(super) fn list(&self, cancel: &Cancel) -> Result<Vec<McpToolDefinition>, String> {
        let mut tools = Vec::new();
        let mut cursor = Value::Null;
        for _ in 0..PAGES_MAX {
            let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
            let page = self.link.request("tools/list", params, &self.era, cancel, START_MAX);
            let mut page = page.map_err(|failed| format!("its tools can't be listed: {failed}"))?;
            definition::read(&page["tools"], &mut tools)?;
            if tools.len() > TOOLS_MAX {
                return Err(format!("it has more than {TOOLS_MAX} tools"));
            }
            cursor = taken(&mut page, "nextCursor");
            if !cursor.is_string() {
                return Ok(tools);
            }
        }
        Err(format!("its list of tools has more than {PAGES_MAX} pages"))
    }

    /// Calls a tool.
    pub(super) fn call(
        &self,
        tool: &McpToolDefinition,
        arguments: &Value,
        cancel: &Cancel,
        most: Duration,
    ) -> Result<Value, Failed> {
        let params = json!({"name": tool.name, "arguments": arguments});
        match &*self.link {
            Link::Stdio(stdio) => stdio.request("tools/call", params, &self.era, cancel, most),
            Link::Http(http) => http.call(tool, params, &self.era, cancel, most),
        }
    }
}

impl Link {
    fn open(spec: &McpServerSpec, around: &McpEnvironment) -> Result<Self, String> {
        match &spec.launch {
            McpLaunch::Command { .. } => {
                let gated = Gated::start(process(spec, around)?).map_err(|error| error.to_string())?;
                Stdio::start(gated, spec.message_bytes_max).map(Self::Stdio).map_err(|error| error.to_string())
            }
            McpLaunch::Url { .. } => Http::new(spec, around).map(Self::Http),
        }
    }

    fn is_alive(&self) -> bool {
        match self {
            Self::Stdio(stdio) => stdio.is_alive(),
            Self::Http(_) => true,
        }
    }

    fn request(
        &self,
        method: &str,
        params: Value,
        era: &Era,
        cancel: &Cancel,
        most: Duration,
    ) -> Result<Value, Failed> {
        match self {
            Self::Stdio(stdio) => stdio.request(method, params, era, cancel, most),
            Self::Http(http) => http.request(method, params, era, cancel, most),
        }
    }

    /// Greets a server of the older era.
    fn greet(&self, cancel: &Cancel) -> Result<Era, String> {
        let first = Era::Legacy(LEGACY_KNOWN[0].to_owned());
        let answer = self.request("initialize", greeting(), &first, cancel, START_MAX);
        let answer = answer.map_err(|failed| format!("it does not answer `initialize`: {failed}"))?;
        let version = answer["protocolVersion"].as_str().unwrap_or_default();
        let Some(version) = LEGACY_KNOWN.iter().find(|known| **known == version) else {
            let said: String = version.chars().take(40).collect();
            return Err(format!("it speaks MCP `{}`, which is not known here", said.escape_debug()));
        };
        let era = Era::Legacy((*version).to_owned());
        match self {
            Self::Stdio(stdio) => stdio.notify("notifications/initialized", json!({})),
            Self::Http(http) => http.notify("notifications/initialized", &era, cancel),
        }
        Ok(era)
    }
}

fn speaks_modern(found: &Value) -> bool {
    let versions = found["supportedVersions"].as_array();
    versions.is_none_or(|versions| versions.iter().any(|version| version == MODERN)) && found.is_object()
}

/// How much of a server's sandbox is enforced, if it declares one.
pub(super) fn sandbox_of(spec: &McpServerSpec, around: &McpEnvironment) -> Option<SandboxReached> {
    let declared =
        spec.sandbox.as_ref().filter(|declared| declared.level != selvedge_model::tool::SandboxLevel::Off)?;
    Some(
        around.sandbox.as_ref().map_or_else(|| sandbox::reached_nothing(declared), |sandbox| sandbox.reached(declared)),
    )
}

/// The process of a server: on a leash, in its sandbox, with the variables that it declares.
fn process(spec: &McpServerSpec, around: &McpEnvironment) -> Result<ProcessSpec, String> {
    let McpLaunch::Command { argv, environment, variables } = &spec.launch else {
        return Err("it is no program".to_owned());
    };
    let path = around.environment.get("PATH").map_or("", String::as_str);
    let (program, arguments) = argv.split_first().ok_or("its command is empty")?;
    let program = find_program(program, path, &around.root)?;
    let passed = environment.iter().filter_map(|name| Some((name.clone(), around.environment.get(name)?.clone())));
    let mut environment: Vec<(String, String)> = passed.chain(variables.clone()).collect();
    let (mut program, mut arguments) = (program, arguments.to_vec());
    let mut confinement = None;
    if let Some(reached) = sandbox_of(spec, around) {
        sandbox::refuse_less(&reached)?;
        if let (Some(sandbox), Some(declared)) = (&around.sandbox, &spec.sandbox) {
            let temporary = around.environment.get("TMPDIR").map_or("/tmp", String::as_str);
            let inside = sandbox.around(declared, &around.root, temporary.as_ref(), program, arguments)?;
            (program, arguments) = (inside.program, inside.arguments);
            environment.retain(|(name, _)| inside.environment.iter().all(|(ours, _)| ours != name));
            environment.extend(inside.environment);
            confinement = Some(Confinement { reached: inside.reached, temporary: inside.temporary });
        } else {
            confinement = Some(Confinement { reached, temporary: None });
        }
    }
    Ok(ProcessSpec {
        program,
        arguments,
        environment,
        folder: around.root.clone(),
        stdin: Some(Vec::new()),
        timeout: Duration::MAX,
        stdout_bytes_max: 0,
        leashed: true,
        confinement,
    })
}
