//! `selvedge agent list`: the agents that can run directives here.

use selvedge::items::library::{Entry, Kind};
use selvedge::items::{Agent, Library, Resolved, Source};
use selvedge_model::AgentId;
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::items::{description, layer};
use crate::output::table;
use crate::running::project;
use crate::text::clean;

/// List the agents of the project and of your Selvedge home
///
/// If an agent is invalid, the reason is shown. An agent of the project hides yours of the same name.
///
/// JSON: one object per agent, {"id", "layer", "hidden", "source", "agent", "error"}; "layer" is project or user, "source" has
/// "file", "place", "verdict" of its signature and "hash", "agent" is the content of the file, "error" the reason why it is invalid.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct AgentEntry {
    #[serde(flatten)]
    entry: Entry,
    source: Option<Source>,
    agent: Option<Agent>,
    error: Option<Value>,
}

pub(crate) fn run(Args {}: Args, context: &Context<'_>) -> Result<()> {
    let library = project(context)?.library;
    let lines: Vec<AgentEntry> = library.list(Kind::Agent)?.into_iter().map(|entry| line(entry, &library)).collect();
    if context.output.is_json() {
        return lines.iter().try_for_each(|line| context.output.record(line));
    }
    if lines.is_empty() {
        context.output.tell("no agents; `selvedge agent new NAME` creates one");
        return Ok(());
    }
    context.output.text(table(&["AGENT", "FROM", "DESCRIPTION"], &[], lines.iter().map(row)))
}

fn line(entry: Entry, library: &Library) -> AgentEntry {
    if entry.hidden {
        return AgentEntry { entry, source: None, agent: None, error: None };
    }
    let id = entry.readable().and_then(|()| Ok(AgentId::new(&entry.id)?));
    match id.and_then(|id| library.agent(&id)) {
        Ok(Resolved { item, mut sources }) => {
            AgentEntry { entry, source: sources.pop(), agent: Some(item), error: None }
        }
        Err(error) => AgentEntry { entry, source: None, agent: None, error: Some(Failure::from(error).to_value()) },
    }
}

fn row(line: &AgentEntry) -> Vec<String> {
    let text = description(line.agent.as_ref().map(|agent| agent.description.as_str()), line.error.as_ref());
    vec![clean(&line.entry.id), layer(&line.entry).to_owned(), text]
}
