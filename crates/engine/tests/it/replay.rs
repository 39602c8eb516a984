//! Replays of recorded threads: identical if nothing changed, and with named differences if something did.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use selvedge_engine::replay::{RecordedChangeset, Recording, ReplayOptions, Report, replay};
use selvedge_engine::run_config::NeededApproval;
use selvedge_engine::spawn::{Children, NewChild, Spawning};
use selvedge_engine::{Choice, Input, Permission, Redactor, RunConfig};
use selvedge_items::config::{Class, ErrorClass, Stops, Wait};
use selvedge_model::event::{EffectClass, Event};
use selvedge_model::limits::Limits;
use selvedge_model::message::Block;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::scope::{Scope, Scopes};
use selvedge_model::tool::{Call, Reconciled, Started, ToolKind};
use selvedge_model::{
    AgentId, CallId, Cancel, Manifest, Message, ModelError, NewThread, Output, Patch, Price, Reason, Role, Stop,
    ThreadId, Tool, ToolError, ToolSpec,
};
use selvedge_providers::Replay;
use selvedge_providers::replay::RecordedEvents;
use serde_json::{Value, json};

use crate::support::{CountingTool, Harness, Reply, agent, die};

fn recording(harness: &Harness, thread: &ThreadId) -> Recording {
    Recording::read(&harness.store.inner, thread, &harness.trust).unwrap()
}

/// Replays a recording.
fn again(recording: Recording, work: &RunConfig, how: impl FnOnce(&mut ReplayOptions)) -> Report {
    let steps = recording.steps.iter().map(|step| RecordedEvents { reason: step.reason(), events: &step.events });
    let model = Arc::new(Replay::new(steps));
    let scopes = Scopes::builtin();
    let redactor = Redactor::default();
    let mut with = ReplayOptions { work: work.clone(), model, scopes, redactor, from: None };
    how(&mut with);
    replay(recording, with).unwrap()
}

pub(crate) fn replayed(harness: &Harness, thread: &ThreadId, work: &RunConfig) -> Report {
    again(recording(harness, thread), work, |_| {})
}

#[track_caller]
pub(crate) fn assert_identical(harness: &Harness, thread: &ThreadId, work: &RunConfig) {
    let report = replayed(harness, thread, work);
    assert!(report.is_identical(), "{}", serde_json::to_string_pretty(&report.differences).unwrap());
    assert_eq!(report.compared + report.from_record, report.version + 1, "nothing was left out");
    assert!(report.compared > 0);
    assert_eq!(report.state_now, report.state_recorded);
}

fn tool(name: &str, class: EffectClass, answer: Output) -> Arc<CountingTool> {
    let mut tool = CountingTool::new(name, class);
    tool.answer = answer;
    Arc::new(tool)
}

fn set(path: &[&str], value: Value) -> Patch {
    Patch::new(vec![Op::Set { path: Path::keys(path.iter().copied()), value }])
}

fn calls(calls: &[(&'static str, &'static str)]) -> Reply {
    Reply::Calls(calls.iter().map(|(id, name)| (*id, *name, json!({"of": id}))).collect())
}

/// An agent that looks, pays and reports it.
fn worker() -> RunConfig {
    let look =
        tool("look", EffectClass::Pure, Output { patches: vec![set(&["seen"], json!(1))], ..Output::text("ok") });
    let pay = tool("pay", EffectClass::AtMostOnce, Output::text("paid"));
    agent(
        vec![calls(&[("l.1", "look"), ("p.1", "pay")]), calls(&[("p.2", "pay")]), Reply::Says("done")],
        vec![look, pay],
    )
}

fn asking(mut work: RunConfig) -> RunConfig {
    work.gate = Arc::new(|spec, _| match spec.name.as_str() {
        "pay" => Permission::Ask(NeededApproval {
            expires_after: Some(std::time::Duration::from_secs(3600)),
            ..NeededApproval::default()
        }),
        _ => Permission::Allowed,
    });
    work
}

fn resume(harness: &Harness, thread: &ThreadId, input: Input, work: &RunConfig) {
    harness.engine.resume(thread, input, work, &Cancel::new(), &mut |_| {}).unwrap();
}

#[test]
fn a_thread_of_two_runs_replays_identically_and_no_tool_is_called() {
    let harness = Harness::new();
    let thread = harness.thread();
    let pay = CountingTool::new("pay", EffectClass::AtMostOnce);
    let ran = pay.ran.clone();
    let look =
        tool("look", EffectClass::Pure, Output { patches: vec![set(&["__run"], json!(1))], ..Output::text("ok") });
    let replies = vec![
        calls(&[("l.1", "look"), ("p.1", "pay")]),
        Reply::Says("one"),
        calls(&[("p.2", "pay")]),
        Reply::Says("two"),
    ];
    let work = agent(replies, vec![look, Arc::new(pay)]);
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    harness.send(&thread, Input { state: Some(json!({"a": [1]})), ..Input::text("and again") }, &work).0.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 2);
    let before = harness.store.inner.another();
    assert_identical(&harness, &thread, &work);
    assert_eq!(ran.load(Ordering::SeqCst), 2, "tools answer from the record");
    let head = |store: &dyn selvedge_store::Logs| store.head(&thread).unwrap();
    assert_eq!(head(&before), head(&harness.store.inner), "nothing touches the thread");
}

/// Ids were random: a repetition had other ids.
#[test]
fn messages_runs_and_calls_have_the_same_derived_ids_in_a_replay() {
    let harness = Harness::new();
    let new = NewThread { limits: Some(spend("100")), ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    // The second turn reuses the id of a call, so that the engine derives one; calls are paid for, so that versions differ.
    let mut work = worker();
    let replies = vec![calls(&[("p.1", "pay")]), calls(&[("p.1", "pay")]), Reply::Says("done")];
    work.model = agent(replies, Vec::new()).model;
    work.price = Some(Price { input: "1".parse().unwrap(), output: "1".parse().unwrap(), ..Price::default() });
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let messages = harness.loaded(&thread).messages;
    let steps: Vec<_> = messages.iter().map(|message| (message.id.is_some(), message.step)).collect();
    let turn = |turn| (true, Some(turn));
    assert_eq!(steps, [(false, None), turn(1), turn(1), turn(2), turn(2), turn(3)]);
    let made_up = messages.iter().flat_map(|message| &message.content).filter_map(|block| match block {
        Block::ToolCall { id, .. } if id.as_str().starts_with("call_") => Some(id),
        _ => None,
    });
    assert_eq!(made_up.count(), 1);
    assert_identical(&harness, &thread, &work);
    // A stopped run records that in a message of its own.
    let work = agent(vec![Reply::Fails(ModelError::Permanent { why: "no".to_owned() })], Vec::new());
    let thread = harness.thread();
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let last = harness.loaded(&thread).messages.pop().unwrap();
    assert_eq!((last.id.is_some(), last.step), (true, Some(1)));
    assert_identical(&harness, &thread, &work);
}

fn spend(most: &str) -> Limits {
    Limits { spend: Some(most.parse().unwrap()), ..Limits::default() }
}

#[test]
fn one_changed_tool_result_is_named_at_its_step() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = worker();
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let mut recording = recording(&harness, &thread);
    // The result of the tool is changed, but not what the model got.
    let mut lines = Vec::new();
    for step in &mut recording.steps {
        let version = step.version();
        let line = step.line;
        for (index, event) in step.events.iter_mut().enumerate() {
            match event {
                Event::ToolOutcome(outcome) if outcome.call_id.as_str() == "p.2" => {
                    outcome.result = Some(json!("stolen"))
                }
                Event::Message(message) => {
                    let answers =
                        |block: &Block| matches!(block, Block::ToolResult { call_id, .. } if call_id.as_str() == "p.2");
                    if message.content.iter().any(answers) {
                        lines.push((version, line + index as u64));
                    }
                }
                _ => {}
            }
        }
    }
    let report = again(recording, &work, |_| {});
    let [difference] = report.differences.as_slice() else { panic!("{:?}", report.differences) };
    assert_eq!(lines, [(difference.version, difference.line)]);
    assert_eq!(difference.what, "message.content[0].content");
    assert_eq!((&difference.recorded, &difference.now), (&Some(json!("paid")), &Some(json!("stolen"))));
    assert_eq!((difference.reason, report.ended_at), (Reason::ToolResultsCommitted, None), "the rest is compared, too");
}

#[test]
fn a_changed_state_is_named_where_it_begins_to_differ() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = worker();
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let mut recording = recording(&harness, &thread);
    let begun = recording.steps.iter_mut().find(|step| step.reason() == Reason::UserMessage).unwrap();
    begun.events.insert(1, Event::Snapshot(selvedge_model::event::Snapshot { state: json!({"seen": 0}) }));
    // A state that the run did not have: now it has one that the recorded patches do not show.
    let has_patch = |step: &&RecordedChangeset| step.events.iter().any(|event| matches!(event, Event::Patch(_)));
    let version = recording.steps.iter().find(has_patch).unwrap().version();
    for step in &mut recording.steps {
        for event in &mut step.events {
            if let Event::Patch(patch) = event {
                patch.ops.push(Op::Set { path: Path::keys(["other"]), value: json!(2) });
            }
        }
    }
    let report = again(recording, &work, |how| how.scopes.declare(Path::keys(["other"]), Scope::ToolCall).unwrap());
    assert_eq!(report.state_differs_at, Some(version));
    assert!(report.differences.iter().any(|difference| difference.what == "state" && difference.version == version));
    assert_ne!(report.state_now, report.state_recorded);
}

#[test]
fn approvals_edits_and_denials_replay_identically() {
    for wait in [Wait::All, Wait::Each] {
        let harness = Harness::new();
        let thread = harness.thread();
        let mut work = asking(worker());
        work.wait = wait;
        harness.send(&thread, Input::text("go"), &work).0.unwrap();
        let decide = |call: &str, choice| {
            harness.engine.decide(&thread, &CallId::new(call).unwrap(), choice, "ann", &work).unwrap();
        };
        decide("p.1", Choice::Edit(json!({"amount": 2})));
        resume(&harness, &thread, Input::nothing(), &work);
        decide("p.2", Choice::Deny(Some("too much".to_owned())));
        resume(&harness, &thread, Input::nothing(), &work);
        assert_identical(&harness, &thread, &work);
    }
}

/// A tool that accepts only an amount.
struct Picky(CountingTool);

impl Tool for Picky {
    fn spec(&self) -> &ToolSpec {
        self.0.spec()
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        if call.arguments["amount"].is_u64() {
            return self.0.start(call);
        }
        Err(ToolError::NotStarted { tool: "pay".to_owned(), why: "no amount".to_owned() })
    }

    fn reconcile(&self, call: &Call, cancel: &Cancel) -> Reconciled {
        self.0.reconcile(call, cancel)
    }
}

#[test]
fn changed_arguments_that_the_tool_refused_replay_identically() {
    let harness = Harness::new();
    let thread = harness.thread();
    let pay = Picky(CountingTool::new("pay", EffectClass::AtMostOnce));
    let work = asking(agent(vec![calls(&[("p.1", "pay")]), Reply::Says("done")], vec![Arc::new(pay)]));
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let edited = Choice::Edit(json!({"amount": "much"}));
    // When they are changed, the tool still accepts them.
    let lenient = tool("pay", EffectClass::AtMostOnce, Output::text("paid"));
    let before = RunConfig { tools: vec![lenient], ..work.clone() };
    harness.engine.decide(&thread, &CallId::new("p.1").unwrap(), edited, "ann", &before).unwrap();
    resume(&harness, &thread, Input::nothing(), &work);
    let refused = |event: &Event| matches!(event, Event::ToolOutcome(outcome) if outcome.error.as_ref().is_some_and(|error| error.contains("no amount")));
    assert!(recording(&harness, &thread).steps.iter().any(|step| step.events.iter().any(refused)));
    assert_identical(&harness, &thread, &work);
}

#[test]
fn a_redefined_tool_with_a_second_approval_request_replays_identically() {
    // A note is added to a text in another way than to data.
    for (answer, choice) in [
        (json!("paid"), Choice::Approve(None)),
        (json!({"receipt": 5}), Choice::Approve(None)),
        (json!("paid"), Choice::Edit(json!({"amount": 2}))),
        (json!({"receipt": 5}), Choice::Edit(json!({"amount": 2}))),
    ] {
        let harness = Harness::new();
        let thread = harness.thread();
        let replies = || vec![calls(&[("p.1", "pay")]), Reply::Says("done")];
        let before = asking(agent(replies(), vec![tool("pay", EffectClass::AtMostOnce, Output::text("paid"))]));
        harness.send(&thread, Input::text("go"), &before).0.unwrap();
        let decide = |choice, work: &RunConfig| {
            harness.engine.decide(&thread, &CallId::new("p.1").unwrap(), choice, "ann", work).unwrap();
        };
        decide(Choice::Approve(None), &before);
        let from = recording(&harness, &thread).steps.last().unwrap().version();
        let mut pay = CountingTool::new("pay", EffectClass::AtMostOnce);
        pay.answer.content = answer;
        pay.redefine();
        let work = RunConfig { tools: vec![Arc::new(pay)], ..before };
        resume(&harness, &thread, Input::nothing(), &work);
        decide(choice, &work);
        resume(&harness, &thread, Input::nothing(), &work);
        let log = format!("{:?}", recording(&harness, &thread).steps);
        assert!(log.contains("the tool was redefined after the approval"), "{log}");
        let report = again(recording(&harness, &thread), &work, |how| how.from = Some(from));
        assert!(report.is_identical() && report.compared > 5, "{report:#?}");
        // Also from its beginning: the approval of another definition did not count.
        let report = again(recording(&harness, &thread), &work, |_| {});
        assert!(report.is_identical() && report.compared > 8, "{report:#?}");
    }
}

#[test]
fn the_approval_requests_of_a_killed_run_come_from_the_record_whatever_the_rule_is_now() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut dying = CountingTool::new("look", EffectClass::Pure);
    dying.meanwhile = Arc::new(|_| die());
    let replies = || vec![calls(&[("l.1", "look"), ("p.1", "pay")]), Reply::Says("done")];
    let pay = || tool("pay", EffectClass::AtMostOnce, Output::text("paid"));
    let other = harness.another();
    let work = asking(agent(replies(), vec![Arc::new(dying), pay()]));
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| other.send(&thread, Input::text("go"), &work)));
    assert!(died.is_err());
    let asked = recording(&harness, &thread).steps.last().unwrap().version();
    let mut work = agent(replies(), vec![tool("look", EffectClass::Pure, Output::text("seen")), pay()]);
    work.gate = Arc::new(|spec, _| match spec.name.as_str() {
        "pay" => Permission::Denied("not any more".to_owned()),
        _ => Permission::Allowed,
    });
    harness.engine.decide(&thread, &CallId::new("p.1").unwrap(), Choice::Approve(None), "ann", &work).unwrap();
    resume(&harness, &thread, Input::nothing(), &work);
    for from in [asked, asked + 1] {
        let report = again(recording(&harness, &thread), &work, |how| how.from = Some(from));
        assert!(report.is_identical() && report.from_record == from + 1, "{report:#?}");
    }
    // Where it is compared, the difference is named.
    let report = again(recording(&harness, &thread), &work, |how| how.from = Some(asked - 1));
    assert_eq!(report.differences.first().map(|first| first.version), Some(asked), "{report:#?}");
}

#[test]
fn a_message_instead_of_a_decision_and_a_stop_while_suspended_replay_identically() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = asking(worker());
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    harness.send(&thread, Input::text("never mind"), &work).0.unwrap();
    harness.engine.stop(&thread, Stop::Killed).unwrap();
    assert_identical(&harness, &thread, &work);
    let unborn = harness.thread();
    harness.engine.stop(&unborn, Stop::Cancelled).unwrap();
    assert_identical(&harness, &unborn, &work);
}

#[test]
fn limits_and_raises_replay_identically_and_other_limits_do_not() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut work = worker();
    work.limits = Limits { turns: Some(1), ..Limits::default() };
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let raise = Limits { turns: Some(2), ..Limits::default() };
    resume(&harness, &thread, Input::nothing().raising(raise), &work);
    resume(&harness, &thread, Input::nothing().raising(Limits { turns: Some(9), ..Limits::default() }), &work);
    assert_identical(&harness, &thread, &work);
    work.limits.turns = None;
    let report = replayed(&harness, &thread, &work);
    let suspended =
        recording(&harness, &thread).steps.iter().find(|step| step.reason() == Reason::RunFinished).unwrap().version();
    let last = report.differences.last().unwrap();
    assert_eq!((last.version, last.what.as_str(), report.ended_at), (suspended, "changeset", Some(suspended)));
    assert_eq!(last.recorded.as_ref().unwrap()["reason"], "RunFinished");
    assert_eq!(last.now, Some(json!("the model is asked")));
}

#[test]
fn money_that_runs_out_replays_identically() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut work = worker();
    work.price = Some(Price { input: "1".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() });
    let limits = |spend: &str| Limits { spend: Some(spend.parse().unwrap()), ..Limits::default() };
    work.limits = limits("0.00001");
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    resume(&harness, &thread, Input::nothing().raising(limits("1")), &work);
    assert_identical(&harness, &thread, &work);
    work.price = Some(Price { input: "3".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() });
    let report = replayed(&harness, &thread, &work);
    assert!(!report.is_identical(), "another price is another cost");
}

#[test]
fn a_changed_approval_rule_diverges_at_the_call() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = worker();
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let report = replayed(&harness, &thread, &asking(work));
    let intent = recording(&harness, &thread)
        .steps
        .iter()
        .find(|step| step.reason() == Reason::ToolIntentCommitted)
        .unwrap()
        .version();
    assert_eq!(report.ended_at, Some(intent), "{:?}", report.differences);
}

#[test]
fn killed_runs_and_the_decisions_about_them_replay_identically() {
    for class in [EffectClass::AtMostOnce, EffectClass::Pure] {
        for known in [Reconciled::Done(Output::text("paid already")), Reconciled::NotDone, Reconciled::Unknown] {
            for verdict in [Choice::Done(json!("receipt")), Choice::NotDone, Choice::Unknown] {
                let harness = Harness::new();
                let thread = harness.thread();
                let replies = || vec![calls(&[("p.1", "pay"), ("l.1", "look")]), Reply::Says("done")];
                let tools = |pay: CountingTool| -> Vec<Arc<dyn Tool>> {
                    vec![Arc::new(pay), tool("look", EffectClass::Pure, Output::text("ok"))]
                };
                let mut dying = CountingTool::new("pay", class);
                dying.meanwhile = Arc::new(|_| die());
                let other = harness.another();
                let work = agent(replies(), tools(dying));
                let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    other.send(&thread, Input::text("pay"), &work)
                }));
                assert!(died.is_err());
                let mut pay = CountingTool::new("pay", class);
                pay.known = known.clone();
                let work = agent(replies(), tools(pay));
                resume(&harness, &thread, Input::nothing(), &work);
                let call = CallId::new("p.1").unwrap();
                if harness.engine.decide(&thread, &call, verdict, "ann", &work).is_ok() {
                    resume(&harness, &thread, Input::nothing(), &work);
                }
                assert_identical(&harness, &thread, &work);
            }
        }
    }
}

#[test]
fn models_that_fail_refuse_and_are_stopped_replay_identically() {
    let usage = selvedge_model::answer::Usage { input_tokens: 3, output_tokens: 1, ..Default::default() };
    let failures = [
        ModelError::Transient { why: "no route".to_owned() },
        ModelError::RateLimited { why: "slowly".to_owned(), retry_after: None },
        ModelError::Cut { why: "eof".to_owned(), partial: Vec::new(), usage: Some(usage) },
        ModelError::Permanent { why: "no".to_owned() },
        ModelError::Unreached { why: "no route".to_owned() },
        ModelError::Status { status: 503, why: "busy".to_owned(), retry_after: None },
        ModelError::Status { status: 429, why: "slowly".to_owned(), retry_after: None },
        ModelError::Status { status: 400, why: "no".to_owned(), retry_after: None },
    ];
    for failure in failures {
        let harness = Harness::new();
        let thread = harness.thread();
        let mut work = agent(vec![Reply::Fails(failure)], Vec::new());
        work.price = Some(Price { input: "1".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() });
        harness.send(&thread, Input::text("go"), &work).0.unwrap();
        assert_identical(&harness, &thread, &work);
    }
    for stop in [Stop::Cancelled, Stop::Killed] {
        let harness = Harness::new();
        let thread = harness.thread();
        let work = agent(vec![Reply::Waits, Reply::Says("never")], Vec::new());
        let cancel = Cancel::new();
        let soon = cancel.clone();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            soon.say(stop);
        });
        harness.engine.send(&thread, Input::text("go"), &work, &cancel, &mut |_| {}).unwrap();
        assert_identical(&harness, &thread, &work);
    }
}

#[test]
fn a_stop_in_the_middle_of_a_tool_replays_identically() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut look = CountingTool::new("look", EffectClass::Pure);
    let cancel = Cancel::new();
    let soon = cancel.clone();
    look.meanwhile = Arc::new(move |_| soon.say(Stop::Cancelled));
    let work = agent(vec![calls(&[("l.1", "look")]), Reply::Says("never")], vec![Arc::new(look)]);
    harness.engine.send(&thread, Input::text("go"), &work, &cancel, &mut |_| {}).unwrap();
    assert_identical(&harness, &thread, &work);
}

#[test]
fn a_decision_during_a_run_and_an_exceeded_time_limit_replay_identically() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = Arc::new(harness.another());
    let asked = thread.clone();
    let mut look = CountingTool::new("look", EffectClass::Pure);
    look.meanwhile = Arc::new(move |_| {
        let work = asking(worker());
        for call in ["p.1", "p.2"] {
            other
                .engine
                .decide(&asked, &CallId::new(call).unwrap(), Choice::Edit(json!({"n": 1})), "ann", &work)
                .unwrap();
        }
    });
    let pay = tool("pay", EffectClass::AtMostOnce, Output::text("paid"));
    let replies = vec![calls(&[("l.1", "look"), ("p.1", "pay"), ("p.2", "pay")]), Reply::Says("done"), Reply::Waits];
    let mut work = asking(agent(replies, vec![Arc::new(look), pay]));
    assert_eq!(harness.send(&thread, Input::text("go"), &work).0.unwrap().result.as_deref(), Some("done"));
    let heard =
        |step: &&selvedge_engine::replay::RecordedChangeset| step.reason() == Reason::Lifecycle && step.run().is_some();
    assert_eq!(recording(&harness, &thread).steps.iter().filter(heard).count(), 2);
    assert_identical(&harness, &thread, &work);
    work.limits.duration_seconds = Some(1);
    let ended = harness.send(&thread, Input::text("go on"), &work).0.unwrap();
    assert_eq!(ended.code.as_deref(), Some("duration_exceeded"));
    let raise = Limits { duration_seconds: Some(2), ..Limits::default() };
    resume(&harness, &thread, Input::nothing().raising(raise), &work);
    assert_identical(&harness, &thread, &work);
}

#[test]
fn the_end_by_a_failed_disk_is_given_and_what_follows_is_compared() {
    for reason in [Reason::AssistantTurnCommitted, Reason::ToolResultsCommitted] {
        let harness = Harness::new();
        let thread = harness.thread();
        let work = worker();
        harness.store.refuse(Some(reason));
        harness.send(&thread, Input::text("go"), &work).0.unwrap();
        harness.store.refuse(None);
        harness.send(&thread, Input::text("again"), &work).0.unwrap();
        assert_identical(&harness, &thread, &work);
    }
}

#[test]
fn a_run_that_repeats_itself_is_stopped_at_the_same_place_and_a_missing_tool_is_named() {
    let harness = Harness::new();
    let thread = harness.thread();
    let same = |id| Reply::Calls(vec![(id, "look", json!({}))]);
    let look = tool("look", EffectClass::Pure, Output::error("no"));
    let mut work = agent(vec![same("a"), same("b"), same("c"), Reply::Says("never")], vec![look]);
    work.stops = Stops { repeated_calls: 3, ..Stops::default() };
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_identical(&harness, &thread, &work);
    work.tools.clear();
    let report = replayed(&harness, &thread, &work);
    let first = report.differences.first().unwrap();
    assert_eq!(first.reason, Reason::ToolResultsCommitted);
    assert_eq!(first.now, Some(json!("there is no tool `look`")));
    // A tool that was never called may be missing.
    let work = worker();
    let thread = harness.thread();
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let mut fewer = work.clone();
    fewer.tools.push(Arc::new(CountingTool::new("unused", EffectClass::Pure)));
    assert!(replayed(&harness, &thread, &fewer).is_identical());
}

#[test]
fn everything_before_a_version_is_given() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = worker();
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let first = harness.store.inner.another();
    let version = selvedge_store::Logs::head(&first, &thread).unwrap().version;
    harness.send(&thread, Input::text("again"), &work).0.unwrap();
    for from in [version, version - 1, 1] {
        let report = again(recording(&harness, &thread), &work, |how| how.from = Some(from));
        assert!(report.is_identical());
        assert_eq!(
            report.from_record,
            from + 1,
            "a run that is active at the version is repeated, and compared after it"
        );
        assert_eq!(report.compared + report.from_record, report.version + 1);
    }
    // If it diverges before the version, nothing after it can be compared.
    let report = again(recording(&harness, &thread), &asking(worker()), |how| how.from = Some(version - 1));
    assert!(report.ended_at.is_some_and(|ended| ended < version) && report.compared == 0, "{report:?}");
    // Differences before it are not reported.
    let report = again(recording(&harness, &thread), &asking(work), |how| how.from = Some(version));
    assert!(report.is_identical(), "{:?}", report.differences);
}

#[test]
fn what_the_log_does_not_have_is_not_needed() {
    let harness = Harness::with(Redactor::new(["hunter2-hunter2".to_owned()], Vec::new()), Scopes::builtin());
    let thread = harness.thread();
    let long = "x".repeat(100_000);
    let look = tool("look", EffectClass::Pure, Output::text(format!("hunter2-hunter2 {long}")));
    let work = agent(vec![calls(&[("l.1", "look")]), Reply::Says("hunter2-hunter2")], vec![look]);
    harness.send(&thread, Input::text("the word is hunter2-hunter2"), &work).0.unwrap();
    assert_identical(&harness, &thread, &work);
}

#[test]
fn every_thread_of_a_chain_replays_identically() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (mut work, _) = crate::chains::small(1500, 20, 400);
    work.limits = Limits { turns: Some(100), ..Limits::default() };
    harness.send(&thread, Input::text("count the stars"), &work).0.unwrap();
    let chain = selvedge_store::Registry::chain(&*harness.store, &thread).unwrap();
    assert!(chain.len() > 2, "{} hops", chain.len());
    for link in &chain {
        assert_identical(&harness, &link.manifest.thread_id, &work);
    }
    // A model with a larger window would not have handed the first one off.
    let (wider, _) = crate::chains::small(100_000, 0, 0);
    let report = replayed(&harness, &thread, &RunConfig { limits: work.limits.clone(), ..wider });
    let last = report.differences.last().unwrap();
    assert_eq!((last.reason, last.now.clone()), (Reason::RunFinished, Some(json!("the model is asked"))));
}

/// Children with one answer; and the error for an order that is refused.
struct Wordy(&'static str);

impl Children for Wordy {
    fn new_child(&self, call: &Call, _: &Manifest) -> Result<NewChild, String> {
        if call.arguments["of"] == "no" {
            return Err(self.0.to_owned());
        }
        let messages = vec![Message::text(Role::User, "say it")];
        Ok(NewChild { thread: NewThread::of(AgentId::new("child").unwrap()), messages, detached: false })
    }

    fn run_config(&self, _: &Manifest) -> Result<RunConfig, String> {
        Ok(agent(vec![Reply::Says("word")], Vec::new()))
    }

    fn launch(&self, _: &ThreadId) -> Result<Box<dyn Started>, String> {
        Err("no child is detached here".to_owned())
    }
}

#[test]
fn children_are_not_spawned_again_and_give_their_recorded_results() {
    let harness = Harness::new();
    let thread = harness.thread();
    let spawn = CountingTool::new("spawn", EffectClass::AtMostOnce).of_kind(ToolKind::Child);
    let mut work =
        agent(vec![calls(&[("s.1", "spawn"), ("s.2", "spawn")]), Reply::Says("done")], vec![Arc::new(spawn)]);
    let children = Arc::new(Wordy("there is no such child"));
    work.spawning = Some(Spawning { children, at_once: 2, check_parent: Arc::new(|_| Ok(())) });
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(selvedge_store::Registry::children(&*harness.store, &thread).unwrap().len(), 2);
    assert_identical(&harness, &thread, &work);
}

#[test]
fn children_that_were_refused_or_too_many_are_so_in_the_replay() {
    let harness = Harness::new();
    let thread = harness.thread();
    let spawn = CountingTool::new("spawn", EffectClass::AtMostOnce).of_kind(ToolKind::Child);
    let replies = vec![calls(&[("no", "spawn")]), calls(&[("s.1", "spawn")]), calls(&[("s.2", "spawn")])];
    let mut work = agent([replies, vec![Reply::Says("done")]].concat(), vec![Arc::new(spawn)]);
    let children = Arc::new(Wordy("there is no such child"));
    work.spawning = Some(Spawning { children, at_once: 2, check_parent: Arc::new(|_| Ok(())) });
    work.limits = Limits { spawns: Some(1), ..Limits::default() };
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    resume(&harness, &thread, Input::nothing().raising(Limits { spawns: Some(2), ..Limits::default() }), &work);
    assert_eq!(selvedge_store::Registry::children(&*harness.store, &thread).unwrap().len(), 2);
    assert_identical(&harness, &thread, &work);
    // Children that were spawned before the compared part are not checked.
    let second =
        recording(&harness, &thread).steps.iter().rfind(|step| step.reason() == Reason::RunFinished).unwrap().version();
    let report = again(recording(&harness, &thread), &work, |how| how.from = Some(second - 3));
    assert!(report.is_identical(), "{:?}", report.differences);
    work.limits.spawns = Some(0);
    let report = replayed(&harness, &thread, &work);
    let now = report.differences[0].now.clone().unwrap();
    assert!(now.to_string().contains("spawns_exceeded"), "{now}");
}

/// Whether a child had been refused from outside was recognized by the beginning of the text.
#[test]
fn errors_of_current_rules_are_not_confused_with_those_from_outside() {
    let harness = Harness::new();
    let spawning = |words| {
        let children = Arc::new(Wordy(words));
        let spawn = CountingTool::new("spawn", EffectClass::AtMostOnce).of_kind(ToolKind::Child);
        let mut work = agent(vec![calls(&[("no", "spawn")]), Reply::Says("done")], vec![Arc::new(spawn)]);
        work.spawning = Some(Spawning { children, at_once: 2, check_parent: Arc::new(|_| Ok(())) });
        work
    };
    let thread = harness.thread();
    harness.send(&thread, Input::text("go"), &spawning("the budget does not allow it: of letters")).0.unwrap();
    let report = replayed(&harness, &thread, &spawning("there is no such child"));
    assert!(report.differences.iter().any(|found| found.what.starts_with("tool_outcome.error")), "{report:?}");
    // An error from outside comes from the record, in the same words.
    let thread = harness.thread();
    let mut work = spawning("there is no such child");
    work.spawning.as_mut().unwrap().check_parent = Arc::new(|_| Err("its `thread.json` was edited".to_owned()));
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_identical(&harness, &thread, &work);
}

/// The provider's message was cut out of the text of the error.
#[test]
fn a_failed_model_fails_with_the_same_text_in_the_replay() {
    for error in [
        ModelError::Status { status: 503, why: "busy".to_owned(), retry_after: None },
        ModelError::Status { status: 429, why: "slow down".to_owned(), retry_after: None },
        ModelError::Permanent { why: "the request was rejected: twice".to_owned() },
        ModelError::Unreached { why: "no route".to_owned() },
    ] {
        let harness = Harness::new();
        let thread = harness.thread();
        let work = agent(vec![Reply::Fails(error.clone())], Vec::new());
        harness.send(&thread, Input::text("go"), &work).0.unwrap();
        let run = harness.loaded(&thread).runs.into_values().next().unwrap();
        assert_eq!(run.meta.failure, error.failure());
        assert_identical(&harness, &thread, &work);
    }
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn random_replies(dice: &mut Dice) -> Vec<Reply> {
    let reply = |turn: usize, dice: &mut Dice| match dice.below(8) {
        0 => Reply::Says("that is that"),
        1 => Reply::Fails(ModelError::Transient { why: "no route".to_owned() }),
        _ => {
            let number = 1 + dice.below(3);
            let call = |n: u64, dice: &mut Dice| {
                let name = ["look", "note", "pay", "gone"][dice.below(4) as usize];
                (leaked(format!("c{turn}.{}", number - n)), name, json!({"n": dice.below(3)}))
            };
            Reply::Calls((0..number).map(|n| call(n, dice)).collect())
        }
    };
    (0..24).map(|turn| reply(turn, dice)).collect()
}

fn random_agent(dice: &mut Dice, dies: bool) -> RunConfig {
    let replies = random_replies(dice);
    let asks = dice.below(2) == 0;
    let known = dice.below(3);
    let mut pay = CountingTool::new("pay", EffectClass::AtMostOnce);
    pay.known =
        [Reconciled::Done(Output::text("was paid")), Reconciled::NotDone, Reconciled::Unknown][known as usize].clone();
    pay.answer = Output {
        patches: vec![set(&["paid"], json!(true))],
        ..Output { content: json!({"ok": 1}), ..Output::default() }
    };
    let mut look = CountingTool::new("look", EffectClass::Pure);
    look.answer =
        Output { patches: vec![set(&["__run"], json!("r")), set(&["scratch"], json!(1))], ..Output::text("seen") };
    let mut note = CountingTool::new("note", EffectClass::Idempotent);
    note.answer = Output::error("no paper");
    if dies {
        for tool in [&mut pay, &mut look, &mut note] {
            tool.meanwhile = Arc::new(|_| die());
        }
    }
    let work = agent(replies, vec![Arc::new(pay), Arc::new(look), Arc::new(note)]);
    let mut work = if asks { asking(work) } else { work };
    work.limits = Limits { turns: Some(4), ..Limits::default() };
    work.stops = Stops { consecutive_errors: 3, ..Stops::default() };
    work.wait = if dice.below(2) == 0 { Wait::All } else { Wait::Each };
    work
}

/// Everything that can happen to a thread, in any order.
fn live(harness: &Harness, thread: &ThreadId, seed: u64, dice: &mut Dice) -> RunConfig {
    let work = random_agent(&mut Dice(seed), false);
    let dying = random_agent(&mut Dice(seed), true);
    for _ in 0..4 + dice.below(10) {
        // A refused operation changes nothing.
        match dice.below(9) {
            0 | 1 => _ = harness.send(thread, Input::text("go on"), &work),
            2 => {
                _ = harness.send(
                    thread,
                    Input { state: Some(json!({"given": dice.below(9)})), ..Input::text("with state") },
                    &work,
                )
            }
            3 => {
                let other = harness.another();
                _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    other.send(thread, Input::text("die"), &dying)
                }));
            }
            4 => {
                let raise = Limits { turns: Some(5 + dice.below(20)), ..Limits::default() };
                _ = harness.engine.resume(thread, Input::nothing().raising(raise), &work, &Cancel::new(), &mut |_| {});
            }
            5 => _ = harness.engine.stop(thread, if dice.below(2) == 0 { Stop::Cancelled } else { Stop::Killed }),
            6 => {
                let cancel = Cancel::new();
                cancel.say(Stop::Cancelled);
                _ = harness.engine.send(thread, Input::text("never mind"), &work, &cancel, &mut |_| {});
            }
            _ => {
                let waits = harness.loaded(thread).manifest.suspended.map(|why| why.calls).unwrap_or_default();
                let choices = [
                    Choice::Approve(None),
                    Choice::Edit(json!({"n": 7})),
                    Choice::Deny(None),
                    Choice::Done(json!("it was")),
                    Choice::NotDone,
                    Choice::Unknown,
                ];
                for call in waits {
                    let choice = choices[dice.below(6) as usize].clone();
                    _ = harness.engine.decide(thread, &call, choice, "ann", &work);
                }
                _ = harness.engine.resume(thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {});
            }
        }
    }
    work
}

#[test]
fn everything_that_can_happen_to_a_thread_replays_identically() {
    let mut codes = std::collections::BTreeSet::new();
    for seed in 1..=60 {
        let mut dice = Dice(seed * 7919);
        let mut scopes = Scopes::builtin();
        scopes.declare(Path::keys(["scratch"]), Scope::ToolCall).unwrap();
        let harness = Harness::with(Redactor::default(), scopes.clone());
        let thread = harness.thread();
        let work = live(&harness, &thread, seed * 104_729, &mut dice);
        let recording = recording(&harness, &thread);
        codes.extend(harness.loaded(&thread).runs.into_values().filter_map(|run| run.meta.termination_code));
        let report = again(recording, &work, |how| how.scopes = scopes);
        assert!(report.is_identical(), "seed {seed}: {}", serde_json::to_string_pretty(&report.differences).unwrap());
        assert_eq!(report.compared + report.from_record, report.version + 1, "seed {seed}");
    }
    for code in
        ["approval", "cancelled", "completed", "model_failed", "outcome_unknown", "process_lost", "turns_exceeded"]
    {
        assert!(codes.contains(code), "{code} never happened: {codes:?}");
    }
}

#[test]
fn a_replay_of_a_long_thread_costs_about_as_much_as_the_thread_did() {
    let harness = Harness::new();
    let thread = harness.thread();
    let replies =
        (0..1500).map(|turn| Reply::Calls(vec![(leaked(format!("c.{turn}")), "look", json!({"n": turn}))])).collect();
    let work = agent(replies, vec![tool("look", EffectClass::Pure, Output::text("ok"))]);
    let began = std::time::Instant::now();
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let took = began.elapsed();
    let began = std::time::Instant::now();
    assert_identical(&harness, &thread, &work);
    assert!(began.elapsed() < took * 4 + std::time::Duration::from_secs(2), "{took:?}, then {:?}", began.elapsed());
}

/// The record has no status code of the provider, and a class by its code no longer matched.
#[test]
fn a_model_that_failed_by_a_configured_class_fails_so_in_the_replay() {
    for (status, class, ends) in [
        (400, Class::Transient, selvedge_model::Status::Suspended),
        (503, Class::Permanent, selvedge_model::Status::Error),
    ] {
        let harness = Harness::new();
        let thread = harness.thread();
        let failure = ModelError::Status { status, why: "so".to_owned(), retry_after: None };
        let mut work = agent(vec![Reply::Fails(failure)], Vec::new());
        work.classes = vec![ErrorClass { id: "mine".to_owned(), class, codes: vec![status], texts: Vec::new() }];
        harness.send(&thread, Input::text("hi"), &work).0.unwrap();
        assert_eq!(harness.loaded(&thread).manifest.status, ends);
        assert_identical(&harness, &thread, &work);
    }
}
