//! Calls that are opened by an event: made like any other, and part of no message.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use selvedge_engine::run_config::NeededApproval;
use selvedge_engine::snapshot::Keeper;
use selvedge_engine::{Choice, Input, Outcome, Permission, Redactor, RunConfig};
use selvedge_items::config::state_persistence::{Coalesce, StatePersistence};
use selvedge_model::event::{CallOpened, CallOrigin, EffectClass, SuspendReason};
use selvedge_model::message::Block;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::scope::{Scope, Scopes};
use selvedge_model::tool::Reconciled;
use selvedge_model::{
    Batch, CallId, Cancel, Changeset, Event, Expect, Output, Part, Patch, Role, Status, Stop, ThreadId, Tool,
};
use selvedge_store::{Commit, Registry};
use serde_json::json;

use crate::replay::assert_identical;
use crate::support::{CountingTool, Harness, RecordingModel, Reply, agent, die, roles};

fn call(id: &str) -> CallId {
    CallId::new(id).unwrap()
}

fn hook() -> CallOrigin {
    CallOrigin::Hook { hook: "notify".to_owned(), required: false }
}

fn required() -> CallOrigin {
    CallOrigin::Hook { hook: "notify".to_owned(), required: true }
}

fn node() -> CallOrigin {
    CallOrigin::Node { graph: "release".to_owned(), node: "publish".to_owned() }
}

/// Opens calls of `pay`, as a hook or a graph will.
fn open(harness: &Harness, thread: &ThreadId, calls: &[(&str, CallOrigin)]) {
    let opened = |(id, origin): &(&str, CallOrigin)| {
        let arguments = json!({"of": id});
        Event::CallOpened(CallOpened { call_id: call(id), origin: origin.clone(), tool: "pay".to_owned(), arguments })
    };
    let events = calls.iter().map(opened).collect();
    let changeset = Changeset { events, ..Changeset::empty(selvedge_model::Reason::Lifecycle) };
    harness.store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, changeset))).unwrap();
}

fn saying(tools: Vec<Arc<dyn Tool>>) -> RunConfig {
    agent(vec![Reply::Says("one"), Reply::Says("two"), Reply::Says("three")], tools)
}

fn pay() -> CountingTool {
    CountingTool::new("pay", EffectClass::AtMostOnce)
}

/// A thread that has answered once.
fn idle(harness: &Harness) -> ThreadId {
    let thread = harness.thread();
    harness.send(&thread, Input::text("hello"), &saying(Vec::new())).0.unwrap();
    thread
}

fn resume(harness: &Harness, thread: &ThreadId, work: &RunConfig) -> Outcome {
    harness.engine.resume(thread, Input::nothing(), work, &Cancel::new(), &mut |_| {}).unwrap()
}

fn outcome(harness: &Harness, thread: &ThreadId, id: &str) -> Option<Result<serde_json::Value, String>> {
    let outcome = harness.loaded(thread).calls.get(&call(id))?.outcome.clone()?;
    Some(outcome.error.map_or_else(|| Ok(outcome.result.unwrap_or_default()), Err))
}

#[test]
fn an_opened_call_is_made_once_and_its_result_is_in_no_message_and_no_prompt() {
    for origin in [hook(), required(), node()] {
        let mut scopes = Scopes::builtin();
        scopes.declare(Path::keys(["scratch"]), Scope::ToolCall).unwrap();
        let harness = Harness::with(Redactor::default(), scopes);
        let thread = idle(&harness);
        open(&harness, &thread, &[("o.1", origin)]);
        let mut tool = pay();
        let set = |key: &str| Patch::new(vec![Op::Set { path: Path::keys([key]), value: json!(1) }]);
        tool.answer = Output { patches: vec![set("kept"), set("scratch")], ..Output::text("a receipt") };
        let ran = tool.ran.clone();
        let seen = tool.seen.clone();
        let mut work = saying(vec![Arc::new(tool)]);
        let model = RecordingModel::before(&mut work);
        let ended = harness.send(&thread, Input::text("go on"), &work).0.unwrap();
        assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("two")));
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        assert_eq!(seen.lock().unwrap()[0].arguments, json!({"of": "o.1"}));
        assert_eq!(outcome(&harness, &thread, "o.1"), Some(Ok(json!("a receipt"))));
        let loaded = harness.loaded(&thread);
        assert_eq!(roles(&loaded), "uaua");
        assert!(loaded.calls[&call("o.1")].intent.is_some());
        assert_eq!((&loaded.state["kept"], loaded.state.get("scratch")), (&json!(1), None));
        let prompts = std::mem::take(&mut *model.prompts.lock().unwrap());
        assert!(!format!("{prompts:?}").contains("receipt") && !format!("{prompts:?}").contains("o.1"));
        assert_eq!(prompts.len(), 1, "it was made before the model was called");
        // It is not made again.
        harness.send(&thread, Input::text("and on"), &work).0.unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        assert_identical(&harness, &thread, &work);
    }
}

#[test]
fn a_long_result_of_an_opened_call_goes_to_a_blob() {
    let harness = Harness::new();
    let thread = idle(&harness);
    open(&harness, &thread, &[("o.1", hook())]);
    let mut tool = pay();
    tool.answer = Output::text("x".repeat(100_000));
    harness.send(&thread, Input::text("go on"), &saying(vec![Arc::new(tool)])).0.unwrap();
    let blob = harness.loaded(&thread).calls[&call("o.1")].outcome.as_ref().unwrap().blob.unwrap();
    assert_eq!(selvedge_store::Logs::blob(&*harness.store, &thread, &blob).unwrap().len(), 100_000);
    assert_eq!(roles(&harness.loaded(&thread)), "uaua");
}

/// A process that dies in the middle of the opened calls of a thread.
fn die_in_the_call(harness: &Harness, thread: &ThreadId) {
    let dying = harness.another();
    let mut tool = pay();
    tool.meanwhile = Arc::new(|_| die());
    let work = saying(vec![Arc::new(tool)]);
    let died =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dying.send(thread, Input::text("go on"), &work)));
    assert!(died.is_err());
}

#[test]
fn a_node_or_a_required_hook_whose_outcome_is_unknown_suspends_the_thread() {
    for origin in [node(), required()] {
        let harness = Harness::new();
        let thread = idle(&harness);
        open(&harness, &thread, &[("o.1", origin)]);
        die_in_the_call(&harness, &thread);
        harness.engine.recover().unwrap();
        let why = harness.loaded(&thread).manifest.suspended.unwrap();
        assert_eq!((why.reason, why.calls), (SuspendReason::OutcomeUnknown, vec![call("o.1")]));
        let tool = pay();
        let ran = tool.ran.clone();
        let work = saying(vec![Arc::new(tool)]);
        let ended = resume(&harness, &thread, &work);
        let code = ended.code.as_deref();
        assert_eq!((ended.status.status().unwrap(), code), (Status::Suspended, Some("outcome_unknown")));
        assert_eq!(outcome(&harness, &thread, "o.1"), None);
        let done = Choice::Done(json!("receipt 7"));
        harness.engine.decide(&thread, &call("o.1"), done, "ann", &work).unwrap();
        let ended = resume(&harness, &thread, &work);
        assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Completed, 0));
        assert_eq!(outcome(&harness, &thread, "o.1"), Some(Ok(json!("receipt 7"))));
        assert_eq!(roles(&harness.loaded(&thread)), "uaua");
    }
}

#[test]
fn a_hook_whose_outcome_is_unknown_is_recorded_and_the_run_continues() {
    let harness = Harness::new();
    let thread = idle(&harness);
    open(&harness, &thread, &[("o.1", hook())]);
    die_in_the_call(&harness, &thread);
    harness.engine.recover().unwrap();
    let why = harness.loaded(&thread).manifest.suspended.unwrap();
    assert_eq!((why.reason, why.code.as_deref(), why.calls.len()), (SuspendReason::Error, Some("process_lost"), 0));
    assert_eq!(harness.processes.0.lock().unwrap().len(), 1, "its process is ended in any case");
    let tool = pay();
    let ran = tool.ran.clone();
    let work = saying(vec![Arc::new(tool)]);
    let ended = resume(&harness, &thread, &work);
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Completed, 0));
    assert_eq!(outcome(&harness, &thread, "o.1"), Some(Err("the outcome of this call is unknown".to_owned())));
    assert_eq!(roles(&harness.loaded(&thread)), "uaua");
    assert_identical(&harness, &thread, &work);
}

#[test]
fn a_hook_whose_tool_knows_its_outcome_has_its_result() {
    let harness = Harness::new();
    let thread = idle(&harness);
    open(&harness, &thread, &[("o.1", hook())]);
    die_in_the_call(&harness, &thread);
    let mut tool = pay();
    tool.known = Reconciled::Done(Output::text("paid already"));
    assert_eq!(resume(&harness, &thread, &saying(vec![Arc::new(tool)])).status, Status::Completed);
    assert_eq!(outcome(&harness, &thread, "o.1"), Some(Ok(json!("paid already"))));
}

#[test]
fn an_opened_call_that_needs_an_approval_waits_like_any_other() {
    let harness = Harness::new();
    let thread = idle(&harness);
    open(&harness, &thread, &[("o.1", hook()), ("o.2", node())]);
    let tool = pay();
    let ran = tool.ran.clone();
    let mut work = saying(vec![Arc::new(tool)]);
    work.gate = Arc::new(|_, _| Permission::Ask(NeededApproval::default()));
    let ended = harness.send(&thread, Input::text("go on"), &work).0.unwrap();
    assert_eq!((ended.code.as_deref(), ended.suspended.unwrap().calls.len()), (Some("approval"), 2));
    harness.engine.decide(&thread, &call("o.1"), Choice::Approve(None), "ann", &work).unwrap();
    harness.engine.decide(&thread, &call("o.2"), Choice::Deny(None), "ann", &work).unwrap();
    assert_eq!(resume(&harness, &thread, &work).status, Status::Completed);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    assert_eq!(outcome(&harness, &thread, "o.1"), Some(Ok(json!("done"))));
    assert_eq!(outcome(&harness, &thread, "o.2"), Some(Err("denied by ann".to_owned())));
    let manifest = harness.loaded(&thread).manifest;
    assert_eq!((manifest.asks, roles(&harness.loaded(&thread)).as_str()), (vec![], "uaua"));
    assert_identical(&harness, &thread, &work);
}

#[test]
fn a_stop_answers_opened_calls_without_a_message() {
    let harness = Harness::new();
    let thread = idle(&harness);
    open(&harness, &thread, &[("o.1", node())]);
    die_in_the_call(&harness, &thread);
    open_while_suspended(&harness, &thread);
    assert_eq!(harness.engine.stop(&thread, Stop::Cancelled).unwrap().status, Status::Cancelled);
    let dispatched = outcome(&harness, &thread, "o.1").unwrap().unwrap_err();
    assert!(dispatched.contains("dispatched"), "{dispatched}");
    let never = outcome(&harness, &thread, "o.2").unwrap().unwrap_err();
    assert!(never.contains("before this call was executed"), "{never}");
    let loaded = harness.loaded(&thread);
    assert!(loaded.messages.iter().all(|message| message.role != Role::Tool));
    assert_eq!(loaded.opened().count(), 0);
}

fn open_while_suspended(harness: &Harness, thread: &ThreadId) {
    harness.engine.recover().unwrap();
    open(harness, thread, &[("o.2", hook())]);
}

/// Open calls of the old thread must not appear in the conversation of its successor.
#[test]
fn a_successor_has_no_opened_calls_of_its_predecessor() {
    let harness = Harness::new();
    let thread = idle(&harness);
    open(&harness, &thread, &[("o.1", node())]);
    let tool = pay();
    let ran = tool.ran.clone();
    let work = saying(vec![Arc::new(tool)]);
    let ended = harness.engine.resume(&thread, Input::text("go on"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(ended.status, Status::Completed);
    assert_ne!(ended.thread_id, thread);
    assert!(outcome(&harness, &thread, "o.1").unwrap().unwrap_err().starts_with("interrupted"));
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    let successor = harness.loaded(&ended.thread_id);
    assert_eq!((roles(&successor).as_str(), successor.calls.len()), ("uaua", 0));
    assert_eq!(harness.store.get(&thread).unwrap().manifest.status, Status::Continued);
}

#[test]
fn opened_calls_survive_in_a_snapshot() {
    let mut harness = Harness::new();
    let mut config = StatePersistence::builtin();
    config.checkpoint.performance.coalesce = Coalesce::Always;
    harness.keep(Keeper::new(Arc::new(harness.store.inner.another()), config.clone()).unwrap());
    let thread = harness.thread();
    // A log that is long enough for a snapshot.
    harness.send(&thread, Input::text("x".repeat(100_000)), &saying(Vec::new())).0.unwrap();
    open(&harness, &thread, &[("o.2", node()), ("o.1", hook())]);
    // The snapshot is saved when the thread is suspended.
    let mut asking = saying(vec![Arc::new(pay())]);
    asking.gate = Arc::new(|_, _| Permission::Ask(NeededApproval::default()));
    harness.send(&thread, Input::text("go on"), &asking).0.unwrap();
    let mut other = harness.another();
    other.keep(Keeper::new(Arc::new(other.store.inner.another()), config).unwrap());
    // Only the log after the snapshot can be read.
    other.store.is_unreadable.store(true, Ordering::SeqCst);
    for id in ["o.1", "o.2"] {
        other.engine.decide(&thread, &call(id), Choice::Approve(None), "ann", &asking).unwrap();
    }
    let tool = pay();
    let ran = tool.ran.clone();
    let ended = resume(&other, &thread, &saying(vec![Arc::new(tool)]));
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Completed, 2));
    assert_eq!(harness.loaded(&thread).opened().count(), 0);
}

/// If a provider used the id of an opened call for its own, the two calls would have been confused.
#[test]
fn a_call_of_the_model_never_has_the_id_of_an_opened_one() {
    let harness = Harness::new();
    let thread = idle(&harness);
    open(&harness, &thread, &[("o.1", hook())]);
    let replies = vec![Reply::Says("one"), Reply::Calls(vec![("o.1", "pay", json!({}))]), Reply::Says("done")];
    let tool = pay();
    let ran = tool.ran.clone();
    harness.send(&thread, Input::text("go on"), &agent(replies, vec![Arc::new(tool)])).0.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 2);
    let loaded = harness.loaded(&thread);
    let asked = loaded.messages.iter().flat_map(|message| &message.content).find_map(|block| match block {
        Block::ToolCall { id, .. } => Some(id),
        _ => None,
    });
    assert_ne!(asked.unwrap(), &call("o.1"));
    assert_eq!(roles(&loaded), "uauata");
}
