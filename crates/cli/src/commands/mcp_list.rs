//! `selvedge mcp list`: the declared servers.

use selvedge::items::Layer;
use selvedge::model::tool::McpLaunch;
use selvedge::project::mcp::{McpServer, McpStanding};
use selvedge_model::Digest;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::output::table;
use crate::running::project;
use crate::text::clean;

/// List the declared MCP servers
///
/// None is started. An approved one starts when one of its tools is called.
///
/// JSON: one object per server, {"server", "layer", "file", "approval", "digest", "tools", "launch"}; "approval" is approved, changed, not
/// approved or invalid; "digest" is that of the approval, "tools" how many it has; "launch" is what would be started or reached.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct ListedServer<'a> {
    server: &'a str,
    layer: Layer,
    file: &'a str,
    approval: &'static str,
    digest: Option<Digest>,
    tools: Option<usize>,
    launch: &'a McpLaunch,
}

pub(crate) fn run(Args {}: Args, context: &Context<'_>) -> Result<()> {
    let project = project(context)?;
    let (servers, notices) = project.mcp_servers();
    for notice in notices {
        context.output.say(clean(&notice));
    }
    let lines: Vec<ListedServer<'_>> = servers.iter().map(listed).collect();
    if context.output.is_json() {
        return lines.iter().try_for_each(|line| context.output.record(line));
    }
    let rows = lines.iter().map(|line| {
        let tools = line.tools.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let digest = line.digest.as_ref().map_or_else(|| "-".to_owned(), |digest| digest.short().to_string());
        let from = if line.layer == Layer::Project { "project" } else { "user" };
        vec![clean(line.server), from.to_owned(), line.approval.to_owned(), tools, digest, launch(line.launch)]
    });
    context.output.text(table(&["SERVER", "FROM", "APPROVAL", "TOOLS", "DIGEST", "STARTS"], &[3], rows))
}

fn listed(server: &McpServer) -> ListedServer<'_> {
    let approval = match &server.standing {
        McpStanding::Approved(approval) | McpStanding::Redeclared(approval) => Some(approval),
        McpStanding::Unapproved | McpStanding::Invalid(_) => None,
    };
    ListedServer {
        server: &server.declared.spec.name,
        layer: server.declared.layer,
        file: &server.declared.file,
        approval: server.standing.as_str(),
        digest: approval.map(|approval| approval.digest()),
        tools: approval.map(|approval| approval.tools.len()),
        launch: &server.declared.spec.launch,
    }
}

/// What is started or reached, for people.
pub(super) fn launch(launch: &McpLaunch) -> String {
    match launch {
        McpLaunch::Command { argv, .. } => clean(&argv.join(" ")),
        McpLaunch::Url { url, .. } => clean(url),
    }
}
