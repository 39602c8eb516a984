//! An engine over a store in memory, and what it refuses to accept.

use selvedge_log::Signer;
use selvedge_model::answer::{Answer, Drafts, Prompt};
use selvedge_model::event::Process;
use selvedge_model::{AgentId, Model, ModelError, NewThread, ToolError};
use selvedge_store::conformance::support::{ScriptedClock, SeededIds};
use selvedge_store::memory::MemoryStore;

use super::*;

struct NoProcesses;

impl Processes for NoProcesses {
    fn end(&self, _: &Process) -> std::result::Result<bool, ToolError> {
        Ok(false)
    }
}

/// A store in memory, and the trusted keys of its logs.
pub(crate) fn memory() -> (MemoryStore, Trust) {
    let signer = Signer::generate(&SeededIds::new(7));
    let trust = Trust::of(&[signer.public()]);
    (MemoryStore::new(signer, Box::new(ScriptedClock::default()), Box::new(SeededIds::new(8))), trust)
}

/// An engine over a store in memory.
pub(crate) fn engine() -> Engine {
    let (store, trust) = memory();
    engine_on(Arc::new(store), trust)
}

/// An engine over this store.
pub(crate) fn engine_on(store: Arc<dyn Store>, trust: Trust) -> Engine {
    Engine::new(Options {
        store,
        trust,
        clock: Arc::new(ScriptedClock::default()),
        ids: Arc::new(SeededIds::new(9)),
        processes: Arc::new(NoProcesses),
        scopes: Scopes::none(),
        redactor: Redactor::default(),
        snapshots: None,
        prepare: None,
    })
}

struct Mute;

impl Model for Mute {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, std::result::Result<Answer, ModelError>> {
        Box::pin(async { Err(ModelError::Permanent { why: "it is mute".to_owned() }) })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

#[test]
fn input_that_can_not_be_run_is_not_accepted() {
    let mut engine = engine();
    let agent = AgentId::new("scribe").unwrap();
    let thread = engine.create(NewThread::of(agent.clone()), Vec::new()).unwrap();
    Arc::get_mut(&mut engine.shared).unwrap().tasks = Tasks::without_threads();
    let work = RunConfig::new(agent, Arc::new(Mute), "mute");
    let refused = engine.submit(&thread, Input::text("hi"), work, &Cancel::new());
    assert!(matches!(refused, Err(Error::NoRuntime { .. })), "{refused:?}");
    assert!(engine.store.pending(&thread).unwrap().is_empty(), "no request is pending that would never be served");
}
