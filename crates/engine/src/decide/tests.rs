//! Tests of the decision alone, against a simulated world: no store, no clock, no process.
//!
//! The world performs the steps badly: hooks and nodes open calls of their own, calls are lost, tools don't know their outcome, decisions
//! come late or are wrong, a provider fails or is slow, other runs spend from the same account, commits are refused, the run is stopped, and
//! the process dies before or after any commit. The invariants are asserted where they could break.

mod rules;
mod world;

use proptest::prelude::*;
use selvedge_model::account::Posting;
use selvedge_model::answer::{Answer, End, Usage};
use selvedge_model::event::Recovery;
use selvedge_model::message::Block;
use selvedge_model::{CallId, Event, Input, Message, ModelError, Money, Role, RunStatus, Stop};
use serde_json::json;

use super::asking::{Retry, retry};
use super::*;
use crate::start::{Beginning, Start};
use rules::{dollars, graph_rules, rules};
use world::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// The thread ends, with no open call and within its limits; a call that may run once runs once, whatever dies and whatever is decided.
    #[test]
    fn every_thread_ends_and_no_effect_is_repeated(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let world = World::new(bytes).run_to_end();
        prop_assert!(world.happened.values().all(|times| *times == 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same of a graph: whatever dies, is refused, lost or decided, every graph ends, and no effect is repeated.
    #[test]
    fn every_graph_ends_and_no_effect_is_repeated(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let world = World::with(bytes, graph_rules()).run_to_end();
        prop_assert!(world.happened.values().all(|times| *times == 1));
        let progress = world.fold.thread().graph.as_deref().unwrap();
        prop_assert!(progress.ended.is_some() || !progress.begun, "its end is on record: {progress:?}");
        prop_assert!(progress.step <= 12);
    }
}

#[test]
fn an_undisturbed_thread_reserves_asks_and_ends() {
    let mut world = World::new(Vec::new());
    world.live.start = Some(Beginning { start: Start::of(Input::text("do it")), raised: None });
    let mut steps = Vec::new();
    loop {
        let step = decide(&world.fold, &world.live, &world.rules);
        steps.push(match &step {
            Step::Commit(commit) => format!("{:?}", commit.reason),
            Step::Ask(_) => "Ask".to_owned(),
            step => format!("{step:?}"),
        });
        match step {
            Step::Commit(commit) => assert!(world.commit(*commit).is_ok()),
            Step::Look(_) => world.live.account = Some(world.account.clone()),
            Step::Ask(turn) => world.ask(*turn),
            _ => break,
        }
    }
    let expected = ["UserMessage", "Look(Account)", "Reserved", "Ask", "AssistantTurnCommitted", "RunFinished", "Done"];
    assert_eq!(steps, expected);
}

#[test]
fn a_failed_attempt_is_retried_while_that_may_help() {
    let rules = rules();
    let most = rules.retries.attempts_max;
    let wait = rules.retries.wait_after(1, None, 7);
    let transient = ModelError::Transient { why: "down".to_owned() };
    assert_eq!(retry(&rules, &transient, 1, false, 7), Retry::After(wait));
    assert_eq!(retry(&rules, &transient, most, false, 7), Retry::Exhausted);
    let refused = ModelError::SessionRefused { why: "gone".to_owned() };
    assert_eq!(retry(&rules, &refused, most, true, 7), Retry::WithoutSession);
    let permanent = ModelError::Status { status: 400, why: "bad".to_owned(), retry_after: None };
    assert_eq!(retry(&rules, &permanent, 1, false, 7), Retry::Never);
}

/// A world whose model has failed in every attempt.
fn exhausted() -> World {
    let mut world = World::new(Vec::new());
    world.live.start = Some(Beginning { start: Start::of(Input::text("do it")), raised: None });
    loop {
        match decide(&world.fold, &world.live, &world.rules) {
            Step::Commit(commit) if commit.reason == Reason::RunFinished => return world,
            Step::Commit(commit) => assert!(world.commit(*commit).is_ok()),
            Step::Look(_) => world.live.account = Some(world.account.clone()),
            Step::Wait(Some(_)) => world.live.rested(),
            Step::Ask(turn) => {
                world.live.begin(*turn);
                world.live.take(Outcome::Failed(ModelError::Unreached { why: "down".to_owned() }));
            }
            step => panic!("{step:?}"),
        }
    }
}

fn ends_as(world: &World) -> (RunStatus, Option<String>) {
    let Step::Commit(commit) = decide(&world.fold, &world.live, &world.rules) else { panic!("it does not end") };
    let meta = commit.meta.unwrap();
    (meta.status, meta.termination_code)
}

#[test]
fn a_thread_that_is_to_stop_is_not_suspended_for_a_provider() {
    let mut world = exhausted();
    assert_eq!(ends_as(&world), (RunStatus::Waiting, Some("model_failed".to_owned())));
    world.live.stop = Some(Stop::Killed);
    assert_eq!(ends_as(&world), (RunStatus::Done, Some("killed".to_owned())));
}

#[test]
fn the_cost_of_all_attempts_of_a_turn_is_recorded_with_its_end() {
    let world = exhausted();
    assert_eq!((world.live.attempts, world.account.reserved > Money::ZERO), (3, true));
    let Step::Commit(commit) = decide(&world.fold, &world.live, &world.rules) else { panic!("it does not end") };
    let usage = commit.delta.events.iter().filter(|event| matches!(event, Event::Usage(_))).count();
    assert_eq!((usage, commit.delta.postings.len()), (1, 1), "one turn, and the last attempt is settled");
}

/// A charge above its bound is recorded as it was, and all runs that spend from the same account are stopped.
#[test]
fn a_reported_charge_is_settled_and_above_its_bound_it_stops_the_tree() {
    for (charged, is_overcharged) in [("0.0001", false), ("9", true)] {
        let mut world = World::new(Vec::new());
        world.live.start = Some(Beginning { start: Start::of(Input::text("do it")), raised: None });
        let commit = loop {
            match decide(&world.fold, &world.live, &world.rules) {
                Step::Commit(commit) if commit.reason == Reason::AssistantTurnCommitted => break commit,
                Step::Commit(commit) => assert!(world.commit(*commit).is_ok()),
                Step::Look(_) => world.live.account = Some(world.account.clone()),
                Step::Ask(turn) => {
                    world.live.begin(*turn);
                    let mut answer = world.answers();
                    answer.charged = Some(dollars(charged));
                    world.live.take(Outcome::Answered(Box::new(answer)));
                }
                step => panic!("{step:?}"),
            }
        };
        let [Posting::Settle { amount, unknown: false, .. }] = commit.delta.postings[..] else { panic!("{commit:?}") };
        assert_eq!((amount, commit.is_overcharged), (dollars(charged), is_overcharged));
    }
}

#[test]
fn a_call_of_an_answer_that_could_not_be_committed_is_answered_with_the_end() {
    let mut world = World::new(Vec::new());
    world.live.start = Some(Beginning { start: Start::of(Input::text("do it")), raised: None });
    let mut is_refused = false;
    let commit = loop {
        match decide(&world.fold, &world.live, &world.rules) {
            Step::Commit(commit) if is_refused => break commit,
            Step::Commit(commit) if commit.reason == Reason::AssistantTurnCommitted => {
                world.refuse();
                is_refused = true;
            }
            Step::Commit(commit) => assert!(world.commit(*commit).is_ok()),
            Step::Look(_) => world.live.account = Some(world.account.clone()),
            Step::Ask(turn) => {
                world.live.begin(*turn);
                let call = Block::tool_call(CallId::new("c").unwrap(), "look", json!({}));
                let answer = Answer::new(vec![call], End::ToolCalls).using(Usage::default());
                world.live.take(Outcome::Answered(Box::new(answer)));
            }
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(commit.reason, Reason::RunFinished);
    let roles: Vec<Role> = commit.delta.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles[..2], [Role::Assistant, Role::Tool], "the answer is not lost, and its call has a result");
    assert_eq!(commit.delta.answered().map(CallId::as_str).collect::<Vec<_>>(), ["c"]);
    assert_eq!(commit.delta.postings.len(), 1, "the cost is not lost either");
}

/// A world whose model was asked and has given this outcome.
fn asked(outcome: Outcome) -> World {
    let mut world = World::new(Vec::new());
    world.live.start = Some(Beginning { start: Start::of(Input::text("do it")), raised: None });
    loop {
        match decide(&world.fold, &world.live, &world.rules) {
            Step::Commit(commit) => assert!(world.commit(*commit).is_ok()),
            Step::Look(_) => world.live.account = Some(world.account.clone()),
            Step::Ask(turn) => {
                world.live.begin(*turn);
                world.live.take(outcome);
                return world;
            }
            step => panic!("{step:?}"),
        }
    }
}

/// The cost bound of a request whose usage the provider reported was settled although the cost was known.
#[test]
fn a_cut_answer_is_settled_at_its_cost_if_its_usage_is_known_and_else_at_its_bound() {
    let usage = Usage { input_tokens: 10, output_tokens: 2, ..Usage::default() };
    let is_unknown = |usage| {
        let cut = ModelError::Cut { why: "eof".to_owned(), partial: Vec::new(), usage };
        let mut world = asked(Outcome::Failed(cut));
        world.live.rested();
        let commit = loop {
            match decide(&world.fold, &world.live, &world.rules) {
                Step::Commit(commit) => break commit,
                Step::Look(_) => world.live.account = Some(world.account.clone()),
                step => panic!("{step:?}"),
            }
        };
        let settled = commit.delta.postings.iter().find_map(|posting| match posting {
            Posting::Settle { unknown, .. } => Some(*unknown),
            _ => None,
        });
        settled.unwrap()
    };
    assert!(!is_unknown(Some(usage)));
    assert!(is_unknown(Some(Usage { estimated: true, ..usage })) && is_unknown(None));
}

#[test]
fn a_prompt_that_the_provider_finds_too_long_leads_to_a_successor_of_at_most_half_its_size() {
    let mut world = asked(Outcome::Failed(ModelError::ContextTooLong { why: "9000 > 8192".to_owned() }));
    match decide(&world.fold, &world.live, &world.rules) {
        Step::Commit(commit) => {
            // A conversation of one short message can't be made shorter.
            assert_eq!(commit.meta.unwrap().termination_code.as_deref(), Some("context_too_small"));
        }
        step => panic!("{step:?}"),
    }
    let long = Message::text(Role::Assistant, "word ".repeat(20_000));
    for _ in 0..3 {
        world.fold.conversation.push(long.clone());
        world.fold.conversation.push(Message::text(Role::User, "go on"));
    }
    let size = context::prompt_size(&world.fold, &world.rules);
    match decide(&world.fold, &world.live, &world.rules) {
        Step::Commit(commit) => match commit.with {
            With::Handoff { reason, room, .. } => {
                assert_eq!(reason, HandoffReason::ContextFull);
                assert!(room <= size / 2, "{room} of {size}");
            }
            with => panic!("{with:?}"),
        },
        step => panic!("{step:?}"),
    }
}

#[test]
fn the_text_of_an_attempt_that_was_cut_is_kept_and_is_no_message() {
    let partial = vec![Block::text("Half an ans")];
    let mut world = asked(Outcome::Failed(ModelError::Cut { why: "eof".to_owned(), partial, usage: None }));
    world.live.rested();
    let commit = loop {
        match decide(&world.fold, &world.live, &world.rules) {
            Step::Commit(commit) if commit.reason == Reason::AssistantTurnCommitted => break commit,
            Step::Commit(commit) => assert!(world.commit(*commit).is_ok()),
            Step::Look(_) => world.live.account = Some(world.account.clone()),
            Step::Ask(turn) => {
                world.live.begin(*turn);
                let answer = Answer::new(vec![Block::text("A whole answer")], End::Finished).using(Usage::default());
                world.live.take(Outcome::Answered(Box::new(answer)));
            }
            step => panic!("{step:?}"),
        }
    };
    let partials: Vec<_> = commit
        .delta
        .events
        .iter()
        .filter_map(|event| match event {
            Event::ContextInjected(fields) => Some(fields["partial_cognition"].clone()),
            _ => None,
        })
        .collect();
    assert_eq!(partials, [json!({"text": "Half an ans", "attempt": 1})]);
    assert_eq!(commit.delta.messages.len(), 1);
    assert_eq!(commit.delta.messages[0].plain_text(), "A whole answer");
}

#[test]
fn a_call_whose_arguments_are_not_json_is_answered_with_an_error_and_not_made() {
    let id = CallId::new("c1").unwrap();
    let answer = Answer::new(vec![Block::tool_call(id, "pay", json!("{\"to\": \"an"))], End::ToolCalls);
    let mut world = asked(Outcome::Answered(Box::new(answer.using(Usage::default()))));
    match decide(&world.fold, &world.live, &world.rules) {
        Step::Commit(commit) => assert!(world.commit(*commit).is_ok()),
        step => panic!("{step:?}"),
    }
    match decide(&world.fold, &world.live, &world.rules) {
        Step::Prepare(planned) => {
            assert!(
                matches!(&planned[0].plan, calls::CallPlan::Answer(output, None) if output.is_error && output.content.to_string().contains("not a JSON object")),
                "{planned:?}"
            );
        }
        step => panic!("{step:?}"),
    }
}

/// The first step after an answer with these calls is committed.
fn step_after(calls: Vec<Block>, then: impl FnOnce(&mut World)) -> Step {
    let answer = Answer::new(calls, End::ToolCalls).using(Usage::default());
    let mut world = asked(Outcome::Answered(Box::new(answer)));
    match decide(&world.fold, &world.live, &world.rules) {
        Step::Commit(commit) => assert!(world.commit(*commit).is_ok()),
        step => panic!("{step:?}"),
    }
    then(&mut world);
    decide(&world.fold, &world.live, &world.rules)
}

/// Four hundred commands were started behind their gates at once, and a third of them failed for lack of descriptors.
#[test]
fn no_more_calls_are_made_ready_than_may_run_at_the_same_time() {
    let call = |n| Block::tool_call(CallId::new(format!("c{n}")).unwrap(), "look", json!({}));
    match step_after((0..400).map(call).collect(), |_| {}) {
        Step::Prepare(planned) => assert_eq!(planned.len(), calls::AT_ONCE_MAX),
        step => panic!("{step:?}"),
    }
}

/// A payment whose intent and outcome were in versions that were lost was made a second time.
#[test]
fn a_call_that_may_have_been_made_in_lost_versions_is_probed_and_not_made() {
    let call = |name| vec![Block::tool_call(CallId::new("c1").unwrap(), name, json!({}))];
    let loss = |world: &mut World| {
        let found = Recovery::LOSS.to_owned();
        let lost = Recovery { found, from_version: Some(9), to_version: Some(12), ..Recovery::default() };
        let head = world.fold.head.clone();
        world.fold.take(&[Event::Recovery(lost)], head, None, world.live.now).unwrap();
    };
    assert!(matches!(step_after(call("pay"), |_| {}), Step::Prepare(_)));
    assert!(matches!(step_after(call("pay"), loss), Step::Probe(_)));
    assert!(matches!(step_after(call("look"), loss), Step::Prepare(_)), "a pure call can be made again");
}
