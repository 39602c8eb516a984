//! Agents that start, watch and stop threads: one orchestrator, several doors.
//!
//! What a person does on the command line, an agent does with tools: start a directive as a child, wait for threads, look at how
//! they stand, search a chain, resume, hand over, cancel and kill. Each needs a capability of its own (`tool.threads.…`), so a
//! directive that says nothing of threads can't touch any. What changes other threads reaches only those that the calling thread
//! itself started, or that they started. `older_names` has the names of older documents.

mod doors;
pub(crate) mod older_names;
mod order;
mod resuming;

use std::sync::Arc;
use std::time::Duration;

use selvedge_engine::spawn::{Children, Order as ChildOrder, Spawning, Vouch};
use selvedge_engine::{Assignment, Engine};
use selvedge_model::tool::Started;
use selvedge_model::{Call, DirectiveId, Manifest, ThreadId, ToolSpec};
use selvedge_store::Store;

use crate::workshop::{Order, OrderError, Wishes, Workshop};

/// The tool that starts a directive as a child.
pub const SPAWN: &str = "spawn_thread";
/// The tool by which a thread hands itself over.
pub const HANDOFF: &str = "handoff_thread";

/// The tools by which agents act on threads, as a model is told of them.
pub fn thread_tools() -> Vec<ToolSpec> {
    doors::specs()
}

/// Starts a process that will run a thread, behind a gate.
pub type Launcher = Arc<dyn Fn(&ThreadId) -> Result<Box<dyn Started>, String> + Send + Sync>;

/// Makes threads of a project's directives, and lets agents do so too.
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
    /// An orchestrator of a project's threads, which this engine runs.
    pub fn new(engine: Engine, workshop: Arc<Workshop>, launcher: Launcher, vouch: Vouch) -> Self {
        Self { shared: Arc::new(Shared { engine, workshop, launcher, vouch }) }
    }

    /// Makes a directive ready to run.
    pub fn order(&self, id: &DirectiveId, wishes: Wishes) -> Result<Order, OrderError> {
        let mut order = self.shared.workshop.order(id, wishes)?;
        self.equip(&mut order.assignment);
        Ok(order)
    }

    /// What a thread's next run is done with, by what its own record says.
    pub fn assignment(&self, thread: &Manifest) -> Result<Assignment, OrderError> {
        let mut work = self.shared.workshop.assignment(thread)?;
        self.equip(&mut work);
        Ok(work)
    }

    /// Adds what an agent may do with threads; what it has no capability for is not offered.
    fn equip(&self, work: &mut Assignment) {
        let doors = doors::all(&self.shared);
        work.tools.extend(older_names::tools(&doors));
        work.tools.extend(doors);
        work.spawning = Some(Spawning {
            children: Arc::new(self.clone()),
            at_once: self.shared.at_once(),
            vouch: self.shared.vouch.clone(),
        });
    }
}

impl Children for Orchestrator {
    fn order(&self, call: &Call, _: &Manifest) -> Result<ChildOrder, String> {
        order::child(&self.shared.workshop, call)
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

    /// How long a wait lasts when nobody says.
    fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.workshop.config.coordination.wait_threads.default_timeout.max(0.0))
    }
}
