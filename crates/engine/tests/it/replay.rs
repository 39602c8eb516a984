//! Recorded threads run again: the same when nothing changed, and named where it differs when something did.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use selvedge_engine::assignment::Asking;
use selvedge_engine::replay::{How, Recording, Report, Step, replay};
use selvedge_engine::spawn::{Children, Order, Spawning};
use selvedge_engine::{Assignment, Choice, Input, Permission, Redactor};
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
use selvedge_providers::replay::Recorded;
use serde_json::{Value, json};

use crate::support::{Counting, House, Reply, agent, die};

fn recording(house: &House, thread: &ThreadId) -> Recording {
    Recording::read(&house.store.inner, thread, &house.trust).unwrap()
}

/// Runs a recording again.
fn again(recording: Recording, work: &Assignment, how: impl FnOnce(&mut How)) -> Report {
    let steps = recording.steps.iter().map(|step| Recorded { reason: step.reason(), events: &step.events });
    let model = Arc::new(Replay::new(steps));
    let (scopes, redactor) = (Scopes::builtin(), Redactor::default());
    let mut with = How { work: work.clone(), model, scopes, redactor, from: None };
    how(&mut with);
    replay(recording, with).unwrap()
}

fn replayed(house: &House, thread: &ThreadId, work: &Assignment) -> Report {
    again(recording(house, thread), work, |_| {})
}

#[track_caller]
pub(crate) fn assert_identical(house: &House, thread: &ThreadId, work: &Assignment) {
    let report = replayed(house, thread, work);
    assert!(report.is_identical(), "{}", serde_json::to_string_pretty(&report.differences).unwrap());
    assert_eq!(report.compared + report.given, report.version + 1, "nothing was left out");
    assert!(report.compared > 0);
    assert_eq!(report.state_now, report.state_recorded);
}

fn tool(name: &str, class: EffectClass, answer: Output) -> Arc<Counting> {
    let mut tool = Counting::new(name, class);
    tool.answer = answer;
    Arc::new(tool)
}

fn set(path: &[&str], value: Value) -> Patch {
    Patch::new(vec![Op::Set { path: Path::keys(path.iter().copied()), value }])
}

fn calls(calls: &[(&'static str, &'static str)]) -> Reply {
    Reply::Calls(calls.iter().map(|(id, name)| (*id, *name, json!({"of": id}))).collect())
}

/// An agent that looks, pays and says so.
fn worker() -> Assignment {
    let look =
        tool("look", EffectClass::Pure, Output { patches: vec![set(&["seen"], json!(1))], ..Output::text("ok") });
    let pay = tool("pay", EffectClass::AtMostOnce, Output::text("paid"));
    agent(
        vec![calls(&[("l.1", "look"), ("p.1", "pay")]), calls(&[("p.2", "pay")]), Reply::Says("done")],
        vec![look, pay],
    )
}

fn asking(mut work: Assignment) -> Assignment {
    work.gate = Arc::new(|spec, _| match spec.name.as_str() {
        "pay" => {
            Permission::Ask(Asking { expires_after: Some(std::time::Duration::from_secs(3600)), ..Asking::default() })
        }
        _ => Permission::Allowed,
    });
    work
}

fn resume(house: &House, thread: &ThreadId, input: Input, work: &Assignment) {
    house.engine.resume(thread, input, work, &Cancel::new(), &mut |_| {}).unwrap();
}

#[test]
fn a_thread_of_two_runs_is_the_same_again_and_no_tool_is_called() {
    let house = House::new();
    let thread = house.thread();
    let pay = Counting::new("pay", EffectClass::AtMostOnce);
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
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    house.send(&thread, Input { state: Some(json!({"a": [1]})), ..Input::text("and again") }, &work).0.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 2);
    let before = house.store.inner.another();
    assert_identical(&house, &thread, &work);
    assert_eq!(ran.load(Ordering::SeqCst), 2, "tools answer from the record");
    let head = |store: &dyn selvedge_store::Logs| store.head(&thread).unwrap();
    assert_eq!(head(&before), head(&house.store.inner), "nothing touches the thread");
}

/// Names were random: whoever did the same again made others.
#[test]
fn messages_runs_and_calls_that_the_engine_names_have_the_same_names_again() {
    let house = House::new();
    let new = NewThread { limits: Some(spend("100")), ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = house.engine.create(new, Vec::new()).unwrap();
    // The second turn uses the id of a call again, so that the engine makes one up; calls are paid for, so that versions differ.
    let mut work = worker();
    let replies = vec![calls(&[("p.1", "pay")]), calls(&[("p.1", "pay")]), Reply::Says("done")];
    work.model = agent(replies, Vec::new()).model;
    work.price = Some(Price { input: "1".parse().unwrap(), output: "1".parse().unwrap(), ..Price::default() });
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let messages = house.loaded(&thread).messages;
    let steps: Vec<_> = messages.iter().map(|message| (message.id.is_some(), message.step)).collect();
    let turn = |turn| (true, Some(turn));
    assert_eq!(steps, [(false, None), turn(1), turn(1), turn(2), turn(2), turn(3)]);
    let made_up = messages.iter().flat_map(|message| &message.content).filter_map(|block| match block {
        Block::ToolCall { id, .. } if id.as_str().starts_with("call_") => Some(id),
        _ => None,
    });
    assert_eq!(made_up.count(), 1);
    assert_identical(&house, &thread, &work);
    // A run that is stopped says so in a message of its own.
    let work = agent(vec![Reply::Fails(ModelError::Permanent { why: "no".to_owned() })], Vec::new());
    let thread = house.thread();
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let last = house.loaded(&thread).messages.pop().unwrap();
    assert_eq!((last.id.is_some(), last.step), (true, Some(1)));
    assert_identical(&house, &thread, &work);
}

fn spend(most: &str) -> Limits {
    Limits { spend: Some(most.parse().unwrap()), ..Limits::default() }
}

#[test]
fn one_changed_tool_result_is_named_at_its_step() {
    let house = House::new();
    let thread = house.thread();
    let work = worker();
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let mut recording = recording(&house, &thread);
    // What the tool answered, but not what the model was shown.
    let mut lines = Vec::new();
    for step in &mut recording.steps {
        let (version, line) = (step.version(), step.line);
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
    assert_eq!((difference.reason, report.ended_at), (Reason::ToolResultsCommitted, None), "the rest is compared too");
}

#[test]
fn a_changed_state_is_named_where_it_begins() {
    let house = House::new();
    let thread = house.thread();
    let work = worker();
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let mut recording = recording(&house, &thread);
    let begun = recording.steps.iter_mut().find(|step| step.reason() == Reason::UserMessage).unwrap();
    begun.events.insert(1, Event::Snapshot(selvedge_model::event::Snapshot { state: json!({"seen": 0}) }));
    // A state that the run was not given: now it is given one that the record's own patches do not show.
    let has_patch = |step: &&Step| step.events.iter().any(|event| matches!(event, Event::Patch(_)));
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
fn approvals_edits_and_denials_are_the_same_again() {
    for wait in [Wait::All, Wait::Each] {
        let house = House::new();
        let thread = house.thread();
        let mut work = asking(worker());
        work.wait = wait;
        house.send(&thread, Input::text("go"), &work).0.unwrap();
        let decide = |call: &str, choice| {
            house.engine.decide(&thread, &CallId::new(call).unwrap(), choice, "ann", &work).unwrap();
        };
        decide("p.1", Choice::Edit(json!({"amount": 2})));
        resume(&house, &thread, Input::nothing(), &work);
        decide("p.2", Choice::Deny(Some("too much".to_owned())));
        resume(&house, &thread, Input::nothing(), &work);
        assert_identical(&house, &thread, &work);
    }
}

/// A tool that starts with nothing but an amount.
struct Picky(Counting);

impl Tool for Picky {
    fn spec(&self) -> &ToolSpec {
        self.0.spec()
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        match call.arguments["amount"].is_u64() {
            true => self.0.start(call),
            false => Err(ToolError::NotStarted { tool: "pay".to_owned(), why: "no amount".to_owned() }),
        }
    }

    fn reconcile(&self, call: &Call, cancel: &Cancel) -> Reconciled {
        self.0.reconcile(call, cancel)
    }
}

#[test]
fn arguments_that_somebody_changed_and_the_tool_refused_are_the_same_again() {
    let house = House::new();
    let thread = house.thread();
    let pay = Picky(Counting::new("pay", EffectClass::AtMostOnce));
    let work = asking(agent(vec![calls(&[("p.1", "pay")]), Reply::Says("done")], vec![Arc::new(pay)]));
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let edited = Choice::Edit(json!({"amount": "much"}));
    // When they are changed nobody minds yet.
    let lenient = tool("pay", EffectClass::AtMostOnce, Output::text("paid"));
    let before = Assignment { tools: vec![lenient], ..work.clone() };
    house.engine.decide(&thread, &CallId::new("p.1").unwrap(), edited, "ann", &before).unwrap();
    resume(&house, &thread, Input::nothing(), &work);
    let refused = |event: &Event| matches!(event, Event::ToolOutcome(outcome) if outcome.error.as_ref().is_some_and(|error| error.contains("no amount")));
    assert!(recording(&house, &thread).steps.iter().any(|step| step.events.iter().any(refused)));
    assert_identical(&house, &thread, &work);
}

#[test]
fn a_tool_that_was_redefined_and_asked_about_again_is_the_same_again() {
    // What a tool says in words is told otherwise than what it says in data.
    for (answer, choice) in [
        (json!("paid"), Choice::Approve(None)),
        (json!({"receipt": 5}), Choice::Approve(None)),
        (json!("paid"), Choice::Edit(json!({"amount": 2}))),
        (json!({"receipt": 5}), Choice::Edit(json!({"amount": 2}))),
    ] {
        let house = House::new();
        let thread = house.thread();
        let replies = || vec![calls(&[("p.1", "pay")]), Reply::Says("done")];
        let before = asking(agent(replies(), vec![tool("pay", EffectClass::AtMostOnce, Output::text("paid"))]));
        house.send(&thread, Input::text("go"), &before).0.unwrap();
        let decide = |choice, work: &Assignment| {
            house.engine.decide(&thread, &CallId::new("p.1").unwrap(), choice, "ann", work).unwrap();
        };
        decide(Choice::Approve(None), &before);
        let from = recording(&house, &thread).steps.last().unwrap().version();
        let mut pay = Counting::new("pay", EffectClass::AtMostOnce);
        pay.answer.content = answer;
        pay.redefine();
        let work = Assignment { tools: vec![Arc::new(pay)], ..before };
        resume(&house, &thread, Input::nothing(), &work);
        decide(choice, &work);
        resume(&house, &thread, Input::nothing(), &work);
        let log = format!("{:?}", recording(&house, &thread).steps);
        assert!(log.contains("the tool changed since this call was asked about"), "{log}");
        let report = again(recording(&house, &thread), &work, |how| how.from = Some(from));
        assert!(report.is_identical() && report.compared > 5, "{report:#?}");
        // From its beginning too: what was allowed of another definition did not count.
        let report = again(recording(&house, &thread), &work, |_| {});
        assert!(report.is_identical() && report.compared > 8, "{report:#?}");
    }
}

#[test]
fn what_a_killed_run_had_asked_is_taken_from_the_record_whatever_the_rule_says_by_now() {
    let house = House::new();
    let thread = house.thread();
    let mut dying = Counting::new("look", EffectClass::Pure);
    dying.meanwhile = Arc::new(|_| die());
    let replies = || vec![calls(&[("l.1", "look"), ("p.1", "pay")]), Reply::Says("done")];
    let pay = || tool("pay", EffectClass::AtMostOnce, Output::text("paid"));
    let (other, work) = (house.another(), asking(agent(replies(), vec![Arc::new(dying), pay()])));
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| other.send(&thread, Input::text("go"), &work)));
    assert!(died.is_err());
    let asked = recording(&house, &thread).steps.last().unwrap().version();
    let mut work = agent(replies(), vec![tool("look", EffectClass::Pure, Output::text("seen")), pay()]);
    work.gate = Arc::new(|spec, _| match spec.name.as_str() {
        "pay" => Permission::Denied("not any more".to_owned()),
        _ => Permission::Allowed,
    });
    house.engine.decide(&thread, &CallId::new("p.1").unwrap(), Choice::Approve(None), "ann", &work).unwrap();
    resume(&house, &thread, Input::nothing(), &work);
    for from in [asked, asked + 1] {
        let report = again(recording(&house, &thread), &work, |how| how.from = Some(from));
        assert!(report.is_identical() && report.given == from + 1, "{report:#?}");
    }
    // Where it is compared, it is named.
    let report = again(recording(&house, &thread), &work, |how| how.from = Some(asked - 1));
    assert_eq!(report.differences.first().map(|first| first.version), Some(asked), "{report:#?}");
}

#[test]
fn a_message_instead_of_a_word_and_a_stop_while_it_waits_are_the_same_again() {
    let house = House::new();
    let thread = house.thread();
    let work = asking(worker());
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    house.send(&thread, Input::text("never mind"), &work).0.unwrap();
    house.engine.stop(&thread, Stop::Killed).unwrap();
    assert_identical(&house, &thread, &work);
    let unborn = house.thread();
    house.engine.stop(&unborn, Stop::Cancelled).unwrap();
    assert_identical(&house, &unborn, &work);
}

#[test]
fn limits_and_raises_are_the_same_again_and_other_limits_are_not() {
    let house = House::new();
    let thread = house.thread();
    let mut work = worker();
    work.limits = Limits { turns: Some(1), ..Limits::default() };
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let raise = Limits { turns: Some(2), ..Limits::default() };
    resume(&house, &thread, Input::nothing().raising(raise), &work);
    resume(&house, &thread, Input::nothing().raising(Limits { turns: Some(9), ..Limits::default() }), &work);
    assert_identical(&house, &thread, &work);
    work.limits.turns = None;
    let report = replayed(&house, &thread, &work);
    let suspended =
        recording(&house, &thread).steps.iter().find(|step| step.reason() == Reason::RunFinished).unwrap().version();
    let last = report.differences.last().unwrap();
    assert_eq!((last.version, last.what.as_str(), report.ended_at), (suspended, "changeset", Some(suspended)));
    assert_eq!(last.recorded.as_ref().unwrap()["reason"], "RunFinished");
    assert_eq!(last.now, Some(json!("the model is asked")));
}

#[test]
fn money_that_runs_out_is_the_same_again() {
    let house = House::new();
    let thread = house.thread();
    let mut work = worker();
    work.price = Some(Price { input: "1".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() });
    let limits = |spend: &str| Limits { spend: Some(spend.parse().unwrap()), ..Limits::default() };
    work.limits = limits("0.00001");
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    resume(&house, &thread, Input::nothing().raising(limits("1")), &work);
    assert_identical(&house, &thread, &work);
    work.price = Some(Price { input: "3".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() });
    let report = replayed(&house, &thread, &work);
    assert!(!report.is_identical(), "another price is another cost");
}

#[test]
fn a_changed_rule_of_approval_diverges_at_the_call() {
    let house = House::new();
    let thread = house.thread();
    let work = worker();
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let report = replayed(&house, &thread, &asking(work));
    let intent = recording(&house, &thread)
        .steps
        .iter()
        .find(|step| step.reason() == Reason::ToolIntentCommitted)
        .unwrap()
        .version();
    assert_eq!(report.ended_at, Some(intent), "{:?}", report.differences);
}

#[test]
fn runs_that_were_killed_and_what_people_said_of_them_are_the_same_again() {
    for class in [EffectClass::AtMostOnce, EffectClass::Pure] {
        for known in [Reconciled::Done(Output::text("paid already")), Reconciled::NotDone, Reconciled::Unknown] {
            for verdict in [Choice::Done(json!("receipt")), Choice::NotDone, Choice::Unknown] {
                let house = House::new();
                let thread = house.thread();
                let replies = || vec![calls(&[("p.1", "pay"), ("l.1", "look")]), Reply::Says("done")];
                let tools = |pay: Counting| -> Vec<Arc<dyn Tool>> {
                    vec![Arc::new(pay), tool("look", EffectClass::Pure, Output::text("ok"))]
                };
                let mut dying = Counting::new("pay", class);
                dying.meanwhile = Arc::new(|_| die());
                let other = house.another();
                let work = agent(replies(), tools(dying));
                let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    other.send(&thread, Input::text("pay"), &work)
                }));
                assert!(died.is_err());
                let mut pay = Counting::new("pay", class);
                pay.known = known.clone();
                let work = agent(replies(), tools(pay));
                resume(&house, &thread, Input::nothing(), &work);
                let call = CallId::new("p.1").unwrap();
                if house.engine.decide(&thread, &call, verdict, "ann", &work).is_ok() {
                    resume(&house, &thread, Input::nothing(), &work);
                }
                assert_identical(&house, &thread, &work);
            }
        }
    }
}

#[test]
fn models_that_fail_refuse_and_are_stopped_are_the_same_again() {
    let usage = selvedge_model::answer::Usage { input_tokens: 3, output_tokens: 1, ..Default::default() };
    let failures = [
        ModelError::Transient { why: "no route".to_owned() },
        ModelError::RateLimited { why: "slowly".to_owned(), retry_after: None },
        ModelError::Cut { why: "eof".to_owned(), partial: Vec::new(), usage },
        ModelError::Permanent { why: "no".to_owned() },
        ModelError::Unreached { why: "no route".to_owned() },
        ModelError::Status { status: 503, why: "busy".to_owned(), retry_after: None },
        ModelError::Status { status: 429, why: "slowly".to_owned(), retry_after: None },
        ModelError::Status { status: 400, why: "no".to_owned(), retry_after: None },
    ];
    for failure in failures {
        let house = House::new();
        let thread = house.thread();
        let mut work = agent(vec![Reply::Fails(failure)], Vec::new());
        work.price = Some(Price { input: "1".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() });
        house.send(&thread, Input::text("go"), &work).0.unwrap();
        assert_identical(&house, &thread, &work);
    }
    for stop in [Stop::Cancelled, Stop::Killed] {
        let house = House::new();
        let thread = house.thread();
        let work = agent(vec![Reply::Waits, Reply::Says("never")], Vec::new());
        let cancel = Cancel::new();
        let soon = cancel.clone();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            soon.say(stop);
        });
        house.engine.send(&thread, Input::text("go"), &work, &cancel, &mut |_| {}).unwrap();
        assert_identical(&house, &thread, &work);
    }
}

#[test]
fn a_stop_in_the_middle_of_a_tool_is_the_same_again() {
    let house = House::new();
    let thread = house.thread();
    let mut look = Counting::new("look", EffectClass::Pure);
    let cancel = Cancel::new();
    let soon = cancel.clone();
    look.meanwhile = Arc::new(move |_| soon.say(Stop::Cancelled));
    let work = agent(vec![calls(&[("l.1", "look")]), Reply::Says("never")], vec![Arc::new(look)]);
    house.engine.send(&thread, Input::text("go"), &work, &cancel, &mut |_| {}).unwrap();
    assert_identical(&house, &thread, &work);
}

#[test]
fn a_word_that_came_while_it_ran_and_time_that_ran_out_are_the_same_again() {
    let house = House::new();
    let thread = house.thread();
    let (other, asked) = (Arc::new(house.another()), thread.clone());
    let mut look = Counting::new("look", EffectClass::Pure);
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
    assert_eq!(house.send(&thread, Input::text("go"), &work).0.unwrap().result.as_deref(), Some("done"));
    let heard = |step: &&selvedge_engine::replay::Step| step.reason() == Reason::Lifecycle && step.run().is_some();
    assert_eq!(recording(&house, &thread).steps.iter().filter(heard).count(), 2);
    assert_identical(&house, &thread, &work);
    work.limits.duration_seconds = Some(1);
    let ended = house.send(&thread, Input::text("go on"), &work).0.unwrap();
    assert_eq!(ended.code.as_deref(), Some("duration_exceeded"));
    let raise = Limits { duration_seconds: Some(2), ..Limits::default() };
    resume(&house, &thread, Input::nothing().raising(raise), &work);
    assert_identical(&house, &thread, &work);
}

#[test]
fn a_disk_that_failed_is_given_and_what_follows_is_compared() {
    for reason in [Reason::AssistantTurnCommitted, Reason::ToolResultsCommitted] {
        let house = House::new();
        let thread = house.thread();
        let work = worker();
        house.store.refuse(Some(reason));
        house.send(&thread, Input::text("go"), &work).0.unwrap();
        house.store.refuse(None);
        house.send(&thread, Input::text("again"), &work).0.unwrap();
        assert_identical(&house, &thread, &work);
    }
}

#[test]
fn a_run_that_goes_in_circles_is_stopped_at_the_same_place_and_a_gone_tool_is_named() {
    let house = House::new();
    let thread = house.thread();
    let same = |id| Reply::Calls(vec![(id, "look", json!({}))]);
    let look = tool("look", EffectClass::Pure, Output::error("no"));
    let mut work = agent(vec![same("a"), same("b"), same("c"), Reply::Says("never")], vec![look]);
    work.stops = Stops { repeated_calls: 3, ..Stops::default() };
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_identical(&house, &thread, &work);
    work.tools.clear();
    let report = replayed(&house, &thread, &work);
    let first = report.differences.first().unwrap();
    assert_eq!(first.reason, Reason::ToolResultsCommitted);
    assert_eq!(first.now, Some(json!("there is no tool `look`")));
    // A tool that was never called may go.
    let work = worker();
    let thread = house.thread();
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let mut fewer = work.clone();
    fewer.tools.push(Arc::new(Counting::new("unused", EffectClass::Pure)));
    assert!(replayed(&house, &thread, &fewer).is_identical());
}

#[test]
fn what_stands_before_a_version_is_given() {
    let house = House::new();
    let thread = house.thread();
    let work = worker();
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let first = house.store.inner.another();
    let version = selvedge_store::Logs::head(&first, &thread).unwrap().version;
    house.send(&thread, Input::text("again"), &work).0.unwrap();
    for from in [version, version - 1, 1] {
        let report = again(recording(&house, &thread), &work, |how| how.from = Some(from));
        assert!(report.is_identical());
        assert_eq!(report.given, from + 1, "a run that goes on at the version is done again, and compared behind it");
        assert_eq!(report.compared + report.given, report.version + 1);
    }
    // One that takes another way before the version can't be laid beside anything behind it.
    let report = again(recording(&house, &thread), &asking(worker()), |how| how.from = Some(version - 1));
    assert!(report.ended_at.is_some_and(|ended| ended < version) && report.compared == 0, "{report:?}");
    // Differences before it are not looked for.
    let report = again(recording(&house, &thread), &asking(work), |how| how.from = Some(version));
    assert!(report.is_identical(), "{:?}", report.differences);
}

#[test]
fn what_the_log_does_not_hold_is_not_needed() {
    let house = House::with(Redactor::new(["hunter2-hunter2".to_owned()], Vec::new()), Scopes::builtin());
    let thread = house.thread();
    let long = "x".repeat(100_000);
    let look = tool("look", EffectClass::Pure, Output::text(format!("hunter2-hunter2 {long}")));
    let work = agent(vec![calls(&[("l.1", "look")]), Reply::Says("hunter2-hunter2")], vec![look]);
    house.send(&thread, Input::text("the word is hunter2-hunter2"), &work).0.unwrap();
    assert_identical(&house, &thread, &work);
}

#[test]
fn every_thread_of_a_chain_is_the_same_again() {
    let house = House::new();
    let thread = house.thread();
    let (mut work, _) = crate::chains::small(1500, 20, 400);
    work.limits = Limits { turns: Some(100), ..Limits::default() };
    house.send(&thread, Input::text("count the stars"), &work).0.unwrap();
    let chain = selvedge_store::Registry::chain(&*house.store, &thread).unwrap();
    assert!(chain.len() > 2, "{} hops", chain.len());
    for link in &chain {
        assert_identical(&house, &link.manifest.thread_id, &work);
    }
    // A model that can be given more would not have handed the first one over.
    let (wider, _) = crate::chains::small(100_000, 0, 0);
    let report = replayed(&house, &thread, &Assignment { limits: work.limits.clone(), ..wider });
    let last = report.differences.last().unwrap();
    assert_eq!((last.reason, last.now.clone()), (Reason::RunFinished, Some(json!("the model is asked"))));
}

/// Children that say one word; and what is said of one that can't be.
struct Wordy(&'static str);

impl Children for Wordy {
    fn order(&self, call: &Call, _: &Manifest) -> Result<Order, String> {
        if call.arguments["of"] == "no" {
            return Err(self.0.to_owned());
        }
        let messages = vec![Message::text(Role::User, "say it")];
        Ok(Order { thread: NewThread::of(AgentId::new("child").unwrap()), messages, detached: false })
    }

    fn assignment(&self, _: &Manifest) -> Result<Assignment, String> {
        Ok(agent(vec![Reply::Says("word")], Vec::new()))
    }

    fn launch(&self, _: &ThreadId) -> Result<Box<dyn Started>, String> {
        Err("nobody is let go here".to_owned())
    }
}

#[test]
fn children_are_not_started_again_and_answer_what_they_answered() {
    let house = House::new();
    let thread = house.thread();
    let spawn = Counting::new("spawn", EffectClass::AtMostOnce).of_kind(ToolKind::Child);
    let mut work =
        agent(vec![calls(&[("s.1", "spawn"), ("s.2", "spawn")]), Reply::Says("done")], vec![Arc::new(spawn)]);
    let children = Arc::new(Wordy("nobody is called so"));
    work.spawning = Some(Spawning { children, at_once: 2, vouch: Arc::new(|_| Ok(())) });
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(selvedge_store::Registry::children(&*house.store, &thread).unwrap().len(), 2);
    assert_identical(&house, &thread, &work);
}

#[test]
fn children_that_were_refused_or_too_many_are_so_again() {
    let house = House::new();
    let thread = house.thread();
    let spawn = Counting::new("spawn", EffectClass::AtMostOnce).of_kind(ToolKind::Child);
    let replies = vec![calls(&[("no", "spawn")]), calls(&[("s.1", "spawn")]), calls(&[("s.2", "spawn")])];
    let mut work = agent([replies, vec![Reply::Says("done")]].concat(), vec![Arc::new(spawn)]);
    let children = Arc::new(Wordy("nobody is called so"));
    work.spawning = Some(Spawning { children, at_once: 2, vouch: Arc::new(|_| Ok(())) });
    work.limits = Limits { spawns: Some(1), ..Limits::default() };
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    resume(&house, &thread, Input::nothing().raising(Limits { spawns: Some(2), ..Limits::default() }), &work);
    assert_eq!(selvedge_store::Registry::children(&*house.store, &thread).unwrap().len(), 2);
    assert_identical(&house, &thread, &work);
    // What was started before the place from which on is compared is not looked for.
    let second =
        recording(&house, &thread).steps.iter().rfind(|step| step.reason() == Reason::RunFinished).unwrap().version();
    let report = again(recording(&house, &thread), &work, |how| how.from = Some(second - 3));
    assert!(report.is_identical(), "{:?}", report.differences);
    work.limits.spawns = Some(0);
    let report = replayed(&house, &thread, &work);
    let now = report.differences[0].now.clone().unwrap();
    assert!(now.to_string().contains("spawns_exceeded"), "{now}");
}

/// Whether the outside had refused a child was told by how the words began.
#[test]
fn words_of_todays_rules_are_not_taken_for_those_of_the_outside() {
    let house = House::new();
    let spawning = |words| {
        let children = Arc::new(Wordy(words));
        let spawn = Counting::new("spawn", EffectClass::AtMostOnce).of_kind(ToolKind::Child);
        let mut work = agent(vec![calls(&[("no", "spawn")]), Reply::Says("done")], vec![Arc::new(spawn)]);
        work.spawning = Some(Spawning { children, at_once: 2, vouch: Arc::new(|_| Ok(())) });
        work
    };
    let thread = house.thread();
    house.send(&thread, Input::text("go"), &spawning("the budget does not hold: of letters")).0.unwrap();
    let report = replayed(&house, &thread, &spawning("nobody is called so"));
    assert!(report.differences.iter().any(|found| found.what.starts_with("tool_outcome.error")), "{report:?}");
    // What the outside did say is taken from the record, in the same words.
    let thread = house.thread();
    let mut work = spawning("nobody is called so");
    work.spawning.as_mut().unwrap().vouch = Arc::new(|_| Err("its `thread.json` was edited".to_owned()));
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_identical(&house, &thread, &work);
}

/// What a provider had said was cut out of the words of the error.
#[test]
fn a_model_that_failed_fails_again_in_the_same_words() {
    for error in [
        ModelError::Status { status: 503, why: "busy".to_owned(), retry_after: None },
        ModelError::Status { status: 429, why: "slow down".to_owned(), retry_after: None },
        ModelError::Permanent { why: "the model refused the request: twice".to_owned() },
        ModelError::Unreached { why: "no route".to_owned() },
    ] {
        let house = House::new();
        let thread = house.thread();
        let work = agent(vec![Reply::Fails(error.clone())], Vec::new());
        house.send(&thread, Input::text("go"), &work).0.unwrap();
        let run = house.loaded(&thread).runs.into_values().next().unwrap();
        assert_eq!(run.meta.failure, error.failure());
        assert_identical(&house, &thread, &work);
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

fn random_agent(dice: &mut Dice, dies: bool) -> Assignment {
    let replies = random_replies(dice);
    let (asks, known) = (dice.below(2) == 0, dice.below(3));
    let mut pay = Counting::new("pay", EffectClass::AtMostOnce);
    pay.known =
        [Reconciled::Done(Output::text("was paid")), Reconciled::NotDone, Reconciled::Unknown][known as usize].clone();
    pay.answer = Output {
        patches: vec![set(&["paid"], json!(true))],
        ..Output { content: json!({"ok": 1}), ..Output::default() }
    };
    let mut look = Counting::new("look", EffectClass::Pure);
    look.answer =
        Output { patches: vec![set(&["__run"], json!("r")), set(&["scratch"], json!(1))], ..Output::text("seen") };
    let mut note = Counting::new("note", EffectClass::Idempotent);
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
fn live(house: &House, thread: &ThreadId, seed: u64, dice: &mut Dice) -> Assignment {
    let work = random_agent(&mut Dice(seed), false);
    let dying = random_agent(&mut Dice(seed), true);
    for _ in 0..4 + dice.below(10) {
        // Whatever is refused leaves nothing behind.
        match dice.below(9) {
            0 | 1 => _ = house.send(thread, Input::text("go on"), &work),
            2 => {
                _ = house.send(
                    thread,
                    Input { state: Some(json!({"given": dice.below(9)})), ..Input::text("with state") },
                    &work,
                )
            }
            3 => {
                let other = house.another();
                _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    other.send(thread, Input::text("die"), &dying)
                }));
            }
            4 => {
                let raise = Limits { turns: Some(5 + dice.below(20)), ..Limits::default() };
                _ = house.engine.resume(thread, Input::nothing().raising(raise), &work, &Cancel::new(), &mut |_| {});
            }
            5 => _ = house.engine.stop(thread, if dice.below(2) == 0 { Stop::Cancelled } else { Stop::Killed }),
            6 => {
                let cancel = Cancel::new();
                cancel.say(Stop::Cancelled);
                _ = house.engine.send(thread, Input::text("never mind"), &work, &cancel, &mut |_| {});
            }
            _ => {
                let waits = house.loaded(thread).manifest.suspended.map(|why| why.calls).unwrap_or_default();
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
                    _ = house.engine.decide(thread, &call, choice, "ann", &work);
                }
                _ = house.engine.resume(thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {});
            }
        }
    }
    work
}

#[test]
fn whatever_happens_to_a_thread_is_the_same_again() {
    let mut codes = std::collections::BTreeSet::new();
    for seed in 1..=60 {
        let mut dice = Dice(seed * 7919);
        let mut scopes = Scopes::builtin();
        scopes.declare(Path::keys(["scratch"]), Scope::ToolCall).unwrap();
        let house = House::with(Redactor::default(), scopes.clone());
        let thread = house.thread();
        let work = live(&house, &thread, seed * 104_729, &mut dice);
        let recording = recording(&house, &thread);
        codes.extend(house.loaded(&thread).runs.into_values().filter_map(|run| run.meta.termination_code));
        let report = again(recording, &work, |how| how.scopes = scopes);
        assert!(report.is_identical(), "seed {seed}: {}", serde_json::to_string_pretty(&report.differences).unwrap());
        assert_eq!(report.compared + report.given, report.version + 1, "seed {seed}");
    }
    for code in
        ["approval", "cancelled", "completed", "model_failed", "outcome_unknown", "process_lost", "turns_exceeded"]
    {
        assert!(codes.contains(code), "{code} never happened: {codes:?}");
    }
}

#[test]
fn a_long_thread_costs_about_as_much_again_as_it_cost() {
    let house = House::new();
    let thread = house.thread();
    let replies =
        (0..1500).map(|turn| Reply::Calls(vec![(leaked(format!("c.{turn}")), "look", json!({"n": turn}))])).collect();
    let work = agent(replies, vec![tool("look", EffectClass::Pure, Output::text("ok"))]);
    let began = std::time::Instant::now();
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let took = began.elapsed();
    let began = std::time::Instant::now();
    assert_identical(&house, &thread, &work);
    assert!(began.elapsed() < took * 4 + std::time::Duration::from_secs(2), "{took:?}, then {:?}", began.elapsed());
}

/// The record has no code of the provider, and a class by its code no longer fitted.
#[test]
fn a_model_that_failed_by_a_rule_of_the_user_fails_so_again() {
    for (status, class, ends) in [
        (400, Class::Transient, selvedge_model::Status::Suspended),
        (503, Class::Permanent, selvedge_model::Status::Error),
    ] {
        let house = House::new();
        let thread = house.thread();
        let failure = ModelError::Status { status, why: "so".to_owned(), retry_after: None };
        let mut work = agent(vec![Reply::Fails(failure)], Vec::new());
        work.classes = vec![ErrorClass { id: "mine".to_owned(), class, codes: vec![status], texts: Vec::new() }];
        house.send(&thread, Input::text("hi"), &work).0.unwrap();
        assert_eq!(house.loaded(&thread).manifest.status, ends);
        assert_identical(&house, &thread, &work);
    }
}
