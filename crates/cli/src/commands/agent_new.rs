//! `selvedge agent new`: a file to begin with.

use std::path::Path;

use selvedge_model::AgentId;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::new_file::write_item;

/// Write a new agent to .ai/agents, to be filled in
///
/// The file has every field there is, with a word on each. A file that is there is never written over.
///
/// JSON: {"agent_id", "file"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its name: a-z, 0-9, `_`, `.` and `-`, in folders if it has `/`
    name: AgentId,
}

#[derive(Serialize)]
struct Written<'a> {
    agent_id: &'a AgentId,
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
}

const TEMPLATE: &str = "\
# Who runs a directive. Every field may be left out; lines that begin with # say nothing.

# What people call it, and what it is for.
description: Says in a line what this agent is for.

# Who it is, in the words that it is told.
identity: |
  You are careful and say what you did.

# How it goes about things, in the words that it is told.
instructions: |
  Look before you write. When you are not sure, ask.

# What it may call at most. A run gets what both the agent and the directive allow.
capabilities:
  - tool.file.read
  - tool.file.list
# - tool.file.write
# - tool.*          # everything, commands in .ai/tools included

# The model, unless a directive or `--model` wants another.
# model: scripted:script.yaml
";

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = context.project()?;
    let file = project.join(".ai").join("agents").join(format!("{}.yaml", args.name));
    write_item(&project, &file, TEMPLATE)?;
    if context.output.is_json() {
        return context.output.record(&Written { agent_id: &args.name, file: &file });
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
