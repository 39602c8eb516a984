//! `selvedge tool list`: the tools that models can get here.

use std::sync::Arc;

use selvedge::items::Layer;
use selvedge::items::capability::short;
use selvedge::items::library::{Entry, Kind};
use selvedge::model::tool::{Risk, SandboxReached};
use selvedge::model::{Tool, ToolSpec};
use selvedge::orchestrator::thread_tools;
use selvedge::project::{Project, ProjectError};
use selvedge_model::DirectiveId;
use serde::Serialize;
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::items::{description, layer};
use crate::output::table;
use crate::running::project;
use crate::text::clean;

/// List the built-in tools and the commands declared in .ai/tools
///
/// Tools with a capability `tool.threads.…` act on threads: they start directives as children, wait for them, inspect them and stop
/// them.
///
/// A thread gets the tools whose capability its directive and its agent allow; a dangerous tool must also be acknowledged by one of
/// them. A tool is hidden if an earlier one in the list has the same name.
///
/// JSON: one object per tool, {"id", "layer", "hidden", "tool", "error"}; "tool" has "name", "description", "input_schema", "class"
/// (pure, idempotent or at_most_once), "capability", "risk" and "hash"; "error" is the reason why it is invalid. A tool with a sandbox has
/// "sandbox" too: {"requested", "level", "files", "network", "processes", "temporary", "missing"}, what of it is enforced here.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show for each tool where it comes from, what it needs and what restricts it
    #[arg(long)]
    why: bool,
}

/// How the entries of tools of MCP servers begin.
const MCP: &str = "mcp:";

#[derive(Serialize)]
struct ToolEntry {
    #[serde(flatten)]
    entry: Entry,
    tool: Option<ToolSpec>,
    error: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<SandboxReached>,
}

pub(crate) fn run(Args { why }: Args, context: &Context<'_>) -> Result<()> {
    let project = project(context)?;
    let declared = project.library.list(Kind::Tool)?;
    let is_hidden = |name: &str| declared.iter().any(|entry| entry.id.rsplit('/').next() == Some(name));
    let built_in = project.built_in_tools()?.into_iter().map(|tool| tool.spec().clone());
    let built_in = built_in.chain(thread_tools()).map(|spec| {
        let id = spec.name.clone();
        let hidden = is_hidden(&spec.name);
        ToolEntry {
            entry: Entry { id, layer: Layer::BuiltIn, hidden, link: None },
            tool: Some(spec),
            error: None,
            sandbox: None,
        }
    });
    let mut lines: Vec<ToolEntry> = built_in.collect();
    lines.extend(declared.into_iter().map(|entry| line(entry, &project)));
    lines.extend(of_servers(&project));
    if context.output.is_json() {
        return lines.iter().try_for_each(|line| context.output.record(line));
    }
    if why {
        return lines.iter().try_for_each(|line| context.output.text(explained(line)));
    }
    let header = ["TOOL", "FROM", "EFFECT", "RISK", "CAPABILITY", "DESCRIPTION"];
    context.output.text(table(&header, &[], lines.iter().map(row)))
}

/// The tools of approved MCP servers.
fn of_servers(project: &Project) -> Vec<ToolEntry> {
    let (servers, _) = project.mcp_servers();
    let layer_of = |name: &str| {
        let server = name.split('.').next().unwrap_or_default();
        servers
            .iter()
            .find(|known| known.declared.spec.name == server)
            .map_or(Layer::Project, |known| known.declared.layer)
    };
    let tools = project.tools().map(|tools| tools.ready).unwrap_or_default();
    let offered = tools.iter().filter(|tool| tool.spec().capability.starts_with("tool.mcp."));
    let entries = offered.map(|tool| {
        let spec = tool.spec().clone();
        let entry = Entry { id: format!("{MCP}{}", spec.name), layer: layer_of(&spec.name), hidden: false, link: None };
        ToolEntry { entry, tool: Some(spec), error: None, sandbox: tool.sandbox() }
    });
    entries.collect()
}

fn line(entry: Entry, project: &Project) -> ToolEntry {
    if entry.hidden {
        return ToolEntry { entry, tool: None, error: None, sandbox: None };
    }
    match declared(&entry, project) {
        Ok(tool) => ToolEntry { entry, tool: Some(tool.spec().clone()), error: None, sandbox: tool.sandbox() },
        Err(error) => ToolEntry { entry, tool: None, error: Some(Failure::from(error).to_value()), sandbox: None },
    }
}

/// A tool, and why it is as it is, on a few lines.
fn explained(line: &ToolEntry) -> String {
    let from = match line.entry.layer {
        Layer::BuiltIn => layer(&line.entry).to_owned(),
        _ if line.entry.id.starts_with(MCP) => format!("{}: an approved MCP server", layer(&line.entry)),
        _ => format!("{}: tools/{}.yaml", layer(&line.entry), clean(&line.entry.id)),
    };
    let Some(tool) = &line.tool else {
        return format!("{}\n  from {from}\n  {}", clean(&line.entry.id), description(None, line.error.as_ref()));
    };
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let needs = match tool.risk {
        Risk::Dangerous => " and the acknowledged risk `dangerous`",
        _ => "",
    };
    let sandbox = line.sandbox.as_ref().map_or_else(
        || "no sandbox".to_owned(),
        |reached| {
            let missing =
                if reached.missing.is_empty() { String::new() } else { format!(": {}", reached.missing.join(", ")) };
            format!("sandbox {} of {}{missing}", reached.level.as_str(), word(json!(reached.requested)))
        },
    );
    format!(
        "{}\n  from {from}\n  needs `{}`{needs}\n  {}, {}, {sandbox}",
        clean(&tool.name),
        clean(short(&tool.capability)),
        word(json!(tool.class)),
        word(json!(tool.risk)),
    )
}

fn declared(entry: &Entry, project: &Project) -> Result<Arc<dyn Tool>, ProjectError> {
    let id = entry.readable().and_then(|()| Ok(DirectiveId::new(&entry.id)?));
    let id = id.map_err(ProjectError::Item)?;
    project.declared_tool(&id)
}

fn row(line: &ToolEntry) -> Vec<String> {
    let from = layer(&line.entry).to_owned();
    let text = description(line.tool.as_ref().map(|tool| tool.description.as_str()), line.error.as_ref());
    let Some(tool) = &line.tool else {
        return [clean(&line.entry.id), from].into_iter().chain(["-"; 3].map(str::to_owned)).chain([text]).collect();
    };
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let class = word(json!(tool.class));
    let risk = word(json!(tool.risk));
    vec![clean(&tool.name), from, class, risk, clean(short(&tool.capability)), text]
}
