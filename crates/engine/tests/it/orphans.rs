//! Children whose processes die at chosen moments: the next run settles them, reading does not, and live processes keep their threads.

use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_engine::{Choice, Input, RunConfig};
use selvedge_model::event::SuspendReason;
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, CallId, Cancel, Message, Money, NewThread, Price, Reason, Role, Run, Status, ThreadId};
use selvedge_store::{Acquire, Feed, Leases, Ledger, Logs, Registry};
use serde_json::json;

use crate::chains::small;
use crate::replay::assert_identical;
use crate::spawning::{nursery, parent};
use crate::support::{Harness, Meanwhile, Reply, agent, assert_dies};

fn price() -> Option<Price> {
    Some(Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() })
}

/// A parent with money, and its run_config: it spawns one detached child.
fn family(harness: &Harness) -> (ThreadId, RunConfig) {
    let limits = Some(Limits { spend: Some("100".parse().unwrap()), ..Limits::default() });
    let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let calls = vec![("s", json!({"task": "count", "detached": true, "spend": "60"}))];
    let mut work = parent(calls, nursery(Vec::new()));
    work.price = price();
    (harness.engine.create(new, Vec::new()).unwrap(), work)
}

/// The run configuration of a parent with other answers.
fn later() -> RunConfig {
    let mut work = agent(vec![Reply::Says("well")], Vec::new());
    work.price = price();
    work
}

impl Harness {
    fn status(&self, thread: &ThreadId) -> Status {
        self.store.get(thread).unwrap().manifest.status
    }

    fn why(&self, thread: &ThreadId) -> Option<String> {
        self.store.get(thread).unwrap().manifest.suspended.and_then(|why| why.code)
    }

    /// A process that runs a thread and dies once it has issued a model call.
    pub(crate) fn dies_running(&self, thread: &ThreadId) {
        let mut dying = agent(Vec::new(), Vec::new());
        dying.price = price();
        let other = self.another();
        other.dies_after(Reason::Reserved, || other.resumed(thread, Input::nothing(), &dying));
        assert_eq!((self.status(thread), self.store.holder(thread).unwrap()), (Status::Running, None));
    }

    /// A process that runs a thread until it was handed off, and dies before it runs the successor; returns the successor.
    fn dies_handing_over(&self, thread: &ThreadId) -> ThreadId {
        let other = self.another().dying_between_threads();
        let (mut work, _) = small(600, 12, 400);
        work.price = Some(Price::default());
        assert_dies(|| other.resumed(thread, Input::nothing(), &work));
        let next = self.store.get(thread).unwrap().manifest.continuation_thread_id.unwrap();
        assert_eq!((self.status(&next), self.store.holder(&next).unwrap()), (Status::Created, None));
        next
    }

    fn only_child(&self, parent: &ThreadId) -> ThreadId {
        self.children_of(parent).remove(0).thread_id
    }

    #[track_caller]
    fn books_agree(&self, thread: &ThreadId) {
        let tree = selvedge_engine::ledger::audit::tree(&*self.store, thread).unwrap();
        let found = selvedge_engine::ledger::audit::audit(&*self.store, &self.trust, &tree).unwrap().found;
        assert!(found.is_empty(), "{found:?}");
    }
}

/// A child once died while its parent ran, after the parent had checked it: it looked active, and the money for its model call was held,
/// until another command was run.
#[test]
fn a_child_that_dies_at_any_moment_of_its_parents_run_is_settled_before_that_run_ends() {
    for moment in [Reason::ToolResultsCommitted, Reason::Reserved, Reason::AssistantTurnCommitted] {
        let harness = Harness::new();
        let (thread, work) = family(&harness);
        let has_died = Arc::new(AtomicBool::new(false));
        let at_the_end = Arc::new(Mutex::new(None));
        let dies = has_died.clone();
        let ends = at_the_end.clone();
        let of = thread.clone();
        let other = harness.another();
        harness.after_commit(move |batch| {
            let own = &batch.parts[0];
            if own.thread != of {
                return;
            }
            let is_there = !other.children_of(&of).is_empty();
            if is_there && own.changeset.reason == moment && !dies.swap(true, Ordering::SeqCst) {
                other.dies_running(&other.only_child(&of));
            }
            if own.changeset.reason == Reason::RunFinished {
                *ends.lock().unwrap() = Some(other.status(&other.only_child(&of)));
            }
        });
        let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
        assert_eq!(
            (ended.status.status().unwrap(), has_died.load(Ordering::SeqCst)),
            (Status::Completed, true),
            "{moment:?}"
        );
        assert_eq!(*at_the_end.lock().unwrap(), Some(Status::Suspended), "{moment:?}");
        let child = harness.only_child(&thread);
        let account = harness.store.account(&child).unwrap().unwrap();
        assert_eq!((account.reserved, harness.why(&child).as_deref()), (Money::ZERO, Some("process_lost")));
        assert!(account.spent() > Money::ZERO, "the possible cost of its call is counted");
        harness.books_agree(&thread);
    }
}

#[test]
fn a_child_that_died_before_its_parents_run_is_settled_before_that_run_calls_its_model() {
    let harness = Harness::new();
    let (thread, work) = family(&harness);
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let child = harness.only_child(&thread);
    harness.dies_running(&child);
    harness.store.refuse(Some(Reason::AssistantTurnCommitted));
    _ = harness.send(&thread, Input::text("and now?"), &later()).0;
    assert_eq!(harness.status(&child), Status::Suspended);
}

/// It died between two threads of its chain: the one that the parent knows has ended, and no process holds the next one.
#[test]
fn a_child_that_died_in_a_handoff_is_settled_at_the_end_of_its_chain_and_can_be_resumed() {
    for runs_on in [false, true] {
        let harness = Harness::new();
        let (thread, work) = family(&harness);
        harness.send(&thread, Input::text("go"), &work).0.unwrap();
        let child = harness.only_child(&thread);
        let next = harness.dies_handing_over(&child);
        harness.send(&thread, Input::text("and now?"), &later()).0.unwrap();
        assert_eq!(harness.status(&next), Status::Created, "its process may be alive and just slow");
        if runs_on {
            harness.dies_running(&next);
        }
        harness.processes.1.store(true, Ordering::SeqCst);
        harness.send(&thread, Input::text("and now?"), &later()).0.unwrap();
        let expected = (Status::Suspended, Some("process_lost"));
        assert_eq!((harness.status(&next), harness.why(&next).as_deref()), expected);
        harness.books_agree(&thread);
        let ended = harness.resumed(&child, Input::nothing(), &later());
        assert_eq!((ended.status.status().unwrap(), &ended.thread_id), (Status::Completed, &next));
        if !runs_on {
            assert_identical(&harness, &next, &later());
        }
        harness.books_agree(&thread);
        let account = harness.store.account(&thread).unwrap().unwrap();
        assert_eq!((account.reserved, account.open), (Money::ZERO, 0));
    }
}

/// Its status is `created`, and reading it must not write.
#[test]
fn the_unstarted_successor_of_a_chain_without_a_parent_is_stalled_and_runs_when_it_is_resumed() {
    let harness = Harness::new();
    let messages = vec![Message::text(Role::User, "go")];
    let thread = harness.engine.create(NewThread::of(AgentId::new("scribe").unwrap()), messages).unwrap();
    let next = harness.dies_handing_over(&thread);
    let waited = harness.engine.wait(from_ref(&thread), Duration::from_secs(10), &Cancel::new()).unwrap();
    let found = &waited.results[&thread];
    assert_eq!((found.status.as_str(), &found.thread_id), ("stalled", &next));
    assert_eq!((harness.status(&next), harness.store.head(&next).unwrap().version), (Status::Created, 0));
    let ended = harness.resumed(&thread, Input::nothing(), &later());
    assert_eq!((ended.status.status().unwrap(), &ended.thread_id), (Status::Completed, &next));
}

#[test]
fn a_live_process_that_is_slow_between_two_threads_of_a_chain_keeps_them() {
    for is_between in [false, true] {
        let harness = Harness::new();
        let (thread, work) = family(&harness);
        harness.send(&thread, Input::text("go"), &work).0.unwrap();
        let child = harness.only_child(&thread);
        // The process that resumed it is not the one on record, which is dead.
        let mut runner = harness.another();
        let looker = harness.another();
        looker.processes.1.store(true, Ordering::SeqCst);
        let root = thread.clone();
        // A run of the parent checks its children.
        let look: Meanwhile = Box::new(move |_| _ = looker.send(&root, Input::text("and now?"), &later()).0.unwrap());
        if is_between {
            // It has released the old one, and not begun the new one.
            runner = runner.before_successor_begins(look);
        } else {
            // It still holds the old thread, and is about to run the new one.
            *runner.store.before_successor.lock().unwrap() = Some(look);
        }
        let (mut small, _) = small(600, 12, 400);
        small.price = Some(Price::default());
        assert_eq!(runner.resumed(&child, Input::nothing(), &small).status, Status::Completed);
        for link in harness.store.chain(&child).unwrap() {
            let runs = harness.store.runs(&link.manifest.thread_id).unwrap();
            let is_settled = |run: &Run| run.meta.termination_code.as_deref() == Some("process_lost");
            assert!(!runs.iter().any(is_settled), "it belongs to the process that hands it off: {runs:?}");
        }
        harness.books_agree(&thread);
    }
}

/// A wait once settled a dead run before it returned, without the snapshot that a suspension must have.
#[test]
fn a_wait_reports_a_dead_run_as_stalled_and_writes_nothing_and_the_next_lease_holder_settles_it() {
    for waits_for_parent in [false, true] {
        let harness = Harness::new();
        let (thread, work) = family(&harness);
        harness.send(&thread, Input::text("go"), &work).0.unwrap();
        let child = harness.only_child(&thread);
        harness.dies_running(&child);
        let asked = if waits_for_parent { &thread } else { &child };
        let before = harness.store.position().unwrap();
        let waited = harness.engine.wait(from_ref(asked), Duration::from_secs(10), &Cancel::new()).unwrap();
        let found_as = if waits_for_parent { "completed" } else { "stalled" };
        assert_eq!(waited.results[asked].status.as_str(), found_as);
        assert_eq!((harness.status(&child), harness.store.position().unwrap()), (Status::Running, before));
        let ended = harness.resumed(&child, Input::nothing(), &later());
        assert_eq!(ended.status, Status::Completed);
        let is_lost = |run: &Run| run.meta.termination_code.as_deref() == Some("process_lost");
        assert!(harness.store.runs(&child).unwrap().iter().any(is_lost), "it was settled first");
        harness.books_agree(&thread);
    }
}

/// The process of a child is recorded in the call that spawned it. A process that resumed a parent which was killed in the middle of that call
/// once ended the child with it, and then reported that it runs; a child that settled its parent ended itself.
#[test]
fn resuming_a_parent_leaves_the_processes_of_its_children_alone() {
    let harness = Harness::new();
    let (thread, work) = family(&harness);
    dies_after_spawn(&harness, &thread, &work);
    let child = harness.only_child(&thread);
    let other = harness.another();
    let lease = other.store.acquire(&child, Acquire::default()).unwrap();
    harness.engine.recover().unwrap();
    assert_eq!(harness.status(&thread), Status::Suspended);
    let ended = harness.resumed(&thread, Input::nothing(), &work);
    assert_eq!(
        (ended.status.status().unwrap(), harness.told(&thread, "s")["status"].as_str()),
        (Status::Completed, Some("running"))
    );
    assert!(harness.processes.0.lock().unwrap().is_empty(), "it was ended");
    other.store.abandon(&lease).unwrap();
}

/// The parent got the result that the child runs, and it did not.
#[test]
fn a_child_whose_process_was_lost_is_started_again_by_the_open_call_and_a_suspended_one_is_reported_as_such() {
    for is_lost in [true, false] {
        let harness = Harness::new();
        let (thread, _) = family(&harness);
        let nursery = nursery(Vec::new());
        let launched = nursery.launched.clone();
        let mut work = parent(vec![("s", json!({"task": "count", "detached": true, "spend": "60"}))], nursery);
        work.price = price();
        dies_after_spawn(&harness, &thread, &work);
        let child = harness.only_child(&thread);
        if is_lost {
            harness.dies_running(&child);
        } else {
            let mut tight = later();
            tight.limits.turns = Some(0);
            assert_eq!(harness.another().resumed(&child, Input::nothing(), &tight).status, Status::Suspended);
        }
        harness.engine.recover().unwrap();
        harness.resumed(&thread, Input::nothing(), &work);
        let told = if is_lost { "running" } else { "suspended" };
        assert_eq!(harness.told(&thread, "s")["status"], told);
        assert_eq!(launched.load(Ordering::SeqCst), usize::from(is_lost));
    }
}

/// Runs a parent whose process dies when its child is on record and no process was started for it.
fn dies_after_spawn(harness: &Harness, thread: &ThreadId, work: &RunConfig) {
    harness.dies_after(Reason::ToolIntentCommitted, || harness.send(thread, Input::text("go"), work));
}

/// A decision about the call was once needed, and any decision lost the outcome of the child.
#[test]
fn a_parent_that_died_in_a_spawn_needs_no_decision_and_gets_the_outcome_of_its_child() {
    for (is_detached, says_not_done) in [(false, false), (false, true), (true, false), (true, true)] {
        let harness = Harness::new();
        let (thread, _) = family(&harness);
        let nursery = nursery(Vec::new());
        let launched = nursery.launched.clone();
        let mut work = parent(vec![("s", json!({"task": "count", "detached": is_detached, "spend": "60"}))], nursery);
        work.price = price();
        dies_after_spawn(&harness, &thread, &work);
        let child = harness.only_child(&thread);
        let mut counts = agent(vec![Reply::Says("three")], Vec::new());
        counts.price = price();
        assert_eq!(harness.another().resumed(&child, Input::nothing(), &counts).status, Status::Completed);
        harness.engine.recover().unwrap();
        let why = harness.store.get(&thread).unwrap().manifest.suspended.unwrap();
        assert_eq!((why.reason, why.code.as_deref(), why.calls.len()), (SuspendReason::Error, Some("process_lost"), 0));
        if says_not_done {
            harness.engine.decide(&thread, &CallId::new("s").unwrap(), Choice::NotDone, "ann", &work).unwrap();
        }
        assert_eq!(harness.resumed(&thread, Input::nothing(), &work).status, Status::Completed);
        let told = harness.told(&thread, "s");
        assert_eq!((&told["status"], &told["result"]), (&json!("completed"), &json!("three")), "{told}");
        assert_eq!((launched.load(Ordering::SeqCst), harness.children_of(&thread).len()), (0, 1));
        harness.books_agree(&thread);
    }
}

/// The call was settled as unknown, and so the child would never have been started.
#[test]
fn a_child_that_was_waited_for_and_never_began_ends_once_its_parents_call_has_a_result() {
    let harness = Harness::new();
    let (thread, _) = family(&harness);
    let mut work = parent(vec![("s", json!({"task": "count", "spend": "60"}))], nursery(Vec::new()));
    work.price = price();
    dies_after_spawn(&harness, &thread, &work);
    harness.engine.recover().unwrap();
    let child = harness.only_child(&thread);
    assert_eq!(harness.status(&child), Status::Created, "its parent's call starts it");
    harness.engine.decide(&thread, &CallId::new("s").unwrap(), Choice::Unknown, "ann", &work).unwrap();
    harness.resumed(&thread, Input::nothing(), &work);
    harness.send(&thread, Input::text("and now?"), &later()).0.unwrap();
    assert_eq!(harness.status(&child), Status::Error);
    let account = harness.store.account(&thread).unwrap().unwrap();
    assert_eq!((account.reserved, account.open), (Money::ZERO, 0));
    harness.books_agree(&thread);
}
