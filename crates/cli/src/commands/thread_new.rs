//! `selvedge thread new`: creates a thread.

use selvedge_model::{AgentId, Batch, Changeset, DirectiveId, Expect, Ids, NewThread, Part, TaskId, ThreadId};
use selvedge_store::Backend;
use selvedge_store_local::Access;
use selvedge_store_local::system::SystemIds;
use serde::Serialize;

use crate::commands::thread_rename::check_title;
use crate::context::Context;
use crate::error::Result;

/// Create a thread and print its id
///
/// The thread starts at version 0; every append adds one. Its id is the name of the directive or the agent with twelve random hex
/// characters, unless --id gives one: segments of a-z, 0-9, `_`, `.` and `-`, joined by `/`. Ids are never used again.
///
/// JSON: {"thread_id", "version", "agent_id"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent that owns the thread
    #[arg(long)]
    agent: AgentId,
    /// The directive that the thread belongs to
    #[arg(long)]
    directive: Option<DirectiveId>,
    /// The task that the thread belongs to
    #[arg(long)]
    task: Option<TaskId>,
    /// A title for people
    #[arg(long, value_parser = check_title)]
    title: Option<String>,
    /// Use this id instead of a generated one
    #[arg(long)]
    id: Option<ThreadId>,
    /// The thread that starts it
    #[arg(long, value_name = "THREAD")]
    parent: Option<String>,
}

#[derive(Serialize)]
struct Created<'a> {
    thread_id: &'a ThreadId,
    version: u64,
    agent_id: &'a AgentId,
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadWrite)?;
    let (thread_id, version, agent_id) = create(args, &*store)?;
    context.close(store);
    if context.output.is_json() {
        return context.output.record(&Created { thread_id: &thread_id, version, agent_id: &agent_id });
    }
    context.output.text(&thread_id)?;
    context.output.tell(format_args!("Next: `selvedge append {thread_id} --expect {version} < changeset.json`"));
    Ok(())
}

fn create(args: Args, store: &dyn Backend) -> Result<(ThreadId, u64, AgentId)> {
    let parent_id = args.parent.map(|prefix| store.resolve(&prefix)).transpose()?;
    let name = args.directive.as_ref().map_or(args.agent.as_str(), DirectiveId::as_str);
    let thread_id = args.id.unwrap_or_else(|| ThreadId::generate(name, &SystemIds.hex12()));
    let parent = parent_id.as_ref().map(|parent| store.get(parent)).transpose()?;
    let new = NewThread {
        family_root_id: parent.map(|parent| parent.manifest.family_root().clone()),
        directive: args.directive,
        task_id: args.task,
        title: args.title,
        parent_id,
        ..NewThread::of(args.agent.clone())
    };
    let part = Part::new(thread_id.clone(), Expect::Absent, Changeset::creating(new));
    let committed = store.commit(Batch::of(part))?;
    let version = committed.version_of(&thread_id).unwrap_or_default();
    Ok((thread_id, version, args.agent))
}
