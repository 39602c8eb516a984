//! A thread of five thousand turns: the next turn costs what the fiftieth did.
//!
//! A prompt that is built by reading the thread again, or by copying it, makes a long thread slower with every turn; this is how a
//! user would see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use selvedge::log::{Signer, Trust};
use selvedge::model::answer::{Drafts, End, Usage};
use selvedge::model::blocking::BoxFuture;
use selvedge::model::message::Block;
use selvedge::model::scope::Scopes;
use selvedge::model::{AgentId, Answer, CallId, Cancel, Model, ModelError, NewThread, Prompt, Status};
use selvedge::store::memory::MemoryStore;
use selvedge::store_local::system::{SystemClock, SystemIds};
use selvedge::tools::ProcessGroups;
use selvedge::{Engine, EngineOptions, Input, Redactor, RunConfig};
use serde_json::json;

use crate::support::{Watched, look};

const TURNS: u64 = 5_000;

/// What had been done when a turn began: reads of the log, other questions, processor time of this process.
#[derive(Clone, Copy, Debug)]
struct Mark {
    reads: u64,
    questions: u64,
    cpu: Duration,
}

/// A model that looks something up in every turn, and notes what the turns before it cost.
struct Busy {
    store: Arc<Watched<MemoryStore>>,
    turn: AtomicU64,
    marks: Mutex<Vec<Mark>>,
}

impl Model for Busy {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let turn = self.turn.fetch_add(1, Ordering::SeqCst);
            assert_eq!(prompt.messages.len() as u64, 1 + 2 * turn, "it is shown everything");
            let now = clock_gettime(ClockId::ProcessCPUTime);
            self.marks.lock().unwrap().push(Mark {
                reads: self.store.reads.load(Ordering::SeqCst),
                questions: self.store.questions.load(Ordering::SeqCst),
                cpu: Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap()),
            });
            let (content, end) = if turn < TURNS {
                let id = CallId::new(format!("call_{turn}")).unwrap();
                (Block::tool_call(id, "look", json!({"turn": turn})), End::ToolCalls)
            } else {
                (Block::text("Enough."), End::Finished)
            };
            Ok(Answer::new(vec![content], end).using(Usage::default()))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

#[test]
fn turn_five_thousand_costs_what_turn_fifty_did() {
    let signer = Signer::generate(&SystemIds);
    let trust = Trust::of(&[signer.public()]);
    let memory = MemoryStore::new(signer, Box::new(SystemClock), Box::new(SystemIds));
    let store = Arc::new(Watched::new(memory));
    let engine = Engine::new(EngineOptions {
        store: store.clone(),
        trust,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        processes: Arc::new(ProcessGroups),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots: None,
        prepare: None,
    });
    let agent = AgentId::new("scribe").unwrap();
    let model = Arc::new(Busy { store: store.clone(), turn: AtomicU64::new(0), marks: Mutex::default() });
    let mut work = RunConfig::new(agent.clone(), model.clone(), "busy");
    work.tools = vec![look()];
    let thread = engine.create(NewThread::of(agent), Vec::new()).unwrap();
    let ended = engine.send(&thread, Input::text("look"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.run_cost.clone().unwrap().turns), (Status::Completed, TURNS + 1));
    let marks = model.marks.lock().unwrap();
    let cost = |turn: usize| {
        let before = marks[turn];
        let after = marks[turn + 1];
        (after.reads - before.reads, after.questions - before.questions)
    };
    assert_eq!(cost(50).0, 0, "a turn reads nothing of the log again");
    assert_eq!(cost(TURNS as usize - 1), cost(50));
    // The fastest ten turns in a row of a hundred, so that other load on the machine does not count; a turn that looks at every message
    // once would be a hundred times slower here.
    let fastest = |from: usize| (from..from + 90).map(|turn| marks[turn + 10].cpu - marks[turn].cpu).min().unwrap();
    let early = fastest(50);
    let late = fastest(TURNS as usize - 100);
    assert!(late < early * 4, "ten turns took {early:?} early and {late:?} late");
}
