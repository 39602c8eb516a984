//! Agents that start, inspect and stop threads.
//!
//! What a person does on the command line, an agent does with tools: start a directive as a child, wait for threads, get their
//! status, search a chain, resume, hand off, cancel and kill. Each tool needs its own capability (`tool.threads.…`), so a
//! directive that declares none can't act on threads. Tools that change other threads only reach descendants of the calling thread;
//! `search_threads` only finds threads of the calling thread's agent.
//! `older_names` has the names of older documents.

mod blob;
mod child;
mod graph;
pub(crate) mod knowledge;
pub(crate) mod older_names;
mod resume;
mod search;
mod summary;
mod thread_tools;

use std::sync::Arc;
use std::time::Duration;

use selvedge_engine::spawn::{CheckParent, Children, NewChild, Spawning};
use selvedge_engine::{Engine, RunConfig};
use selvedge_model::limits::Limits;
use selvedge_model::tool::Started;
use selvedge_model::{AgentId, Call, Digest, DirectiveId, Manifest, Output, ThreadId, ToolSpec};
use selvedge_store::search::Search;
use selvedge_store::{SignedFiles, Store};

use crate::knowledge::Entry;
use crate::project::{Conversation, GraphOptions, PreparedGraph, PreparedRun, Project, ProjectError, RunOptions};

/// The tool that starts a directive as a child.
pub const SPAWN: &str = "spawn_thread";
/// The tool that starts a graph as a child; only nodes of graphs call it.
pub const SPAWN_GRAPH: &str = "spawn_graph";
/// The tool that makes a summary of the calling thread; only hooks call it.
pub const SUMMARY: &str = "thread_summary";
/// The tool that hands the calling thread off to a successor.
pub const HANDOFF: &str = "handoff_thread";

/// The definitions of the tools that act on threads.
pub fn thread_tools() -> Vec<ToolSpec> {
    thread_tools::specs()
}

/// The definitions of the tools for knowledge.
pub fn knowledge_tools() -> [ToolSpec; 3] {
    knowledge::specs()
}

/// Starts a process that will run a thread; it waits at a gate until the thread is committed.
pub type Launcher = Arc<dyn Fn(&ThreadId) -> Result<Box<dyn Started>, String> + Send + Sync>;

/// Creates threads from a project's directives, for users and for agents.
#[derive(Clone)]
pub struct Orchestrator {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
    project: Arc<Project>,
    launcher: Launcher,
    check_parent: CheckParent,
    index: Arc<dyn Search>,
    files: Arc<dyn SignedFiles>,
}

impl std::fmt::Debug for Orchestrator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Orchestrator").finish_non_exhaustive()
    }
}

impl Orchestrator {
    /// An orchestrator of a project's threads, run by this engine. `index` is the search index of the engine's store, and `files` its signed
    /// files.
    pub fn new(
        engine: Engine,
        project: Arc<Project>,
        launcher: Launcher,
        check_parent: CheckParent,
        index: Arc<dyn Search>,
        files: Arc<dyn SignedFiles>,
    ) -> Self {
        Self { shared: Arc::new(Shared { engine, project, launcher, check_parent, index, files }) }
    }

    /// Prepares a directive to run.
    pub fn prepare(&self, id: &DirectiveId, options: RunOptions) -> Result<PreparedRun, ProjectError> {
        let mut order = self.shared.project.prepare(id, options)?;
        self.equip(&mut order.run_config);
        Ok(order)
    }

    /// Prepares a graph to run.
    pub fn prepare_graph(&self, id: &DirectiveId, options: GraphOptions) -> Result<PreparedGraph, ProjectError> {
        let mut prepared = self.shared.project.prepare_graph(id, options)?;
        self.equip(&mut prepared.run_config);
        Ok(prepared)
    }

    /// Prepares a conversation with an agent.
    pub fn conversation(
        &self,
        agent: AgentId,
        model: Option<String>,
        limits: Limits,
    ) -> Result<Conversation, ProjectError> {
        let mut conversation = self.shared.project.conversation(agent, model, limits)?;
        self.equip(&mut conversation.run_config);
        Ok(conversation)
    }

    /// The run configuration of a thread's next run, from its record.
    pub fn run_config(&self, thread: &Manifest) -> Result<RunConfig, ProjectError> {
        let mut work = self.shared.project.run_config(thread)?;
        self.equip(&mut work);
        Ok(work)
    }

    /// Adds the tools that act on threads; those without a capability are not offered.
    fn equip(&self, work: &mut RunConfig) {
        let tools = thread_tools::all(&self.shared);
        work.tools.extend(older_names::tools(&tools));
        work.tools.extend(tools);
        work.tools.extend(knowledge::tools(&self.shared));
        Arc::make_mut(&mut work.hooks).tools.push(summary::tool());
        if let Some(graph) = &mut work.graph {
            Arc::make_mut(graph).tools.push(graph::tool());
        }
        work.spawning = Some(Spawning {
            children: Arc::new(self.clone()),
            at_once: self.shared.at_once(),
            check_parent: self.shared.check_parent.clone(),
        });
    }
}

impl Children for Orchestrator {
    fn new_child(&self, call: &Call, parent: &Manifest) -> Result<NewChild, String> {
        match call.name.as_str() {
            SUMMARY => summary::prepare(&self.shared, call, parent),
            SPAWN_GRAPH => graph::prepare(&self.shared.project, call),
            _ => child::prepare(&self.shared.project, call),
        }
    }

    fn returned(&self, call: &Call, output: Output) -> Output {
        match call.name.as_str() {
            SUMMARY => summary::returned(&self.shared, call, output),
            _ => output,
        }
    }

    fn run_config(&self, child: &Manifest) -> Result<RunConfig, String> {
        Self::run_config(self, child).map_err(|error| error.to_string())
    }

    fn launch(&self, child: &ThreadId) -> Result<Box<dyn Started>, String> {
        (self.shared.launcher)(child)
    }
}

impl Shared {
    fn store(&self) -> &Arc<dyn Store> {
        self.engine.store()
    }

    /// Signs and writes an entry of knowledge of an agent, over none that a person wrote.
    fn write_knowledge(&self, id: &DirectiveId, entry: &Entry) -> Result<Digest, String> {
        self.files.write_knowledge(id, &entry.text(id), &Entry::is_of_agent).map_err(|error| error.to_string())
    }

    /// How many children of a thread run at the same time.
    fn at_once(&self) -> usize {
        usize::try_from(self.project.config.coordination.concurrency.children_max).unwrap_or(usize::MAX)
    }

    /// The default timeout of a wait.
    fn default_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.project.config.coordination.wait_threads.default_timeout.max(0.0))
    }
}
