//! Waiting for threads, and their outcomes: over chains that grow, in other processes, and past damaged links.

use std::thread;
use std::time::{Duration, Instant};

use selvedge_engine::Input;
use selvedge_engine::outcome::{Outcome, aggregate_results, get_status};
use selvedge_engine::thread_state::{ThreadState, list_active};
use selvedge_engine::wait::wait_threads;
use selvedge_log::{Signer, Trust};
use selvedge_model::event::{Fields, Handoff, ManifestChanged, Predecessor, SuspendReason, Suspended};
use selvedge_model::{
    Batch, Cancel, Changeset, Event, Message, NewThread, Reason, Role, RunMeta, RunStatus, Status, Stop, ThreadId,
};
use selvedge_store::conformance::support::{
    SeededIds, append, batch, birth, create, create_as, finishes, id, new_thread, part, part_at, records, starts,
    with_event,
};
use selvedge_store::memory::MemoryStore;
use selvedge_store::{Acquire, Commit, Lease, Leases, Logs, Registry};
use serde_json::json;

use crate::chains::small;
use crate::support::{Harness, Meanwhile, NoProcesses, clock};

const LONG: Duration = Duration::from_secs(20);
const BRIEFLY: Duration = Duration::from_millis(60);

pub(crate) fn memory() -> MemoryStore {
    let ids = SeededIds::new(1);
    MemoryStore::new(Signer::generate(&ids), Box::new(clock()), Box::new(ids))
}

/// The keys that are trusted in [`memory`].
pub(crate) fn trust() -> Trust {
    Trust::of(&[Signer::generate(&SeededIds::new(1)).public()])
}

/// A thread that is running.
struct Running<'a> {
    store: &'a MemoryStore,
    lease: Lease,
}

impl<'a> Running<'a> {
    fn take(store: &'a MemoryStore, thread: &ThreadId) -> Self {
        let lease = store.acquire(thread, Acquire::default()).unwrap();
        Self { store, lease }
    }

    fn start(store: &'a MemoryStore, thread: &ThreadId, run: &str) -> Self {
        let running = Self::take(store, thread);
        running.commit(starts(run));
        running
    }

    fn thread(&self) -> &ThreadId {
        &self.lease.thread
    }

    fn commit(&self, changeset: Changeset) {
        self.store.commit(Batch::of(part(self.thread(), changeset).under(self.lease.epoch))).unwrap();
    }

    fn answer(&self, run: &str, text: &str) {
        let messages = vec![Message::text(Role::Assistant, text)];
        let reason = Reason::AssistantTurnCommitted;
        self.commit(Changeset { run_id: Some(id(run)), messages, ..Changeset::empty(reason) });
    }

    fn end(self, run: &str, code: &str) {
        self.commit(finishes(run, code));
        self.store.release(&self.lease).unwrap();
    }

    /// Hands the thread off, as a run does: one batch, then the lease is released.
    fn hand_off(self, run: &str, to: &str) -> ThreadId {
        let to = id(to);
        self.store.commit(handing_off(self.store, self.thread(), run, &to, Some(self.lease.epoch))).unwrap();
        self.store.release(&self.lease).unwrap();
        to
    }
}

fn handing_off(store: &MemoryStore, from: &ThreadId, run: &str, to: &ThreadId, epoch: Option<u64>) -> Batch {
    let head = store.head(from).unwrap();
    let manifest = store.get(from).unwrap().manifest;
    let new = NewThread {
        continuation_of: Some(Predecessor { thread_id: from.clone(), version: head.version, hash: head.hash }),
        chain_root_id: Some(manifest.chain_root_id),
        parent_id: manifest.parent_id,
        ..new_thread()
    };
    let settling = Changeset { events: vec![Event::ThreadHandoff(handoff(to))], ..finishes(run, "continued") };
    let settling = part_at(from, head.version, settling);
    batch([epoch.map_or(settling.clone(), |epoch| settling.under(epoch)), birth(to, new)])
}

pub(crate) fn handoff(to: &ThreadId) -> Handoff {
    let details = [("kept".to_owned(), json!(3))].into_iter().collect::<Fields>();
    Handoff { new_thread_id: to.clone(), reason: None, directive: None, trailing_turns: 2, details }
}

fn wait_for(store: &MemoryStore, thread: &ThreadId) -> Outcome {
    let waited = wait_threads(store, &trust(), &NoProcesses::default(), std::slice::from_ref(thread), LONG).unwrap();
    waited.results[thread].clone()
}

#[test]
fn waiting_for_a_while_it_continues_as_b_and_c_gives_the_outcome_of_c() {
    let runner = memory();
    let other = runner.another();
    let a = create(&runner, "a");
    let running = Running::start(&runner, &a, "r1");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_for(&other, &a));
        thread::sleep(BRIEFLY);
        let b = running.hand_off("r1", "b");
        thread::sleep(BRIEFLY);
        let running = Running::start(&runner, &b, "r2");
        thread::sleep(BRIEFLY);
        let c = running.hand_off("r2", "c");
        let running = Running::start(&runner, &c, "r3");
        running.answer("r3", "found it");
        running.commit(with_event(Event::ManifestChanged(ManifestChanged {
            outputs: Some(json!({"leads": 15})),
            ..ManifestChanged::default()
        })));
        assert!(!waiting.is_finished(), "the end of the chain has not ended");
        running.end("r3", "natural");
        let outcome = waiting.join().unwrap();
        assert_eq!((outcome.status, &outcome.thread_id), (ThreadState::Is(Status::Completed), &c));
        assert_eq!((outcome.result.as_deref(), &outcome.outputs), (Some("found it"), &Some(json!({"leads": 15}))));
    });
    // Afterwards any link gives the same.
    for link in ["a", "b", "c"] {
        let outcome = wait_for(&other, &id(link));
        assert_eq!(
            (outcome.status, outcome.thread_id.as_str()),
            (ThreadState::Is(Status::Completed), "c"),
            "waiting on {link}"
        );
        assert_eq!(outcome.result.as_deref(), Some("found it"));
    }
}

#[test]
fn every_way_to_end_ends_a_wait() {
    let store = memory();
    let ended = |code: &str, outcome: Option<Status>| RunMeta {
        outcome,
        ..RunMeta::started(id("scribe"), "user").finished(code)
    };
    let waits = RunMeta { status: RunStatus::Waiting, ..RunMeta::started(id("scribe"), "user") };
    let cases = [
        (ended("natural", None), ThreadState::Is(Status::Completed)),
        (ended("natural", Some(Status::CompletedWithErrors)), ThreadState::Is(Status::CompletedWithErrors)),
        (ended("error", None), ThreadState::Is(Status::Error)),
        (ended("cancelled", None), ThreadState::Is(Status::Cancelled)),
        (ended("killed", None), ThreadState::Is(Status::Killed)),
        (waits, ThreadState::Is(Status::Suspended)),
    ];
    for (number, (meta, expected)) in cases.into_iter().enumerate() {
        let thread = create(&store, &format!("t{number}"));
        let running = Running::start(&store, &thread, "r1");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| wait_for(&store, &thread));
            thread::sleep(Duration::from_millis(20));
            let mut last = Changeset { reason: Reason::RunFinished, ..records("r1", meta) };
            if expected == ThreadState::Is(Status::Suspended) {
                last.events.push(Event::Suspended(Suspended::because(SuspendReason::Budget, "spend_exceeded")));
            }
            running.commit(last);
            let outcome = waiting.join().unwrap();
            assert_eq!(outcome.status, expected);
            let reason = outcome.suspended.map(|why| why.reason);
            assert_eq!(reason, (expected == ThreadState::Is(Status::Suspended)).then_some(SuspendReason::Budget));
        });
        assert_eq!(wait_for(&store, &thread).status, expected, "and a later wait gives the same");
    }
}

#[test]
fn a_wait_ends_with_the_run_that_was_active_whatever_runs_next() {
    let store = memory();
    let thread = create(&store, "busy");
    let running = Running::start(&store, &thread, "r1");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_for(&store, &thread));
        thread::sleep(BRIEFLY);
        running.answer("r1", "one");
        running.commit(finishes("r1", "natural"));
        // The next message is being answered before a waiter can have checked.
        running.commit(starts("r2"));
        running.answer("r2", "two");
        let outcome = waiting.join().unwrap();
        assert_eq!((outcome.status, outcome.result.as_deref()), (ThreadState::Is(Status::Completed), Some("one")));
        assert_eq!(store.get(&thread).unwrap().manifest.status, Status::Running);
    });
}

#[test]
fn a_run_that_ended_before_its_thread_was_resumed_is_not_the_one_that_continues() {
    let store = memory();
    let thread = create(&store, "resumed");
    let running = Running::start(&store, &thread, "r1");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_for(&store, &thread));
        thread::sleep(BRIEFLY);
        running.answer("r1", "the answer");
        running.commit(finishes("r1", "natural"));
        let to = id("resumed-2");
        let head = store.head(&thread).unwrap();
        let before = Predecessor { thread_id: thread.clone(), version: head.version, hash: head.hash };
        let resumed = part(&thread, with_event(Event::ThreadResumed(handoff(&to)))).under(running.lease.epoch);
        let born = birth(&to, NewThread { continuation_of: Some(before), ..new_thread() });
        store.commit(batch([resumed, born])).unwrap();
        let _next = Running::start(&store, &to, "r2");
        let outcome = waiting.join().unwrap();
        assert_eq!(
            (outcome.status, outcome.result.as_deref()),
            (ThreadState::Is(Status::Completed), Some("the answer"))
        );
    });
}

#[test]
fn a_run_whose_process_is_gone_is_stalled() {
    let store = memory();
    let doomed = store.another();
    let thread = create(&store, "orphan");
    Running::start(&doomed, &thread, "r1");
    let began = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_for(&store, &thread));
        thread::sleep(BRIEFLY);
        assert!(!waiting.is_finished());
        drop(doomed);
        let outcome = waiting.join().unwrap();
        assert_eq!((outcome.status, outcome.thread_id), (ThreadState::Stalled, thread.clone()));
        assert!(outcome.why.unwrap().contains("gone"));
    });
    assert!(began.elapsed() < LONG / 4, "it took {:?}", began.elapsed());
    assert_eq!(get_status(&store, &trust(), &thread).unwrap().status, ThreadState::Stalled);
}

#[test]
fn a_successor_without_a_process_is_stalled_and_one_that_may_be_started_is_waited_for() {
    let store = memory();
    let parent = "parent";
    let doomed = store.another();
    let a = create(&store, "cut");
    let b = Running::start(&doomed, &a, "r1").hand_off("r1", "cut-2");
    drop(doomed);
    let outcome = wait_for(&store, &a);
    assert_eq!((outcome.status, outcome.thread_id), (ThreadState::Stalled, b));
    // A child that waits for a slot: the process of its parent is alive.
    let parent = create(&store, parent);
    let _parent = Running::start(&store, &parent, "r1");
    let child = create_as(&store, "child", NewThread { parent_id: Some(parent), ..new_thread() });
    let brief = Duration::from_millis(2_500);
    let waited = wait_threads(&store, &trust(), &NoProcesses::default(), std::slice::from_ref(&child), brief).unwrap();
    assert_eq!(waited.results[&child].status, ThreadState::Timeout);
}

#[test]
fn the_timeout_is_kept_and_several_threads_are_waited_for_at_once() {
    let store = memory();
    let done = create(&store, "done");
    let running = create(&store, "on");
    let missing: ThreadId = id("no");
    append(&store, &done, finishes("r1", "natural"));
    let held = Running::start(&store, &running, "r1");
    held.answer("r1", "not yet");
    let gone = create(&store, "gone");
    store.delete(&gone).unwrap();
    let all = [done.clone(), running.clone(), missing.clone(), gone.clone()];
    let began = Instant::now();
    let waited = wait_threads(&store, &trust(), &NoProcesses::default(), &all, Duration::from_millis(300)).unwrap();
    assert!((Duration::from_millis(300)..Duration::from_secs(5)).contains(&began.elapsed()), "{:?}", began.elapsed());
    let status = |thread: &ThreadId| waited.results[thread].status;
    assert_eq!(
        all.each_ref().map(status),
        [ThreadState::Is(Status::Completed), ThreadState::Timeout, ThreadState::NotFound, ThreadState::Deleted]
    );
    assert!(!waited.success);
    assert_eq!(waited.results[&running].result.as_deref(), Some("not yet"), "the text so far");
    // A wait without time, and a cancelled wait, return at once.
    let began = Instant::now();
    wait_threads(&store, &trust(), &NoProcesses::default(), &all, Duration::ZERO).unwrap();
    let harness = Harness::new();
    let running = harness.thread();
    let inner = &harness.store.inner;
    let held = Running::start(inner, &running, "r1");
    let cancel = Cancel::new();
    let stopped = thread::scope(|scope| {
        let waiting = scope.spawn(|| harness.engine.wait(std::slice::from_ref(&running), LONG, &cancel).unwrap());
        thread::sleep(BRIEFLY);
        assert!(!waiting.is_finished());
        cancel.say(Stop::Cancelled);
        waiting.join().unwrap()
    });
    drop(held);
    assert_eq!(stopped.results[&running].status, ThreadState::Interrupted);
    assert!(began.elapsed() < LONG / 4);
    assert!(wait_threads(&store, &trust(), &NoProcesses::default(), &[done], LONG).unwrap().success);
}

#[test]
fn a_thread_that_is_deleted_ends_the_wait_for_it() {
    let store = memory();
    let thread = create(&store, "doomed");
    // It might still be started.
    let lease = store.acquire(&thread, Acquire::default()).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_for(&store, &thread));
        thread::sleep(BRIEFLY);
        store.release(&lease).unwrap();
        store.delete(&thread).unwrap();
        let outcome = waiting.join().unwrap();
        assert_eq!((outcome.status, outcome.thread_id), (ThreadState::Deleted, thread.clone()));
    });
}

#[test]
fn chains_that_lead_in_a_circle_or_nowhere_end_every_query() {
    let store = memory();
    let settled = |name: &str| {
        let thread = create(&store, name);
        append(&store, &thread, finishes("r1", "natural"));
        thread
    };
    let own = settled("own");
    let one = settled("one");
    let two = settled("two");
    let lost = settled("lost");
    for (from, to) in [(&own, &own), (&one, &two), (&two, &one), (&lost, &id("missing"))] {
        append(&store, from, with_event(Event::ThreadHandoff(handoff(to))));
    }
    for thread in [&own, &one, &two, &lost] {
        let outcome = wait_for(&store, thread);
        assert_eq!(outcome.status, ThreadState::Stalled, "{thread}: {outcome:?}");
        assert!(outcome.why.is_some());
        assert_eq!(get_status(&store, &trust(), thread).unwrap().status, ThreadState::Stalled);
        let told = aggregate_results(&store, &trust(), std::slice::from_ref(thread)).unwrap();
        assert_eq!(told.results[thread].status, ThreadState::Stalled);
        let chain = selvedge_engine::chain::get_chain(&store, thread).unwrap();
        assert!(
            chain.chain_length <= 2 && chain.chain.iter().any(|link| link.outcome.thread_id == *thread),
            "{chain:?}"
        );
        selvedge_engine::chain::get_tree(&store, thread).unwrap();
        let query = selvedge_engine::search::Query {
            query: "anything".to_owned(),
            search_type: selvedge_engine::search::SearchType::Text,
            is_exact: false,
            max_results: 10,
        };
        assert!(selvedge_engine::search::chain_search(&store, &trust(), thread, &query).unwrap().results.is_empty());
    }
    // Two threads that are each other's parent.
    let (hen, egg) = (id::<ThreadId>("hen"), id::<ThreadId>("egg"));
    create_as(&store, "hen", NewThread { parent_id: Some(egg.clone()), ..new_thread() });
    create_as(&store, "egg", NewThread { parent_id: Some(hen.clone()), ..new_thread() });
    let tree = selvedge_engine::chain::get_tree(&store, &hen).unwrap();
    assert_eq!((tree.outcome.thread_id, tree.children.len(), tree.children[0].children.len()), (hen, 1, 0));
}

#[test]
fn a_wait_passes_through_deleted_threads() {
    let store = memory();
    let a = create(&store, "a");
    let b = Running::start(&store, &a, "r1").hand_off("r1", "b");
    let c = Running::start(&store, &b, "r2").hand_off("r2", "c");
    let running = Running::start(&store, &c, "r3");
    running.answer("r3", "here");
    running.end("r3", "natural");
    for gone in [&b, &a] {
        store.delete(gone).unwrap();
        for link in [&a, &b, &c] {
            let outcome = wait_for(&store, link);
            let expected = (ThreadState::Is(Status::Completed), &c, Some("here"));
            assert_eq!((outcome.status, &outcome.thread_id, outcome.result.as_deref()), expected, "{link}");
        }
    }
    store.delete(&c).unwrap();
    assert_eq!(wait_for(&store, &a).status, ThreadState::Deleted);
}

#[test]
fn threads_that_run_in_any_process_are_listed_and_stalled_ones_are_not() {
    let store = memory();
    let other = store.another();
    let doomed = store.another();
    let [here, elsewhere, orphan, idle] = ["here", "elsewhere", "orphan", "idle"].map(|name| create(&store, name));
    let _here = Running::start(&store, &here, "r1");
    let running = Running::start(&other, &elsewhere, "r1");
    Running::start(&doomed, &orphan, "r1");
    drop(doomed);
    append(&store, &idle, finishes("r1", "natural"));
    let listed = |store: &MemoryStore| {
        let active = list_active(store, &trust(), &NoProcesses::default()).unwrap();
        assert_eq!(active.count, active.active_threads.len());
        active.active_threads.into_iter().map(|active| active.thread_id).collect::<Vec<_>>()
    };
    for store in [&store, &other] {
        assert_eq!(listed(store), [elsewhere.clone(), here.clone()], "the newest first, in any process");
    }
    let shown = get_status(&store, &trust(), &elsewhere).unwrap();
    assert_eq!((shown.status, shown.holder), (ThreadState::Is(Status::Running), Some(running.lease.owner.clone())));
    running.end("r1", "natural");
    assert_eq!(listed(&store), std::slice::from_ref(&here));
    // A child that its parent has started and that has not run yet; one whose parent is not held has nothing that would run it.
    let child = id::<ThreadId>("child");
    store.commit(Batch::of(birth(&child, NewThread { parent_id: Some(here.clone()), ..new_thread() }))).unwrap();
    let left = id::<ThreadId>("left");
    store.commit(Batch::of(birth(&left, NewThread { parent_id: Some(idle.clone()), ..new_thread() }))).unwrap();
    let mut found = listed(&store);
    found.sort();
    assert_eq!(found, [child, here]);
    let missing = get_status(&store, &trust(), &id("missing")).unwrap();
    assert_eq!(missing.status, ThreadState::NotFound);
}

#[test]
fn outcomes_are_collected_without_waiting() {
    let store = memory();
    let a = create(&store, "a");
    let on = create(&store, "on");
    let b = Running::start(&store, &a, "r1").hand_off("r1", "b");
    let running = Running::start(&store, &b, "r2");
    running.answer("r2", "done so far");
    running.end("r2", "natural");
    let _on = Running::start(&store, &on, "r1");
    let told = aggregate_results(&store, &trust(), &[a.clone(), on.clone()]).unwrap();
    assert!(!told.success);
    assert_eq!((told.results[&a].status, &told.results[&a].thread_id), (ThreadState::Is(Status::Completed), &b));
    assert_eq!(told.results[&a].result.as_deref(), Some("done so far"));
    assert_eq!(told.results[&on].status, ThreadState::Is(Status::Running));
    let shown = serde_json::to_value(&told).unwrap();
    assert_eq!(shown["results"]["a"]["thread_id"], "b");
    assert_eq!(shown["results"]["on"]["status"], "running");
}

#[test]
fn a_cancel_that_comes_during_the_commit_of_a_handoff_is_not_lost() {
    let harness = Harness::new();
    let other = harness.another();
    let thread = harness.thread();
    let (work, _) = small(600, 100, 400);
    let cancels: Meanwhile = Box::new(move |thread| {
        // At that moment the thread was not continued yet.
        assert_eq!(other.engine.stop(thread, Stop::Cancelled).unwrap().status, Status::Running);
    });
    *harness.store.before_handoff.lock().unwrap() = Some(cancels);
    let ended = harness.send(&thread, Input::text("count"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Cancelled, "{ended:?}");
    assert_ne!(ended.thread_id, thread, "it reached the successor");
    assert_eq!(harness.store.chain(&thread).unwrap().len(), 2, "and that was the last");
}
