//! `selvedge mcp approve`: starts a server, shows it, and approves it.

use selvedge::model::tool::McpLaunch;
use selvedge::project::mcp::{McpStanding, differences};
use selvedge_model::Clock as _;
use selvedge_store_local::system::SystemClock;

use super::mcp_check::{find, show, unusable};
use super::mcp_list::launch;
use crate::context::{Context, User};
use crate::error::{Failure, Result};
use crate::running::project;
use crate::text::clean;

/// Approve an MCP server and its tools
///
/// Shows what is started, starts it, and signs an approval in your own folder: over the command, the names of variables, the address, and the
/// definition of each tool. From then on its tools are offered to agents that have the capability `tool.mcp.NAME.…`. A tool that the server
/// describes otherwise later is not called until it is approved again.
///
/// JSON: as `selvedge mcp check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server
    name: String,
    /// Show what would be started, and start nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = project(context)?;
    let server = find(&project, &args.name)?;
    let spec = &server.declared.spec;
    context.output.tell(format!(
        "`{}` of {} starts: {}",
        spec.name,
        clean(&server.declared.file),
        launch(&spec.launch)
    ));
    if let McpLaunch::Command { environment, variables, .. } = &spec.launch {
        let names: Vec<&str> = environment.iter().chain(variables.keys()).map(String::as_str).collect();
        context.output.tell(format!(
            "with the variables: {}",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        ));
    }
    if args.dry_run {
        return Ok(());
    }
    let user = User::find()?;
    user.check_apart_from(&project.folder)?;
    let signer = user.signer()?;
    let listed = project.mcp_list(spec).map_err(unusable)?;
    let changes = match &server.standing {
        McpStanding::Approved(before) | McpStanding::Redeclared(before) => differences(&before.tools, &listed.tools),
        McpStanding::Unapproved | McpStanding::Invalid(_) => Vec::new(),
    };
    let at = SystemClock.now().whole_seconds();
    let (approval, file) = project
        .mcp_approve(&user.folder, &server.declared, listed, &signer, at)
        .map_err(|error| Failure::io("write", &user.folder, &error))?;
    show(context, spec, &approval.protocol, &approval.tools, Some(&approval), &[])?;
    for change in changes {
        context.output.tell(format!("approved: {}", clean(&change)));
    }
    context.output.tell(format!("approved by your key in {}", file.display()));
    Ok(())
}
