//! Which commits a run makes, in which order, and what is heard of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use selvedge_engine::{Input, Permission};
use selvedge_model::ToolKind;
use selvedge_model::event::EffectClass;
use selvedge_model::{Event, Output, Reason, Status};
use serde_json::json;

use crate::support::{Counting, House, Reply, agent, roles};

fn one_round() -> Vec<Reply> {
    vec![Reply::Calls(vec![("call.1", "look", json!({"at": 1}))]), Reply::Says("found it")]
}

#[test]
fn a_pure_tool_round_is_five_commits() {
    let house = House::new();
    let thread = house.thread();
    let work = agent(one_round(), vec![Arc::new(Counting::new("look", EffectClass::Pure))]);
    let (ended, heard) = house.send(&thread, Input::text("look"), &work);
    let ended = ended.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.result.as_deref(), ended.run_cost.clone().unwrap().turns),
        (Status::Completed, Some("found it"), 2)
    );
    use Reason::{AssistantTurnCommitted, RunFinished, ToolResultsCommitted, UserMessage};
    let expected = [UserMessage, AssistantTurnCommitted, ToolResultsCommitted, AssistantTurnCommitted, RunFinished];
    assert_eq!(house.reasons(&thread), expected);
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
    let loaded = house.loaded(&thread);
    assert_eq!(roles(&loaded), "uata");
    assert_eq!(loaded.manifest.cost.turns, 2);
    assert_eq!((loaded.manifest.cost.input_tokens, loaded.manifest.cost.output_tokens), (20, 10));
}

#[test]
fn a_tool_that_may_run_once_has_its_intent_committed_before_it_is_dispatched() {
    let house = House::new();
    let thread = house.thread();
    let mut tool = Counting::new("look", EffectClass::AtMostOnce);
    let (store, name) = (house.store.clone(), thread.clone());
    tool.meanwhile = Arc::new(move |call| {
        let lines = selvedge_store::Logs::read(&*store, &name, 0, 1000).unwrap();
        let is_intent =
            |line: &selvedge_log::Line| matches!(&line.event, Event::ToolIntent(intent) if intent.call_id == call.id);
        assert!(lines.iter().any(is_intent), "the intent is durable while the tool runs");
    });
    let ran = tool.ran.clone();
    let work = agent(one_round(), vec![Arc::new(tool)]);
    house.send(&thread, Input::text("look"), &work).0.unwrap();
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
    assert_eq!(house.reasons(&thread), expected);
}

#[test]
fn several_calls_of_a_turn_run_together_and_answer_in_order() {
    let house = House::new();
    let thread = house.thread();
    let calls = vec![("a", "look", json!({})), ("b.c", "look", json!({})), ("c", "look", json!({}))];
    let replies = vec![Reply::Calls(calls), Reply::Says("done")];
    let mut tool = Counting::new("look", EffectClass::Pure);
    // Nobody gets past here alone.
    let barrier = std::sync::Barrier::new(3);
    tool.meanwhile = Arc::new(move |_| _ = barrier.wait());
    house.send(&thread, Input::text("look"), &agent(replies, vec![Arc::new(tool)])).0.unwrap();
    let answered: Vec<_> = house.loaded(&thread).calls.into_keys().map(|id| id.to_string()).collect();
    assert_eq!(answered, ["a", "b.c", "c"]);
    assert_eq!(roles(&house.loaded(&thread)), "uattta");
}

#[test]
fn an_id_that_a_provider_uses_again_names_another_call() {
    let house = House::new();
    let thread = house.thread();
    let again = |id| Reply::Calls(vec![(id, "look", json!({}))]);
    let replies = vec![again("call_1"), again("call_1"), Reply::Says("done")];
    let tool = Counting::new("look", EffectClass::AtMostOnce);
    let (ran, seen) = (tool.ran.clone(), tool.seen.clone());
    house.send(&thread, Input::text("look"), &agent(replies, vec![Arc::new(tool)])).0.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 2);
    let seen = seen.lock().unwrap();
    assert_ne!(seen[0].id, seen[1].id);
    assert_ne!(seen[0].key, seen[1].key, "two calls are never taken for one");
    assert_eq!(house.loaded(&thread).calls.len(), 2);
}

#[test]
fn what_is_not_allowed_is_not_dispatched_and_the_model_is_told() {
    let house = House::new();
    let thread = house.thread();
    let tool = Counting::new("look", EffectClass::Pure);
    let ran = tool.ran.clone();
    let mut work = agent(one_round(), vec![Arc::new(tool)]);
    work.gate = Arc::new(|spec, _| Permission::Denied(format!("`{}` is not granted", spec.capability)));
    let ended = house.send(&thread, Input::text("look"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Completed, 0));
    let loaded = house.loaded(&thread);
    let error = loaded.calls.values().next().unwrap().outcome.as_ref().unwrap().error.clone().unwrap();
    assert!(error.contains("tool.look"), "{error}");
}

#[test]
fn a_tool_that_does_not_exist_is_said_to_the_model() {
    let house = House::new();
    let thread = house.thread();
    let ended = house.send(&thread, Input::text("look"), &agent(one_round(), Vec::new())).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("found it")));
    assert_eq!(roles(&house.loaded(&thread)), "uata");
}

#[test]
fn a_long_answer_goes_to_a_blob_and_both_ends_are_shown() {
    let house = House::new();
    let thread = house.thread();
    let mut tool = Counting::new("look", EffectClass::Pure);
    let text = format!("begin{}ünd", "x".repeat(100_000));
    tool.answer = Output::text(text.clone());
    house.send(&thread, Input::text("look"), &agent(one_round(), vec![Arc::new(tool)])).0.unwrap();
    let loaded = house.loaded(&thread);
    let (call, known) = loaded.calls.iter().next().unwrap();
    let blob = known.outcome.as_ref().unwrap().blob.unwrap();
    assert_eq!(selvedge_store::Logs::blob(&*house.store, &thread, &blob).unwrap(), text.as_bytes());
    let shown = house.answer_of(&thread, call).unwrap().as_str().unwrap().to_owned();
    assert!(shown.len() < 10_000 && shown.starts_with("begin") && shown.ends_with("ünd"), "{}", shown.len());
    assert!(shown.contains(&blob.to_string()));
}

#[test]
fn a_run_that_returns_ends_with_its_outputs() {
    let house = House::new();
    let thread = house.thread();
    let mut tool = Counting::new("directive_return", EffectClass::Idempotent).of_kind(ToolKind::Return);
    tool.answer = Output { content: json!({"answer": 42}), ..Output::default() };
    let replies =
        vec![Reply::Calls(vec![("r", "directive_return", json!({"answer": 42}))]), Reply::Says("never asked")];
    let work = agent(replies, vec![Arc::new(tool)]);
    let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.run_cost.clone().unwrap().turns, ended.outputs), (1, Some(json!({"answer": 42}))));
    assert_eq!(house.loaded(&thread).manifest.status, Status::Completed);
}

#[test]
fn a_ceiling_of_turns_suspends_and_says_so() {
    let house = House::new();
    let thread = house.thread();
    let mut work = agent(one_round(), vec![Arc::new(Counting::new("look", EffectClass::Pure))]);
    work.limits.turns = Some(1);
    let ended = house.send(&thread, Input::text("look"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.code.as_deref().unwrap()), (Status::Suspended, "turns_exceeded"));
    assert_eq!(ended.suspended.unwrap().maximum, Some(json!(1)));
    work.limits.turns = None;
    let ended =
        house.engine.resume(&thread, Input::nothing(), &work, &selvedge_model::Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("found it")));
}
