//! Children whose processes die at chosen moments: the next run settles them, looking does not, and nothing is taken from the living.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_engine::{Assignment, Choice, Input};
use selvedge_model::event::SuspendReason;
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, CallId, Cancel, Message, Money, NewThread, Price, Reason, Role, Run, Status, ThreadId};
use selvedge_store::{Acquire, Feed, Leases, Ledger, Logs, Registry};
use serde_json::json;

use crate::chains::small;
use crate::families::Deadly;
use crate::replay::assert_identical;
use crate::spawning::{nursery, parent};
use crate::support::{House, Meanwhile, Reply, agent, assert_dies};

fn price() -> Option<Price> {
    Some(Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() })
}

/// A parent with money, and what it is run with: it starts one child that it does not wait for.
fn family(house: &House) -> (ThreadId, Assignment) {
    let limits = Some(Limits { spend: Some("100".parse().unwrap()), ..Limits::default() });
    let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let calls = vec![("s", json!({"task": "count", "detached": true, "spend": "60"}))];
    let mut work = parent(calls, nursery(Vec::new()));
    work.price = price();
    (house.engine.create(new, Vec::new()).unwrap(), work)
}

/// What a parent is run with that has something else to say.
fn later() -> Assignment {
    let mut work = agent(vec![Reply::Says("well")], Vec::new());
    work.price = price();
    work
}

impl House {
    fn status(&self, thread: &ThreadId) -> Status {
        self.store.get(thread).unwrap().manifest.status
    }

    fn why(&self, thread: &ThreadId) -> Option<String> {
        self.store.get(thread).unwrap().manifest.suspended.and_then(|why| why.code)
    }

    /// A process that runs a thread and dies in a call of its model.
    pub(crate) fn dies_running(&self, thread: &ThreadId) {
        let mut dying = agent(Vec::new(), Vec::new());
        (dying.model, dying.price) = (Arc::new(Deadly), price());
        let other = self.another();
        let run = || other.taken_up(thread, Input::nothing(), &dying);
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!((self.status(thread), self.store.holder(thread).unwrap()), (Status::Running, None));
    }

    /// A process that runs a thread until that has handed itself over, and dies before it runs the successor; gives that one.
    fn dies_handing_over(&self, thread: &ThreadId) -> ThreadId {
        let (other, (mut work, _)) = (self.another().dying_between_threads(), small(600, 12, 400));
        work.price = Some(Price::default());
        assert_dies(|| other.taken_up(thread, Input::nothing(), &work));
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

/// A child once died while its parent ran, after the parent had looked: it was said to run, and its call of a model was held, until
/// somebody typed another command.
#[test]
fn a_child_that_dies_at_any_moment_of_its_parents_run_is_settled_before_that_run_ends() {
    for moment in [Reason::ToolResultsCommitted, Reason::Reserved, Reason::AssistantTurnCommitted] {
        let house = House::new();
        let (thread, work) = family(&house);
        let (has_died, at_the_end) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let (dies, ends, of, other) = (has_died.clone(), at_the_end.clone(), thread.clone(), house.another());
        house.after_commit(move |batch| {
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
        let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
        assert_eq!(
            (ended.status.status().unwrap(), has_died.load(Ordering::SeqCst)),
            (Status::Completed, true),
            "{moment:?}"
        );
        assert_eq!(*at_the_end.lock().unwrap(), Some(Status::Suspended), "{moment:?}");
        let child = house.only_child(&thread);
        let account = house.store.account(&child).unwrap().unwrap();
        assert_eq!((account.reserved, house.why(&child).as_deref()), (Money::ZERO, Some("process_lost")));
        assert!(account.spent() > Money::ZERO, "what its call may have cost is counted");
        house.books_agree(&thread);
    }
}

#[test]
fn a_child_that_died_before_its_parents_run_is_settled_before_that_asks_its_model() {
    let house = House::new();
    let (thread, work) = family(&house);
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let child = house.only_child(&thread);
    house.dies_running(&child);
    house.store.refuse(Some(Reason::AssistantTurnCommitted));
    _ = house.send(&thread, Input::text("and now?"), &later()).0;
    assert_eq!(house.status(&child), Status::Suspended);
}

/// It was cut between two threads of its chain: the one that the parent knows has ended, and the next one is nobody's.
#[test]
fn a_child_that_died_in_a_handoff_is_settled_at_the_end_of_its_chain_and_can_be_resumed() {
    for runs_on in [false, true] {
        let house = House::new();
        let (thread, work) = family(&house);
        house.send(&thread, Input::text("go"), &work).0.unwrap();
        let child = house.only_child(&thread);
        let next = house.dies_handing_over(&child);
        house.send(&thread, Input::text("and now?"), &later()).0.unwrap();
        assert_eq!(house.status(&next), Status::Created, "its process may live and is only slow");
        if runs_on {
            house.dies_running(&next);
        }
        house.processes.1.store(true, Ordering::SeqCst);
        house.send(&thread, Input::text("and now?"), &later()).0.unwrap();
        let expected = (Status::Suspended, Some("process_lost"));
        assert_eq!((house.status(&next), house.why(&next).as_deref()), expected);
        house.books_agree(&thread);
        let ended = house.taken_up(&child, Input::nothing(), &later());
        assert_eq!((ended.status.status().unwrap(), &ended.thread_id), (Status::Completed, &next));
        if !runs_on {
            assert_identical(&house, &next, &later());
        }
        house.books_agree(&thread);
        let account = house.store.account(&thread).unwrap().unwrap();
        assert_eq!((account.reserved, account.open), (Money::ZERO, 0));
    }
}

/// It stands as `created`, and looking at it must not write.
#[test]
fn the_cut_successor_of_a_chain_that_nobody_started_is_stalled_and_goes_on_when_it_is_resumed() {
    let house = House::new();
    let messages = vec![Message::text(Role::User, "go")];
    let thread = house.engine.create(NewThread::of(AgentId::new("scribe").unwrap()), messages).unwrap();
    let next = house.dies_handing_over(&thread);
    let waited = house.engine.wait(from_ref(&thread), Duration::from_secs(10), &Cancel::new()).unwrap();
    let found = &waited.results[&thread];
    assert_eq!((found.status.as_str(), &found.thread_id), ("stalled", &next));
    assert_eq!((house.status(&next), house.store.head(&next).unwrap().version), (Status::Created, 0));
    let ended = house.taken_up(&thread, Input::nothing(), &later());
    assert_eq!((ended.status.status().unwrap(), &ended.thread_id), (Status::Completed, &next));
}

#[test]
fn nothing_is_taken_from_somebody_alive_who_is_slow_between_two_threads_of_a_chain() {
    for is_between in [false, true] {
        let house = House::new();
        let (thread, work) = family(&house);
        house.send(&thread, Input::text("go"), &work).0.unwrap();
        let child = house.only_child(&thread);
        // Whoever resumed it is not the process on record, which is dead.
        let (mut runner, looker) = (house.another(), house.another());
        looker.processes.1.store(true, Ordering::SeqCst);
        let root = thread.clone();
        // A run of the parent looks at its children.
        let look: Meanwhile = Box::new(move |_| _ = looker.send(&root, Input::text("and now?"), &later()).0.unwrap());
        match is_between {
            // It has the old thread still, and is about to go on with the new one.
            false => *runner.store.before_successor.lock().unwrap() = Some(look),
            // It has given the old one back, and not begun with the new one.
            true => runner = runner.before_successor_begins(look),
        }
        let (mut small, _) = small(600, 12, 400);
        small.price = Some(Price::default());
        assert_eq!(runner.taken_up(&child, Input::nothing(), &small).status, Status::Completed);
        for link in house.store.chain(&child).unwrap() {
            let runs = house.store.runs(&link.manifest.thread_id).unwrap();
            let is_settled = |run: &Run| run.meta.termination_code.as_deref() == Some("process_lost");
            assert!(!runs.iter().any(is_settled), "it belongs to the process that hands it over: {runs:?}");
        }
        house.books_agree(&thread);
    }
}

/// A wait once settled the dead before it answered, without the snapshot that a suspension promises.
#[test]
fn a_wait_says_that_a_dead_run_is_stalled_and_writes_nothing_and_the_next_that_takes_it_settles_it() {
    for waits_for_parent in [false, true] {
        let house = House::new();
        let (thread, work) = family(&house);
        house.send(&thread, Input::text("go"), &work).0.unwrap();
        let child = house.only_child(&thread);
        house.dies_running(&child);
        let asked = if waits_for_parent { &thread } else { &child };
        let before = house.store.position().unwrap();
        let waited = house.engine.wait(from_ref(asked), Duration::from_secs(10), &Cancel::new()).unwrap();
        let found_as = if waits_for_parent { "completed" } else { "stalled" };
        assert_eq!(waited.results[asked].status.as_str(), found_as);
        assert_eq!((house.status(&child), house.store.position().unwrap()), (Status::Running, before));
        let ended = house.taken_up(&child, Input::nothing(), &later());
        assert_eq!(ended.status, Status::Completed);
        let is_lost = |run: &Run| run.meta.termination_code.as_deref() == Some("process_lost");
        assert!(house.store.runs(&child).unwrap().iter().any(is_lost), "it was settled first");
        house.books_agree(&thread);
    }
}

/// The process of a child stands in the call that started it. Whoever took up a parent that was killed in the middle of that call once
/// ended the child with it, and went on to tell that it runs; a child that settled its parent ended itself.
#[test]
fn whoever_takes_up_a_parent_leaves_the_processes_of_its_children_alone() {
    let house = House::new();
    let (thread, work) = family(&house);
    cut_after_birth(&house, &thread, &work);
    let child = house.only_child(&thread);
    let other = house.another();
    let lease = other.store.acquire(&child, Acquire::default()).unwrap();
    house.engine.recover().unwrap();
    assert_eq!(house.status(&thread), Status::Suspended);
    let ended = house.taken_up(&thread, Input::nothing(), &work);
    assert_eq!(
        (ended.status.status().unwrap(), house.told(&thread, "s")["status"].as_str()),
        (Status::Completed, Some("running"))
    );
    assert!(house.processes.0.lock().unwrap().is_empty(), "it was ended");
    other.store.abandon(&lease).unwrap();
}

/// It was told that the child runs, and nobody did.
#[test]
fn a_child_whose_process_was_lost_is_started_again_by_the_call_that_is_open_and_one_that_waits_is_told_as_it_is() {
    for is_lost in [true, false] {
        let house = House::new();
        let (thread, _) = family(&house);
        let nursery = nursery(Vec::new());
        let launched = nursery.launched.clone();
        let mut work = parent(vec![("s", json!({"task": "count", "detached": true, "spend": "60"}))], nursery);
        work.price = price();
        cut_after_birth(&house, &thread, &work);
        let child = house.only_child(&thread);
        match is_lost {
            true => house.dies_running(&child),
            false => {
                let mut tight = later();
                tight.limits.turns = Some(0);
                assert_eq!(house.another().taken_up(&child, Input::nothing(), &tight).status, Status::Suspended);
            }
        }
        house.engine.recover().unwrap();
        house.taken_up(&thread, Input::nothing(), &work);
        let told = if is_lost { "running" } else { "suspended" };
        assert_eq!(house.told(&thread, "s")["status"], told);
        assert_eq!(launched.load(Ordering::SeqCst), usize::from(is_lost));
    }
}

/// Runs a parent whose process dies when its child is on record and nobody has been started for it.
fn cut_after_birth(house: &House, thread: &ThreadId, work: &Assignment) {
    house.dies_after(Reason::ToolIntentCommitted, || house.send(thread, Input::text("go"), work));
}

/// Somebody was once asked what became of the call, and whatever he said lost what the child had come to.
#[test]
fn a_parent_that_died_in_a_spawn_asks_nobody_and_is_told_what_became_of_its_child() {
    for (is_detached, says_not_done) in [(false, false), (false, true), (true, false), (true, true)] {
        let house = House::new();
        let (thread, _) = family(&house);
        let nursery = nursery(Vec::new());
        let launched = nursery.launched.clone();
        let mut work = parent(vec![("s", json!({"task": "count", "detached": is_detached, "spend": "60"}))], nursery);
        work.price = price();
        cut_after_birth(&house, &thread, &work);
        let child = house.only_child(&thread);
        let mut counts = agent(vec![Reply::Says("three")], Vec::new());
        counts.price = price();
        assert_eq!(house.another().taken_up(&child, Input::nothing(), &counts).status, Status::Completed);
        house.engine.recover().unwrap();
        let why = house.store.get(&thread).unwrap().manifest.suspended.unwrap();
        assert_eq!((why.reason, why.code.as_deref(), why.calls.len()), (SuspendReason::Error, Some("process_lost"), 0));
        if says_not_done {
            house.engine.decide(&thread, &CallId::new("s").unwrap(), Choice::NotDone, "ann", &work).unwrap();
        }
        assert_eq!(house.taken_up(&thread, Input::nothing(), &work).status, Status::Completed);
        let told = house.told(&thread, "s");
        assert_eq!((&told["status"], &told["result"]), (&json!("completed"), &json!("three")), "{told}");
        assert_eq!((launched.load(Ordering::SeqCst), house.children_of(&thread).len()), (0, 1));
        house.books_agree(&thread);
    }
}

/// Somebody said that nobody knows what became of the call, and so nobody would ever have started the child.
#[test]
fn a_child_that_was_waited_for_and_never_began_ends_once_its_parents_call_is_answered() {
    let house = House::new();
    let (thread, _) = family(&house);
    let mut work = parent(vec![("s", json!({"task": "count", "spend": "60"}))], nursery(Vec::new()));
    work.price = price();
    cut_after_birth(&house, &thread, &work);
    house.engine.recover().unwrap();
    let child = house.only_child(&thread);
    assert_eq!(house.status(&child), Status::Created, "its parent's call starts it");
    house.engine.decide(&thread, &CallId::new("s").unwrap(), Choice::Unknown, "ann", &work).unwrap();
    house.taken_up(&thread, Input::nothing(), &work);
    house.send(&thread, Input::text("and now?"), &later()).0.unwrap();
    assert_eq!(house.status(&child), Status::Error);
    let account = house.store.account(&thread).unwrap().unwrap();
    assert_eq!((account.reserved, account.open), (Money::ZERO, 0));
    house.books_agree(&thread);
}
