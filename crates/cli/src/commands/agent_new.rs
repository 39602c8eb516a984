//! `selvedge agent new`: creates an agent file to fill in.

use std::path::Path;

use selvedge_model::AgentId;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::new_file::write_item;

/// Create an agent file in .ai/agents to fill in
///
/// The file has every field, with a comment on each. An existing file is not overwritten.
///
/// JSON: {"agent_id", "file"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's name: a-z, 0-9, `_`, `.` and `-`; `/` for subfolders
    name: AgentId,
}

#[derive(Serialize)]
struct CreatedAgent<'a> {
    agent_id: &'a AgentId,
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
}

const TEMPLATE: &str = "\
# An agent runs directives. Every field is optional; lines that begin with # are comments.

# The purpose of the agent, for people.
description: Describe in one line what this agent is for.

# Part of the system prompt: who the agent is.
identity: |
  You are careful and report what you did.

# Part of the system prompt: how the agent works.
instructions: |
  Read before you write. If you are not sure, ask.

# The tools it may call at most. A run gets those that both the agent and the directive allow.
capabilities:
  - tool.file.read
  - tool.file.list
# - tool.file.write
# - tool.*          # every tool, including commands in .ai/tools

# The model, unless a directive or `--model` names another.
# model: scripted:script.yaml
";

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = context.project()?;
    let file = project.join(".ai").join("agents").join(format!("{}.yaml", args.name));
    write_item(&project, &file, TEMPLATE)?;
    if context.output.is_json() {
        return context.output.record(&CreatedAgent { agent_id: &args.name, file: &file });
    }
    context.output.text(file.display())?;
    context.output.tell(format!("Next: fill it in, then `selvedge run DIRECTIVE --agent {}`", args.name));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_a_valid_agent() {
        let agent = selvedge::items::Agent::parse(TEMPLATE).unwrap();
        assert!(!agent.identity.is_empty() && agent.capabilities.is_some());
    }
}
