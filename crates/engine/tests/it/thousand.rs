//! A thousand children of one parent, eight at a time, that fail, wait, run out of money and are stopped at random moments.
//!
//! The seed is printed; `SELVEDGE_TEST_SEED` sets another one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_engine::ledger::audit;
use selvedge_engine::spawn::{Children, NewChild};
use selvedge_engine::{Input, RunConfig};
use selvedge_model::account::AccountStatus;
use selvedge_model::answer::Usage;
use selvedge_model::event::EffectClass;
use selvedge_model::limits::Limits;
use selvedge_model::message::Block;
use selvedge_model::tool::Started;
use selvedge_model::{
    AgentId, Answer, Call, Cancel, Draft, Manifest, Message, ModelError, Money, NewThread, Price, Prompt, Role, Status,
    Stop, ThreadId,
};
use selvedge_store::Ledger;
use serde_json::json;

use crate::spawning::{nursery, parent};
use crate::support::{Chance, CountingTool, Harness, ListedModel, Reply, agent};

const CHILDREN: u64 = 1000;
/// How many children a turn of the parent asks for.
const ROUND: u64 = 50;
const AT_ONCE: usize = 8;
/// Ten tokens in and five out, at a thousandth of a dollar each: what an answer costs.
const ANSWER_NANOS: i64 = 15_000_000;

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Answers,
    CallsATool,
    IsRefused,
    FailsForEver,
    FailsOnce,
    IsCutOff,
    IsLimited,
    Waits,
    RunsShort,
}

const KINDS: [Kind; 9] = [
    Kind::Answers,
    Kind::CallsATool,
    Kind::IsRefused,
    Kind::FailsForEver,
    Kind::FailsOnce,
    Kind::IsCutOff,
    Kind::IsLimited,
    Kind::Waits,
    Kind::RunsShort,
];

/// The children that are active.
#[derive(Default)]
struct Acting {
    /// Those whose model is being called.
    now: Mutex<Vec<ThreadId>>,
    most: AtomicUsize,
    /// Those that have begun, and may have ended.
    begun: Mutex<Vec<ThreadId>>,
}

impl Acting {
    /// One of the active children, or now and then one of the last that began, whatever its state is.
    fn any(&self, chance: &mut Chance) -> Option<ThreadId> {
        let from = if chance.below(3) == 0 { &self.begun } else { &self.now };
        let from = from.lock().unwrap();
        let last = &from[from.len().saturating_sub(AT_ONCE)..];
        (!last.is_empty()).then(|| last[chance.below(last.len() as u64) as usize].clone())
    }
}

/// Children that act at random.
struct Unruly {
    seed: u64,
    acting: Arc<Acting>,
}

fn number(child: &Manifest) -> u64 {
    child.inputs["n"].as_u64().unwrap()
}

impl Unruly {
    /// What a child does depends only on the seed and its number.
    fn kind(&self, n: u64) -> (Kind, Chance) {
        let mut chance = Chance::new(self.seed ^ (n << 20));
        // Half of them have no fault.
        let kind = if chance.below(2) == 0 { Kind::Answers } else { KINDS[chance.below(KINDS.len() as u64) as usize] };
        (kind, chance)
    }
}

fn price() -> Option<Price> {
    Some(Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() })
}

impl Children for Unruly {
    fn new_child(&self, call: &Call, _: &Manifest) -> Result<NewChild, String> {
        let n = call.arguments["n"].as_u64().unwrap();
        let inputs = json!({"n": n}).as_object().unwrap().clone();
        let spend = if self.kind(n).0 == Kind::RunsShort { "0.000001" } else { "60" };
        let limits = Some(Limits { spend: Some(spend.parse().unwrap()), ..Limits::default() });
        let thread = NewThread { limits, inputs, ..NewThread::of(AgentId::new("child").unwrap()) };
        Ok(NewChild { thread, messages: vec![Message::text(Role::User, "go")], detached: false })
    }

    fn run_config(&self, child: &Manifest) -> Result<RunConfig, String> {
        let why = || "no".to_owned();
        let (kind, mut chance) = self.kind(number(child));
        let cut = || ModelError::Cut {
            why: why(),
            partial: vec![Block::text("I")],
            usage: Some(Usage { input_tokens: 10, ..Usage::default() }),
        };
        let replies = match kind {
            Kind::Answers | Kind::FailsOnce | Kind::RunsShort => vec![Reply::Says("done")],
            Kind::CallsATool => vec![Reply::Calls(vec![("t", "look", json!({}))]), Reply::Says("done")],
            Kind::IsRefused => vec![Reply::Fails(ModelError::Permanent { why: why() })],
            Kind::FailsForEver => vec![Reply::Fails(ModelError::Transient { why: why() })],
            Kind::IsCutOff => vec![Reply::Fails(cut())],
            Kind::IsLimited => vec![Reply::Fails(ModelError::RateLimited { why: why(), retry_after: None })],
            Kind::Waits => vec![Reply::Waits],
        };
        let mut work = agent(Vec::new(), vec![Arc::new(CountingTool::new("look", EffectClass::Pure))]);
        work.model = Arc::new(Slow {
            inner: ListedModel(replies),
            fails_first: AtomicBool::new(kind == Kind::FailsOnce),
            pause: Duration::from_micros(chance.below(1500)),
            child: child.thread_id.clone(),
            acting: self.acting.clone(),
        });
        work.price = price();
        self.acting.begun.lock().unwrap().push(child.thread_id.clone());
        Ok(work)
    }

    fn launch(&self, _: &ThreadId) -> Result<Box<dyn Started>, String> {
        Err("every child is waited for here".to_owned())
    }
}

/// A slow model that counts concurrent calls.
struct Slow {
    inner: ListedModel,
    fails_first: AtomicBool,
    pause: Duration,
    child: ThreadId,
    acting: Arc<Acting>,
}

crate::support::as_model!(Slow);

impl crate::support::Blocking for Slow {
    fn answer(
        &self,
        prompt: &Prompt<'_>,
        draft: &mut dyn FnMut(Draft),
        cancel: &Cancel,
    ) -> std::result::Result<Answer, ModelError> {
        let mut now = self.acting.now.lock().unwrap();
        now.push(self.child.clone());
        self.acting.most.fetch_max(now.len(), Ordering::SeqCst);
        drop(now);
        std::thread::sleep(self.pause);
        let answer = if self.fails_first.swap(false, Ordering::SeqCst) {
            Err(ModelError::Transient { why: "not yet".to_owned() })
        } else {
            crate::support::Blocking::answer(&self.inner, prompt, draft, cancel)
        };
        self.acting.now.lock().unwrap().retain(|other| *other != self.child);
        answer
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A parent that spawns all of them.
fn asking_for_all(children: Unruly) -> RunConfig {
    let name = |n: u64| -> &'static str { Box::leak(format!("s{n:04}").into_boxed_str()) };
    let calls = |from: u64| Reply::Calls((from..from + ROUND).map(|n| (name(n), "spawn", json!({"n": n}))).collect());
    let mut work = parent(Vec::new(), nursery(Vec::new()));
    let replies = (0..CHILDREN).step_by(ROUND as usize).map(calls).chain([Reply::Says("done")]).collect();
    work.model = Arc::new(ListedModel(replies));
    work.price = price();
    let spawning = work.spawning.as_mut().unwrap();
    spawning.children = Arc::new(children);
    spawning.at_once = AT_ONCE;
    work
}

/// Stops one of them now and then, by a cancel or a kill.
fn stop_some(other: &Harness, acting: &Acting, mut chance: Chance, over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_micros(chance.below(15_000)));
        let Some(child) = acting.any(&mut chance) else { continue };
        let how = if chance.below(2) == 0 { Stop::Killed } else { Stop::Cancelled };
        // One that ended meanwhile can't be stopped any more.
        _ = other.engine.stop(&child, how);
    }
}

#[test]
fn a_thousand_children_eight_at_a_time_with_random_failures_and_kills_leave_every_account_in_order() {
    let seed = Chance::seed();
    let harness = Harness::new();
    let other = harness.another();
    let acting = Arc::new(Acting::default());
    let work = asking_for_all(Unruly { seed, acting: acting.clone() });
    let limits = Some(Limits { spend: Some("100000".parse().unwrap()), ..Limits::default() });
    let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| stop_some(&other, &acting, Chance::new(seed), &over));
        let ended = harness.send(&thread, Input::text("go"), &work).0;
        over.store(true, Ordering::SeqCst);
        assert_eq!(ended.unwrap().status, Status::Completed);
    });
    let most = acting.most.load(Ordering::SeqCst);
    assert!(most <= AT_ONCE, "{most} at once");
    assert!(most > AT_ONCE / 2, "only {most} at once: the test proves nothing");
    // A child that ran out of money is suspended, and holds what it has until it is stopped.
    for child in harness.children_of(&thread).iter().filter(|child| child.status == Status::Suspended) {
        let held = harness.store.account(&child.thread_id).unwrap().unwrap();
        assert_ne!(held.status, AccountStatus::Closed, "{held:?}");
        other.engine.stop(&child.thread_id, Stop::Cancelled).unwrap();
    }
    let children = harness.children_of(&thread);
    let mut of: BTreeMap<&str, usize> = BTreeMap::new();
    for child in &children {
        *of.entry(child.status.as_str()).or_default() += 1;
    }
    assert_eq!(children.len(), CHILDREN as usize);
    for (status, least) in [("completed", 300), ("error", 20), ("killed", 20), ("cancelled", 20)] {
        assert!(of.get(status).is_some_and(|found| *found >= least), "{status}: {of:?}");
    }
    is_conserved(&harness, &thread, &children, &Unruly { seed, acting });
}

/// Asserts that all money is accounted for, nothing is reserved any more, and the logs alone give the same result.
#[track_caller]
fn is_conserved(harness: &Harness, thread: &ThreadId, children: &[Manifest], unruly: &Unruly) {
    let account = harness.store.account(thread).unwrap().unwrap();
    assert_eq!((account.reserved, account.open, account.status), (Money::ZERO, 0, AccountStatus::Closed));
    assert!(harness.store.reservations(thread).unwrap().is_empty());
    assert_eq!(account.settled.nanos(), (CHILDREN / ROUND + 1) as i64 * ANSWER_NANOS, "its own answers");
    let mut all = Money::ZERO;
    for child in children {
        let own = harness.store.account(&child.thread_id).unwrap().unwrap();
        assert_eq!((own.reserved, own.open, own.status), (Money::ZERO, 0, AccountStatus::Closed), "{child:?}");
        let kind = unruly.kind(number(child)).0;
        let exact = match kind {
            Kind::Answers => Some(ANSWER_NANOS),
            Kind::CallsATool => Some(2 * ANSWER_NANOS),
            _ => None,
        };
        if let (Some(exact), Status::Completed) = (exact, child.status) {
            assert_eq!(own.spent().nanos(), exact, "{kind:?}: {own:?}");
        }
        all = all.checked_add(own.spent()).unwrap();
    }
    assert_eq!(account.settled_children, all, "to the nano-dollar");
    let tree = audit::tree(&*harness.store, thread).unwrap();
    assert_eq!(tree.accounts.len(), children.len() + 1);
    let found = audit::audit(&*harness.store, &harness.trust, &tree).unwrap().found;
    assert!(found.is_empty(), "{found:?}");
}
