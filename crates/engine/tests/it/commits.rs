//! Which commits a run makes, in which order, and which events are published.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use selvedge_engine::{Input, Permission};
use selvedge_model::ToolKind;
use selvedge_model::event::EffectClass;
use selvedge_model::{Event, Output, Reason, Status};
use serde_json::json;

use crate::support::{CountingTool, Harness, Reply, agent, roles};

fn one_round() -> Vec<Reply> {
    vec![Reply::Calls(vec![("call.1", "look", json!({"at": 1}))]), Reply::Says("found it")]
}

#[test]
fn a_pure_tool_round_is_five_commits() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(one_round(), vec![Arc::new(CountingTool::new("look", EffectClass::Pure))]);
    let (ended, heard) = harness.send(&thread, Input::text("look"), &work);
    let ended = ended.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.result.as_deref(), ended.run_cost.clone().unwrap().turns),
        (Status::Completed, Some("found it"), 2)
    );
    use Reason::{AssistantTurnCommitted, RunFinished, ToolResultsCommitted, UserMessage};
    let expected = [UserMessage, AssistantTurnCommitted, ToolResultsCommitted, AssistantTurnCommitted, RunFinished];
    assert_eq!(harness.reasons(&thread), expected);
    let told: Vec<&str> = heard.iter().map(String::as_str).collect();
    assert_eq!(
        told,
        [
            "UserMessage",
            "AssistantTurnCommitted",
            "calling look",
            "ToolResultsCommitted",
            "draft",
            "AssistantTurnCommitted",
            "RunFinished"
        ]
    );
    // The deltas are disjoint and complete: every message is in the log once.
    let loaded = harness.loaded(&thread);
    assert_eq!(roles(&loaded), "uata");
    assert_eq!(loaded.manifest.cost.turns, 2);
    assert_eq!((loaded.manifest.cost.input_tokens, loaded.manifest.cost.output_tokens), (20, 10));
}

#[test]
fn a_tool_that_may_run_once_has_its_intent_committed_before_it_is_dispatched() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut tool = CountingTool::new("look", EffectClass::AtMostOnce);
    let store = harness.store.clone();
    let name = thread.clone();
    tool.meanwhile = Arc::new(move |call| {
        let lines = selvedge_store::Logs::read(&*store, &name, 0, 1000).unwrap();
        let is_intent =
            |line: &selvedge_log::Line| matches!(&line.event, Event::ToolIntent(intent) if intent.call_id == call.id);
        assert!(lines.iter().any(is_intent), "the intent is durable while the tool runs");
    });
    let ran = tool.ran.clone();
    let work = agent(one_round(), vec![Arc::new(tool)]);
    harness.send(&thread, Input::text("look"), &work).0.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    use Reason::{AssistantTurnCommitted, RunFinished, ToolIntentCommitted, ToolResultsCommitted, UserMessage};
    let expected = [
        UserMessage,
        AssistantTurnCommitted,
        ToolIntentCommitted,
        ToolResultsCommitted,
        AssistantTurnCommitted,
        RunFinished,
    ];
    assert_eq!(harness.reasons(&thread), expected);
}

#[test]
fn several_calls_of_a_turn_run_together_and_answer_in_order() {
    let harness = Harness::new();
    let thread = harness.thread();
    let calls = vec![("a", "look", json!({})), ("b.c", "look", json!({})), ("c", "look", json!({}))];
    let replies = vec![Reply::Calls(calls), Reply::Says("done")];
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    // No call gets past here alone.
    let barrier = std::sync::Barrier::new(3);
    tool.meanwhile = Arc::new(move |_| _ = barrier.wait());
    harness.send(&thread, Input::text("look"), &agent(replies, vec![Arc::new(tool)])).0.unwrap();
    let answered: Vec<_> = harness.loaded(&thread).calls.into_keys().map(|id| id.to_string()).collect();
    assert_eq!(answered, ["a", "b.c", "c"]);
    assert_eq!(roles(&harness.loaded(&thread)), "uattta");
}

#[test]
fn an_id_that_a_provider_reuses_names_another_call() {
    let harness = Harness::new();
    let thread = harness.thread();
    let again = |id| Reply::Calls(vec![(id, "look", json!({}))]);
    let replies = vec![again("call_1"), again("call_1"), Reply::Says("done")];
    let tool = CountingTool::new("look", EffectClass::AtMostOnce);
    let ran = tool.ran.clone();
    let seen = tool.seen.clone();
    harness.send(&thread, Input::text("look"), &agent(replies, vec![Arc::new(tool)])).0.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 2);
    let seen = seen.lock().unwrap();
    assert_ne!(seen[0].id, seen[1].id);
    assert_ne!(seen[0].key, seen[1].key, "two calls are never taken for one");
    assert_eq!(harness.loaded(&thread).calls.len(), 2);
}

#[test]
fn a_denied_call_is_not_dispatched_and_the_model_gets_the_reason() {
    let harness = Harness::new();
    let thread = harness.thread();
    let tool = CountingTool::new("look", EffectClass::Pure);
    let ran = tool.ran.clone();
    let mut work = agent(one_round(), vec![Arc::new(tool)]);
    work.gate = Arc::new(|spec, _| Permission::Denied(format!("`{}` is not granted", spec.capability)));
    let ended = harness.send(&thread, Input::text("look"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Completed, 0));
    let loaded = harness.loaded(&thread);
    let error = loaded.calls.values().next().unwrap().outcome.as_ref().unwrap().error.clone().unwrap();
    assert!(error.contains("tool.look"), "{error}");
}

#[test]
fn a_call_of_a_missing_tool_gets_an_error_as_its_result() {
    let harness = Harness::new();
    let thread = harness.thread();
    let ended = harness.send(&thread, Input::text("look"), &agent(one_round(), Vec::new())).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("found it")));
    assert_eq!(roles(&harness.loaded(&thread)), "uata");
}

#[test]
fn a_long_result_goes_to_a_blob_and_both_ends_are_shown() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    let text = format!("begin{}ünd", "x".repeat(100_000));
    tool.answer = Output::text(text.clone());
    harness.send(&thread, Input::text("look"), &agent(one_round(), vec![Arc::new(tool)])).0.unwrap();
    let loaded = harness.loaded(&thread);
    let (call, known) = loaded.calls.iter().next().unwrap();
    let blob = known.outcome.as_ref().unwrap().blob.unwrap();
    assert_eq!(selvedge_store::Logs::blob(&*harness.store, &thread, &blob).unwrap(), text.as_bytes());
    let shown = harness.answer_of(&thread, call).unwrap().as_str().unwrap().to_owned();
    assert!(shown.len() < 10_000 && shown.starts_with("begin") && shown.ends_with("ünd"), "{}", shown.len());
    assert!(shown.contains(&blob.to_string()));
}

#[test]
fn a_run_that_returns_ends_with_its_outputs() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut tool = CountingTool::new("directive_return", EffectClass::Idempotent).of_kind(ToolKind::Return);
    tool.answer = Output { content: json!({"answer": 42}), ..Output::default() };
    let replies =
        vec![Reply::Calls(vec![("r", "directive_return", json!({"answer": 42}))]), Reply::Says("never asked")];
    let work = agent(replies, vec![Arc::new(tool)]);
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.run_cost.clone().unwrap().turns, ended.outputs), (1, Some(json!({"answer": 42}))));
    assert_eq!(harness.loaded(&thread).manifest.status, Status::Completed);
}

/// What had been returned was known to its process alone: the model was asked again.
#[test]
fn outputs_that_were_returned_before_a_crash_end_the_next_run() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = |replies| {
        let mut tool = CountingTool::new("directive_return", EffectClass::Idempotent).of_kind(ToolKind::Return);
        tool.answer = Output { content: json!({"answer": 42}), ..Output::default() };
        agent(replies, vec![Arc::new(tool)])
    };
    let first = work(vec![Reply::Calls(vec![("r", "directive_return", json!({"answer": 42}))])]);
    harness.dies_after(Reason::ToolResultsCommitted, || harness.send(&thread, Input::text("go"), &first));
    let ended = harness.another().resumed(&thread, Input::nothing(), &work(vec![Reply::Says("never asked")]));
    assert_eq!((ended.status.status().unwrap(), ended.outputs), (Status::Completed, Some(json!({"answer": 42}))));
    assert_eq!(ended.run_cost.unwrap().turns, 0, "the model was not asked again");
}

#[test]
fn a_turn_limit_suspends_and_says_so() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut work = agent(one_round(), vec![Arc::new(CountingTool::new("look", EffectClass::Pure))]);
    work.limits.turns = Some(1);
    let ended = harness.send(&thread, Input::text("look"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.code.as_deref().unwrap()), (Status::Suspended, "turns_exceeded"));
    assert_eq!(ended.suspended.unwrap().maximum, Some(json!(1)));
    work.limits.turns = None;
    let ended =
        harness.engine.resume(&thread, Input::nothing(), &work, &selvedge_model::Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("found it")));
}

/// Its outcome had no result: the run that recorded the end had asked nothing. A graph that ran it as a child went on without its text.
#[test]
fn an_answer_before_a_crash_is_the_result_of_the_run_that_ends_the_thread() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("found it")], Vec::new());
    harness.dies_after(Reason::AssistantTurnCommitted, || harness.send(&thread, Input::text("look"), &work));
    let other = harness.another();
    let ended = other.resumed(&thread, Input::nothing(), &agent(vec![Reply::Says("never asked")], Vec::new()));
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("found it")));
    let read = selvedge_engine::outcome::get_status(&*other.store, other.engine.trust(), &thread).unwrap();
    assert_eq!(read.result.as_deref(), Some("found it"), "the same from the log");
}
