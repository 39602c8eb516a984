//! Spawned children.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_engine::spawn::{Children, NewChild, Spawning};
use selvedge_engine::{Input, Outcome, RunConfig};
use selvedge_model::event::{EffectClass, Process};
use selvedge_model::limits::Limits;
use selvedge_model::tool::{Dispatch, Risk, Started, ToolKind};
use selvedge_model::{
    AgentId, Call, CallId, Cancel, Classify, Event, Manifest, Message, Money, NewThread, Output, Price, Reason, Role,
    Status, Stop, ThreadId,
};
use selvedge_store::{Acquire, Filter, Inbox, Leases, Ledger, Logs, Registry};
use serde_json::{Value, json};

use crate::support::{CountingTool, FaultyStore, Harness, Reply, agent};

/// Knows one kind of child, which gets a task and answers from its list.
pub(crate) struct Nursery {
    replies: Mutex<Vec<Reply>>,
    tools: Vec<Arc<dyn selvedge_model::Tool>>,
    pub(crate) price: Option<Price>,
    pub(crate) launched: Arc<AtomicUsize>,
}

impl Children for Nursery {
    fn new_child(&self, call: &Call, _: &Manifest) -> Result<NewChild, String> {
        let text = call.arguments["task"].as_str().ok_or("a child needs a task")?;
        let limits = Limits {
            turns: call.arguments["turns"].as_u64(),
            spend: call.arguments["spend"].as_str().map(|spend| spend.parse().unwrap()),
            ..Limits::default()
        };
        let thread = NewThread {
            limits: Some(limits),
            capabilities: Some(vec!["tool.files.*".to_owned(), "tool.mail.send".to_owned()]),
            acknowledged: vec![Risk::Dangerous],
            ..NewThread::of(AgentId::new("child").unwrap())
        };
        let detached = call.arguments["detached"].as_bool().unwrap_or(false);
        Ok(NewChild { thread, messages: vec![Message::text(Role::User, text)], detached })
    }

    fn run_config(&self, _: &Manifest) -> Result<RunConfig, String> {
        let mut work = agent(self.replies.lock().unwrap().clone(), self.tools.clone());
        work.price = self.price;
        Ok(work)
    }

    fn launch(&self, _: &ThreadId) -> Result<Box<dyn Started>, String> {
        Ok(Box::new(Launched(self.launched.clone())))
    }
}

struct Launched(Arc<AtomicUsize>);

impl Started for Launched {
    fn process(&self) -> Option<Process> {
        Some(Process { pid: 7_000_000, start_time: 3, boot_id: None, machine: None })
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
        self.0.fetch_add(1, Ordering::SeqCst);
        Dispatch::Done(Ok(Output::text("let go")))
    }
}

pub(crate) fn nursery(replies: Vec<Reply>) -> Nursery {
    Nursery { replies: Mutex::new(replies), tools: Vec::new(), price: None, launched: Arc::default() }
}

/// An agent that spawns these children in one turn, and then says that it is done.
pub(crate) fn parent(calls: Vec<(&'static str, Value)>, nursery: Nursery) -> RunConfig {
    let calls = calls.into_iter().map(|(id, arguments)| (id, "spawn", arguments)).collect();
    let spawn = CountingTool::new("spawn", EffectClass::AtMostOnce).of_kind(ToolKind::Child);
    let mut work = agent(vec![Reply::Calls(calls), Reply::Says("done")], vec![Arc::new(spawn)]);
    work.spawning = Some(Spawning { children: Arc::new(nursery), at_once: 2, check_parent: Arc::new(|_| Ok(())) });
    work
}

impl Harness {
    pub(crate) fn children_of(&self, thread: &ThreadId) -> Vec<Manifest> {
        self.store.children(thread).unwrap().into_iter().map(|child| child.manifest).collect()
    }

    pub(crate) fn told(&self, thread: &ThreadId, call: &str) -> Value {
        match self.answer_of(thread, &CallId::new(call).unwrap()).unwrap() {
            Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            other => other,
        }
    }

    pub(crate) fn resumed(&self, thread: &ThreadId, input: Input, work: &RunConfig) -> Outcome {
        self.engine.resume(thread, input, work, &Cancel::new(), &mut |_| {}).unwrap()
    }
}

#[test]
fn a_child_is_created_in_one_batch_and_its_end_is_reported() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = parent(vec![("s", json!({"task": "count"}))], nursery(vec![Reply::Says("three")]));
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("done")));
    let [child] = harness.children_of(&thread).try_into().unwrap();
    let told = harness.told(&thread, "s");
    assert_eq!((told["thread_id"].as_str(), &told["status"]), (Some(child.thread_id.as_str()), &json!("completed")));
    assert_eq!((&told["result"], &told["success"]), (&json!("three"), &json!(true)));
    let lines = harness.store.read(&thread, 0, 100).unwrap();
    let batch = lines.iter().find_map(|line| match &line.event {
        Event::Checkpoint(checkpoint) if checkpoint.reason == Reason::ToolIntentCommitted => {
            Some(checkpoint.with.clone())
        }
        _ => None,
    });
    assert_eq!(batch.unwrap(), [(child.thread_id.clone(), 0)], "the child is created in the batch of the intent");
    let settled = lines.iter().find_map(|line| match &line.event {
        Event::ChildSettled(fields) => Some(fields["thread_id"].clone()),
        _ => None,
    });
    assert_eq!(settled, Some(json!(child.thread_id)));
    assert!(harness.store.pending(&thread).unwrap().is_empty());
}

/// The record of a child's run did not name the run that it belongs to, and said that a user had started it.
#[test]
fn the_run_of_a_child_names_the_run_that_spawned_it() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = parent(vec![("s", json!({"task": "count"}))], nursery(vec![Reply::Says("three")]));
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let [child] = harness.children_of(&thread).try_into().unwrap();
    let [run] = harness.store.runs(&child.thread_id).unwrap().try_into().unwrap();
    assert_eq!((run.parent_run_id, run.meta.parent_thread_id), (ended.run_id, Some(thread.clone())));
    assert_eq!(run.meta.origin, "subagent");
    let [own] = harness.store.runs(&thread).unwrap().try_into().unwrap();
    assert_eq!((own.parent_run_id, own.meta.origin.as_str()), (None, "user"));
    // A later run of the child was started by its sender; it still belongs to the same run of the parent.
    let again = harness.send(&child.thread_id, Input::text("and?"), &agent(vec![], vec![])).0.unwrap();
    let runs = harness.store.runs(&child.thread_id).unwrap();
    let later = runs.iter().find(|run| Some(&run.run_id) == again.run_id.as_ref()).unwrap();
    assert_eq!((later.meta.origin.as_str(), &later.parent_run_id), ("user", &own.run_id.into()));
}

#[test]
fn a_thread_names_the_first_thread_of_its_family() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = parent(vec![("s", json!({"task": "count"}))], nursery(vec![Reply::Says("three")]));
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let [child] = harness.children_of(&thread).try_into().unwrap();
    assert_eq!((&child.family_root_id, &child.chain_root_id), (&Some(thread.clone()), &child.thread_id));
    // The child is continued in another thread, and has a child of its own there.
    let work = parent(vec![("t", json!({"task": "count"}))], nursery(vec![Reply::Says("three")]));
    let says = Reply::Says("three");
    let calls = Reply::Calls(vec![("t", "spawn", json!({"task": "count"}))]);
    let mut work = RunConfig { ..work };
    work.model = agent(vec![says, calls], vec![]).model;
    let ended = harness.resumed(&child.thread_id, Input::text("go on"), &work);
    let successor = harness.loaded(&ended.thread_id).manifest;
    assert_eq!((successor.chain_position, successor.family_root()), (1, &thread));
    assert_eq!(successor.chain_root_id, child.thread_id);
    let [grandchild] = harness.children_of(&ended.thread_id).try_into().unwrap();
    assert_eq!((grandchild.chain_position, grandchild.family_root()), (0, &thread));
    assert_eq!(harness.loaded(&thread).manifest.family_root_id, None);
}

#[test]
fn a_child_may_do_no_more_than_its_parent() {
    let harness = Harness::new();
    let new = NewThread {
        limits: Some(Limits { turns: Some(4), depth: Some(2), ..Limits::default() }),
        capabilities: Some(vec!["tool.files.read".to_owned(), "tool.web.*".to_owned()]),
        acknowledged: vec![Risk::External],
        ..NewThread::of(AgentId::new("scribe").unwrap())
    };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    let work = parent(vec![("s", json!({"task": "count", "turns": 99}))], nursery(vec![Reply::Says("three")]));
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let [child] = harness.children_of(&thread).try_into().unwrap();
    let limits = child.limits.unwrap();
    assert_eq!((limits.turns, limits.depth), (Some(4), Some(1)));
    assert_eq!(child.capabilities, Some(vec!["selvedge.execute.tool.files.read".to_owned()]));
    assert!(child.acknowledged.is_empty(), "the parent has no acknowledged risks");
}

#[test]
fn the_limits_of_children_can_be_raised() {
    for (limits, code, raise) in [
        (
            Limits { spawns: Some(1), ..Limits::default() },
            "spawns_exceeded",
            Limits { spawns: Some(5), ..Limits::default() },
        ),
        (
            Limits { depth: Some(0), ..Limits::default() },
            "depth_exceeded",
            Limits { depth: Some(1), ..Limits::default() },
        ),
    ] {
        let harness = Harness::new();
        let thread = harness.thread();
        let calls = vec![("s1", json!({"task": "one"})), ("s2", json!({"task": "two"}))];
        let mut work = parent(calls, nursery(vec![Reply::Says("three")]));
        work.limits = limits;
        let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
        assert_eq!((ended.status.status().unwrap(), ended.code.as_deref().unwrap()), (Status::Suspended, code));
        let before = harness.children_of(&thread).len();
        assert_eq!(before, usize::from(code == "spawns_exceeded"), "those below the limit were spawned");
        let ended = harness.resumed(&thread, Input::nothing().raising(raise), &work);
        assert_eq!(
            (ended.status.status().unwrap(), harness.children_of(&thread).len()),
            (Status::Completed, 2),
            "{code}"
        );
    }
}

#[test]
fn a_forged_parent_spawns_nothing() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut work = parent(vec![("s", json!({"task": "count"}))], nursery(vec![Reply::Says("three")]));
    work.spawning.as_mut().unwrap().check_parent = Arc::new(|_| Err("its `thread.json` was edited".to_owned()));
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert!(harness.children_of(&thread).is_empty());
    assert!(harness.told(&thread, "s")["error"].as_str().unwrap().contains("was edited"));
}

#[test]
fn a_detached_process_is_on_record_before_it_may_act() {
    let harness = Harness::new();
    let thread = harness.thread();
    let nursery = nursery(vec![Reply::Says("three")]);
    let launched = nursery.launched.clone();
    let work = parent(vec![("s", json!({"task": "count", "detached": true}))], nursery);
    let recorded = Arc::new(Mutex::new(None));
    let record = recorded.clone();
    let acted = launched.clone();
    let log = harness.store.inner.another();
    harness.once_after(Reason::ToolIntentCommitted, move |thread| {
        let lines = log.read(thread, 0, usize::MAX).unwrap();
        let process = lines.iter().find_map(|line| match &line.event {
            Event::ToolIntent(intent) => intent.process.clone(),
            _ => None,
        });
        *record.lock().unwrap() = Some((process.unwrap().pid, acted.load(Ordering::SeqCst)));
    });
    assert_eq!(harness.send(&thread, Input::text("go"), &work).0.unwrap().status, Status::Completed);
    assert_eq!(*recorded.lock().unwrap(), Some((7_000_000, 0)));
    assert_eq!((launched.load(Ordering::SeqCst), harness.told(&thread, "s")["status"].clone()), (1, json!("running")));
    let child = harness.children_of(&thread)[0].clone();
    assert_eq!(child.status, Status::Created, "no process here runs it");
    // Its own process runs it long after its parent has ended, which still records that.
    let own = harness.another();
    own.resumed(&child.thread_id, Input::nothing(), &agent(vec![Reply::Says("three")], Vec::new()));
    let lines = harness.store.read(&thread, 0, 100).unwrap();
    assert!(lines.iter().any(|line| matches!(line.event, Event::ChildSettled(_))));
    assert!(harness.store.pending(&thread).unwrap().is_empty());
}

#[test]
fn after_a_death_right_after_the_batch_the_child_is_run_once_by_the_next_process() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = parent(vec![("s", json!({"task": "count"}))], nursery(vec![Reply::Says("three")]));
    harness.dies_after(Reason::ToolIntentCommitted, || harness.send(&thread, Input::text("go"), &work));
    assert_eq!(harness.children_of(&thread)[0].status, Status::Created);
    let later = harness.another();
    let ended = later.resumed(&thread, Input::nothing(), &work);
    assert_eq!((ended.status.status().unwrap(), later.children_of(&thread).len()), (Status::Completed, 1));
    assert_eq!(later.told(&thread, "s")["result"], "three");
}

#[test]
fn after_a_death_in_the_middle_of_a_child_both_are_resumed_and_nothing_is_done_twice() {
    let harness = Harness::new();
    let thread = harness.thread();
    let script = || vec![Reply::Calls(vec![("p", "pay", json!({}))]), Reply::Says("paid")];
    let paid = CountingTool::new("pay", EffectClass::AtMostOnce);
    let mut dying = nursery(script());
    let ran = paid.ran.clone();
    // The child's process dies once its payment is on record.
    dying.tools = vec![Arc::new(paid)];
    let dying = parent(vec![("s", json!({"task": "pay"}))], dying);
    harness.store.refuse(Some(Reason::ToolResultsCommitted));
    let ended = harness.send(&thread, Input::text("go"), &dying).0;
    assert!(ended.is_err() || ended.unwrap().status != Status::Completed);
    harness.store.refuse(None);
    let mut reconciled = CountingTool::new("pay", EffectClass::AtMostOnce);
    reconciled.known = selvedge_model::tool::Reconciled::Done(Output::text("receipt"));
    let mut living = nursery(script());
    living.tools = vec![Arc::new(reconciled)];
    let living = parent(vec![("s", json!({"task": "pay"}))], living);
    harness.engine.send(&thread, Input::text("and now?"), &living, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ran.load(Ordering::SeqCst), harness.children_of(&thread).len()), (1, 1));
}

#[test]
fn a_cancel_reaches_the_children_of_a_thread() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let work = parent(vec![("s", json!({"task": "wait"}))], nursery(vec![Reply::Waits]));
    std::thread::scope(|scope| {
        let run = scope.spawn(|| harness.send(&thread, Input::text("go"), &work).0.unwrap());
        let child_runs = || other.children_of(&thread).first().is_some_and(|child| child.status == Status::Running);
        while !child_runs() {
            std::thread::sleep(Duration::from_millis(5));
        }
        other.engine.stop(&thread, Stop::Cancelled).unwrap();
        assert_eq!(run.join().unwrap().status, Status::Cancelled);
    });
    assert_eq!(harness.children_of(&thread)[0].status, Status::Cancelled);
}

#[test]
fn no_child_gets_money_that_is_not_there_and_the_rest_is_returned() {
    let harness = Harness::new();
    let price = Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() };
    let mut nursery = nursery(vec![Reply::Says("three")]);
    nursery.price = Some(price);
    let calls = vec![
        ("s1", json!({"task": "one", "spend": "60"})),
        ("s2", json!({"task": "two", "spend": "60"})),
        ("s3", json!({"task": "three", "spend": "20"})),
        ("s4", json!({"task": "four", "spend": "20"})),
    ];
    let mut work = parent(calls, nursery);
    work.price = Some(price);
    let limits = Some(Limits { spend: Some("100".parse().unwrap()), ..Limits::default() });
    let thread =
        harness.engine.create(NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) }, Vec::new());
    let thread = thread.unwrap();
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    // The second and the third get what is left, less what the parent needs; for the fourth there is nothing.
    let children = harness.children_of(&thread);
    let granted = children.iter().map(|child| child.limits.as_ref().unwrap().spend.unwrap());
    let granted = granted.fold(Money::ZERO, Money::saturating_add);
    assert!(children.len() == 3 && granted < "95".parse().unwrap(), "{granted}");
    assert!(harness.told(&thread, "s1")["limits"].is_null());
    assert!(harness.told(&thread, "s2")["limits"]["spend"].as_f64().is_some_and(|spend| (26.0..27.0).contains(&spend)));
    assert!(harness.told(&thread, "s3")["limits"]["spend"].as_f64().is_some_and(|spend| spend < 10.0));
    assert!(
        harness.told(&thread, "s4")["error"].as_str().unwrap().contains("budget"),
        "{}",
        harness.told(&thread, "s4")
    );
    assert_eq!(ended.status, Status::Completed);
    let account = harness.store.account(&thread).unwrap().unwrap();
    assert_eq!((account.reserved, account.open), (Money::ZERO, 0));
    // Fifteen tokens a turn, at a thousandth of a dollar each.
    let turns = |turns: i64| Money::from_nanos(turns * 15_000_000).unwrap();
    assert_eq!((account.settled, account.settled_children), (turns(2), turns(3)));
}

/// A parent whose own calls are free once let every child have all of its limit.
#[test]
fn a_limit_holds_for_priced_children_of_a_free_parent() {
    let harness = Harness::new();
    let price = Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() };
    let mut nursery = nursery(vec![Reply::Says("three")]);
    nursery.price = Some(price);
    let calls = ["s1", "s2", "s3"].map(|id| (id, json!({"task": "one", "spend": "60"})));
    let mut work = parent(calls.to_vec(), nursery);
    work.price = Some(Price::default());
    let limits = Some(Limits { spend: Some("100".parse().unwrap()), ..Limits::default() });
    let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let children = harness.children_of(&thread);
    let granted: Vec<_> = children.iter().map(|child| child.limits.as_ref().unwrap().spend.unwrap()).collect();
    let together = granted.iter().fold(Money::ZERO, |sum, spend| sum.saturating_add(*spend));
    assert!(granted.len() == 3 && together < "100".parse().unwrap(), "{granted:?}");
    assert_eq!(granted.iter().max(), Some(&"60".parse().unwrap()));
    let account = harness.store.account(&thread).unwrap().unwrap();
    assert_eq!((account.settled_children.nanos(), account.open), (45_000_000, 0));
}

/// A child that asked for all the money of its parent could never be spawned: the parent had spent some of it.
#[test]
fn a_child_that_asks_for_as_much_as_its_parent_gets_what_is_left_less_a_share() {
    let harness = Harness::new();
    let price = Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() };
    let mut nursery = nursery(vec![Reply::Says("three")]);
    nursery.price = Some(price);
    let mut work = parent(vec![("s", json!({"task": "one", "spend": "100", "turns": 7}))], nursery);
    (work.price, work.output_tokens_max) = (Some(price), Some(1000));
    let limits = Some(Limits { spend: Some("100".parse().unwrap()), turns: Some(9), ..Limits::default() });
    let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("done")));
    let [child] = harness.children_of(&thread).try_into().unwrap();
    // One turn of fifteen tokens is spent; of the rest, a third stays with the parent, which may have two children at the same time.
    let granted = child.limits.unwrap().spend.unwrap();
    let left = Money::from_nanos(100_000_000_000 - 15_000_000).unwrap();
    assert_eq!(granted, left.saturating_sub(left.share(3)));
    let told = harness.told(&thread, "s");
    assert_eq!((&told["limits"], &told["success"]), (&json!({"spend": granted.to_json()}), &json!(true)), "{told}");
    assert!(told["note"].as_str().unwrap().contains("lower than you requested"), "{told}");
}

#[test]
fn a_process_that_never_opened_its_gate_is_started_again() {
    let harness = Harness::new();
    let thread = harness.thread();
    let nursery = nursery(vec![Reply::Says("three")]);
    let launched = nursery.launched.clone();
    let work = parent(vec![("s", json!({"task": "count", "detached": true}))], nursery);
    // Before it opens the gate.
    harness.dies_after(Reason::ToolIntentCommitted, || harness.send(&thread, Input::text("go"), &work));
    assert_eq!(launched.load(Ordering::SeqCst), 0);
    harness.another().resumed(&thread, Input::nothing(), &work);
    assert_eq!((launched.load(Ordering::SeqCst), harness.children_of(&thread).len()), (1, 1));
}

/// Waits until something holds.
#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "it never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first two run in processes of their own, or here; the rest wait for a slot, detached or not.
#[test]
fn only_the_configured_number_of_children_runs_at_the_same_time_detached_or_not() {
    let harness = Harness::new();
    let thread = harness.thread();
    let own = harness.another();
    let calls = [("s1", true), ("s2", true), ("s3", true), ("s4", false)];
    let calls = calls.map(|(id, detached)| (id, json!({"task": "one", "detached": detached})));
    let nursery = nursery(vec![Reply::Says("three")]);
    let launched = nursery.launched.clone();
    let work = parent(calls.to_vec(), nursery);
    let statuses = || own.children_of(&thread).into_iter().map(|child| (child.thread_id, child.status));
    std::thread::scope(|scope| {
        let run = scope.spawn(|| harness.send(&thread, Input::text("go"), &work).0.unwrap());
        until("two are let go", || launched.load(Ordering::SeqCst) == 2);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(launched.load(Ordering::SeqCst), 2, "the gate of a third one was opened");
        assert!(statuses().all(|(_, status)| status == Status::Created), "a third one runs");
        // Their own processes end the first two.
        for (child, _) in statuses().take(2).collect::<Vec<_>>() {
            own.resumed(&child, Input::nothing(), &agent(vec![Reply::Says("three")], Vec::new()));
        }
        assert_eq!(run.join().unwrap().status, Status::Completed);
    });
    assert_eq!(launched.load(Ordering::SeqCst), 3);
    assert_eq!(harness.told(&thread, "s4")["status"], "completed");
}

/// Its parent got the result that it runs.
#[test]
fn a_child_that_is_stopped_while_it_waits_for_a_slot_is_reported_as_stopped() {
    let harness = Harness::new();
    let thread = harness.thread();
    let own = harness.another();
    let calls = [("s1", true), ("s2", true), ("s3", true), ("s4", false)];
    let calls = calls.map(|(id, detached)| (id, json!({"task": "one", "detached": detached})));
    let nursery = nursery(vec![Reply::Says("three")]);
    let launched = nursery.launched.clone();
    let work = parent(calls.to_vec(), nursery);
    let child_of = |call: &str| {
        let lines = own.store.read(&thread, 0, 100).unwrap();
        let child = lines.iter().find_map(|line| match &line.event {
            Event::ChildSpawned(fields) if fields["call_id"] == call => fields["thread_id"].as_str(),
            _ => None,
        });
        ThreadId::new(child.unwrap()).unwrap()
    };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| harness.send(&thread, Input::text("go"), &work).0.unwrap());
        until("two are let go", || launched.load(Ordering::SeqCst) == 2);
        own.engine.stop(&child_of("s3"), Stop::Cancelled).unwrap();
        own.engine.stop(&child_of("s4"), Stop::Killed).unwrap();
        // Those that have the slots keep them.
        let began = std::time::Instant::now();
        while !run.is_finished() && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        harness.processes.1.store(true, Ordering::SeqCst);
        assert_eq!(run.join().unwrap().status, Status::Completed);
    });
    assert_eq!(launched.load(Ordering::SeqCst), 2, "its gate was opened");
    for (call, status) in [("s3", "cancelled"), ("s4", "killed")] {
        let told = harness.told(&thread, call);
        assert_eq!((&told["status"], &told["success"]), (&json!(status), &json!(false)), "{told}");
    }
}

/// The parent got the result that it runs, and no other process would ever have started it.
#[test]
fn a_child_whose_process_died_before_it_began_is_settled_by_the_next_run_of_its_parent() {
    let harness = Harness::new();
    let limits = Some(Limits { spend: Some("100".parse().unwrap()), ..Limits::default() });
    let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    let mut work = parent(
        vec![("s", json!({"task": "count", "detached": true, "spend": "60"}))],
        nursery(vec![Reply::Says("three")]),
    );
    work.price = Some(Price::default());
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let status = || harness.children_of(&thread)[0].status;
    let reserved = || harness.store.account(&thread).unwrap().unwrap().reserved;
    assert_eq!((status(), reserved()), (Status::Created, "60".parse().unwrap()));
    let mut later = agent(vec![Reply::Says("well")], Vec::new());
    later.price = Some(Price::default());
    harness.send(&thread, Input::text("and now?"), &later).0.unwrap();
    assert_eq!(status(), Status::Created, "its process is alive and just slow");
    harness.processes.1.store(true, Ordering::SeqCst);
    harness.send(&thread, Input::text("and now?"), &later).0.unwrap();
    assert_eq!((status(), reserved()), (Status::Error, Money::ZERO));
    let lines = harness.store.read(&thread, 0, 100).unwrap();
    let settled =
        lines.iter().filter(|line| matches!(&line.event, Event::ChildSettled(fields) if fields["status"] == "error"));
    assert_eq!(settled.count(), 1, "its parent has recorded it");
}

#[test]
fn a_wait_for_a_child_whose_process_died_before_it_began_reports_that_it_is_stalled() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = parent(vec![("s", json!({"task": "count", "detached": true}))], nursery(Vec::new()));
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let child = harness.children_of(&thread).remove(0).thread_id;
    // Its parent runs, as if it were the waiting one.
    let other = harness.another();
    let lease = other.store.acquire(&thread, Acquire::default()).unwrap();
    let wait =
        |most| harness.engine.wait(std::slice::from_ref(&child), most, &Cancel::new()).unwrap().results[&child].status;
    assert_eq!(wait(Duration::from_millis(2500)).as_str(), "timeout", "its process is alive and just slow");
    harness.processes.1.store(true, Ordering::SeqCst);
    assert_eq!(wait(Duration::from_secs(30)).as_str(), "stalled");
    other.store.abandon(&lease).unwrap();
}

/// A detached child does not see a stop of its parent's run.
#[test]
fn a_run_that_is_stopped_by_its_own_cancel_stops_its_detached_children() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut work = parent(vec![("s", json!({"task": "count", "detached": true}))], nursery(Vec::new()));
    let calls = vec![("s", "spawn", json!({"task": "count", "detached": true}))];
    let spawn = CountingTool::new("spawn", EffectClass::AtMostOnce).of_kind(ToolKind::Child);
    let waits = agent(vec![Reply::Calls(calls), Reply::Waits], vec![Arc::new(spawn)]);
    work = RunConfig { spawning: work.spawning.take(), ..waits };
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| harness.engine.send(&thread, Input::text("go"), &work, &cancel, &mut |_| {}).unwrap());
        until("the child is there", || !harness.children_of(&thread).is_empty());
        cancel.say(Stop::Cancelled);
        assert_eq!(run.join().unwrap().status, Status::Cancelled);
    });
    assert_eq!(harness.children_of(&thread)[0].status, Status::Cancelled);
}

/// The process of a thread without a parent: dispatching it checks whether it is on record.
struct Gated {
    store: Arc<FaultyStore>,
    thread: ThreadId,
    process: Option<Process>,
    opened: Arc<AtomicUsize>,
}

impl Started for Gated {
    fn process(&self) -> Option<Process> {
        self.process.clone()
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
        let first = self.store.read(&self.thread, 0, 1).unwrap().remove(0);
        let Event::ThreadCreated(created) = first.event else { panic!("{first:?}") };
        assert_eq!(created.thread.process, self.process, "its identity is recorded before it may act");
        self.opened.fetch_add(1, Ordering::SeqCst);
        Dispatch::Done(Ok(Output::text("let go")))
    }
}

#[test]
fn the_process_of_a_detached_thread_is_on_record_before_its_gate_opens_and_is_ended_by_that_record() {
    let harness = Harness::new();
    let process = Process { pid: 4_000_007, start_time: 11, boot_id: Some("boot".to_owned()), machine: None };
    let opened: Arc<AtomicUsize> = Arc::default();
    let new = || NewThread::of(AgentId::new("scribe").unwrap());
    let task = || vec![Message::text(Role::User, "count")];
    let gated = |process: Option<Process>| {
        let store = harness.store.clone();
        let opened = opened.clone();
        move |thread: &ThreadId| -> Result<Box<dyn Started>, String> {
            let store = store.clone();
            let thread = thread.clone();
            let process = process.clone();
            Ok(Box::new(Gated { store, thread, process, opened: opened.clone() }))
        }
    };
    let thread = harness.engine.create_detached(new(), task(), None, &gated(Some(process.clone()))).unwrap();
    assert_eq!(opened.load(Ordering::SeqCst), 1);
    // Another process runs it and does not respond.
    let other = harness.another();
    let lease = other.store.acquire(&thread, Acquire::default()).unwrap();
    harness.engine.stop(&thread, Stop::Killed).unwrap();
    assert_eq!(*harness.processes.0.lock().unwrap(), [process], "by its identity");
    other.store.abandon(&lease).unwrap();

    // Without an identity, or without a process, nothing is created and nothing runs.
    let threads = |harness: &Harness| harness.store.list(&Filter::default(), None, 10).unwrap().items.len();
    let error = harness.engine.create_detached(new(), task(), None, &gated(None)).unwrap_err();
    assert_eq!((error.code(), threads(&harness)), ("process_not_started", 1));
    let error =
        harness.engine.create_detached(new(), task(), None, &|_| Err("no more processes".to_owned())).unwrap_err();
    assert!(error.to_string().contains("no more processes"));
    assert_eq!((threads(&harness), opened.load(Ordering::SeqCst)), (1, 1));
}
