//! Children and the processes that resume them: killed, refused by the store, and resumed twice.

use std::sync::mpsc;
use std::time::Duration;

use selvedge_engine::Input;
use selvedge_model::event::Handoff;
use selvedge_model::limits::Limits;
use selvedge_model::{
    AgentId, Answered, Batch, Cancel, Changeset, Classify, Event, Expect, Kind, Message, Money, NewThread, Part, Price,
    Reason, Role, RunId, RunMeta, Status, Stop, ThreadId,
};
use selvedge_store::{Acquire, Commit, Leases, Ledger, Logs, Registry};
use serde_json::json;

use crate::spawning::{nursery, parent};
use crate::support::{Harness, Meanwhile, Reply, agent};

#[test]
fn a_killed_childs_reservation_is_returned_before_a_call_is_issued_and_settled_at_its_bound_after() {
    for is_issued in [false, true] {
        let harness = Harness::new();
        let price = Some(Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() });
        let mut work =
            parent(vec![("s", json!({"task": "one", "spend": "60", "detached": true}))], nursery(Vec::new()));
        work.price = price;
        let limits = Some(Limits { spend: Some("100".parse().unwrap()), ..Limits::default() });
        let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
        let thread = harness.engine.create(new, Vec::new()).unwrap();
        harness.send(&thread, Input::text("go"), &work).0.unwrap();
        let account = |thread: &ThreadId| harness.store.account(thread).unwrap().unwrap();
        assert_eq!((account(&thread).reserved, account(&thread).open), ("60".parse().unwrap(), 1));
        let child = harness.children_of(&thread)[0].thread_id.clone();
        let other = harness.another();
        if is_issued {
            let mut dying = agent(Vec::new(), Vec::new());
            dying.price = price;
            other.dies_after(Reason::Reserved, || other.resumed(&child, Input::nothing(), &dying));
        }
        let bound = account(&child).reserved;
        assert_eq!(bound > Money::ZERO, is_issued);
        harness.engine.recover().unwrap();
        harness.engine.stop(&child, Stop::Killed).unwrap();
        assert_eq!(harness.children_of(&thread)[0].status, Status::Killed);
        let own = account(&child);
        let above = account(&thread);
        assert_eq!((own.spent(), own.reserved, own.open), (bound, Money::ZERO, 0));
        assert_eq!((above.settled_children, above.reserved, above.open), (bound, Money::ZERO, 0));
        let tree = selvedge_engine::ledger::audit::tree(&*harness.store, &thread).unwrap();
        let found = selvedge_engine::ledger::audit::audit(&*harness.store, &harness.trust, &tree).unwrap().found;
        assert!(found.is_empty(), "{found:?}");
    }
}

/// With one child at a time the first one once got all the money: its parent was suspended at its next call.
#[test]
fn children_without_a_limit_of_their_own_leave_money_to_their_parent_and_to_the_next_child() {
    let harness = Harness::new();
    let price = Some(Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() });
    let calls = ["one", "two", "three"].map(|task| (task, json!({"task": task, "detached": true})));
    let mut work = parent(calls.to_vec(), nursery(Vec::new()));
    (work.price, work.spawning.as_mut().unwrap().at_once) = (price, 3);
    let limits = Some(Limits { spend: Some("100".parse().unwrap()), ..Limits::default() });
    let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Completed, "{ended:?}");
    let account = |thread: &ThreadId| harness.store.account(thread).unwrap().unwrap();
    let given: Vec<_> =
        harness.children_of(&thread).iter().map(|child| account(&child.thread_id).max.unwrap()).collect();
    // The cost of the parent's first call was spent before.
    let mut left = given[0].nanos() * 4;
    for share in &given {
        assert!((share.nanos() - left / 4).abs() <= 4, "{given:?}");
        left -= share.nanos();
    }
    assert!(account(&thread).remaining().unwrap() > "30".parse().unwrap());
    let tree = selvedge_engine::ledger::audit::tree(&*harness.store, &thread).unwrap();
    let found = selvedge_engine::ledger::audit::audit(&*harness.store, &harness.trust, &tree).unwrap().found;
    assert!(found.is_empty(), "{found:?}");
}

/// A child without money was once suspended, although it needed none.
#[test]
fn a_child_whose_model_costs_nothing_needs_no_money() {
    let harness = Harness::new();
    let mut nursery = nursery(vec![Reply::Says("three")]);
    nursery.price = Some(Price::default());
    let calls = ["one", "two", "three", "four"].map(|task| (task, json!({"task": task})));
    let mut work = parent(calls.to_vec(), nursery);
    (work.price, work.spawning.as_mut().unwrap().at_once) = (Some(Price::default()), 1);
    let limits = Some(Limits { spend: Some(Money::ZERO), ..Limits::default() });
    let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Completed, "{ended:?}");
    for child in harness.children_of(&thread) {
        assert_eq!((child.status, child.limits.unwrap().spend), (Status::Completed, Some(Money::ZERO)));
    }
    let tree = selvedge_engine::ledger::audit::tree(&*harness.store, &thread).unwrap();
    let found = selvedge_engine::ledger::audit::audit(&*harness.store, &harness.trust, &tree).unwrap().found;
    assert!(found.is_empty(), "{found:?}");
}

/// The batch once failed, and what it recorded about the child was committed with the end of the run: a child that did not exist, and money
/// reserved for it for ever.
#[test]
fn a_child_whose_batch_failed_is_recorded_nowhere_and_nothing_is_reserved_for_it() {
    let harness = Harness::new();
    let price = Some(Price { input: "1000".parse().unwrap(), output: "1000".parse().unwrap(), ..Price::default() });
    let mut nursery = nursery(vec![Reply::Says("three")]);
    nursery.price = price;
    let mut work = parent(vec![("s", json!({"task": "count", "spend": "60"}))], nursery);
    work.price = price;
    let limits = Some(Limits { spend: Some("100".parse().unwrap()), ..Limits::default() });
    let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    harness.store.refuse(Some(Reason::ToolIntentCommitted));
    let ended = harness.send(&thread, Input::text("go"), &work).0;
    assert!(ended.is_err() || ended.unwrap().status != Status::Completed);
    harness.store.refuse(None);
    let is_of_child = |line: &selvedge_log::Line| matches!(line.event, Event::ChildSpawned(_) | Event::ToolIntent(_));
    let lines = harness.store.read(&thread, 0, 100).unwrap();
    assert!(!lines.iter().any(is_of_child), "{lines:?}");
    assert_eq!(harness.store.account(&thread).unwrap().unwrap().reserved, Money::ZERO);
    assert!(harness.children_of(&thread).is_empty());
    assert_eq!(harness.told(&thread, "s"), "interrupted: the run failed before this call was executed");
    let tree = selvedge_engine::ledger::audit::tree(&*harness.store, &thread).unwrap();
    let found = selvedge_engine::ledger::audit::audit(&*harness.store, &harness.trust, &tree).unwrap().found;
    assert!(found.is_empty(), "{found:?}");
}

/// Two processes that resumed a child at the same moment once ran it twice: the second waited for the first, and then ran the thread that
/// had ended.
#[test]
fn a_resume_of_a_thread_that_ends_meanwhile_runs_nothing() {
    let harness = Harness::new();
    let thread =
        harness.engine.create(NewThread::of(AgentId::new("scribe").unwrap()), vec![Message::text(Role::User, "go")]);
    let thread = thread.unwrap();
    let other = harness.another();
    let lease = harness.store.acquire(&thread, Acquire::default()).unwrap();
    let work = agent(vec![Reply::Says("three")], Vec::new());
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(|| other.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}));
        // It has seen that the thread has not ended, and waits.
        std::thread::sleep(Duration::from_millis(50));
        let first = harness.waiting(&thread).remove(0);
        let run = |meta, reason| {
            let mut changeset =
                Changeset { run_id: Some(RunId::new("r1").unwrap()), run_meta: Some(meta), ..Changeset::empty(reason) };
            let mut consumed = Vec::new();
            if reason == Reason::UserMessage {
                changeset.events.push(Event::RequestAnswered(Answered::applied(&first)));
                consumed.push((thread.clone(), first.id.clone()));
            }
            let part = Part::new(thread.clone(), Expect::Any, changeset);
            harness.store.commit(Batch { consumed, ..Batch::of(part.under(lease.epoch)) }).unwrap();
        };
        let meta = RunMeta::started(AgentId::new("scribe").unwrap(), "user").under_lease();
        run(meta.clone(), Reason::UserMessage);
        run(meta.finished("natural"), Reason::RunFinished);
        harness.store.release(&lease).unwrap();
        late.join().unwrap()
    });
    assert!(matches!(late, Err(selvedge_engine::Error::NotRunnable { .. })), "{late:?}");
    assert_eq!(harness.store.runs(&thread).unwrap().len(), 1);
}

/// The later one has checked while the thread could still be continued, and gets the lease afterwards.
#[test]
fn of_two_concurrent_resumes_the_later_one_resumes_the_successor() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let work = || agent(vec![Reply::Says("well")], Vec::new());
    harness.send(&thread, Input::text("go"), &work()).0.unwrap();
    let (sender, receiver) = mpsc::channel();
    let later: Meanwhile = Box::new(move |thread| {
        let thread = thread.clone();
        std::thread::spawn(move || {
            let resumed = other.engine.resume(&thread, Input::text("two"), work(), &Cancel::new(), &mut |_| {});
            sender.send(resumed).unwrap();
        });
        std::thread::sleep(Duration::from_millis(100));
    });
    *harness.store.before_handoff.lock().unwrap() = Some(later);
    let first = harness.resumed(&thread, Input::text("one"), &work());
    // It is served by the successor, or by one of its own; or the faster process holds the successor.
    let mut chain = vec![thread.clone(), first.thread_id];
    match receiver.recv().unwrap() {
        Ok(second) => chain.push(second.thread_id),
        Err(error) => assert_eq!(error.code(), "lease_held", "{error}"),
    }
    chain.dedup();
    let found = harness.store.chain(&thread).unwrap().into_iter().map(|link| link.manifest.thread_id);
    assert_eq!(found.collect::<Vec<_>>(), chain);
}

#[test]
fn a_thread_whose_successor_was_deleted_is_not_resumed_and_no_wait_lasts_for_ever() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("well")], Vec::new());
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let next = harness.resumed(&thread, Input::text("one"), &work).thread_id;
    selvedge_store::Commit::delete(&*harness.store, &next).unwrap();
    for input in [Input::text("two"), Input::nothing()] {
        let refused = harness.engine.resume(&thread, input, &work, &Cancel::new(), &mut |_| {}).unwrap_err();
        assert_eq!(refused.code(), "thread_deleted", "{refused}");
        assert!(refused.to_string().contains(next.as_str()), "{refused}");
    }
}

#[test]
fn a_thread_whose_chain_leads_nowhere_is_reported_as_damaged_and_not_as_lacking_a_message() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("one")], Vec::new());
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let to = Handoff {
        new_thread_id: thread.clone(),
        reason: None,
        directive: None,
        trailing_turns: 0,
        details: Default::default(),
    };
    let changeset = Changeset { events: vec![Event::ThreadHandoff(to)], ..Changeset::empty(Reason::Lifecycle) };
    harness.store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, changeset))).unwrap();
    for input in [Input::text("again"), Input::nothing()] {
        let error = harness.engine.resume(&thread, input, &work, &Cancel::new(), &mut |_| {}).unwrap_err();
        assert_eq!((error.code(), error.kind()), ("chain_damaged", Kind::Integrity), "{error}");
        assert!(error.to_string().contains("leads in a circle"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("`selvedge reindex`")), "{error:?}");
    }
}
