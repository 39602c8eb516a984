//! How a thread is created: once, at version 0.

use selvedge_model::event::{ThreadCreated, ThreadKind};
use selvedge_model::limits::Limits;
use selvedge_model::{Batch, Changeset, Event, Expect, Message, NewThread, Part, Role, Status, ThreadId};
use serde_json::json;

use super::Harness;
use super::support::*;
use crate::contract::{Acquire, Commit, Leases, Logs, Registry};
use crate::error::Error;

/// A thread begins with its creation and a checkpoint, at version 0.
pub fn a_created_thread_is_at_version_zero<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread: ThreadId = id("scribe-0123456789ab");
    let committed = commit(&store, Batch::of(birth(&thread, new_thread())));
    assert_eq!(committed.versions, [(thread.clone(), 0)], "creation is version 0");
    assert!(!committed.replayed, "nothing was committed before");
    let head = store.head(&thread).unwrap();
    assert_eq!((head.version, head.lines), (0, 2), "creation and checkpoint are two lines");
    let lines = lines_of(&store, &thread);
    let [created, checkpoint] = &lines[..] else { panic!("a creation is two lines: {lines:?}") };
    assert!(matches!(&created.event, Event::ThreadCreated(born) if born.log_id == head.log_id), "{created:?}");
    assert!(matches!(&checkpoint.event, Event::Checkpoint(end) if end.version == 0), "{checkpoint:?}");
    assert_eq!(store.get(&thread).unwrap().version, 0);
    verified(&store, &harness.trust(), &thread);
}

/// Registry and log have the fields of a new thread as its creator gave them.
pub fn a_manifest_has_the_fields_its_creator_gave<H: Harness>(harness: &H) {
    let store = harness.open();
    let parent = create(&store, "parent");
    let new = NewThread {
        kind: ThreadKind::Graph,
        directive: Some(id("agency/discover_leads")),
        parent_id: Some(parent.clone()),
        task_id: Some(id("task 7")),
        title: Some("Leads".to_owned()),
        model: Some("scripted".to_owned()),
        inputs: serde_json::from_value(json!({"city": "Łódź", "n": 3})).unwrap(),
        limits: Some(Limits { turns: Some(3), ..Limits::default() }),
        capabilities: Some(Vec::new()),
        ..NewThread::of(id("kiwi"))
    };
    let thread = create_as(&store, "child", new.clone());
    let manifest = store.get(&thread).unwrap().manifest;
    assert_eq!((&manifest.thread_id, manifest.status), (&thread, Status::Created));
    assert_eq!((manifest.kind, &manifest.agent_id, &manifest.directive), (new.kind, &new.agent_id, &new.directive));
    assert_eq!((&manifest.parent_id, &manifest.task_id), (&new.parent_id, &new.task_id));
    assert_eq!((&manifest.title, &manifest.model, &manifest.inputs), (&new.title, &new.model, &new.inputs));
    assert_eq!((&manifest.limits, &manifest.capabilities), (&new.limits, &new.capabilities), "an empty list is kept");
    assert_eq!(manifest.chain_root_id, thread, "a thread that continues nothing is its chain's root");
    assert_eq!(manifest.created_at, manifest.updated_at);
    assert_eq!(loaded(&store, &harness.trust(), &thread).manifest, manifest, "the log has the same");
    let lines = lines_of(&store, &thread);
    let Event::ThreadCreated(born) = &lines[0].event else { panic!("{:?}", lines[0]) };
    let ThreadCreated { format, segment, thread: said, .. } = &**born;
    assert_eq!((*format, *segment, said), (selvedge_log::writer::FORMAT, 0, &new));
}

/// An id names one thread.
pub fn a_second_birth_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "once");
    append(&store, &thread, says("hello"));
    leaves_no_trace(&store, &[&thread], || {
        let again = Batch::of(birth(&thread, NewThread::of(id("other"))));
        assert_refused!(store.commit(again), Error::Exists(found) if found == thread, "a second creation");
    });
    assert_eq!(append(&store, &thread, empty()), 2);
}

/// A caller that creates a thread whose id is taken gets that error, and not one that suggests waiting.
pub fn a_second_birth_is_refused_as_such_while_the_thread_is_leased<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "held");
    let _lease = other.acquire(&thread, Acquire::default()).unwrap();
    let again = Batch::of(birth(&thread, new_thread()));
    assert_refused!(store.commit(again), Error::Exists(_), "a second creation while the thread is leased");
}

/// A new thread can't be expected at a version.
pub fn a_birth_that_expects_a_version_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread: ThreadId = id("new");
    for expect in [Expect::Exact(0), Expect::Exact(7), Expect::Any] {
        let odd = Part::new(thread.clone(), expect, Changeset::creating(new_thread()));
        assert_refused!(store.commit(Batch::of(odd)), Error::BadBirth, "a creation with {expect:?}");
        assert_refused!(store.get(&thread), Error::NoThread(_), "the thread must not exist");
    }
}

/// A thread is created by its first changeset and by no other.
pub fn a_birth_into_a_thread_that_lives_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "alive");
    leaves_no_trace(&store, &[&thread], || {
        for expect in [Expect::Exact(0), Expect::Any] {
            let odd = Part::new(thread.clone(), expect, Changeset::creating(new_thread()));
            assert_refused!(store.commit(Batch::of(odd)), Error::BadBirth, "a creation with {expect:?}");
        }
    });
}

/// An append never creates a thread.
pub fn an_append_to_a_missing_thread_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread: ThreadId = id("missing");
    for expect in [Expect::Any, Expect::Exact(0), Expect::Exact(1), Expect::Absent] {
        let lost = Part::new(thread.clone(), expect, says("hello?"));
        assert_refused!(store.commit(Batch::of(lost)), Error::NoThread(_), "an append with {expect:?}");
    }
    assert_refused!(store.get(&thread), Error::NoThread(_), "the thread must not exist");
}

/// Of two creations of one id, one wins.
pub fn of_two_births_at_once_one_wins<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    for round in 0..5 {
        let thread: ThreadId = id(&format!("race-{round}"));
        let results = at_once(2, |worker| {
            let new = NewThread { title: Some(worker.to_string()), ..new_thread() };
            with_retries(|| stores[worker].commit(Batch::of(birth(&thread, new.clone()))))
        });
        let winner = results.iter().position(Result::is_ok).expect("one must win");
        assert_refused!(&results[1 - winner], Error::Exists(_), "the other creation");
        let title = stores[1 - winner].get(&thread).unwrap().manifest.title;
        assert_eq!(title, Some(winner.to_string()), "the winner's thread exists");
        verified(&stores[0], &harness.trust(), &thread);
    }
}

/// A first changeset may have messages and a state: a handoff does.
pub fn a_birth_may_bring_messages_and_state<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread: ThreadId = id("carried");
    let changeset = Changeset {
        snapshot: Some(json!({"list": [1]})),
        messages: vec![Message::text(Role::User, "go on").with_id(id("m1")), Message::text(Role::Assistant, "yes")],
        ..Changeset { created: Some(new_thread()), ..patches([push("list", json!(2))]) }
    };
    commit(&store, Batch::of(Part::new(thread.clone(), Expect::Absent, changeset)));
    let found = loaded(&store, &harness.trust(), &thread);
    assert_eq!((found.version, found.messages.len()), (Some(0), 2));
    assert_eq!(found.state, json!({"list": [1, 2]}));
    append(&store, &thread, says_as("m1", "go on"));
    append(&store, &thread, patches([push("list", json!(3))]));
    let found = loaded(&store, &harness.trust(), &thread);
    assert_eq!(
        (found.messages.len(), found.state),
        (2, json!({"list": [1, 2, 3]})),
        "later appends know the first changeset"
    );
}

/// Ids that look alike, ids with slashes and the longest ids are distinct threads.
pub fn ids_at_their_limits_are_kept_apart<H: Harness>(harness: &H) {
    let store = harness.open();
    let long = "x".repeat(200);
    let names = ["a", "a/b", "a-b", "a_b", "a.b", "ab", "a/b/c", "a/b-c", "_", "0", "con", &long, &long[..199]];
    for name in names {
        create(&store, name);
    }
    for name in names {
        append(&store, &id(name), says(name));
    }
    for name in names {
        let found = loaded(&store, &harness.trust(), &id(name));
        let texts: Vec<_> = found.messages.iter().map(Message::plain_text).collect();
        assert_eq!((found.version, texts), (Some(1), vec![name.to_owned()]), "`{name}` has its own log");
    }
}
