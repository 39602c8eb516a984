//! Chains, trees and waiting, with real processes.

use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::event::{Fields, Handoff, Predecessor, SuspendReason, Suspended};
use selvedge_model::{
    AgentId, Batch, CallId, Changeset, Event, Expect, Message, NewThread, Part, Reason, Role, RunId, RunMeta,
    RunStatus, ThreadId,
};
use selvedge_store::{Acquire, Commit, Lease, Leases, Logs};
use selvedge_store_local::LocalStore;

use crate::support::{Ran, Sandbox};

fn new() -> NewThread {
    NewThread::of(AgentId::new("scribe").unwrap())
}

fn meta() -> RunMeta {
    RunMeta::started(AgentId::new("scribe").unwrap(), "user").under_lease()
}

fn of_run(meta: Option<RunMeta>, reason: Reason) -> Changeset {
    Changeset { run_id: Some(RunId::new("r1").unwrap()), run_meta: meta, ..Changeset::empty(reason) }
}

/// A store in this process, as another program would have it, with threads that it runs.
struct Runner(LocalStore);

impl Runner {
    fn start(&self, thread: &ThreadId) -> Lease {
        let lease = self.0.acquire(thread, Acquire::default()).unwrap();
        self.commit(&lease, of_run(Some(meta()), Reason::UserMessage));
        lease
    }

    fn commit(&self, lease: &Lease, changeset: Changeset) {
        let part = Part::new(lease.thread.clone(), Expect::Any, changeset).under(lease.epoch);
        self.0.commit(Batch::of(part)).unwrap();
    }

    fn create(&self, name: &str, thread: NewThread) -> ThreadId {
        let id = ThreadId::new(name).unwrap();
        self.0.commit(Batch::of(Part::new(id.clone(), Expect::Absent, Changeset::creating(thread)))).unwrap();
        id
    }

    fn says(&self, lease: &Lease, text: &str) {
        let messages = vec![Message::text(Role::Assistant, text)];
        self.commit(lease, Changeset { messages, ..of_run(None, Reason::AssistantTurnCommitted) });
    }

    fn finish(&self, lease: &Lease, code: &str) {
        self.commit(lease, of_run(Some(meta().finished(code)), Reason::RunFinished));
        self.0.release(lease).unwrap();
    }

    fn hand_off(&self, lease: &Lease, to: &str) -> ThreadId {
        let from = &lease.thread;
        let to = ThreadId::new(to).unwrap();
        let head = self.0.head(from).unwrap();
        let predecessor = Predecessor { thread_id: from.clone(), version: head.version, hash: head.hash };
        let handoff = Handoff {
            new_thread_id: to.clone(),
            reason: None,
            directive: None,
            trailing_turns: 4,
            details: Fields::new(),
        };
        let settling = Changeset {
            events: vec![Event::ThreadHandoff(handoff)],
            ..of_run(Some(meta().finished("continued")), Reason::RunFinished)
        };
        let born = NewThread { continuation_of: Some(predecessor), chain_root_id: Some(from.clone()), ..new() };
        let settling = Part::new(from.clone(), Expect::Exact(head.version), settling).under(lease.epoch);
        let mut both = Batch::of(settling);
        both.parts.push(Part::new(to.clone(), Expect::Absent, Changeset::creating(born)));
        self.0.commit(both).unwrap();
        self.0.release(lease).unwrap();
        to
    }
}

fn house() -> (Sandbox, Runner) {
    let sandbox = Sandbox::new();
    let runner = Runner(sandbox.open());
    (sandbox, runner)
}

fn spawn(sandbox: &Sandbox, args: &[&str]) -> Child {
    let child = sandbox.command(args).spawn().unwrap();
    // Time enough to begin; if it is not, the test only shows less.
    thread::sleep(Duration::from_millis(700));
    child
}

#[test]
fn a_wait_for_the_first_thread_returns_the_answer_of_the_last() {
    let (sandbox, runner) = house();
    let a = runner.create("a", new());
    let lease = runner.start(&a);
    let waiting = spawn(&sandbox, &["wait", "a", "--timeout", "60", "--json"]);
    let lease = runner.start(&runner.hand_off(&lease, "b"));
    let lease = runner.start(&runner.hand_off(&lease, "c"));
    runner.says(&lease, "found it");
    runner.finish(&lease, "natural");
    let ended = Instant::now();
    let ran = Ran::of(waiting);
    assert!(ended.elapsed() < Duration::from_secs(30), "it was not woken");
    let shown = ran.json();
    assert_eq!((ran.code, &shown["success"]), (Some(0), &true.into()));
    let outcome = &shown["results"]["a"];
    assert_eq!((&outcome["status"], &outcome["thread_id"]), (&"completed".into(), &"c".into()));
    assert_eq!(outcome["result"], "found it");
    let chain = sandbox.run(&["chain", "b", "--json"]).json();
    assert_eq!(chain["chain_length"], 3);
    assert_eq!(chain["chain"][0]["continued"]["how"], "handoff");
    assert_eq!(chain["chain"][0]["continued"]["trailing_turns"], 4);
    let found = sandbox.run(&["chain", "search", "a", "FOUND", "--json"]).json();
    assert_eq!((&found["results"][0]["thread_id"], &found["truncated"]), (&"c".into(), &false.into()));
    let shown = sandbox.run(&["chain", "search", "a", "f.und", "--regex"]);
    assert!(shown.stdout.contains("found it"), "{shown:?}");
    sandbox.run(&["chain", "search", "a", "(", "--regex", "--json"]).error(2, "invalid_pattern");
    assert!(sandbox.run(&["chain", "a"]).stdout.contains("handoff, 4 turns carried"));
}

#[test]
fn a_wait_ends_as_the_thread_ended() {
    let (sandbox, runner) = house();
    for (name, code, exit, word) in
        [("failed", "error", 1, "run_failed"), ("stopped", "cancelled", 130, "run_cancelled")]
    {
        let lease = runner.start(&runner.create(name, new()));
        runner.finish(&lease, code);
        sandbox.run(&["wait", name, "--json"]).error_beside_data(exit, word);
    }
    for (name, reason, exit, word) in [
        ("asks", SuspendReason::OutcomeUnknown, 7, "outcome_unknown"),
        ("spent", SuspendReason::Budget, 8, "limit_reached"),
    ] {
        let lease = runner.start(&runner.create(name, new()));
        let calls = vec![CallId::new("c1").unwrap()];
        let events = vec![Event::Suspended(Suspended { calls, ..Suspended::because(reason, "spend_exceeded") })];
        let waits = RunMeta { status: RunStatus::Waiting, ..meta() };
        runner.commit(&lease, Changeset { events, ..of_run(Some(waits), Reason::RunFinished) });
        sandbox.run(&["wait", name, "--json"]).error_beside_data(exit, word);
    }
    let on = runner.create("on", new());
    let _lease = runner.start(&on);
    let ran = sandbox.run(&["wait", "on", "failed", "--timeout", "0.2", "--json"]);
    let error = ran.error_beside_data(1, "wait_timeout");
    assert_eq!(error["retryable"], true);
    sandbox.run(&["wait", "missing", "--json"]).error(3, "thread_not_found");
    drop(runner);
    sandbox.run(&["wait", "on", "--json"]).error_beside_data(1, "thread_stalled");
}

#[test]
fn a_tree_shows_chains_and_children_and_follows_until_nothing_runs() {
    let (sandbox, runner) = house();
    let parent = runner.create("parent", new());
    let lease = runner.start(&parent);
    let child = runner.create("child", NewThread { parent_id: Some(parent), ..new() });
    let below = runner.start(&child);
    let following = spawn(&sandbox, &["tree", "parent", "--follow", "--json"]);
    runner.finish(&below, "error");
    thread::sleep(Duration::from_millis(700));
    runner.finish(&lease, "natural");
    let ran = Ran::of(following);
    let records = ran.records();
    let first = &records[0];
    let last = &records[records.len() - 1];
    assert!(records.len() >= 2, "{ran:?}");
    assert_eq!((&first["status"], &last["status"]), (&"running".into(), &"completed".into()));
    assert_eq!(last["children"][0]["status"], "error");
    let shown = sandbox.run(&["tree", "parent"]);
    assert!(shown.stdout.contains("└─ child error"), "{shown:?}");
}
