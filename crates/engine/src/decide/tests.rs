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
use selvedge_model::message::Block;
use selvedge_model::{CallId, Event, Input, ModelError, Money, Role, RunStatus, Stop};
use serde_json::json;

use super::asking::{Retry, retry};
use super::*;
use crate::start::{Beginning, Start};
use rules::{dollars, rules};
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
    let most = rules.patience.attempts_max;
    let wait = rules.patience.wait_after(1, None);
    let transient = ModelError::Transient { why: "down".to_owned() };
    assert_eq!(retry(&rules, &transient, 1, false), Retry::After(wait));
    assert_eq!(retry(&rules, &transient, most, false), Retry::Exhausted);
    let refused = ModelError::SessionRefused { why: "gone".to_owned() };
    assert_eq!(retry(&rules, &refused, most, true), Retry::WithoutSession);
    let permanent = ModelError::Status { status: 400, why: "bad".to_owned(), retry_after: None };
    assert_eq!(retry(&rules, &permanent, 1, false), Retry::Never);
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
