//! `selvedge mcp check`: what a server offers, and what changed since it was approved.

use selvedge::items::nearest::nearest;
use selvedge::model::tool::{McpServerSpec, McpToolDefinition};
use selvedge::project::Project;
use selvedge::project::mcp::{Approval, McpServer, McpStanding, differences};
use selvedge::tools::mcp::{digest, tool_name};
use serde_json::{Value, json};

use super::mcp_list::launch;
use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::{WARN, paint};
use crate::running::project;
use crate::text::{clean, one_line};

/// Show the tools of an MCP server, and what changed since they were approved
///
/// Starts the server, if it is approved as it is declared; else nothing is started.
///
/// JSON: {"server", "protocol", "approved", "digest", "tools", "changes"}; "tools" as the server describes them now, each {"name",
/// "class", "digest", "description"}; "changes" says in words what differs from what was approved.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server
    name: String,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = project(context)?;
    let server = find(&project, &args.name)?;
    let McpStanding::Approved(approval) = &server.standing else { return Err(not_approved(&server)) };
    let listed = project.mcp_list(&server.declared.spec).map_err(unusable)?;
    let changes = differences(&approval.tools, &listed.tools);
    show(context, &server.declared.spec, &listed.version, &listed.tools, Some(approval), &changes)
}

/// The declared server of a name.
pub(super) fn find(project: &Project, name: &str) -> Result<McpServer> {
    let (servers, notices) = project.mcp_servers();
    let names: Vec<String> = servers.iter().map(|server| server.declared.spec.name.clone()).collect();
    if let Some(found) = servers.into_iter().find(|server| server.declared.spec.name == name) {
        return Ok(found);
    }
    let message = format!("no MCP server `{}` is declared", clean(name));
    let hint = match (nearest(name, names.iter().map(String::as_str)), notices.first()) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, Some(notice)) => notice.clone(),
        (None, None) => "`selvedge mcp list` shows those that are".to_owned(),
    };
    Err(Failure::new(Exit::NotFound, "mcp_not_found", message).hint(hint))
}

pub(super) fn unusable(why: String) -> Failure {
    Failure::new(Exit::Failed, "mcp_unusable", clean(&why))
}

fn not_approved(server: &McpServer) -> Failure {
    let name = &server.declared.spec.name;
    let why = match &server.standing {
        McpStanding::Redeclared(_) => "its declaration changed since it was approved".to_owned(),
        McpStanding::Invalid(why) => format!("its approval can't be used: {why}"),
        _ => "it was not approved".to_owned(),
    };
    let starts = launch(&server.declared.spec.launch);
    let message = format!("the MCP server `{name}` is not started: {why}");
    Failure::new(Exit::NotAllowed, "mcp_not_approved", message)
        .hint(format!("it starts `{starts}`; `selvedge mcp approve {name}` approves that"))
}

/// Shows what a server offers.
pub(super) fn show(
    context: &Context<'_>,
    spec: &McpServerSpec,
    protocol: &str,
    tools: &[McpToolDefinition],
    approval: Option<&Approval>,
    changes: &[String],
) -> Result<()> {
    let class = |tool: &McpToolDefinition| json!(spec.class_of(tool)).as_str().unwrap_or_default().to_owned();
    if context.output.is_json() {
        let tools: Vec<Value> = tools
            .iter()
            .map(|tool| {
                let name = tool_name(&spec.name, &tool.name);
                json!({"name": name, "class": class(tool), "digest": digest(tool), "description": tool.description})
            })
            .collect();
        let approved = approval.is_some() && changes.is_empty();
        return context.output.record(&json!({
            "server": spec.name, "protocol": protocol, "approved": approved, "digest": approval.map(Approval::digest),
            "tools": tools, "changes": changes,
        }));
    }
    context.output.text(format!("{} speaks MCP {protocol} and offers:", spec.name))?;
    for tool in tools {
        let description = one_line(&tool.description, 80);
        let name = clean(&tool_name(&spec.name, &tool.name));
        context.output.text(format!("  {name} ({}) {} {description}", class(tool), digest(tool).short()))?;
    }
    for change in changes {
        context.output.text(paint(WARN, format!("changed: {}", clean(change))))?;
    }
    Ok(())
}
