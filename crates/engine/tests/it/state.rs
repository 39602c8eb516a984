//! How a run changes a thread's state.

use std::sync::Arc;

use selvedge_engine::Input;
use selvedge_model::event::EffectClass;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::scope::{Scope, Scopes};
use selvedge_model::{Output, Patch, Status};
use serde_json::{Value, json};

use crate::support::{CountingTool, Harness, Reply, agent};

fn set(path: &[&str], value: Value) -> Patch {
    Patch::new(vec![Op::Set { path: Path::keys(path.iter().copied()), value }])
}

fn one_round() -> Vec<Reply> {
    vec![Reply::Calls(vec![("call.1", "look", json!({}))]), Reply::Says("done")]
}

fn patching(patches: Vec<Patch>) -> Arc<CountingTool> {
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    tool.answer = Output { patches, ..Output::text("ok") };
    Arc::new(tool)
}

#[test]
fn values_of_a_run_are_removed_when_the_next_one_begins_and_values_of_a_call_with_its_result() {
    let mut scopes = Scopes::builtin();
    scopes.declare(Path::keys(["scratch"]), Scope::ToolCall).unwrap();
    let harness = Harness::with(Default::default(), scopes);
    let thread = harness.thread();
    let patches = vec![set(&["__run"], json!({"n": 1})), set(&["scratch"], json!(2)), set(&["kept"], json!(3))];
    harness.send(&thread, Input::text("go"), &agent(one_round(), vec![patching(patches)])).0.unwrap();
    let state = harness.loaded(&thread).state;
    assert_eq!((&state["__run"]["n"], &state["kept"]), (&json!(1), &json!(3)));
    assert!(state.get("scratch").is_none(), "{state}");
    assert!(state["__tool_call_scope"].as_object().is_none_or(|calls| calls.is_empty()), "{state}");
    harness.send(&thread, Input::text("again"), &agent(vec![], vec![])).0.unwrap();
    assert_eq!(harness.loaded(&thread).state.get("__run"), None);
}

#[test]
fn a_clients_state_replaces_the_threads_and_what_follows_is_applied_once() {
    let harness = Harness::new();
    let thread = harness.thread();
    let append = Patch::new(vec![Op::Append { path: Path::keys(["list"]), value: json!("x") }]);
    let input = Input { state: Some(json!({"list": ["a"], "__run": {"old": true}})), ..Input::text("go") };
    harness.send(&thread, input, &agent(one_round(), vec![patching(vec![append])])).0.unwrap();
    assert_eq!(harness.loaded(&thread).state, json!({"list": ["a", "x"]}));
}

#[test]
fn a_patch_that_does_not_apply_is_an_error_of_the_tool_and_not_of_the_run() {
    let harness = Harness::new();
    let thread = harness.thread();
    let bad = Patch::new(vec![Op::Increment { path: Path::keys(["missing"]), amount: serde_json::Number::from(1) }]);
    let work = agent(one_round(), vec![patching(vec![set(&["kept"], json!(1)), bad])]);
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Completed);
    let loaded = harness.loaded(&thread);
    assert_eq!(loaded.state, json!({}), "all of it or none");
    assert!(loaded.calls.values().next().unwrap().outcome.as_ref().unwrap().error.is_some());
}
