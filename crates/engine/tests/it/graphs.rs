//! Graphs: pipelines that stop anywhere and continue. What is finished never runs again, and state is committed with its step.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use selvedge_engine::graph::{GraphRules, NodeCall};
use selvedge_engine::hooks::{Hook, HookCall, Hooks};
use selvedge_engine::spawn::{Children, NewChild, Spawning};
use selvedge_engine::{Choice, Error, Input, Outcome, RunConfig};
use selvedge_items::Graph;
use selvedge_items::hook::resolve;
use selvedge_model::event::{CallOrigin, EffectClass, GraphBirth, Process, SuspendReason, ThreadKind};
use selvedge_model::tool::{Dispatch, Reconciled, Started};
use selvedge_model::{
    AgentId, Call, Cancel, Classify, DirectiveId, Event, Manifest, NewThread, Output, Price, Reason, Status, Stop,
    ThreadId, Tool, ToolError, ToolKind, ToolSpec,
};
use selvedge_store::Registry;
use serde_json::{Value, json};

use crate::replay::assert_identical;
use crate::support::{CountingTool, DEATH, Harness, agent, assert_dies};

/// What was done in the world, by the key of the call: it outlives every process.
#[derive(Default)]
struct World {
    done: Mutex<BTreeMap<String, Value>>,
    repeated: AtomicUsize,
}

/// A tool that changes the world once for each call, and knows what it did. Its result is what it is called with.
struct Effect {
    spec: ToolSpec,
    world: Arc<World>,
    /// Called in the middle of a call.
    meanwhile: Arc<dyn Fn(&Call) + Send + Sync>,
}

fn effect(name: &str, world: &Arc<World>) -> Effect {
    let spec = CountingTool::new(name, EffectClass::AtMostOnce).spec().clone();
    Effect { spec, world: world.clone(), meanwhile: Arc::new(|_| {}) }
}

struct Ready(Call, Arc<World>, Arc<dyn Fn(&Call) + Send + Sync>);

impl Started for Ready {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
        Dispatch::blocking(move || {
            let before = self.1.done.lock().unwrap().insert(self.0.key.clone(), self.0.arguments.clone());
            self.1.repeated.fetch_add(usize::from(before.is_some()), Ordering::SeqCst);
            (self.2)(&self.0);
            Ok(answer(&self.0))
        })
    }
}

fn answer(call: &Call) -> Output {
    match call.arguments.get("fails") {
        Some(why) => Output::error(why.as_str().unwrap_or("it fails")),
        None => Output { content: call.arguments.clone(), ..Output::default() },
    }
}

impl Tool for Effect {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        Ok(Box::new(Ready(call.clone(), self.world.clone(), self.meanwhile.clone())))
    }

    fn reconcile(&self, call: &Call, _: &Cancel) -> Reconciled {
        let is_done = self.world.done.lock().unwrap().contains_key(&call.key);
        if is_done { Reconciled::Done(answer(call)) } else { Reconciled::NotDone }
    }
}

/// A pure tool that returns what it is called with.
fn echo() -> Arc<dyn Tool> {
    let spec = CountingTool::new("echo", EffectClass::Pure).spec().clone();
    Arc::new(selvedge_model::tool::Function::new(spec, |call, _| Ok(answer(call))))
}

/// The run configuration of a graph whose actions call the tools of their items' names.
fn walker(text: &str, tools: Vec<Arc<dyn Tool>>) -> RunConfig {
    let graph = Graph::parse(text).unwrap_or_else(|flaw| panic!("{flaw}"));
    let flaws: Vec<_> = graph.flaws().collect();
    assert!(flaws.is_empty(), "{flaws:?}");
    let call = |action: &selvedge_items::hook::Action| NodeCall {
        tool: action.item_id.clone(),
        arguments: json!(action.params),
        item: format!("{} {}", action.item_type, action.item_id),
    };
    let calls = graph.nodes.iter().filter_map(|node| Some((node.name.clone(), call(node.action()?)))).collect();
    let digest = graph.digest.unwrap();
    let mut work = agent(Vec::new(), tools);
    work.price = Some(Price::default());
    let hooks = resolve(None, None, Some((&graph.hooks, &[]))).into_iter().map(|placed| {
        let is_built_in = placed.source == selvedge_items::hook::Source::BuiltIn;
        let call = |action: &selvedge_items::hook::Action| HookCall {
            tool: action.item_id.clone(),
            arguments: json!(action.params),
            source: action.item_id.clone(),
            is_knowledge: false,
        };
        Hook { calls: placed.hook.actions.iter().filter(|_| !is_built_in).map(call).collect(), placed }
    });
    work.hooks = Arc::new(Hooks::new(hooks.collect()));
    work.graph = Some(Arc::new(GraphRules::new("pipeline", graph, digest, calls)));
    work
}

fn birth(work: &RunConfig) -> NewThread {
    let graph = work.graph.as_ref().unwrap();
    let id = DirectiveId::new(&graph.id).unwrap();
    let graph = GraphBirth { id, definition: graph.digest, position: None, single: false };
    let inputs = json!({"city": "Bern", "count": 3});
    let Value::Object(inputs) = inputs else { unreachable!() };
    NewThread { kind: ThreadKind::Graph, graph: Some(graph), inputs, ..NewThread::of(AgentId::new("scribe").unwrap()) }
}

fn create(harness: &Harness, work: &RunConfig) -> ThreadId {
    harness.engine.create(birth(work), Input::nothing()).unwrap()
}

fn resume(harness: &Harness, thread: &ThreadId, work: &RunConfig) -> Outcome {
    harness.engine.resume(thread, Input::nothing(), work, &Cancel::new(), &mut |_| {}).unwrap()
}

/// Runs a graph to its end in one process.
#[track_caller]
fn run(text: &str, tools: Vec<Arc<dyn Tool>>) -> (Harness, ThreadId, Outcome, RunConfig) {
    let harness = Harness::new();
    let work = walker(text, tools);
    let thread = create(&harness, &work);
    let ended = resume(&harness, &thread, &work);
    (harness, thread, ended, work)
}

fn log(harness: &Harness, thread: &ThreadId) -> Vec<Event> {
    use selvedge_store::Logs;
    harness.store.read(thread, 0, usize::MAX).unwrap().into_iter().map(|line| line.event).collect()
}

/// The steps on record: number, node and status.
fn steps(harness: &Harness, thread: &ThreadId) -> Vec<String> {
    let of = |event: Event| match event {
        Event::StepCompleted(fields) => {
            Some(format!("{} {} {}", fields["step"], fields["node"].as_str()?, fields["status"].as_str()?))
        }
        _ => None,
    };
    log(harness, thread).into_iter().filter_map(of).collect()
}

fn status(outcome: &Outcome) -> Status {
    outcome.status.status().unwrap()
}

const PIPELINE: &str = r#"
permissions: [tool.echo, tool.pay]
start: fetch
state: { cities: [], paid: [], total: 0 }
nodes:
  fetch:
    action: { item_type: tool, item_id: echo, params: { cities: [Bern, Basel, Chur, Genf, Thun], of: "${inputs.city}" } }
    assign: { cities: "${result.cities}", total: 5 }
    next: each
  each:
    type: foreach
    over: "${state.cities}"
    parallel: 2
    action: { item_type: tool, item_id: pay, params: { to: "${item}", nth: "${index}" } }
    collect: paid
    next:
      - { to: done, when: { all: [{ path: result.failed, op: eq, value: 0 }, { path: state.total, op: gte, value: 5 }] } }
      - { to: trouble }
  done: { type: gate, assign: { total: "${state.total}" }, next: end }
  trouble: { type: return, output: trouble }
  end: { type: return, output: { paid: "${state.paid}", total: "${state.total}", of: "to ${inputs.city}" } }
"#;

fn paid() -> Value {
    let cities = ["Bern", "Basel", "Chur", "Genf", "Thun"];
    let paid: Vec<Value> = cities.iter().enumerate().map(|(nth, to)| json!({"to": to, "nth": nth})).collect();
    json!({"paid": paid, "total": 5, "of": "to Bern"})
}

#[test]
fn a_graph_walks_its_nodes_and_types_are_kept() {
    let world = Arc::new(World::default());
    let (harness, thread, ended, work) = run(PIPELINE, vec![echo(), Arc::new(effect("pay", &world))]);
    assert_eq!((status(&ended), ended.outputs.clone()), (Status::Completed, Some(paid())));
    assert_eq!(steps(&harness, &thread), ["1 fetch ok", "2 each ok", "3 done ok", "4 end ok"]);
    assert_eq!(world.done.lock().unwrap().len(), 5);
    assert_identical(&harness, &thread, &work);
    // What is known of calls is dropped with their step.
    assert!(harness.loaded(&thread).calls.is_empty());
}

/// The calls of a loop that are open at the same time, at most, by the log.
fn most_open(log: &[Event]) -> usize {
    let mut open = 0_usize;
    let mut most = 0;
    for event in log {
        match event {
            Event::CallOpened(opened) if matches!(opened.origin, CallOrigin::Node { .. }) => open += 1,
            Event::ToolOutcome(outcome) if outcome.call_id.as_str().starts_with("node.") => open -= 1,
            Event::Checkpoint(_) => most = most.max(open),
            _ => {}
        }
    }
    most
}

#[test]
fn no_more_items_are_worked_on_than_the_bound_allows() {
    for (parallel, wanted) in [("1", 1), ("2", 2), ("4", 4), ("64", 5)] {
        let world = Arc::new(World::default());
        let text = PIPELINE.replace("parallel: 2", &format!("parallel: {parallel}"));
        let (harness, thread, ended, _) = run(&text, vec![echo(), Arc::new(effect("pay", &world))]);
        assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(paid())));
        assert_eq!(most_open(&log(&harness, &thread)), wanted, "{parallel}");
    }
}

/// The promise of the page: killed at every commit, resumed each time, the result is the same and each effect happens once.
#[test]
fn a_process_that_dies_after_any_commit_loses_nothing_and_repeats_nothing() {
    let mut deaths = 0;
    for at in 1.. {
        let world = Arc::new(World::default());
        let harness = Harness::new();
        let work = walker(PIPELINE, vec![echo(), Arc::new(effect("pay", &world))]);
        let thread = create(&harness, &work);
        let dying = harness.another();
        let commits = AtomicUsize::new(0);
        dying.after_commit(move |_| assert!(commits.fetch_add(1, Ordering::SeqCst) + 1 != at, "{DEATH}"));
        let mut is_over = false;
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            dying.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {})
        }));
        match died {
            Err(_) => deaths += 1,
            Ok(_) => is_over = true,
        }
        if harness.store.get(&thread).unwrap().manifest.status != Status::Completed {
            let ended = resume(&harness, &thread, &work);
            assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(paid())), "death {at}");
        }
        let loaded = harness.loaded(&thread);
        assert_eq!((loaded.manifest.outputs, world.done.lock().unwrap().len()), (Some(paid()), 5), "death {at}");
        assert_eq!(world.repeated.load(Ordering::SeqCst), 0, "death {at}");
        assert_eq!(steps(&harness, &thread).len(), 4, "death {at}");
        if is_over {
            break;
        }
    }
    assert!(deaths >= 12, "{deaths}");
}

#[test]
fn the_error_of_one_item_does_not_touch_the_others_and_is_counted() {
    let text = r#"
permissions: [tool.echo]
start: each
state: { got: [] }
nodes:
  each:
    type: foreach
    over: [{ n: 1 }, { n: 2, fails: too much }, { n: 3 }]
    as: one
    parallel: true
    action: { item_type: tool, item_id: echo, params: { n: "${one.n}", fails: "${one.fails}" } }
    collect: got
    assign: { failed: "${result.errors}" }
    next: end
  end: { type: return, output: "${state.got}" }
"#;
    let (harness, thread, ended, work) = run(text, vec![echo()]);
    assert_eq!(status(&ended), Status::CompletedWithErrors);
    assert_eq!(ended.outputs, Some(json!([{"n": 1}, {"error": "too much", "index": 1}, {"n": 3}])));
    assert_eq!(ended.why.as_deref(), Some("1 error"));
    let completed = log(&harness, &thread).into_iter().find_map(|event| match event {
        Event::ForeachCompleted(fields) => Some(Value::Object(fields)),
        _ => None,
    });
    assert_eq!(completed, Some(json!({"step": 1, "node": "each", "next_node": "end", "items": 3, "failed": 1})));
    assert_identical(&harness, &thread, &work);
}

const FAILING: &str = r#"
permissions: [tool.echo]
start: try
state: {}
nodes:
  try:
    action: { item_type: tool, item_id: echo, params: { fails: no luck } }
    retry: { attempts: 3, wait_seconds: 0 }
    next: end
  after: { type: return, output: "${state._last_error.error}" }
  end: { type: return, output: fine }
"#;

#[test]
fn a_node_is_tried_again_within_its_bound_and_then_its_error_edge_or_the_policy_counts() {
    let (harness, thread, ended, work) = run(FAILING, vec![echo()]);
    assert_eq!(
        (status(&ended), ended.why.as_deref(), ended.code.as_deref()),
        (Status::Error, Some("node `try`: no luck"), Some("graph_failed"))
    );
    let opened = |harness: &Harness, thread: &ThreadId| {
        log(harness, thread).iter().filter(|event| matches!(event, Event::CallOpened(_))).count()
    };
    assert_eq!((opened(&harness, &thread), steps(&harness, &thread)), (3, vec!["1 try error".to_owned()]));
    assert!(log(&harness, &thread).iter().any(|event| matches!(event, Event::GraphError(_))));
    assert_identical(&harness, &thread, &work);
    let (_, _, ended, _) = run(&FAILING.replace("    next: end", "    on_error: after\n    next: end"), vec![echo()]);
    assert_eq!((status(&ended), ended.outputs), (Status::CompletedWithErrors, Some(json!("no luck"))));
    let (_, _, ended, _) = run(&format!("on_error: continue{FAILING}"), vec![echo()]);
    assert_eq!((status(&ended), ended.outputs), (Status::CompletedWithErrors, Some(json!("fine"))));
}

const APPROVED: &str = r#"
permissions: [tool.pay]
start: ask
state: { who: nobody }
nodes:
  ask:
    type: approval
    message: "Pay for ${inputs.city}?"
    assign: { who: "${result.by}" }
    on_error: refused
    next: pay
  pay: { action: { item_type: tool, item_id: pay, params: { by: "${state.who}" } }, next: end }
  refused: { type: return, output: "${state._last_error.error}" }
  end: { type: return, output: "${state.who}" }
"#;

#[test]
fn an_approval_suspends_the_graph_and_its_decision_chooses_the_edge() {
    for approves in [true, false] {
        let world = Arc::new(World::default());
        let (harness, thread, ended, work) = run(APPROVED, vec![Arc::new(effect("pay", &world))]);
        assert_eq!(status(&ended), Status::Suspended);
        assert_eq!(ended.suspended.as_ref().unwrap().reason, SuspendReason::Approval);
        assert_eq!(ended.asks[0].why.as_deref(), Some("Pay for Bern?"));
        let call = ended.asks[0].call_id.clone();
        let choice = if approves { Choice::Approve(None) } else { Choice::Deny(Some("too much".to_owned())) };
        harness.engine.decide(&thread, &call, choice, "ann", &work).unwrap();
        let ended = resume(&harness, &thread, &work);
        if approves {
            assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(json!("ann"))));
        } else {
            assert_eq!(status(&ended), Status::CompletedWithErrors);
            assert!(ended.outputs.unwrap().as_str().unwrap().contains("too much"));
        }
        assert_eq!(world.done.lock().unwrap().len(), usize::from(approves));
        assert_identical(&harness, &thread, &work);
    }
}

#[test]
fn an_unknown_outcome_suspends_the_graph_until_a_person_resolves_it_and_the_call_is_not_repeated() {
    let harness = Harness::new();
    let text = r#"
permissions: [tool.pay]
start: pay
state: {}
nodes:
  pay: { action: { item_type: tool, item_id: pay }, assign: { got: "${result}" }, next: end }
  end: { type: return, output: "${state.got}" }
"#;
    let mut tool = CountingTool::new("pay", EffectClass::AtMostOnce);
    tool.meanwhile = Arc::new(|_| crate::support::die());
    let work = walker(text, vec![Arc::new(tool)]);
    let thread = create(&harness, &work);
    let dying = harness.another();
    assert_dies(|| dying.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}));
    let tool = CountingTool::new("pay", EffectClass::AtMostOnce);
    let ran = tool.ran.clone();
    let work = walker(text, vec![Arc::new(tool)]);
    let ended = resume(&harness, &thread, &work);
    assert_eq!(ended.suspended.as_ref().unwrap().reason, SuspendReason::OutcomeUnknown);
    let call = ended.suspended.unwrap().calls[0].clone();
    let done = Choice::Done(json!({"id": 7}));
    harness.engine.decide(&thread, &call, done, "ann", &work).unwrap();
    let ended = resume(&harness, &thread, &work);
    assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(json!({"id": 7}))));
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[test]
fn a_changed_definition_is_refused_until_a_person_accepts_it() {
    let world = Arc::new(World::default());
    let tools = || -> Vec<Arc<dyn Tool>> { vec![Arc::new(effect("pay", &world))] };
    let (harness, thread, ended, _) = run(APPROVED, tools());
    assert_eq!(status(&ended), Status::Suspended);
    let mut changed = walker(&APPROVED.replace("output: \"${state.who}\"", "output: changed"), tools());
    let call = ended.asks[0].call_id.clone();
    harness.engine.decide(&thread, &call, Choice::Approve(None), "ann", &changed).unwrap();
    let version = harness.loaded(&thread).version;
    let refused = harness.engine.resume(&thread, Input::nothing(), &changed, &Cancel::new(), &mut |_| {});
    assert!(matches!(&refused, Err(Error::GraphChanged { .. })), "{refused:?}");
    assert_eq!(refused.unwrap_err().code(), "graph_changed");
    assert_eq!(harness.loaded(&thread).version, version, "nothing was written");
    Arc::make_mut(changed.graph.as_mut().unwrap()).accept_changed = true;
    let ended = resume(&harness, &thread, &changed);
    assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(json!("changed"))));
    let accepted = log(&harness, &thread).into_iter().any(|event| match event {
        Event::GraphStarted(fields) => fields.contains_key("accepted_change_of"),
        _ => false,
    });
    assert!(accepted, "it is on record");
}

#[test]
fn a_graph_is_cancelled_at_every_kind_of_node_and_that_is_told_apart() {
    let waiting = r#"
permissions: [tool.pay]
start: nap
state: {}
nodes:
  nap: { type: wait, seconds: 3600, next: end }
  end: { type: return }
"#;
    let gates = r#"
max_steps: 100000
segment_steps: 100000
start: a
state: {}
nodes:
  a: { type: gate, next: [{ to: end, when: { path: state.never, op: eq, value: 1 } }, { to: b }], assign: { never: 0 } }
  b: { type: gate, next: a }
  end: { type: return }
"#;
    // In an action and in a loop: the stop comes from the tool itself.
    let action = APPROVED.replace("type: approval\n    message: \"Pay for ${inputs.city}?\"\n    assign: { who: \"${result.by}\" }\n    on_error: refused\n", "type: gate\n");
    for (text, kind) in [(waiting, "wait"), (gates, "gate"), (PIPELINE, "foreach"), (action.as_str(), "action")] {
        let world = Arc::new(World::default());
        let harness = Harness::new();
        let cancel = Cancel::new();
        let mut pay = effect("pay", &world);
        let stop = cancel.clone();
        pay.meanwhile = Arc::new(move |_| stop.say(Stop::Cancelled));
        let work = walker(text, vec![echo(), Arc::new(pay)]);
        let thread = create(&harness, &work);
        if matches!(kind, "wait" | "gate") {
            let stop = cancel.clone();
            harness.after_commit(move |batch| {
                let is_begun = |event: &Event| matches!(event, Event::StepStarted(fields) if fields["step"] == 1);
                if batch.parts.iter().any(|part| part.changeset.events.iter().any(is_begun)) {
                    stop.say(Stop::Cancelled);
                }
            });
        }
        let ended = harness.engine.resume(&thread, Input::nothing(), &work, &cancel, &mut |_| {}).unwrap();
        assert_eq!(status(&ended), Status::Cancelled, "{kind}");
        let events = log(&harness, &thread);
        assert_eq!(events.iter().filter(|event| matches!(event, Event::GraphCancelled(_))).count(), 1, "{kind}");
        assert!(!events.iter().any(|event| matches!(event, Event::GraphError(_))), "{kind}");
    }
    // Suspended at an approval.
    let (harness, thread, _, _) = run(APPROVED, vec![Arc::new(effect("pay", &Arc::default()))]);
    harness.engine.stop(&thread, Stop::Cancelled).unwrap();
    assert_eq!(harness.loaded(&thread).manifest.status, Status::Cancelled);
    assert!(log(&harness, &thread).iter().any(|event| matches!(event, Event::GraphCancelled(_))));
}

#[test]
fn of_two_walkers_on_one_run_one_wins() {
    let world = Arc::new(World::default());
    let harness = Harness::new();
    let other = Arc::new(harness.another());
    let refused = Arc::new(AtomicUsize::new(0));
    let thread_of = Arc::new(Mutex::new(None::<ThreadId>));
    let mut pay = effect("pay", &world);
    let plain = walker(PIPELINE, vec![echo(), Arc::new(effect("pay", &world))]);
    let (seen, named) = (refused.clone(), thread_of.clone());
    pay.meanwhile = Arc::new(move |_| {
        let thread = named.lock().unwrap().clone().unwrap();
        let second = other.engine.resume(&thread, Input::nothing(), &plain, &Cancel::new(), &mut |_| {});
        seen.fetch_add(usize::from(second.is_err()), Ordering::SeqCst);
    });
    let work = walker(PIPELINE, vec![echo(), Arc::new(pay)]);
    let thread = create(&harness, &work);
    *thread_of.lock().unwrap() = Some(thread.clone());
    let ended = resume(&harness, &thread, &work);
    assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(paid())));
    assert_eq!(refused.load(Ordering::SeqCst), 5, "the other one was refused each time");
    assert_eq!(world.repeated.load(Ordering::SeqCst), 0);
}

#[test]
fn ten_thousand_items_are_worked_on_in_bounded_memory() {
    let items: Vec<Value> = (0..10_000).map(|n| json!({"n": n})).collect();
    let text = r#"
permissions: [tool.list, tool.echo]
start: list
state: { items: [], got: [] }
nodes:
  list: { action: { item_type: tool, item_id: list }, assign: { items: "${result.items}" }, next: each }
  each:
    type: foreach
    over: "${state.items}"
    parallel: 64
    action: { item_type: tool, item_id: echo, params: { n: "${item.n}" } }
    collect: got
    next: end
  end: { type: return, output: "${state.got.9999}" }
"#;
    let spec = CountingTool::new("list", EffectClass::Pure).spec().clone();
    let list = json!({ "items": items });
    let list = selvedge_model::tool::Function::new(spec, move |_, _| {
        Ok(Output { content: list.clone(), ..Output::default() })
    });
    let (harness, thread, ended, _) = run(text, vec![Arc::new(list), echo()]);
    assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(json!({"n": 9999}))));
    let loaded = harness.loaded(&thread);
    assert_eq!(loaded.state["got"].as_array().unwrap().len(), 10_000);
    assert!(loaded.calls.is_empty() && loaded.opened().next().is_none(), "nothing of the loop is kept");
    assert!(most_open(&log(&harness, &thread)) <= 64);
}

#[test]
fn a_long_run_continues_in_successors_that_have_its_state() {
    let text = r#"
max_steps: 30
segment_steps: 4
permissions: [tool.pay]
start: pay
state: { n: 0, seen: [] }
nodes:
  pay: { action: { item_type: tool, item_id: pay, params: { n: "${state.n}" } }, next: add }
  add:
    type: gate
    assign: { n: "${graph.step}" }
    next: [{ to: end, when: { path: state.n, op: gte, value: 12 } }, { to: pay }]
  end: { type: return, output: "${state.n}" }
"#;
    let world = Arc::new(World::default());
    let (harness, thread, ended, _) = run(text, vec![Arc::new(effect("pay", &world))]);
    assert_eq!((status(&ended), ended.outputs.clone()), (Status::Completed, Some(json!(12))), "{ended:?}");
    let chain = harness.store.chain(&thread).unwrap();
    assert!(chain.len() >= 3, "{}", chain.len());
    assert!(chain.iter().all(|link| link.manifest.kind == ThreadKind::Graph));
    assert_eq!(world.repeated.load(Ordering::SeqCst), 0);
    let all: Vec<String> = chain.iter().flat_map(|link| steps(&harness, &link.manifest.thread_id)).collect();
    let numbers: Vec<&str> = all.iter().filter_map(|step| step.split(' ').next()).collect();
    let wanted: Vec<String> = (1..=numbers.len()).map(|n| n.to_string()).collect();
    assert_eq!(numbers, wanted, "each step once, counted over the chain");
}

#[test]
fn a_graph_without_end_fails_at_its_bound_and_a_run_without_an_edge_is_named() {
    let text = r#"
max_steps: 7
start: a
state: {}
nodes:
  a: { type: gate, next: b }
  b: { type: gate, next: [{ to: a, when: { path: state.x, op: exists, value: false } }, { to: end, when: { path: state.x, op: exists } }] , assign: { x: null } }
  end: { type: return }
"#;
    let (harness, thread, ended, _) = run(text, Vec::new());
    assert_eq!(status(&ended), Status::Error);
    assert!(ended.why.unwrap().contains("max_steps"));
    assert_eq!(steps(&harness, &thread).len(), 7);
    let text = "start: a\nstate: { x: 1 }\nnodes:\n  a: { type: gate, next: [{ to: end, when: { path: state.x, op: eq, value: 2 } }] }\n  end: { type: return }\n";
    let (_, _, ended, _) = run(text, Vec::new());
    assert_eq!(ended.why.as_deref(), Some("node `a`: no edge of node `a` has a condition that holds"));
}

#[test]
fn a_graph_waits_for_a_time() {
    let text = "start: nap\nstate: {}\nnodes:\n  nap: { type: wait, seconds: 0.02, next: end }\n  end: { type: return, output: up }\n";
    let (harness, thread, ended, work) = run(text, Vec::new());
    assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(json!("up"))));
    assert_identical(&harness, &thread, &work);
}

/// Children that are graphs: the tool `sub` starts one.
struct Family {
    work: RunConfig,
}

impl Children for Family {
    fn new_child(&self, _: &Call, _: &Manifest) -> Result<NewChild, String> {
        Ok(NewChild { thread: birth(&self.work), messages: Vec::new(), detached: false })
    }

    fn run_config(&self, _: &Manifest) -> Result<RunConfig, String> {
        Ok(self.work.clone())
    }

    fn launch(&self, _: &ThreadId) -> Result<Box<dyn Started>, String> {
        Err("no process here".to_owned())
    }
}

fn with_child(text: &str, child: RunConfig) -> RunConfig {
    let sub = CountingTool::new("sub", EffectClass::AtMostOnce).of_kind(ToolKind::Child);
    let mut work = walker(text, vec![Arc::new(sub)]);
    let children = Arc::new(Family { work: child });
    work.spawning = Some(Spawning { children, at_once: 2, check_parent: Arc::new(|_| Ok(())) });
    work
}

const PARENT: &str = r#"
permissions: [tool.sub]
start: sub
state: {}
nodes:
  sub: { action: { item_type: graph, item_id: sub }, assign: { got: "${result.outputs}" }, next: end }
  end: { type: return, output: { child: "${state.got}" } }
"#;

#[test]
fn a_graph_runs_another_graph_as_a_child_and_waits_for_one_that_is_suspended() {
    let world = Arc::new(World::default());
    let harness = Harness::new();
    let child = walker(PIPELINE, vec![echo(), Arc::new(effect("pay", &world))]);
    let work = with_child(PARENT, child);
    let thread = create(&harness, &work);
    let ended = resume(&harness, &thread, &work);
    assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(json!({"child": paid()}))));
    // A child that waits for an approval: its parent waits for it, and takes its result later.
    let world = Arc::new(World::default());
    let harness = Harness::new();
    let child = walker(APPROVED, vec![Arc::new(effect("pay", &world))]);
    let work = with_child(PARENT, child.clone());
    let thread = create(&harness, &work);
    let ended = resume(&harness, &thread, &work);
    assert_eq!((status(&ended), ended.code.as_deref()), (Status::Suspended, Some("child_suspended")));
    let children = harness.store.children(&thread).unwrap();
    let child_id = children[0].manifest.thread_id.clone();
    let asks = harness.loaded(&child_id).manifest.asks;
    harness.engine.decide(&child_id, &asks[0].call_id, Choice::Approve(None), "ann", &child).unwrap();
    let ended = resume(&harness, &thread, &work);
    assert_eq!((status(&ended), ended.outputs), (Status::Completed, Some(json!({"child": "ann"}))), "{:?}", ended.why);
    assert_eq!(world.repeated.load(Ordering::SeqCst), 0);
}

#[test]
fn hooks_of_a_graph_fire_in_order_once_and_may_decide() {
    let text = r#"
permissions: [tool.echo]
start: a
state: {}
hooks:
  - { id: begin, event: graph_started, action: { primary: execute, item_type: tool, item_id: echo, params: { at: begin } } }
  - { id: step, event: after_step, action: { primary: execute, item_type: tool, item_id: echo, params: { at: "step ${step}" } } }
  - { id: trouble, event: error, action: { primary: execute, item_type: tool, item_id: echo, params: { action: continue } } }
  - { id: end, event: graph_completed, action: { primary: execute, item_type: tool, item_id: echo, params: { at: "end ${status}" } } }
nodes:
  a: { type: gate, next: b }
  b: { action: { item_type: tool, item_id: echo, params: { fails: oh } }, next: end }
  end: { type: return, output: 1 }
"#;
    let (harness, thread, ended, work) = run(text, vec![echo()]);
    assert_eq!(status(&ended), Status::CompletedWithErrors, "the hook decided to continue");
    let fired: Vec<String> = log(&harness, &thread)
        .into_iter()
        .filter_map(|event| match event {
            Event::HookFired(fields) if fields.contains_key("occurrence") => {
                Some(format!("{} {}", fields["hook"].as_str()?, fields["occurrence"].as_str()?))
            }
            _ => None,
        })
        .collect();
    assert_eq!(fired, ["begin graph", "step 1", "trouble 2.1", "step 2", "end graph"]);
    assert_identical(&harness, &thread, &work);
}

/// A run that ended with an error continues at the node that failed; one that is complete, or whose last call may have been made, does not.
#[test]
fn a_failed_run_is_resumed_at_its_failed_node_and_never_where_an_effect_is_in_doubt() {
    let (harness, thread, ended, _) = run(FAILING, vec![echo()]);
    assert_eq!(status(&ended), Status::Error);
    let mut fixed = walker(&FAILING.replace("fails: no luck", "fine: true"), vec![echo()]);
    Arc::make_mut(fixed.graph.as_mut().unwrap()).accept_changed = true;
    let input = Input::text("it is repaired");
    let resumed = harness.engine.resume(&thread, input, &fixed, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((status(&resumed), resumed.outputs), (Status::Completed, Some(json!("fine"))));
    let again = harness.engine.resume(&thread, Input::text("again"), &fixed, &Cancel::new(), &mut |_| {});
    assert!(matches!(&again, Err(Error::NotRunnable { .. })), "{again:?}");
    assert_eq!(harness.reasons(&thread).last(), Some(&Reason::Lifecycle));
}
