//! Agents that start, inspect and stop threads.
//!
//! What a person does on the command line, an agent does with tools: start a directive as a child, wait for threads, get their
//! status, search a chain, resume, hand off, cancel and kill. Each tool needs its own capability (`tool.threads.…`), so a
//! directive that declares none can't act on threads. Tools that change other threads only reach descendants of the calling thread.
//! `older_names` has the names of older documents.

mod blob;
mod child;
pub(crate) mod older_names;
mod resume;
mod thread_tools;

use std::sync::Arc;
use std::time::Duration;

use selvedge_engine::spawn::{Children, Order as ChildOrder, Spawning, Vouch};
use selvedge_engine::{Assignment, Engine};
use selvedge_model::limits::Limits;
use selvedge_model::tool::Started;
use selvedge_model::{AgentId, Call, DirectiveId, Manifest, ThreadId, ToolSpec};
use selvedge_store::Store;

use crate::workshop::{Conversation, Order, OrderError, OrderOptions, Workshop};

/// The tool that starts a directive as a child.
pub const SPAWN: &str = "spawn_thread";
/// The tool that hands the calling thread off to a successor.
pub const HANDOFF: &str = "handoff_thread";

/// The definitions of the tools that act on threads.
pub fn thread_tools() -> Vec<ToolSpec> {
    thread_tools::specs()
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
    workshop: Arc<Workshop>,
    launcher: Launcher,
    vouch: Vouch,
}

impl std::fmt::Debug for Orchestrator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Orchestrator").finish_non_exhaustive()
    }
}

impl Orchestrator {
    /// An orchestrator of a project's threads, run by this engine.
    pub fn new(engine: Engine, workshop: Arc<Workshop>, launcher: Launcher, vouch: Vouch) -> Self {
        Self { shared: Arc::new(Shared { engine, workshop, launcher, vouch }) }
    }

    /// Prepares a directive to run.
    pub fn order(&self, id: &DirectiveId, options: OrderOptions) -> Result<Order, OrderError> {
        let mut order = self.shared.workshop.order(id, options)?;
        self.equip(&mut order.assignment);
        Ok(order)
    }

    /// Prepares a conversation with an agent.
    pub fn conversation(
        &self,
        agent: AgentId,
        model: Option<String>,
        limits: Limits,
    ) -> Result<Conversation, OrderError> {
        let mut conversation = self.shared.workshop.conversation(agent, model, limits)?;
        self.equip(&mut conversation.assignment);
        Ok(conversation)
    }

    /// The assignment of a thread's next run, from its record.
    pub fn assignment(&self, thread: &Manifest) -> Result<Assignment, OrderError> {
        let mut work = self.shared.workshop.assignment(thread)?;
        self.equip(&mut work);
        Ok(work)
    }

    /// Adds the tools that act on threads; those without a capability are not offered.
    fn equip(&self, work: &mut Assignment) {
        let tools = thread_tools::all(&self.shared);
        work.tools.extend(older_names::tools(&tools));
        work.tools.extend(tools);
        work.spawning = Some(Spawning {
            children: Arc::new(self.clone()),
            at_once: self.shared.at_once(),
            vouch: self.shared.vouch.clone(),
        });
    }
}

impl Children for Orchestrator {
    fn order(&self, call: &Call, _: &Manifest) -> Result<ChildOrder, String> {
        child::order(&self.shared.workshop, call)
    }

    fn assignment(&self, child: &Manifest) -> Result<Assignment, String> {
        Self::assignment(self, child).map_err(|error| error.to_string())
    }

    fn launch(&self, child: &ThreadId) -> Result<Box<dyn Started>, String> {
        (self.shared.launcher)(child)
    }
}

impl Shared {
    fn store(&self) -> &Arc<dyn Store> {
        self.engine.store()
    }

    /// How many children of a thread run at the same time.
    fn at_once(&self) -> usize {
        usize::try_from(self.workshop.config.coordination.concurrency.children_max).unwrap_or(usize::MAX)
    }

    /// The default timeout of a wait.
    fn default_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.workshop.config.coordination.wait_threads.default_timeout.max(0.0))
    }
}
